"""The voters of the metadata quorum: their addresses and, if the quorum tells disks apart, their directory ids.

A voter that lost its disk has forgotten its votes and entries. A quorum that began with directory ids therefore treats
a node with a new metadata directory as another server, which has no vote until it is added. A quorum that was
configured by `controller.quorum.voters` identifies its voters by node id alone. KIP-853.

Raft knows a server by one number (`server_number`): the node id, with the directory id above it if there is one. Each
node knows itself by its node id alone (`VoterSet.servers`).

Invariant: either every voter has a directory id or none has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

DIRECTORY_ID_BYTES: Final = 16
_NODE_BITS: Final = 31
_NODE_MASK: Final = (1 << _NODE_BITS) - 1


def server_number(node_id: int, directory_id: bytes | None = None) -> int:
    """Return the number by which Raft knows a server; without a directory id it is the node id."""
    return node_id if directory_id is None else int.from_bytes(b"\x01" + directory_id) << _NODE_BITS | node_id


def node_of(server: int) -> int:
    """Return the node id of a server."""
    return server & _NODE_MASK


def directory_of(server: int) -> bytes | None:
    """Return the directory id of a server; None if Raft knows it by its node id alone."""
    above = server >> _NODE_BITS
    return above.to_bytes(DIRECTORY_ID_BYTES + 1)[1:] if above else None


@dataclass(frozen=True, slots=True)
class VoterSet:
    """The voters as of an entry of the log."""

    addresses: Mapping[int, str]
    """`host:port` of each voter by node id; empty if it has none."""
    directories: Mapping[int, bytes] = field(default_factory=dict)
    """The id of each voter's metadata directory; empty if voters are identified by node id alone."""

    @classmethod
    def of(cls, voters: VoterSet | Mapping[int, str]) -> VoterSet:
        """Return these voters; plain addresses are voters without directory ids."""
        return voters if isinstance(voters, VoterSet) else cls(dict(voters))

    @property
    def has_directories(self) -> bool:
        """True if the quorum tells disks apart; it may, as long as no voter is known."""
        return bool(self.directories) or not self.addresses

    def servers(self, own_id: int, own_directory_id: bytes | None) -> frozenset[int]:
        """Return the numbers of the voters for a node, which knows itself by its node id.

        A voter with the node's id and another directory is another server.
        """
        numbers = {server_number(node_id, self.directories.get(node_id)) for node_id in self.addresses}
        own = server_number(own_id, own_directory_id if self.directories else None)
        return frozenset(own_id if number == own else number for number in numbers)

    def number_of(self, node_id: int, directory_id: bytes | None) -> int:
        """Return the number of another server, if this is its node id and that of its directory."""
        return server_number(node_id, directory_id if self.has_directories else None)

    def with_voter(self, node_id: int, address: str, directory_id: bytes | None) -> VoterSet:
        """Return these voters and one more."""
        addresses = {**self.addresses, node_id: address}
        if not self.directories:
            return VoterSet(addresses)
        assert directory_id is not None
        return VoterSet(addresses, {**self.directories, node_id: directory_id})

    def without(self, node_id: int) -> VoterSet:
        """Return these voters without one."""
        return VoterSet(
            {each: address for each, address in self.addresses.items() if each != node_id},
            {each: directory_id for each, directory_id in self.directories.items() if each != node_id},
        )
