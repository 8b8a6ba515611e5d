"""Parse option values, which Spark passes as text. Names in `options` are lower-cased, as Spark compares them.

Every mistake is an OptionError that begins with the option's name in its documented spelling.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kraftpy.spark.offsets import OptionError

_UNITS_MS = {
    "ms": 1,
    "millisecond": 1,
    "s": 1_000,
    "second": 1_000,
    "m": 60_000,
    "min": 60_000,
    "minute": 60_000,
    "h": 3_600_000,
    "hour": 3_600_000,
    "d": 86_400_000,
    "day": 86_400_000,
    "week": 7 * 86_400_000,
}
_DURATION = re.compile(r"(\d+)\s*([a-z]+)")


def nearest(name: str, known: Iterable[str]) -> str:
    """Return `; did you mean 'x'?` for the most similar known name, or nothing."""
    by_lowered = {each.lower(): each for each in known}
    close = difflib.get_close_matches(name.lower(), sorted(by_lowered), n=1, cutoff=0.5)
    return f"; did you mean {by_lowered[close[0]]!r}?" if close else ""


def spelt(name: str, known: Iterable[str]) -> str:
    """Return a name in the spelling of `known`."""
    return next(each for each in known if each.lower() == name.lower())


def flag(options: Mapping[str, str], name: str, *, default: bool) -> bool:
    """Parse a switch. Raises OptionError if it is neither true nor false."""
    text = options.get(name.lower())
    if text is None:
        return default
    if text.strip().lower() not in ("true", "false"):
        raise OptionError(f"{name}: {text!r} is neither true nor false")
    return text.strip().lower() == "true"


def number(options: Mapping[str, str], name: str, default: int, *, least: int) -> int:
    """Parse a whole number of at least `least`. Raises OptionError."""
    number = optional_number(options, name, least=least)
    return default if number is None else number


def optional_number(options: Mapping[str, str], name: str, *, least: int) -> int | None:
    """Parse a whole number, or return None if the option is not given. Raises OptionError."""
    text = options.get(name.lower())
    if text is None:
        return None
    try:
        number = int(text)
    except ValueError:
        number = least - 1
    if number < least:
        raise OptionError(f"{name}: {text!r} is not a whole number of at least {least}")
    return number


def choice(options: Mapping[str, str], name: str, among: Sequence[str], default: str) -> str:
    """Parse one of a few words, lower-cased. Raises OptionError."""
    word = options.get(name.lower(), default).strip().lower()
    if word not in among:
        raise OptionError(f"{name}: {word!r} is not one of {', '.join(among)}")
    return word


def duration_ms(option: str, text: str) -> int:
    """Parse a duration such as `15m`, `90 seconds` or `1 hour` to milliseconds. Raises OptionError."""
    matched = _DURATION.fullmatch(text.strip().lower())
    unit = matched and _UNITS_MS.get(matched[2], _UNITS_MS.get(matched[2].removesuffix("s"), 0))
    if matched is None or not unit:
        raise OptionError(f"{option}: {text!r} is not a time like 15m, 90 seconds or 1 hour")
    return int(matched[1]) * unit


SECURITY_PREFIXES = ("kafka.security.", "kafka.ssl.", "kafka.sasl.")


def bootstrap_servers(options: Mapping[str, str]) -> str:
    """Return `kafka.bootstrap.servers`. Raises OptionError if it is missing or malformed."""
    servers = options.get("kafka.bootstrap.servers", "").strip()
    if not servers:
        raise OptionError("option kafka.bootstrap.servers is required: host:port, several separated by commas")
    for server in servers.split(","):
        host, _, port = server.strip().rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise OptionError(f"kafka.bootstrap.servers: {server.strip()!r} is not host:port")
    return servers


def security_options(options: Mapping[str, str]) -> tuple[tuple[str, Any], ...]:
    """Return the client options in `kafka.security.*`, `kafka.ssl.*` and `kafka.sasl.*`, as pairs.

    Files that they name are read here, and again by each task. Raises OptionError, which shows no secrets.
    """
    given = {
        name.removeprefix("kafka."): value for name, value in options.items() if name.startswith(SECURITY_PREFIXES)
    }
    if not given:
        return ()
    from kraftpy.client.options import ClientOptions
    from kraftpy.client.properties import options_of

    if "security.protocol" in given:
        given["security.protocol"] = given["security.protocol"].strip().upper()
    try:
        found, unknown = options_of(given)
        if not unknown:
            ClientOptions(**found).security  # noqa: B018 - raises if it cannot be made
    except ValueError as error:
        raise OptionError(f"options kafka.security, kafka.ssl and kafka.sasl: {error}") from None
    if unknown:
        raise OptionError(f"option kafka.{unknown[0]} is not supported")
    return tuple(found.items())
