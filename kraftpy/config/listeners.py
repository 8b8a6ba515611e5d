"""Listeners: `NAME://host:port`, their advertised addresses, and their security protocols.

An empty host means all interfaces in `listeners`, and this machine's own name in `advertised.listeners`: the server
fills it in, as it does with a port of 0. An IPv6 address is written in brackets. `security` resolves the settings for
TLS and SASL.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kraftpy.config.settings import ConfigError

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_LISTENER = re.compile(r"([A-Za-z0-9_.-]+)://(?:\[([0-9A-Fa-f:.%]+)\]|([^\[\]/:\s]*)):(-?[0-9]+)\Z")
WILDCARDS = ("0.0.0.0", "::", "0:0:0:0:0:0:0:0")


@dataclass(frozen=True, slots=True)
class Listener:
    """One address: the name is upper-case, the host may be empty, the port may be 0."""

    name: str
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.name}://{host}:{self.port}"


def parse_listeners(setting: str, texts: Sequence[str]) -> tuple[Listener, ...]:
    """Parse a list such as `listeners`. Raises ConfigError for a malformed entry, a duplicate name or a shared port."""
    found: list[Listener] = []
    for text in texts:
        match = _LISTENER.match(text)
        if match is None:
            raise ConfigError(f"{setting}='{text}' is not allowed: expected NAME://host:port")
        name, address, host, port = match[1].upper(), match[2], match[3], int(match[4])
        if not 0 <= port <= 65535:
            raise ConfigError(f"{setting}='{text}' is not allowed: expected a port from 0 to 65535")
        if any(other.name == name for other in found):
            raise ConfigError(f"{setting}: the listener name {name} occurs twice")
        listener = Listener(name, address or host, port)
        clash = next((o for o in found if port and o.port == port and hosts_overlap(o.host, listener.host)), None)
        if clash and setting == "listeners":
            raise ConfigError(f"{setting}: {clash} and {listener} have the same port")
        found.append(listener)
    return tuple(found)


def parse_protocol_map(text: str) -> dict[str, str]:
    """Parse `NAME:PROTOCOL,...` into a mapping. Raises ConfigError."""
    setting = "listener.security.protocol.map"
    protocols: dict[str, str] = {}
    for pair in filter(None, (part.strip() for part in text.split(","))):
        name, colon, protocol = pair.partition(":")
        name, protocol = name.strip().upper(), protocol.strip().upper()
        if not colon or not name or protocol not in PROTOCOLS:
            raise ConfigError(f"{setting}='{pair}' is not allowed: expected NAME:PROTOCOL, of {', '.join(PROTOCOLS)}")
        if name in protocols:
            raise ConfigError(f"{setting}: the listener name {name} occurs twice")
        protocols[name] = protocol
    return protocols


def check_protocols(
    listeners: Sequence[Listener], protocols: Mapping[str, str], controllers: Sequence[str], *, has_quorum: bool
) -> None:
    """Check that every listener is mapped to a protocol. Raises ConfigError.

    Controller listeners may be left unmapped if no listener has TLS or SASL (KIP-631): they are PLAINTEXT then. Only
    the node's own controller listeners count, or if it is not a controller, the one by which it reaches them.
    """
    for listener in listeners:
        if protocols.get(listener.name) is None and listener.name not in controllers:
            raise ConfigError(f"listeners: no protocol for {listener.name} in listener.security.protocol.map")
    if all(protocols.get(listener.name, "PLAINTEXT") == "PLAINTEXT" for listener in listeners):
        return
    own = [name for name in controllers if any(name == listener.name for listener in listeners)]
    if unmapped := [name for name in (own if has_quorum else controllers[:1]) if name not in protocols]:
        raise ConfigError(
            f"Controller listener with name {unmapped[0]} defined in controller.listener.names not found in "
            "listener.security.protocol.map (an explicit security mapping for each controller listener is required if "
            "there are security protocols other than PLAINTEXT in use)"
        )


def is_reachable(listener: Listener) -> bool:
    """Return whether other machines may reach the listener; a name other than localhost counts as reachable."""
    return listener.host not in ("localhost", "::1") and not listener.host.startswith("127.")


def advertised(
    listeners: Sequence[Listener], texts: Sequence[str] | None, controllers: Sequence[str]
) -> tuple[Listener, ...]:
    """Return `advertised.listeners`, or if it is not set, the client listeners. Raises ConfigError."""
    setting = "advertised.listeners"
    if texts is None:
        told = tuple(listener for listener in listeners if listener.name not in controllers)
        wild = next((listener for listener in told if listener.host in WILDCARDS), None)
        if wild:
            raise ConfigError(f"{setting}: {wild} cannot be advertised; set an address that clients can reach")
        return told
    told = tuple(listener for listener in parse_listeners(setting, texts) if listener.name not in controllers)
    names = {listener.name for listener in listeners}
    for listener in told:
        if listener.host in WILDCARDS:
            raise ConfigError(f"{setting}='{listener}' is not allowed: clients cannot connect to {listener.host}")
        if listener.name not in names:
            raise ConfigError(f"{setting}: {listener.name} is not among listeners ({', '.join(sorted(names))})")
    return told


def hosts_overlap(one: str, other: str) -> bool:
    """Return whether two hosts overlap when bound: they are equal, or one means all interfaces."""
    return one == other or not {one, other}.isdisjoint({"", *WILDCARDS})
