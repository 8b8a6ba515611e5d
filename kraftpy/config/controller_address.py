"""The address of a controller, for the other nodes of its quorum."""

from __future__ import annotations

from kraftpy.config.broker import BrokerConfig
from kraftpy.config.listeners import WILDCARDS, parse_listeners
from kraftpy.config.quorum import Address
from kraftpy.config.settings import ConfigError


def controller_address(config: BrokerConfig, own_host: str, bound_port: int | None = None) -> Address:
    """Return the address at which other nodes reach this controller: that of its first controller listener.

    It is in `advertised.listeners`, or else it is the listener's own; `own_host` stands for all interfaces there, and
    `bound_port` for its port. Raises ConfigError if that port is not known.
    """
    listener = config.controller_listeners[0]
    given = config.given.get("advertised.listeners")
    texts = [] if given is None else [text.strip() for text in given.text.split(",") if text.strip()]
    told = next((each for each in parse_listeners("advertised.listeners", texts) if each.name == listener.name), None)
    host, port = (listener.host, bound_port or listener.port) if told is None else (told.host, told.port)
    if not port:
        raise ConfigError(
            f"listeners: {listener} needs a port other than 0: the other nodes of the quorum connect to it"
        )
    return Address(own_host if host in ("", *WILDCARDS) else host, port)
