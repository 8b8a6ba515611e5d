"""Regular expressions of clients, in RE2's syntax, matched in linear time and bounded memory (KIP-848, KIP-1152).

A client's expression runs in the broker, so one that backtracks (Python's own) would let any client stop it. The
library is `google-re2`; Kafka uses RE2/J, which has the same syntax. A name matches if all of it does. There are no
backreferences and no lookaround. Decision 23 says why it is this library.

Bounds: an expression has at most `MAX_CHARACTERS`; its program and the automaton that matching builds take at most
`MAX_MEMORY_BYTES`, beyond which it is refused, or matched without remembering states. One compilation then takes less
than 5 ms and one name less than 4 ms. Both costs are counted in units of about 5 microseconds (`compile_units`,
`units`), so that callers can stop in time.

The library is imported when the first expression is compiled: a broker that is never asked does not load it.
"""

from __future__ import annotations

from typing import Any

MAX_CHARACTERS = 8_192
MAX_MEMORY_BYTES = 512 * 1024

FAILED_COMPILE_UNITS = 1_000
"""The most that compiling costs: of an expression whose program does not fit."""
_INSTRUCTIONS_PER_UNIT = 15
_STEPS_PER_UNIT = 1_500
_SHOWN_CHARACTERS = 100


class PatternError(ValueError):
    """The expression cannot be compiled; says why."""


class Pattern:
    """An expression that is ready to be matched against whole names. Raises PatternError if it cannot be compiled."""

    __slots__ = ("_compiled", "_size")

    def __init__(self, text: str) -> None:
        if len(text) > MAX_CHARACTERS:
            raise PatternError(f"it has {len(text)} characters; {MAX_CHARACTERS} are allowed")
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
            re2.purge()  # the library would keep the last 128 expressions, however large

    def matches(self, name: str) -> bool:
        """Whether all of the name is what the expression says."""
        try:
            return self._compiled.fullmatch(name) is not None
        except UnicodeEncodeError:
            return False

    @property
    def compile_units(self) -> int:
        """The most units that compiling it has cost."""
        return 1 + self._size // _INSTRUCTIONS_PER_UNIT

    def units(self, name: str) -> int:
        """The most units that matching this name costs."""
        return 1 + self._size * len(name) // _STEPS_PER_UNIT


def shown(text: str) -> str:
    """The beginning of an expression, for messages and the log."""
    return repr(text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}...")


def _reason(error: Exception) -> str:
    said = error.args[0] if error.args else ""
    text = said.decode("utf-8", "replace") if isinstance(said, bytes) else str(said)
    return text if len(text) <= 2 * _SHOWN_CHARACTERS else f"{text[: 2 * _SHOWN_CHARACTERS]}..."
