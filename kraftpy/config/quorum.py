"""The configured metadata quorum: the voters, their addresses, and what a node needs to be one of them.

A controller without `controller.quorum.voters` is its own quorum. With `controller.quorum.bootstrap.servers` alone, a
broker finds the quorum at these addresses, and a controller is its own quorum if the list has one address, as in
Kafka's examples for a single node.

A controller that is not among the voters follows the metadata until it is added at run time (AddRaftVoter, KIP-853);
Kafka refuses to start it. Left out: controllers that join on their own (`controller.quorum.auto.join.enable`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from kraftpy.config.listeners import Listener
from kraftpy.config.settings import ConfigError

VOTERS, BOOTSTRAP = "controller.quorum.voters", "controller.quorum.bootstrap.servers"
_ADDRESS = re.compile(r"(?:\[([0-9A-Fa-f:.%]+)\]|([^\[\]/:@\s]+)):([0-9]{1,5})\Z")


class Address(NamedTuple):
    """The address of a node of the quorum."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Voter(NamedTuple):
    """A voter and its address; a node that is its own quorum may have none."""

    node_id: int
    address: Address

    def __str__(self) -> str:
        return f"{self.node_id}@{self.address}"


def parse_address(setting: str, text: str) -> Address:
    """Parse `host:port`. Raises ConfigError."""
    match = _ADDRESS.match(text)
    port = int(match[3]) if match else 0
    if match is None or not 0 < port <= 65535:
        raise ConfigError(f"{setting}='{text}' is not allowed: expected host:port")
    return Address(match[1] or match[2], port)


def parse_voters(texts: Sequence[str]) -> tuple[Voter, ...]:
    """Parse `id@host:port` of each voter; return the voters in order of ids. Raises ConfigError."""
    voters: dict[int, Voter] = {}
    for text in texts:
        number, at, address = text.partition("@")
        if not at or not (number.isascii() and number.isdecimal()) or int(number) >= 1 << 31:
            raise ConfigError(f"{VOTERS}='{text}' is not allowed: expected id@host:port")
        if int(number) in voters:
            raise ConfigError(f"{VOTERS}: node {number} occurs twice")
        voter = Voter(int(number), parse_address(f"{VOTERS}: {number}@", address))
        clash = next((other for other in voters.values() if other.address == voter.address), None)
        if clash is not None:
            raise ConfigError(f"{VOTERS}: {clash} and {voter} have the same address")
        voters[voter.node_id] = voter
    return tuple(voters[node_id] for node_id in sorted(voters))


def check_roles(
    roles: Sequence[str],
    node_id: int,
    voters: Sequence[Voter],
    bootstrap: Sequence[Address],
    listeners: Sequence[Listener],
    controllers: Sequence[str],
) -> None:
    """Check that the node's roles, listeners and quorum are consistent, as Kafka does. Raises ConfigError."""
    ids = [voter.node_id for voter in voters]
    named = [listener.name for listener in listeners]
    quorum = ",".join(map(str, voters))
    if "controller" in roles:
        if not voters and len(bootstrap) > 1:
            raise ConfigError(f"{VOTERS} is required: a controller must know the voters")
        if any(voter != node_id for voter in ids) and not set(named) & set(controllers):
            raise ConfigError(
                f"listeners: there is none for the quorum; a controller needs one of controller.listener.names="
                f"{','.join(controllers)}, for example CONTROLLER://:9093"
            )
        if "broker" not in roles and (others := [name for name in named if name not in controllers]):
            raise ConfigError(
                f"listeners: {others[0]} is for clients, but process.roles=controller serves none; "
                "all must be in controller.listener.names"
            )
        return
    if node_id in ids:
        raise ConfigError(f"node.id={node_id}: a node with the role broker alone is not one of {VOTERS}={quorum}")
    if not voters and not bootstrap:
        raise ConfigError(f"process.roles=broker: {VOTERS} or {BOOTSTRAP} is required to find the quorum")
    if own := [name for name in named if name in controllers]:
        raise ConfigError(
            f"listeners: {own[0]} is in controller.listener.names, but process.roles=broker is not a controller"
        )
