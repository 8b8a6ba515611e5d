"""A client's regular expression: compiled, and held against names of topics.

Nothing but PatternError may come of it, and neither compiling nor matching may take more than the input is long.
"""

from __future__ import annotations

from collections.abc import Iterator

import hostile

from kraftpy.groups.patterns import Pattern, PatternError

ALLOWED = (PatternError,)
MORE_BYTES = 16 << 20
"""The memory that a compiled expression may take, however short it is."""
_NAMES = ("odd", "a", "", "x" * 249, "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab", "__consumer_offsets", "a.b-c_d", "b" * 249)


def one(data: bytes) -> None:
    """An expression in UTF-8, or in Latin-1 if it is not UTF-8."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = data.decode("latin-1")
    pattern = Pattern(text)
    for name in _NAMES:
        pattern.matches(name)


def seeds() -> Iterator[tuple[str, bytes]]:
    """Those of the other fuzz, and every construct of the syntax."""
    for number, text in enumerate(hostile.REGEXES):
        yield f"hostile-{number}", text.encode()[:6000]
    syntax = (
        "a|b",
        "[^a-c]",
        "(?:a)",
        "(?i)a",
        "a{2,}",
        "a+?",
        r"\bx\B",
        r"\A\z",
        r"\pL",
        r"\P{Greek}",
        "[[:^digit:]]",
        r"\Qa.b\E",
        "(?P<n>a)",
    )
    for number, text in enumerate(syntax):
        yield f"syntax-{number}", text.encode()
