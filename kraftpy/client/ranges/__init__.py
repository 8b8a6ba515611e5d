"""Reads fixed ranges of offsets over blocking sockets, for Spark tasks and batch programs.

There is no event loop and no group. A reader knows its range, finds leaders and opens connections on its own, and turns
records into columns of numbers.
"""
