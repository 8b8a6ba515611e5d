"""Clients' regular expressions in RE2 syntax, matched in linear time and bounded memory (KIP-848, KIP-1152).

A client's expression runs in the broker, so an engine that backtracks (such as Python's) would let any client stall it.
The library is `google-re2`; Kafka uses RE2/J, which has the same syntax. An expression must match the whole name. There
are no backreferences and no lookaround. Decision 23 explains the choice of library.

Limits: an expression has at most `MAX_CHARACTERS`. Its program, and the automaton built while matching, take at most
`MAX_MEMORY_BYTES`; beyond that the expression is refused, or matched without caching states. One compilation then takes
less than 5 ms and one name less than 4 ms. Both costs are counted in units of about 5 microseconds (`compile_units`,
`units`), so that callers can stop in time.

The library is imported when the first expression is compiled: a broker that never sees one does not load it.
"""

from __future__ import annotations

from typing import Any

MAX_CHARACTERS = 8_192
MAX_MEMORY_BYTES = 512 * 1024

FAILED_COMPILE_UNITS = 1_000
"""The maximum cost of a compilation: that of an expression whose program does not fit."""
_INSTRUCTIONS_PER_UNIT = 15
_STEPS_PER_UNIT = 1_500
_SHOWN_CHARACTERS = 100


class PatternError(ValueError):
    """The expression cannot be compiled; the message says why."""


class Pattern:
    """A compiled expression that matches whole names. Raises PatternError if it cannot be compiled."""

    __slots__ = ("_compiled", "_size")

    def __init__(self, text: str) -> None:
        if len(text) > MAX_CHARACTERS:
            raise PatternError(f"it has {len(text)} characters, more than the maximum of {MAX_CHARACTERS}")
        import re2

        options = re2.Options()
        options.max_mem = MAX_MEMORY_BYTES
        options.never_capture = True
        options.log_errors = False
        try:
            self._compiled: Any = re2.compile(text, options)
            self._size: int = self._compiled.programsize
        except re2.error as error:
            raise PatternError(_reason(error)) from None
        except UnicodeEncodeError:
            raise PatternError("it is not valid UTF-8") from None
        finally:
            re2.purge()  # the library would keep the last 128 expressions, regardless of size

    def matches(self, name: str) -> bool:
        """Return True if the expression matches the whole name."""
        try:
            return self._compiled.fullmatch(name) is not None
        except UnicodeEncodeError:
            return False

    @property
    def compile_units(self) -> int:
        """An upper bound on the units that compiling it took."""
        return 1 + self._size // _INSTRUCTIONS_PER_UNIT

    def units(self, name: str) -> int:
        """Return an upper bound on the units that matching this name takes."""
        return 1 + self._size * len(name) // _STEPS_PER_UNIT


def shown(text: str) -> str:
    """Return the beginning of an expression, for messages and the log."""
    return repr(text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}...")


def _reason(error: Exception) -> str:
    said = error.args[0] if error.args else ""
    text = said.decode("utf-8", "replace") if isinstance(said, bytes) else str(said)
    return text if len(text) <= 2 * _SHOWN_CHARACTERS else f"{text[: 2 * _SHOWN_CHARACTERS]}..."
