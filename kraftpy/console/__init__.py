"""The console: a cluster's pages in a browser, for any Kafka cluster.

It stands on the client and the diagnosis, and keeps no model of the cluster of its own: `cluster` asks, with answers
that live for seconds; `history` keeps the last half hour of rates and lags; `pages` has a module for each family of
pages; `app` puts them together. Pages are rendered on the server, and refresh their live parts with htmx.

Needs the extra `console`: the package without it must not import `app`.
"""
