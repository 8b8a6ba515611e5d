"""Unexpected errors, planted in functions: they are raised before a call, or after it, by chance.

A `Garden` wraps functions; while it is armed, and the test says that the code under test is being stepped, each call of
one of them may raise `Planted`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import pytest

Place = tuple[Any, str]
"""A class or module, and the name of a function of it."""


class Planted(Exception):
    """An error that no code expects."""


class Garden:
    """Decides if and where errors are raised; `raised` counts them by place."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seed: int, places: Iterable[Place], likelihood: float) -> None:
        self.is_armed = True
        self.likelihood = likelihood
        self.raised: dict[str, int] = {}
        self._is_stepping = False
        self._chance = random.Random(seed)
        for place, name in places:
            monkeypatch.setattr(place, name, self._wrapped(f"{place.__name__}.{name}", getattr(place, name)))

    @property
    def count(self) -> int:
        """How many errors have come up."""
        return sum(self.raised.values())

    @contextmanager
    def stepping(self) -> Iterator[None]:
        """Errors may come up meanwhile."""
        self._is_stepping = True
        try:
            yield
        finally:
            self._is_stepping = False

    def _wrapped(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def wrapper(*arguments: Any, **named: Any) -> Any:
            dice = self._chance.random() if self.is_armed and self._is_stepping else 1.0
            if dice < self.likelihood / 2:
                self._raise(name)
            result = function(*arguments, **named)
            if dice < self.likelihood:
                self._raise(name)
            return result

        return wrapper

    def _raise(self, name: str) -> None:
        self.raised[name] = self.raised.get(name, 0) + 1
        raise Planted(name)
