"""The simulation of the quorum with disks that are replaced: a voter comes back empty, under its old id, and sometimes
with its old disk again.

The quorum tells disks apart (`metadata.voters`), so such a node is a learner until the voter with its old disk is
removed and it is added. Nodes 4 and 5 were formatted without voters. A message carries the directories of both its
ends, as a connection does.

No more than one voter is lost at a time, and only out of three whose addition is committed everywhere: otherwise a
majority might be gone for good, which nothing survives. For the same reason, no other voter is removed meanwhile.
"""

from __future__ import annotations

from typing import Any

from simulation import FIRST_PORT, HEALING_STEPS, STEPS, OurNode, Outcome, World

from kraftpy.metadata.quorum import Message
from kraftpy.metadata.voters import VoterSet, node_of, server_number
from kraftpy.testing.memory_files import MemoryDisk


class NodeWithDirectory(OurNode):
    """One node, whose peers are known by their directories, too."""

    world: WorldOfDisks

    def identity(self) -> tuple[VoterSet, bytes | None]:
        self.directory_id = self.world.directories[self.id]
        self.servers: dict[int, int] = {}
        first = self.world.first_directories
        if self.id not in first:
            return VoterSet({}), self.directory_id
        return VoterSet({voter: f"host:{FIRST_PORT + voter}" for voter in first}, first), self.directory_id

    def server(self, peer: int, directory_id: bytes) -> int:
        return server_number(peer, directory_id)

    def connected(self, peer: int) -> None:
        self.servers[peer] = self.server(peer, self.world.directories[peer])
        super().connected(self.servers[peer])

    def disconnected(self, peer: int) -> None:
        super().disconnected(self.servers.pop(peer, peer))

    def send(self, message: Message) -> None:
        peer = node_of(message.peer)
        if self.servers.get(peer) == message.peer:
            self.world.send(self.id, peer, [self.directory_id, self.world.directories[peer], message.body])

    def receive(self, peer: int, body: Any) -> None:
        sender_directory, own_directory, message = body
        if own_directory == self.directory_id:  # no connection outlives the disk at either of its ends
            super().receive(self.server(peer, sender_directory), message)

    def change_voters(self) -> None:
        """Do as operators and joining controllers do: remove what is lost, and add what is there."""
        chance, voters = self.world.random, self.quorum.voter_set
        lost = self.world.lost_voters(self)
        if chance.random() < 0.1:
            self.quorum.resign()
        elif lost:
            self.quorum.change_voter(remove=lost[0], directory_id=voters.directories.get(lost[0]))
        elif chance.random() < 0.7 or len(voters.addresses) <= 1:
            peer = chance.choice(self.world.ids)
            address = f"host:{FIRST_PORT + peer}"
            self.quorum.change_voter(add=(peer, address), directory_id=self.world.directories[peer])
        elif not any(self.world.lost_voters(node) for node in self.world.nodes.values()):
            self.quorum.change_voter(remove=chance.choice(sorted(voters.addresses)))

    @property
    def has_settled_voters(self) -> bool:
        """True if the newest change of the voters that is known here is committed."""
        return self.quorum._state.log.voting.since <= self.quorum.commit_index


class NodeByIdAlone(NodeWithDirectory):
    """A node that takes any disk with the right node id for the voter's."""

    def identity(self) -> tuple[VoterSet, bytes | None]:
        voters, _ = super().identity()
        return VoterSet(voters.addresses), None

    def server(self, peer: int, directory_id: bytes) -> int:
        return peer


class TrustingNode(NodeWithDirectory):
    """A node that takes its peers for voters by their node ids alone."""

    def server(self, peer: int, directory_id: bytes) -> int:
        return server_number(peer, self.quorum.voter_set.directories.get(peer, directory_id))


class WorldOfDisks(World):
    """A world in which disks are replaced."""

    nodes: dict[int, NodeWithDirectory]  # type: ignore[assignment]

    def __init__(self, seed: int, kind: type[NodeWithDirectory]) -> None:
        self.replaced = 0
        self.first_directories = {node_id: bytes([node_id]) * 16 for node_id in (1, 2, 3)}
        self.directories = {node_id: bytes([node_id]) * 16 for node_id in (1, 2, 3, 4, 5)}
        self.generations = 0
        self.shelf: list[tuple[int, bytes, MemoryDisk]] = []
        """Disks that were replaced, each with its node and directory."""
        super().__init__(seed, kind)

    def may_change_voters(self) -> bool:
        return True

    def lost_voters(self, node: NodeWithDirectory) -> list[int]:
        """The voters, by a node's log, whose disks are gone."""
        voters = node.quorum.voter_set.directories
        return [node_id for node_id, directory_id in voters.items() if directory_id != self.directories[node_id]]

    def chaos(self) -> None:
        super().chaos()
        if self.random.random() < 0.05 and self.may_replace():
            self.replace(self.random.choice(self.ids))
            if self.random.random() < 0.7:  # an entry that the lost disk had acknowledged may be on this one alone
                self.kill(max(self.nodes, key=lambda node_id: self.nodes[node_id].quorum.last_index))

        if self.shelf and self.random.random() < 0.05:
            self.put_back(self.random.randrange(len(self.shelf)))

    def put_back(self, place: int) -> None:
        """Give a node an old disk again, unless its present one is a voter's."""
        node_id, directory_id, disk = self.shelf[place]
        sets = [node.quorum.voter_set.directories for node in self.nodes.values()]
        if len(self.nodes) < len(self.ids) or any(each.get(node_id) == self.directories[node_id] for each in sets):
            return
        self.kill(node_id)
        self.shelf[place] = (node_id, self.directories[node_id], self.disks[node_id])
        self.directories[node_id], self.disks[node_id] = directory_id, disk
        self.start(node_id)

    def may_replace(self) -> bool:
        if len(self.nodes) < len(self.ids):
            return False
        sets = [node.quorum.voter_set for node in self.nodes.values()]
        return (
            all(each == sets[0] for each in sets)
            and len(sets[0].addresses) >= 3
            and all(node.has_settled_voters and not self.lost_voters(node) for node in self.nodes.values())
        )

    def replace(self, node_id: int) -> None:
        """Stop a node, and start it with an empty disk."""
        self.kill(node_id)
        self.generations += 1
        self.replaced += 1
        self.shelf.append((node_id, self.directories[node_id], self.disks[node_id]))
        self.disks[node_id] = MemoryDisk()
        self.directories[node_id] = bytes([node_id, 100 + self.generations]) * 8
        self.start(node_id)


def run_with_replaced_disks(
    seed: int, kind: type[NodeWithDirectory] = NodeWithDirectory, *, steps: int = STEPS
) -> tuple[Outcome, int]:
    """Run a seed; return what came of it, and how many disks were replaced."""
    world = WorldOfDisks(seed, kind)
    outcome = world.run(steps, HEALING_STEPS)
    for node in world.nodes.values():
        node.kill()
    return outcome, world.replaced
