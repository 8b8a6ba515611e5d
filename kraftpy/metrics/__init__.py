"""Metrics of a node: the counters that its hot paths keep, the table of all metrics, and the texts that monitors read.

    registry       the counters of one node, and collectors that other parts of the node add
    traffic        bytes and records by topic
    error_counts   the error codes in answers
    request_times  the parts of a request's time, by API
    histograms     distributions as a list of small integers
    catalogue      every metric with its type, its labels, its meaning and when to worry
    confluent      the names that other rules give them
    families       a page of metrics as text, in Prometheus's format and in OpenMetrics

Nothing here knows a broker or does I/O. `kraftpy.broker.metrics` reads a node's state when a monitor asks, and serves
the page. If `kraftpy.metrics.listener` is not set, nothing is counted, and only `registry` is ever imported.
"""
