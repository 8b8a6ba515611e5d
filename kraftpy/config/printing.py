"""Text from outside, as it may be shown: in a log, at a terminal, in an error.

Names, client ids, messages and records of others may hold newlines, which would forge lines of a log, and escape
sequences, which make a terminal do things.
"""

from __future__ import annotations

from typing import Final

MOST_CHARACTERS: Final = 2_000
"""The longest line of a log. Ids and names of clients may have 32,767 characters, and a line quotes several."""


def shortened(text: str, most: int = MOST_CHARACTERS) -> str:
    """`text`, with a mark in place of its middle where it has more than `most` characters."""
    if len(text) <= most:
        return text
    mark = f"...[{len(text) - most} characters]..."
    return text[: (most + 1) // 2] + mark + text[len(text) - most // 2 :]


def printable(text: str, keep: str = "") -> str:
    """`text` with all that is not printable, and not in `keep`, escaped as Python does: `\\n`, `\\x1b`."""
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() or letter in keep else letter.encode("unicode_escape").decode()
        for letter in text
    )
