"""Times as people write them: a date, milliseconds, or how long ago."""

from __future__ import annotations

import re
from datetime import UTC, datetime

_AGO = re.compile(r"-?(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w)(?:\s+ago)?\Z")
_UNIT_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}


def parse_time(text: str, now_ms: int) -> int:
    """Return ms since 1970 for `2026-01-31T12:00:00+01:00`, `2026-01-31`, `1767225600000`, or `2h` (that long ago).

    A date without a zone is in this machine's. Raises ValueError.
    """
    text = text.strip()
    if text.isascii() and text.isdecimal():
        return int(text)
    ago = _AGO.match(text)
    if ago:
        return max(0, now_ms - round(float(ago[1]) * _UNIT_MS[ago[2]]))
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f"'{text}' is not a time: expected a date such as 2026-01-31T12:00:00, milliseconds since 1970, "
            "or 2h for two hours ago"
        ) from None
    return max(0, round(moment.astimezone(UTC).timestamp() * 1000))
