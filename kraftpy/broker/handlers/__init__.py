"""Request handlers, one module per family of APIs."""
