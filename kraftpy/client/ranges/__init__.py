"""Reads fixed ranges of offsets over blocking sockets, for Spark tasks and batch programs.

There is no event loop and no group. A reader knows its range, looks up metadata, leaders and connections for itself,
and turns records into columns of numbers.
"""
