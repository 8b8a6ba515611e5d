"""Reads fixed ranges of offsets over blocking sockets, for Spark tasks and batch programs.

Has no event loop and no group: metadata, leaders and connections are found anew by a reader that knows its range, and
records become columns of numbers.
"""
