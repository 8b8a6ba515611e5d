"""The parts of a broker that serve groups, transactions and share groups, each imported and made when first needed.

A part is needed when its internal topic exists, or when a request uses it. A new node has neither: without a hundred
modules it starts sooner and takes less memory. A part that is made later finds its partitions in the metadata at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

from kraftpy.broker.internal_topics import CONSUMER_OFFSETS, SHARE_GROUP_STATE, TRANSACTION_STATE

if TYPE_CHECKING:
    from kraftpy.broker.broker_proof import BrokerProof
    from kraftpy.broker.containment import Incidents, Tasks
    from kraftpy.broker.coordinator_shards import Shards
    from kraftpy.broker.dynamic_settings import DynamicSettings
    from kraftpy.broker.groups.coordinators import Coordinators
    from kraftpy.broker.groups.settings import GroupSettingsNow
    from kraftpy.broker.handlers.own_requests import OwnRequests
    from kraftpy.broker.metadata.log import MetadataLog
    from kraftpy.broker.peers import Outgoing, Peers
    from kraftpy.broker.replication.replicas import Replicas
    from kraftpy.broker.services import HasConfig, HasImage
    from kraftpy.broker.share.coordinator_client import ShareStates
    from kraftpy.broker.share.coordinators import ShareCoordinators
    from kraftpy.broker.share.partitions import SharePartitions
    from kraftpy.broker.share.sessions import ShareSessions
    from kraftpy.broker.slicing import Slices
    from kraftpy.broker.transactions.coordinators import TransactionCoordinators
    from kraftpy.broker.transactions.markers import MarkerSender, MarkerWriter
    from kraftpy.broker.transactions.producer_ids import ProducerIds
    from kraftpy.groups.assignment import TopicIdPartition
    from kraftpy.groups.events import Deletion, Initialization
    from kraftpy.metadata.records import Record
    from kraftpy.ports import Clock
    from kraftpy.protocol.errors import ErrorCode
    from kraftpy.types import BrokerId, TopicPartition

    class Node(HasConfig, HasImage, Protocol):
        """The part of a broker that its coordinators are made of."""

        node_id: BrokerId
        clock: Clock
        tasks: Tasks
        incidents: Incidents
        settings: DynamicSettings
        metadata: MetadataLog
        replicas: Replicas
        slices: Slices
        proof: BrokerProof
        outgoing: Outgoing
        peers: Peers
        own_requests: OwnRequests
        producer_ids: ProducerIds
        group_settings: GroupSettingsNow
        share_sessions: ShareSessions


class Coordination:
    """The coordinators of one broker, and what they and their clients need."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._is_started = False
        self._is_stopped = False
        self._background: list[asyncio.Task[None]] = []

    # --- the parts: an attribute is set when it is first read --------------------------------

    @cached_property
    def coordinators(self) -> Coordinators:
        """The group coordinators on this node."""
        from kraftpy.broker.groups.coordinators import Coordinators

        node = self._node
        made = Coordinators(
            node.config, node.clock, node.tasks, node.metadata, node.replicas, self._change_share_state, node.slices
        )
        node.settings.then(made.settings.configure)
        self._begin(made)
        return made

    @cached_property
    def transactions(self) -> TransactionCoordinators:
        """The transaction coordinators on this node."""
        from kraftpy.broker.transactions.coordinators import TransactionCoordinators

        node = self._node
        made = TransactionCoordinators(
            node.config,
            node.clock,
            node.tasks,
            node.metadata,
            node.replicas,
            node.producer_ids,
            self.markers,
            node.peers,
            node.slices,
        )
        self._begin(made)
        return made

    @cached_property
    def marker_writer(self) -> MarkerWriter:
        """Appends the markers of transactions that end to partitions led here."""
        from kraftpy.broker.transactions.markers import MarkerWriter

        node = self._node
        return MarkerWriter(node.replicas, self.coordinators, node.clock, node.incidents, node.slices)

    @cached_property
    def markers(self) -> MarkerSender:
        """Sends the markers of transactions that end to the leaders of their partitions."""
        from kraftpy.broker.transactions.markers import MarkerSender

        node = self._node
        made = MarkerSender(node.node_id, lambda: node.image, self.marker_writer, node.peers, node.tasks, node.slices)
        if self._is_stopped:
            made.stop()
        return made

    @cached_property
    def share_coordinators(self) -> ShareCoordinators:
        """The share coordinators on this node."""
        from kraftpy.broker.share.coordinators import ShareCoordinators

        node = self._node
        made = ShareCoordinators(node.config, node.clock, node.tasks, node.metadata, node.replicas, node.slices)
        self._begin(made)
        if not self._is_stopped:
            self._background.append(node.tasks.keep_running(made.prune_forever, name="pruning"))
        return made

    @cached_property
    def share_states(self) -> ShareStates:
        """The share coordinators' client, on this node and on others."""
        from kraftpy.broker.share.coordinator_client import ShareStates

        node = self._node
        made = ShareStates(
            node.config, node.clock, node.metadata, self.share_coordinators, node.proof, node.outgoing, node.slices
        )
        if self._is_stopped:
            made.close()
        return made

    @cached_property
    def share_partitions(self) -> SharePartitions:
        """The partitions led here that share groups read."""
        from kraftpy.broker.share.dead_letters import DeadLetterQueues
        from kraftpy.broker.share.partitions import SharePartitions

        node = self._node
        queues = DeadLetterQueues(
            lambda: node.config,
            node.clock,
            node.metadata,
            node.group_settings,
            node.replicas.decoding,
            node.own_requests.produce,
        )
        made = SharePartitions(
            node.clock,
            node.tasks,
            node.replicas,
            self.share_states,
            queues,
            node.group_settings,
            node.share_sessions.has_group,
        )
        if self._is_stopped:
            made.stop()
        return made

    async def _change_share_state(
        self, group_id: str, change: Initialization | Deletion
    ) -> dict[TopicIdPartition, ErrorCode]:
        from kraftpy.broker.share.state_changes import change_state  # here: most groups are no share groups

        return await change_state(self.share_states, group_id, change)

    # --- what happens on the node ------------------------------------------------------------

    @property
    def shards(self) -> Sequence[Shards[Any]]:
        """The coordinators that are made, or have a topic: without it, none of its partitions is led here."""
        made, topic = self.__dict__, self._node.image.topic
        found: list[Shards[Any]] = []
        if "coordinators" in made or topic(CONSUMER_OFFSETS) is not None:
            found.append(self.coordinators)
        if "transactions" in made or topic(TRANSACTION_STATE) is not None:
            found.append(self.transactions)
        if "share_coordinators" in made or topic(SHARE_GROUP_STATE) is not None:
            found.append(self.share_coordinators)
        return found

    def start(self) -> None:
        """Begin to coordinate: the partitions are open."""
        self._is_started = True
        self._reconcile()

    def stop(self) -> None:
        """Shut down for good; waiting clients look for their new coordinators."""
        self._is_stopped = True
        made = self.__dict__
        for running in self._background:
            running.cancel()
        if "share_partitions" in made:
            self.share_partitions.stop()
        for name in ("coordinators", "transactions", "share_coordinators"):
            if name in made:
                made[name].stop()
        if "markers" in made:
            self.markers.stop()
        if "share_states" in made:
            self.share_states.close()

    def apply(self, records: Sequence[Record] | None) -> None:
        """Follow changed metadata; None stands for all of it."""
        if records is None:
            self._reconcile()
        else:
            for shards in self.shards:
                shards.apply(records)
        if "share_partitions" in self.__dict__:
            self.share_partitions.reconcile()

    def follow_leadership(self, partition: TopicPartition) -> None:
        """Coordinate if this partition of an internal topic is led here, and only then."""
        for shards in self.shards:
            if partition.topic == shards.topic:
                shards.follow_leadership(partition.partition)

    def _reconcile(self) -> None:
        for shards in self.shards:
            shards.reconcile()

    def _begin(self, made: Shards[Any]) -> None:
        """Let coordinators that are made late begin at once."""
        if self._is_stopped:
            made.stop()
        elif self._is_started:
            made.reconcile()
