"""Templates and the words they use: numbers, sizes and times, as the pages show them.

All templates escape what they are given; a template that is missing a value fails rather than showing nothing.
"""

from __future__ import annotations

import html
import re
import time
from datetime import datetime
from typing import Any, Final
from urllib.parse import quote, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined

from kraftpy.console.access import csrf_field

NOTHING: Final = "\u2013"
"""Shown for what is not known."""
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_BLOCK: Final = re.compile(r"</?(?:br|div|h[1-6]|li|ol|p|pre|ul)(?:\s[^<>]*)?/?>", re.IGNORECASE)
_INLINE: Final = re.compile(r"</?(?:a|b|code|em|i|span|strong)(?:\s[^<>]*)?>", re.IGNORECASE)
_STEPS: Final = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s"))


def environment() -> Environment:
    """Return the environment of all templates."""
    made = Environment(
        loader=PackageLoader("kraftpy.console"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(
        count=count,
        size=size,
        time=at_time,
        ago=ago,
        clock=clock,
        duration=duration,
        query=query,
        short=short,
        plain=plain,
    )
    made.globals.update(csrf_field=csrf_field)
    return made


def count(number: float | None) -> str:
    """Return a number with separators, "-" for None: 12,345."""
    if number is None:
        return NOTHING
    return f"{int(number):,}" if number == int(number) else f"{number:,.1f}"


def short(number: float) -> str:
    """Return a number for an axis: 1.5k, 20M."""
    for power, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= power:
            return f"{number / power:.3g}{unit}"
    return f"{number:.3g}"


def plain(text: str) -> str:
    """Return a text that may be HTML as words alone: Kafka writes the documentation of its settings so."""
    return " ".join(html.unescape(_INLINE.sub("", _BLOCK.sub(" ", text))).split())


def size(number: int | None) -> str:
    """Return bytes in the unit that suits them: 1.5 GiB."""
    if number is None or number < 0:
        return NOTHING
    value = float(number)
    for unit in _UNITS[:-1]:
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:,.1f} {_UNITS[-1]}"


def at_time(milliseconds: float | None) -> str:
    """Return a time as local date and time, with milliseconds if it has some."""
    if milliseconds is None or milliseconds < 0:
        return NOTHING
    try:
        moment = datetime.fromtimestamp(milliseconds / 1000)
    except (OverflowError, ValueError, OSError):  # a producer may send any number
        return f"{milliseconds:.0f} ms"
    return moment.isoformat(sep=" ", timespec="milliseconds")


def clock(milliseconds: float) -> str:
    """Return the local time of day, 14:03:20, or the date of a time of another day."""
    try:
        moment = datetime.fromtimestamp(milliseconds / 1000)
    except (OverflowError, ValueError, OSError):
        return f"{milliseconds:.0f}"
    return moment.strftime("%H:%M:%S" if moment.date() == datetime.now().date() else "%d %b %H:%M")


def duration(milliseconds: float | None) -> str:
    """Return a duration in its largest unit: 3 min."""
    if milliseconds is None or milliseconds < 0:
        return NOTHING
    for step, unit in _STEPS:
        if milliseconds >= step:
            return f"{milliseconds / step:.0f} {unit}"
    return f"{milliseconds:.0f} ms"


def ago(milliseconds: float | None) -> str:
    """Return how long ago a time was: 3 min ago."""
    if milliseconds is None or milliseconds < 0:
        return NOTHING
    return f"{duration(max(0, time.time() * 1000 - milliseconds))} ago"


def query(values: dict[str, Any], **more: Any) -> str:
    """Return a query string of values and changes to them; None leaves one out."""
    merged = {name: value for name, value in {**values, **more}.items() if value is not None}
    return "?" + urlencode(merged, quote_via=quote)
