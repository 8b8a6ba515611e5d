"""The metadata quorum in the settings: the voters, their addresses, and what a node needs to be one of them.

The first voters are either configured on every node (`controller.quorum.voters`), or each node's directory is formatted
with them (KIP-853): `kraftpy format --standalone`, `--initial-controllers` or `--no-initial-controllers`. In the second
case, `controller.quorum.bootstrap.servers` lists where the quorum is found, and the voters' directory ids tell a voter
from the same node with another disk. Either way, voters that are added and removed at run time are in the metadata log,
and count from then on.

A controller without voters, which was not formatted with any, is its own quorum, also if
`controller.quorum.bootstrap.servers` has one address, as in Kafka's examples for a single node.

A controller that is not among the voters follows the metadata until it is added (AddRaftVoter); Kafka refuses to start
it if `controller.quorum.voters` is set. With `controller.quorum.auto.join.enable`, a controller adds itself to a quorum
that tells disks apart (`broker.metadata.auto_join`).
"""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from typing import NamedTuple

from kraftpy.config.listeners import Listener
from kraftpy.config.settings import ConfigError

VOTERS, BOOTSTRAP = "controller.quorum.voters", "controller.quorum.bootstrap.servers"
AUTO_JOIN = "controller.quorum.auto.join.enable"
UNFORMATTED = (
    f"Because {VOTERS} is not set on this controller, you must specify one of the following: "
    "--standalone, --initial-controllers, or --no-initial-controllers."
)
"""Kafka's message about a controller that has no first voters; the options are those of `kraftpy format`."""
_DIRECTORY_ID = re.compile(r"[A-Za-z0-9_-]{22}(?:==)?")
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


class InitialVoter(NamedTuple):
    """One of the first voters that a directory is formatted with: KIP-853."""

    node_id: int
    address: Address
    directory_id: bytes


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


def parse_initial_voters(text: str) -> tuple[InitialVoter, ...]:
    """Parse a list of `id@host:port:directory`. Raises ConfigError with Kafka's messages (DynamicVoters)."""
    voters: dict[int, InitialVoter] = {}
    for each in text.strip().split(","):
        if each:
            voter = _initial_voter(each.strip())
            if voter.node_id in voters:
                raise ConfigError(f"Node id {voter.node_id} was specified more than once.")
            voters[voter.node_id] = voter
    if not voters:
        raise ConfigError("No voters given.")
    return tuple(voters[node_id] for node_id in sorted(voters))


def _initial_voter(text: str) -> InitialVoter:
    number, at, rest = text.partition("@")
    if not at:
        raise ConfigError("No @ found in dynamic voter string.")
    if not number:
        raise ConfigError("Invalid @ at beginning of dynamic voter string.")
    node_id = _integer(number, "node id")
    if node_id < 0:
        raise ConfigError(f"Invalid negative node id {node_id} in dynamic voter string.")
    if not rest:
        raise ConfigError("No hostname found after node id.")
    if rest.startswith("["):
        host, bracket, rest = rest[1:].partition("]")
        if not bracket:
            raise ConfigError("Hostname began with left bracket, but no right bracket was found.")
    else:
        host, colon, after = rest.partition(":")
        if not colon:
            raise ConfigError("No colon following hostname could be found.")
        rest = colon + after
    if not rest.startswith(":"):
        raise ConfigError("Port section must start with a colon.")
    port_text, colon, directory = rest[1:].partition(":")
    if not colon:
        raise ConfigError("No colon following port could be found.")
    port = _integer(port_text, "port")
    if not 0 < port <= 65535:
        raise ConfigError(f"Invalid port {port} in dynamic voter string.")
    address = parse_address("--initial-controllers", str(Address(host, port)))
    return InitialVoter(node_id, address, parse_directory_id(directory))


def _integer(text: str, what: str) -> int:
    if not re.fullmatch(r"[+-]?[0-9]{1,10}", text) or not -(1 << 31) <= int(text) < 1 << 31:
        raise ConfigError(f"Failed to parse {what} in dynamic voter string.")
    return int(text)


def parse_directory_id(text: str) -> bytes:
    """Return the bytes of an id as Kafka writes it. Raises ConfigError."""
    if _DIRECTORY_ID.fullmatch(text) is None or not any(found := base64.urlsafe_b64decode(text[:22] + "==")):
        raise ConfigError("Failed to parse directory ID in dynamic voter string.")
    return found


def check_auto_join(roles: Sequence[str], listeners: Sequence[Listener], controllers: Sequence[str]) -> None:
    """Check that a node that is to add itself to the voters can be one. Raises ConfigError."""
    if "controller" not in roles:
        raise ConfigError(f"{AUTO_JOIN} is only supported when process.roles contains the 'controller' role.")
    if not {listener.name for listener in listeners} & set(controllers):
        raise ConfigError(
            f"{AUTO_JOIN}: listeners has none for the quorum; a voter needs one of controller.listener.names="
            f"{','.join(controllers)}, for example CONTROLLER://:9093"
        )


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
        has_others = any(voter != node_id for voter in ids) or (not voters and len(bootstrap) > 1)
        if has_others and not set(named) & set(controllers):
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
