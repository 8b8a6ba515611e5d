"""The part of a world of real processes that needs requests alone: leaders, readiness, looks at single nodes.

`Asking` is the part of a `chaos.worlds.living.LiveWorld` that needs no more than each node's address. It requests
metadata changes as an administrator would; a change that is refused or not answered in time counts as no fault.

The looks are in the form that the checkers `leaders` and `metadata` read. No request returns a log's end, so the high
watermark stands for it. No request returns the metadata offset of an image either: `images` asks all nodes repeatedly
until they agree, or until it has waited long enough, and so only shows that they converge.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping, Sequence
from random import Random
from typing import Any, Final

from chaos.generator import TOPIC_PREFIX
from chaos.history import Key
from chaos.nemesis import ClusterState, NodeId
from chaos.workloads.clients import partition_of
from kraftpy.client import Admin, NewTopic
from kraftpy.client.admin.model import QuorumEndpoint
from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.messages.describe_quorum import DescribeQuorumRequest, QuorumPartition, QuorumTopic
from kraftpy.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from kraftpy.protocol.messages.find_coordinator import FindCoordinatorRequest
from kraftpy.protocol.messages.metadata import MetadataRequest, MetadataResponse
from kraftpy.testing.asking import ask

ASK_SECONDS: Final = 20.0
_LOOK_SECONDS: Final = 1.5
_POLL_SECONDS: Final = 0.2
_METADATA_VERSION: Final = 9
_FETCH_VERSION: Final = 12  # the last that names topics
_NOT_OURS: Final = ("__", TOPIC_PREFIX)


class Asking(ABC):
    """Requests to nodes at their addresses. `groups` are those whose coordinators a target may name."""

    nodes: tuple[NodeId, ...]
    groups: tuple[str, ...] = ("g",)

    @abstractmethod
    def address(self, node: NodeId) -> tuple[str, int]:
        """Return the address at which this process reaches the node."""

    @abstractmethod
    def controller_address(self, node: NodeId) -> tuple[str, int]:
        """Return the address at which other nodes reach the node's controller listener."""

    @property
    def bootstrap_servers(self) -> str:
        """Return the bootstrap servers for clients in this process."""
        return ",".join("{}:{}".format(*self.address(node)) for node in self.nodes)

    # --- what is known of the cluster -----------------------------------------------------------------------------

    async def state(self) -> ClusterState:
        """Return the state known to the nodes that answer; the newest, for each partition."""
        answers = await self._of_all(lambda node: self._metadata(node))
        newest: dict[Key, tuple[int, NodeId, tuple[NodeId, ...]]] = {}
        for answer in answers.values():
            for topic in answer.topics:
                for each in topic.partitions:
                    key = f"{topic.name}-{each.partition_index}"
                    known = newest.get(key)
                    if known is None or each.leader_epoch > known[0]:
                        newest[key] = (each.leader_epoch, each.leader_id, tuple(each.replica_nodes))
        ours = {key: found for key, found in newest.items() if not key.startswith(_NOT_OURS)}
        quorums = await self._of_all(lambda node: self._quorum(node))
        told = max((found for found in quorums.values() if found[1] >= 0), default=(-1, -1))
        return ClusterState(
            nodes=self.nodes,
            controller=told[1] if told[1] in self.nodes else None,
            leaders={key: leader for key, (_, leader, _) in ours.items() if leader in self.nodes},
            replicas={key: replicas for key, (_, _, replicas) in ours.items()},
            coordinators=await self._coordinators(),
        )

    async def _coordinators(self) -> dict[str, NodeId]:
        found = {}
        for group in self.groups:
            request = FindCoordinatorRequest(key=group)
            for node in self.nodes:
                with contextlib.suppress(OSError, KafkaError):
                    answer = await self.ask(node, ApiKey.FIND_COORDINATOR, 3, request)
                    if answer.error_code == ErrorCode.NONE:
                        found[group] = int(answer.node_id)
                        break
        return found

    async def wait_ready(self, at_most_seconds: float) -> list[str]:
        """Wait until every node serves and knows all others; return a line for everything still missing at the end."""

        def wrong(answers: Mapping[NodeId, MetadataResponse]) -> list[str]:
            silent = [f"node {node} does not answer" for node in self.nodes if node not in answers]
            for node, answer in answers.items():
                known = {broker.node_id for broker in answer.brokers}
                if missing := sorted(set(self.nodes) - known):
                    silent.append(f"node {node} does not know {missing}")
            return silent

        return await self._until(at_most_seconds, wrong)

    async def wait_in_sync(self, at_most_seconds: float) -> list[str]:
        """Wait until every partition has a leader and all its replicas in sync; return what is missing at the end."""

        def wrong(answers: Mapping[NodeId, MetadataResponse]) -> list[str]:
            late = [f"node {node} does not answer" for node in self.nodes if node not in answers]
            for node, answer in answers.items():
                for topic in answer.topics:
                    late += [
                        f"node {node} sees {topic.name}-{each.partition_index} with leader {each.leader_id}, "
                        f"replicas {each.replica_nodes}, in sync {each.isr_nodes}"
                        for each in topic.partitions
                        if each.leader_id < 0 or set(each.isr_nodes) != set(each.replica_nodes)
                    ]
            return late

        return await self._until(at_most_seconds, wrong)

    async def wait_for_copies(self, node: NodeId, at_most_seconds: float) -> list[str]:
        """Wait until all other nodes answer and, for each replica of this node, report another replica as in sync.

        Returns a line for each condition that is not met in the end: this node may then hold the only complete copy.
        """
        others = set(self.nodes) - {node}

        def wrong(answers: Mapping[NodeId, MetadataResponse]) -> list[str]:
            alone = [f"node {other} does not answer" for other in sorted(others - set(answers))]
            for other in sorted(others & set(answers)):
                alone += [
                    f"node {other} sees nobody but node {node} in sync for {topic.name}-{each.partition_index}"
                    for topic in answers[other].topics
                    for each in topic.partitions
                    if node in each.replica_nodes and not others.intersection(each.isr_nodes)
                ]
            return alone

        return await self._until(at_most_seconds, wrong)

    async def _until(
        self, at_most_seconds: float, wrong: Callable[[Mapping[NodeId, MetadataResponse]], list[str]]
    ) -> list[str]:
        deadline = time.monotonic() + at_most_seconds
        while True:
            found = wrong(await self._of_all(lambda node: self._metadata(node)))
            if not found or time.monotonic() > deadline:
                return found
            await asyncio.sleep(_POLL_SECONDS)

    # --- looks at one node ----------------------------------------------------------------------------------------

    async def watermarks(self, node: NodeId, keys: Sequence[Key], at: Mapping[Key, int]) -> list[dict[str, Any]]:
        """Return watermarks of the partitions that this node claims to lead; `at` are offsets known to be there.

        The metadata say in which epoch it leads. The Fetch names that epoch, and is refused if the epoch has changed.
        Raises OSError if the node does not answer.
        """
        wanted = set(keys)
        epochs: dict[str, dict[int, int]] = {}
        for topic in (await self._metadata(node)).topics:
            for each in topic.partitions:
                if each.leader_id == node and f"{topic.name}-{each.partition_index}" in wanted:
                    epochs.setdefault(str(topic.name), {})[each.partition_index] = each.leader_epoch
        if not epochs:
            return []
        request = FetchRequest(
            max_wait_ms=0,
            min_bytes=0,
            topics=[
                FetchTopic(
                    topic=topic,
                    partitions=[
                        FetchPartition(
                            partition=index,
                            current_leader_epoch=epoch,
                            fetch_offset=at.get(f"{topic}-{index}", 0),
                            partition_max_bytes=1,
                        )
                        for index, epoch in sorted(of.items())
                    ],
                )
                for topic, of in sorted(epochs.items())
            ],
        )
        answer = await self.ask(node, ApiKey.FETCH, _FETCH_VERSION, request)
        return [
            {
                "node": node,
                "key": f"{topic.topic}-{each.partition_index}",
                "leader": True,
                "leader_epoch": epochs[topic.topic][each.partition_index],
                "log_start": each.log_start_offset,
                "last_stable": each.last_stable_offset,
                "high_watermark": each.high_watermark,
                "log_end": each.high_watermark,
            }
            for topic in answer.responses
            for each in topic.partitions
            if each.error_code == ErrorCode.NONE
        ]

    async def controller(self, node: NodeId) -> dict[str, Any] | None:
        """Return the controller and epoch that this node knows; None if it knows none. Raises OSError."""
        epoch, leader = await self._quorum(node)
        return None if leader < 0 else {"node": node, "epoch": epoch, "controller": leader}

    async def images(self, at_most_seconds: float) -> dict[NodeId, str]:
        """Return a digest of what each node knows of topics, once all agree; otherwise what they say at the end."""
        deadline = time.monotonic() + at_most_seconds
        while True:
            answers = await self._of_all(lambda node: self._metadata(node))
            found = {node: _digest(answer) for node, answer in answers.items()}
            if (len(found) == len(self.nodes) and len(set(found.values())) == 1) or time.monotonic() > deadline:
                return found
            await asyncio.sleep(_POLL_SECONDS)

    # --- asking ---------------------------------------------------------------------------------------------------

    async def ask(
        self, node: NodeId, key: ApiKey, version: int, request: object, *, seconds: float = _LOOK_SECONDS
    ) -> Any:
        """Return the answer to one request to one node. Raises OSError if none comes in that time."""
        return await asyncio.to_thread(ask, self.address(node), key, version, request, timeout=seconds)

    async def _metadata(self, node: NodeId) -> MetadataResponse:
        request = MetadataRequest(topics=None, allow_auto_topic_creation=False)
        answer: MetadataResponse = await self.ask(node, ApiKey.METADATA, _METADATA_VERSION, request)
        return answer

    async def _quorum(self, node: NodeId) -> tuple[int, NodeId]:
        """Return epoch and leader; -1 and -1 if it knows none."""
        topic = QuorumTopic(topic_name="__cluster_metadata", partitions=[QuorumPartition(partition_index=0)])
        answer = await self.ask(node, ApiKey.DESCRIBE_QUORUM, 0, DescribeQuorumRequest(topics=[topic]))
        for found in answer.topics:
            for each in found.partitions:
                if each.error_code == ErrorCode.NONE:
                    return int(each.leader_epoch), int(each.leader_id)
        return -1, -1

    async def _of_all(self, what: Callable[[NodeId], Coroutine[Any, Any, Any]]) -> dict[NodeId, Any]:
        """Return the answers of the nodes that answer."""
        answers = await asyncio.gather(*(what(node) for node in self.nodes), return_exceptions=True)
        found: dict[NodeId, Any] = {}
        for node, answer in zip(self.nodes, answers, strict=True):
            if isinstance(answer, BaseException):
                if not isinstance(answer, (OSError, KafkaError)):
                    raise answer
            else:
                found[node] = answer
        return found

    async def _as_admin(self, what: Callable[[Admin], Coroutine[Any, Any, Any]]) -> None:
        with contextlib.suppress(KafkaError, TimeoutError, OSError):
            async with asyncio.timeout(ASK_SECONDS):
                async with Admin(bootstrap_servers=self.bootstrap_servers, request_timeout_ms=5_000) as admin:
                    await what(admin)

    # --- what changes the metadata --------------------------------------------------------------------------------

    async def move_leader(self, partition: str, seed: int, replicas: Sequence[NodeId] = ()) -> None:
        """Reorder the replicas, and let the first of them lead."""
        await self.reassign(partition, seed, replicas)
        moved = {partition_of(partition)}
        await self._as_admin(lambda admin: admin.elect_leaders(moved))

    async def reassign(self, partition: str, seed: int, replicas: Sequence[NodeId] = ()) -> None:
        """Give the partition other replicas: these, or at least two in another order."""
        chance = Random(seed)
        drawn = chance.sample(self.nodes, k=chance.randint(min(2, len(self.nodes)), min(3, len(self.nodes))))
        moves = {partition_of(partition): list(replicas) or drawn}
        await self._as_admin(lambda admin: admin.alter_partition_reassignments(moves))

    async def create_topic(self, topic: str, partitions: int) -> None:
        """Create a topic beside the workload's."""
        new = NewTopic(name=topic, num_partitions=partitions, replication_factor=min(3, len(self.nodes)))
        await self._as_admin(lambda admin: admin.create_topics([new]))

    async def delete_topic(self, topic: str) -> None:
        """Delete a topic that `create_topic` made."""
        await self._as_admin(lambda admin: admin.delete_topics([topic]))

    async def set_voter(self, node: NodeId, voter: bool) -> None:
        """Remove the node from the quorum, or add it."""
        if voter:
            host, port = self.controller_address(node)
            endpoint = QuorumEndpoint(listener="CONTROLLER", host=host, port=port)
            await self._as_admin(lambda admin: admin.add_raft_voter(node, [endpoint]))
        else:
            await self._as_admin(lambda admin: admin.remove_raft_voter(node))

    async def voters(self) -> list[NodeId] | None:
        """Return the voters; None if no node answers."""
        found: list[list[NodeId]] = []

        async def look(admin: Admin) -> None:
            found.append([voter.node_id for voter in (await admin.describe_quorum()).voters])

        await self._as_admin(look)
        return found[0] if found else None

    async def answering(self) -> set[NodeId]:
        """Return the nodes that serve."""
        return set(await self._of_all(lambda node: self._metadata(node)))

    async def restore_voters(self, at_most_seconds: float) -> list[NodeId]:
        """Restore every node's vote, each once it has caught up; return the nodes that still lack one at the end."""
        deadline = time.monotonic() + at_most_seconds
        while True:
            missing = [*self.nodes]

            async def look(admin: Admin, missing: list[NodeId] = missing) -> None:
                described = await admin.describe_quorum()
                missing[:] = sorted(set(self.nodes) - {voter.node_id for voter in described.voters})

            await self._as_admin(look)
            if not missing or time.monotonic() > deadline:
                return missing
            await self.set_voter(missing[0], True)
            await asyncio.sleep(_POLL_SECONDS)


def _digest(answer: MetadataResponse) -> str:
    """Sort topics and partitions."""
    rows = [
        (
            topic.name,
            topic.error_code,
            each.partition_index,
            each.leader_id,
            each.leader_epoch,
            list(each.replica_nodes),
            sorted(each.isr_nodes),
        )
        for topic in answer.topics
        for each in topic.partitions
    ]
    return hashlib.sha256(repr(sorted(rows)).encode()).hexdigest()[:16]
