"""Filters of records by JSONPath: a path into a document and, if wanted, a comparison with a JSON value.

    matches = parse_filter('$.customer.name == "Ada"')
    matches({"customer": {"name": "Ada"}})  # True

Paths are those of RFC 9535 without filter selectors and slices: `$`, `.name`, `['a name']`, `[0]`, `[-1]`, `.*`, `[*]`,
and `..name` or `..[*]` at any depth. A document matches if any value that the path leads to compares as asked: with
`==`, `!=`, `<`, `<=`, `>` or `>=`, and numbers with numbers, texts with texts; without a comparison, if there is any.

Invariant: at most `MOST_STEPS` values are looked at in one document, so that none holds up the others.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

MOST_STEPS: Final = 20_000
MOST_FILTER: Final = 1_000
_NAME: Final = re.compile(r"[^\W\d][\w-]*")
_INDEX: Final = re.compile(r"-?\d{1,9}")
_COMPARISON: Final = re.compile(r"(==|!=|<=|>=|<|>)")
_OPERATORS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_ALL: Final = object()


class _Step(NamedTuple):
    """One selector; `is_deep` means at any depth."""

    selector: Any
    is_deep: bool


def parse_filter(text: str) -> Callable[[Any], bool]:
    """Return a function that tells whether a document matches. Raises ValueError."""
    text = text.strip()
    if len(text) > MOST_FILTER:
        raise ValueError(f"the JSONPath is longer than {MOST_FILTER:,} characters")
    steps, end = _parse_path(text)
    rest = text[end:].strip()
    if not rest:
        return lambda document: any(True for _ in _select(document, steps))
    compared = _COMPARISON.match(rest)
    if compared is None:
        raise ValueError(f"expected a comparison instead of {rest!r:.40}")
    try:
        wanted = json.loads(rest[compared.end() :])
    except (ValueError, RecursionError):
        raise ValueError(
            f"{rest[compared.end() :].strip()!r:.40} is not a JSON value: texts are written in double quotes"
        ) from None
    compare = _OPERATORS[compared[1]]
    return lambda document: any(_holds(compare, value, wanted) for value in _select(document, steps))


def _holds(compare: Callable[[Any, Any], bool], value: Any, wanted: Any) -> bool:
    if isinstance(value, bool) is not isinstance(wanted, bool):  # True == 1 in Python, and not in JSON
        return compare is operator.ne
    try:
        return compare(value, wanted)
    except (TypeError, RecursionError):
        return False


def _parse_path(text: str) -> tuple[Sequence[_Step], int]:
    """Return the steps of the path that the text begins with, and where it ends. Raises ValueError."""
    if not text.startswith("$"):
        raise ValueError("a JSONPath begins with $")
    steps: list[_Step] = []
    at = 1
    while at < len(text) and text[at] in ".[":
        is_deep = text.startswith("..", at)
        if is_deep:
            at += 2
        elif text[at] == ".":
            at += 1
        if at < len(text) and text[at] == "[":
            selector, at = _parse_bracket(text, at + 1)
        elif at < len(text) and text[at] == "*":
            selector, at = _ALL, at + 1
        else:
            name = _NAME.match(text, at)
            if name is None:
                raise ValueError(f"expected a name at character {at + 1}; others than words are ['written so']")
            selector, at = name[0], name.end()
        steps.append(_Step(selector, is_deep))
    return steps, at


def _parse_bracket(text: str, at: int) -> tuple[Any, int]:
    """Return the selector in brackets, and where it ends. Raises ValueError."""
    selector: Any
    if text.startswith("*", at):
        selector, at = _ALL, at + 1
    elif at < len(text) and text[at] in "'\"":
        end = text.find(text[at], at + 1)
        if end < 0:
            raise ValueError("a quoted name does not end")
        selector, at = text[at + 1 : end], end + 1
    else:
        index = _INDEX.match(text, at)
        if index is None:
            raise ValueError(f"expected a quoted name, a number or * at character {at + 1}")
        selector, at = int(index[0]), index.end()
    if not text.startswith("]", at):
        raise ValueError(f"expected ] at character {at + 1}")
    return selector, at + 1


def _select(document: Any, steps: Sequence[_Step]) -> Iterator[Any]:
    """Yield the values that the steps lead to, as long as not too many have been looked at."""
    left = MOST_STEPS
    stack: list[tuple[Any, int]] = [(document, 0)]
    while stack and left > 0:
        left -= 1
        value, number = stack.pop()
        if number == len(steps):
            yield value
            continue
        step = steps[number]
        if step.is_deep and isinstance(value, dict | list):
            stack += [(child, number) for child in _children(value)]
        stack += [(child, number + 1) for child in _selected(value, step.selector)]


def _children(value: Any) -> Sequence[Any]:
    if isinstance(value, dict):
        return list(value.values())[:MOST_STEPS]
    return value[:MOST_STEPS] if isinstance(value, list) else ()


def _selected(value: Any, selector: Any) -> Sequence[Any]:
    if selector is _ALL:
        return _children(value)
    if isinstance(selector, int):
        if isinstance(value, list) and -len(value) <= selector < len(value):
            return (value[selector],)
        return ()
    return (value[selector],) if isinstance(value, dict) and selector in value else ()
