"""The limits on the connections of a single listener (KIP-402, KIP-612): `listener.name.<name>.max.connections` and
`listener.name.<name>.max.connection.creation.rate`, with the listener's name in lower case.

They can be in the file, and they can change while a broker runs, for one broker or for all. A listener without a limit
of its own has only those of the whole broker.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from kraftpy.config.settings import ConfigError, ConfigType, Setting

PREFIX: Final = "listener.name."
CONNECTIONS: Final = "max.connections"
CREATION_RATE: Final = "max.connection.creation.rate"
LISTENER_LIMITS: Final = {
    name: Setting(name, ConfigType.INT, "2147483647", "2147483647", "0..", meaning)
    for name, meaning in (
        (CONNECTIONS, "Maximum number of connections of this listener."),
        (CREATION_RATE, "Maximum number of new connections per second of this listener."),
    )
}
"""The definitions, by the names that follow a listener's prefix."""


class ListenerLimits(NamedTuple):
    """The limits of one listener; None means no limit of its own."""

    connections: int | None = None
    creation_rate: int | None = None


def limit_name(name: str) -> str | None:
    """Return which limit a setting with a listener's prefix is; None if it is none."""
    listener, dot, rest = name.removeprefix(PREFIX).partition(".")
    return rest if name.startswith(PREFIX) and listener and dot and rest in LISTENER_LIMITS else None


def parse_limit(name: str, text: str) -> int:
    """Return a listener's limit; `name` has the prefix. Raises ConfigError, also for 0, as Kafka does."""
    base = limit_name(name)
    if base is None:
        raise ConfigError(f"{name} does not limit the connections of a listener")
    value = LISTENER_LIMITS[base].parse(text)
    assert isinstance(value, int)
    if value == 0:
        raise ConfigError(f"Invalid {base} 0")
    return value


def limits_of(listener: str, *sources: Mapping[str, str]) -> ListenerLimits:
    """Return the limits of a listener; the first of `sources` takes precedence. Unusable values count as not set."""
    return ListenerLimits(_first(listener, CONNECTIONS, sources), _first(listener, CREATION_RATE, sources))


def _first(listener: str, limit: str, sources: tuple[Mapping[str, str], ...]) -> int | None:
    name = f"{PREFIX}{listener.lower()}.{limit}"
    for source in sources:
        if (text := source.get(name)) is not None:
            try:
                return parse_limit(name, text)
            except ConfigError:
                continue
    return None
