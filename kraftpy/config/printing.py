"""Makes text from outside safe to show in a log, on a terminal or in an error message.

Names, client ids, messages and records from clients may contain newlines, which would forge log lines, and escape
sequences, which control a terminal.
"""

from __future__ import annotations

from typing import Final

MOST_CHARACTERS: Final = 2_000
"""Maximum length of a log line. A client's ids and names may have 32,767 characters, and a line quotes several."""


def shortened(text: str, most: int = MOST_CHARACTERS) -> str:
    """Return `text`, with its middle replaced by a mark if it has more than `most` characters."""
    if len(text) <= most:
        return text
    mark = f"...[{len(text) - most} characters]..."
    return text[: (most + 1) // 2] + mark + text[len(text) - most // 2 :]


def printable(text: str, keep: str = "") -> str:
    """Return `text` with unprintable characters that are not in `keep` escaped as in Python: `\\n`, `\\x1b`."""
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() or letter in keep else letter.encode("unicode_escape").decode()
        for letter in text
    )
