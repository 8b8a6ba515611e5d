"""Replaces methods of the product's classes for as long as a simulation runs.

A compiled class always calls its own methods, so it is refused, unless nothing is to be replaced. That makes runs of a
seed on compiled and on interpreted modules comparable: their histories are equal.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any
from unittest import mock

NOTHING = "KRAFTPY_CHAOS_REPLACES_NOTHING"
"""The environment variable for which nothing is replaced, in child processes too."""


def replaced(kind: type, name: str, function: Callable[..., Any]) -> AbstractContextManager[object]:
    """Put `function` in a method's place meanwhile. TypeError if the class is compiled."""
    if os.environ.get(NOTHING):
        return nullcontext()
    if not inspect.isfunction(getattr(kind, name)):
        raise TypeError(f"{kind.__qualname__} is compiled, so {name} cannot be replaced: use --replace-nothing")
    return mock.patch.object(kind, name, function)
