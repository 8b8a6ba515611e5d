"""The input of a browser: a form's fields, and the numbers in a query. Bounded, and refused in words.

Raises Refused, which becomes a page with status 400 (or the one it names).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from urllib.parse import parse_qsl

from starlette.requests import Request

MOST_FORM_BYTES: Final = 2 << 20
MOST_FIELDS: Final = 500
_FORM_TYPE: Final = "application/x-www-form-urlencoded"


class Refused(Exception):
    """A request that cannot be carried out, in words for the person who sent it."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


async def read_form(request: Request) -> dict[str, str]:
    """Return the fields of a form; of a repeated one, the last. Raises Refused."""
    return dict(await read_fields(request))


async def read_fields(request: Request) -> list[tuple[str, str]]:
    """Return the fields of a form, in order. Raises Refused for one that is too large or not a form."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != _FORM_TYPE:
        raise Refused("this is not a form", 415)
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MOST_FORM_BYTES:
            raise Refused(f"the form is larger than {MOST_FORM_BYTES:,} bytes", 413)
    try:
        return parse_qsl(body.decode("ascii"), keep_blank_values=True, max_num_fields=MOST_FIELDS, errors="strict")
    except ValueError:
        raise Refused("the form cannot be read") from None


def text_of(fields: Mapping[str, str], name: str) -> str:
    """Return a field that has to be there. Raises Refused."""
    value = fields.get(name, "")
    if not value:
        raise Refused(f"{name} is missing")
    return value


def number_of(fields: Mapping[str, str], name: str, default: int | None, *, low: int = 0, high: int = 2**62) -> int:
    """Return a whole number, or the default if the field is empty. Raises Refused, also if there is no default."""
    text = fields.get(name, "").strip()
    if not text:
        if default is None:
            raise Refused(f"{name} is missing")
        return default
    try:
        number = int(text)
    except ValueError:
        raise Refused(f"{name} is not a whole number") from None
    if not low <= number <= high:
        raise Refused(f"{name} is not between {low:,} and {high:,}")
    return number


def needs_typed(fields: Mapping[str, str], name: str) -> None:
    """Refuse a deletion unless the name of what is deleted was typed. Raises Refused."""
    if fields.get("typed", "") != name:
        raise Refused("the name that you typed is not the name of what you want to delete: nothing was deleted")


def settings_of(text: str) -> dict[str, str]:
    """Return settings written as lines `name=value`. Raises Refused."""
    settings: dict[str, str] = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        name, equals, value = line.partition("=")
        if not equals or not name.strip():
            raise Refused(f"{line!r} is not of the form name=value")
        settings[name.strip()] = value.strip()
    return settings
