"""Text from outside, as it may be shown: in a log, at a terminal, in an error.

Names, client ids, messages and records of others may hold newlines, which would forge lines of a log, and escape
sequences, which make a terminal do things.
"""

from __future__ import annotations


def printable(text: str, keep: str = "") -> str:
    """`text` with all that is not printable, and not in `keep`, escaped as Python does: `\\n`, `\\x1b`."""
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() or letter in keep else letter.encode("unicode_escape").decode()
        for letter in text
    )
