"""Counts the error codes in answers, as Kafka's ErrorsPerSec does: every one of an answer, NONE too.

A function for each message class is made from its declaration, like its codec (decision 1), because each request pays
for it. It takes some 60 ns for each element of the message's lists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, cast

from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.schema import Array, Struct, fields

Errors = dict[int, int]
"""How often each code was there; a code that is not in it counts 0 (`defaultdict`)."""

_NONE = int(ErrorCode.NONE)


def count_errors(answer: object, errors: Errors) -> None:
    """Count the codes in an answer. None, and one that was encoded before, has none but NONE."""
    if isinstance(answer, Struct):
        counter(cast("type", type(answer)))(answer, errors)
    else:
        errors[_NONE] += 1


@cache
def counter(kind: type) -> Callable[[Any, Errors], None]:
    """Return the function that counts the codes in messages of a class."""
    lines = ["def count(m0, errors):", *_lines(kind, 0), "    return None"]
    made: dict[str, Any] = {}
    exec("\n".join(lines), made)
    return cast("Callable[[Any, Errors], None]", made["count"])


def _lines(kind: type, depth: int) -> Iterator[str]:
    indent = "    " * (depth + 1)
    for field in fields(kind):
        if field.name == "error_code":
            yield f"{indent}errors[m{depth}.error_code] += 1"
        elif isinstance(field.wire, Array) and field.struct is not None:
            inner = list(_lines(field.struct, depth + 1))
            if inner:
                yield f"{indent}for m{depth + 1} in m{depth}.{field.name} or ():"
                yield from inner
