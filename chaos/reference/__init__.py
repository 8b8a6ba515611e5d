"""A perfect Kafka, in memory and without I/O, that makes histories in which nothing is wrong.

The checkers' tests judge its histories, plain and with an anomaly planted; `python -m chaos sample` shows a report of
one. Clients crash, transactions abort, members come and go, leaders change: everything that may happen does.
"""
