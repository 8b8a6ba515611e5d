"""The console's pages: a module for each family. A page is a function of a request that returns a response.

A page asks `request.app.state.console` for what it shows, and renders a template of the same name.
"""
