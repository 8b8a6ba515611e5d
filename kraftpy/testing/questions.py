"""Questions and commands to a cluster, over connections of its own, answered by the first broker that does."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

from kraftpy.testing.server_process import BrokerDied

ASK_SECONDS = 2.0
"""How long a broker may take to answer."""
_TAIL_CHARACTERS = 4000


class Questions(ABC):
    """A cluster that can be asked."""

    brokers: tuple[int, ...]

    @abstractmethod
    def can_ask(self, node: int) -> bool:
        """Return whether the node is running and not paused."""

    @abstractmethod
    def address(self, node: int) -> str:
        """Return the host and port at which clients reach this broker."""

    @abstractmethod
    def logs(self, node: int) -> str:
        """Return the node's standard error, over all of its runs."""

    def leader_of(self, topic: str, partition: int = 0, *, ask: int | None = None) -> int | None:
        """Return the broker that leads a partition; None if it has no leader.

        Asks broker `ask`, or the first that answers: a broker that is cut off has outdated metadata.
        """
        from kraftpy.protocol.apis import ApiKey
        from kraftpy.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic

        request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)
        for answer in self._ask_any(ApiKey.METADATA, 9, request, ask):
            for found in answer.topics:
                for each in found.partitions:
                    if each.partition_index == partition and each.leader_id >= 0:
                        return int(each.leader_id)
            return None
        return None

    def led_by(self, node: int, *, ask: int) -> int:
        """Return how many partitions a node leads according to broker `ask`; for -1, how many have no leader.

        Raises BrokerDied if that broker does not answer.
        """
        answer = self._metadata(ask, ASK_SECONDS, is_of_topics=True)
        if answer is None:
            raise BrokerDied(f"node {ask} does not answer: {self.logs(ask)[-_TAIL_CHARACTERS:]}")
        return sum(each.leader_id == node for topic in answer.topics for each in topic.partitions)

    def partitions(self) -> list[tuple[str, int, int, list[int]]]:
        """Return topic, number, leader and replicas of every partition, sorted, from the first broker to answer."""
        for node in self.brokers:
            if self.can_ask(node) and (answer := self._metadata(node, ASK_SECONDS, is_of_topics=True)) is not None:
                return sorted(
                    (topic.name, each.partition_index, each.leader_id, list(each.replica_nodes))
                    for topic in answer.topics
                    for each in topic.partitions
                )
        return []

    def move_leader(self, topic: str, partition: int = 0, *, to: int | None = None) -> int:
        """Make broker `to`, or the next of a partition's replicas, its leader. Returns the leader then.

        Reorders the replicas for that, the new leader first. Raises KafkaError if that is refused, BrokerDied if no
        broker answers.
        """
        from kraftpy.protocol.apis import ApiKey
        from kraftpy.protocol.errors import ErrorCode, KafkaError
        from kraftpy.protocol.messages.alter_partition_reassignments import (
            AlterPartitionReassignmentsRequest,
            ReassignablePartition,
            ReassignableTopic,
        )
        from kraftpy.protocol.messages.elect_leaders import ElectLeadersRequest, TopicPartitions

        found = next((each for each in self.partitions() if each[:2] == (topic, partition)), None)
        if found is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{topic}-{partition} does not exist")
        *_, leader, replicas = found
        after = replicas.index(leader) + 1 if leader in replicas else 0
        new = replicas[after % len(replicas)] if to is None else to
        order = [new, *(each for each in replicas if each != new)]
        moved = ReassignableTopic(
            name=topic, partitions=[ReassignablePartition(partition_index=partition, replicas=order)]
        )
        request = AlterPartitionReassignmentsRequest(topics=[moved])
        answer = self._ask_first(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, request)
        refused = [answer, *(each for topic in answer.responses for each in topic.partitions)]
        elected = TopicPartitions(topic=topic, partitions=[partition])
        if all(each.error_code == ErrorCode.NONE for each in refused):
            answer = self._ask_first(ApiKey.ELECT_LEADERS, 2, ElectLeadersRequest(topic_partitions=[elected]))
            refused = [answer, *(each for topic in answer.replica_election_results for each in topic.partition_result)]
        for each in refused:
            if each.error_code not in (ErrorCode.NONE, ErrorCode.ELECTION_NOT_NEEDED):
                raise KafkaError(ErrorCode.of(each.error_code), f"{topic}-{partition} is not led by {new}")
        return new

    def _ask_first(self, key: Any, version: int, request: object) -> Any:
        for answer in self._ask_any(key, version, request):
            return answer
        raise BrokerDied("no broker answers")

    def quorum_leader(self) -> int | None:
        """Return the node that leads the quorum, from the first broker that answers; None if there is no leader.

        The quorum's leader is the active controller.
        """
        from kraftpy.protocol.apis import ApiKey
        from kraftpy.protocol.messages.describe_quorum import DescribeQuorumRequest, QuorumPartition, QuorumTopic

        topic = QuorumTopic(topic_name="__cluster_metadata", partitions=[QuorumPartition(partition_index=0)])
        for answer in self._ask_any(ApiKey.DESCRIBE_QUORUM, 0, DescribeQuorumRequest(topics=[topic])):
            for found in answer.topics:
                for each in found.partitions:
                    if each.error_code == 0 and each.leader_id >= 0:
                        return int(each.leader_id)
        return None

    def coordinator_of(self, group: str) -> int | None:
        """Return the broker that coordinates a consumer group, from the first broker that answers; None without one."""
        from kraftpy.protocol.apis import ApiKey
        from kraftpy.protocol.messages.find_coordinator import FindCoordinatorRequest

        for answer in self._ask_any(ApiKey.FIND_COORDINATOR, 3, FindCoordinatorRequest(key=group)):
            if answer.error_code == 0:
                return int(answer.node_id)
        return None

    def _known_to(self, node: int, timeout: float) -> set[int]:
        """Return the brokers in this broker's metadata; empty if it does not answer."""
        answer = self._metadata(node, timeout, is_of_topics=False)
        return set() if answer is None else {broker.node_id for broker in answer.brokers}

    def _lagging(self, node: int, timeout: float) -> list[str] | None:
        """Return the partitions this broker sees without a leader or out of sync; None if it does not answer."""
        answer = self._metadata(node, timeout, is_of_topics=True)
        if answer is None:
            return None
        return [
            f"{topic.name}-{each.partition_index}: leader {each.leader_id}, replicas {each.replica_nodes}, "
            f"in sync {each.isr_nodes}"
            for topic in answer.topics
            for each in topic.partitions
            if each.leader_id < 0 or set(each.isr_nodes) != set(each.replica_nodes)
        ]

    def _metadata(self, node: int, timeout: float, *, is_of_topics: bool) -> Any:
        """Return this broker's answer to Metadata, with all topics or none; None if it does not answer."""
        from kraftpy.protocol.apis import ApiKey
        from kraftpy.protocol.messages.metadata import MetadataRequest
        from kraftpy.testing.asking import ask

        request = MetadataRequest(topics=None if is_of_topics else [])
        try:
            return ask(self._host_and_port(node), ApiKey.METADATA, 9, request, timeout=timeout)
        except OSError:
            return None

    def _ask_any(self, key: Any, version: int, request: object, only: int | None = None) -> Iterable[Any]:
        """Yield the answers of those brokers that do answer."""
        from kraftpy.testing.asking import ask

        for node in self.brokers if only is None else (only,):
            if self.can_ask(node):
                with contextlib.suppress(OSError):
                    yield ask(self._host_and_port(node), key, version, request, timeout=ASK_SECONDS)

    def _host_and_port(self, node: int) -> tuple[str, int]:
        host, _, port = self.address(node).rpartition(":")
        return host, int(port)
