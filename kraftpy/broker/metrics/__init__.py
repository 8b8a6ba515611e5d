"""The listener for monitors: metrics and health over HTTP, read from the node's state when they are asked for.

    server        HTTP and HTTPS: bounded connections, sizes and times
    login         Basic authentication against a file of users
    pages         the paths `/metrics`, `/livez`, `/readyz` and `/clusterz`
    scraping      makes a page of metrics in slices of the event loop
    checks        is it alive, ready, and is the cluster well
    loop_watch    how late the event loop is, and how busy

The other modules read one family of metrics each.
"""
