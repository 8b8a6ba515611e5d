"""The oldest Spark that this package works with, and what is said to an older one."""

from __future__ import annotations

import re

import pyspark

OLDEST = (4, 2)
"""The first version that gives a Python stream its limits. Before it, `availableNow` silently leaves records behind."""


class UnsupportedSparkError(RuntimeError):
    """PySpark is too old; the message says which one is needed."""


def check_version() -> None:
    """Raise UnsupportedSparkError if the installed PySpark is too old."""
    found = re.match(r"(\d+)\.(\d+)", pyspark.__version__)
    if found is not None and tuple(map(int, found.groups())) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise UnsupportedSparkError(
            f'format("kraftpy") needs PySpark {oldest} or later, this is {pyspark.__version__}: '
            "pip install --upgrade 'kraftpy[spark]', on the driver and the executors"
        )
