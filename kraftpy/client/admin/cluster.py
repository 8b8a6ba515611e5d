"""The admin client's calls about the cluster: brokers, features, the quorum, leaders and partition reassignments.

Every call retries transient failures and raises a `KafkaError`. If the parts of a change succeed and fail independently
(`elect_leaders`), the answer has an outcome for each.

KIP-455 (reassignments), KIP-460 (elections), KIP-584 (features), KIP-700 and KIP-1073 (the cluster), KIP-836 (the
quorum), KIP-853 (voters), KIP-966 (eligible leader replicas).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from kraftpy.client.admin.base import MISSING, AdminBase
from kraftpy.client.admin.messages import (
    check,
    read_described_topic,
    read_quorum,
)
from kraftpy.client.admin.model import (
    ClusterDescription,
    FeatureDescription,
    FeatureRange,
    FeatureUpgrade,
    QuorumDescription,
    QuorumEndpoint,
    Reassignment,
)
from kraftpy.client.connection import UnsupportedVersion, hello
from kraftpy.client.model import Node, TopicInfo
from kraftpy.client.offsets import by_topic
from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.messages import (
    add_raft_voter,
    alter_partition_reassignments,
    describe_cluster,
    describe_quorum,
    describe_topic_partitions,
    elect_leaders,
    list_partition_reassignments,
    remove_raft_voter,
    unregister_broker,
    update_features,
)
from kraftpy.protocol.schema import ZERO_UUID
from kraftpy.types import TopicPartition

METADATA_TOPIC = "__cluster_metadata"


class ClusterAdmin(AdminBase):
    """Admin calls that concern the cluster as a whole."""

    # --- brokers --------------------------------------------------------------------------------------------------

    async def describe_cluster(self, *, include_fenced: bool = False) -> ClusterDescription:
        """Return the cluster's id, brokers and controller; on request also fenced brokers, if supported (KIP-1073)."""

        async def attempt() -> ClusterDescription:
            connection = await self._cluster.any_connection()
            request = describe_cluster.DescribeClusterRequest()
            try:
                version = connection.version(ApiKey.DESCRIBE_CLUSTER)
                request.include_fenced_brokers = include_fenced and version >= 2
                answer = await connection.send(ApiKey.DESCRIBE_CLUSTER, request, version)
            except UnsupportedVersion:  # before KIP-700 metadata has the same
                known = await self._metadata([])
                return ClusterDescription(
                    cluster_id=known.cluster_id,
                    controller_id=known.controller_id,
                    nodes=tuple(known.nodes[node_id] for node_id in sorted(known.nodes)),
                )
            check(answer.error_code, "describe cluster", answer.error_message)
            nodes = [
                Node(node_id=broker.broker_id, host=broker.host, port=broker.port, rack=broker.rack)
                for broker in answer.brokers
            ]
            return ClusterDescription(
                cluster_id=answer.cluster_id,
                controller_id=answer.controller_id,
                nodes=tuple(sorted(nodes, key=lambda node: node.node_id)),
                fenced=frozenset(broker.broker_id for broker in answer.brokers if broker.is_fenced),
            )

        return await self._cluster.retry(attempt)

    async def unregister_broker(self, broker_id: int) -> None:
        """Remove the registration of a broker that will not come back (KIP-631)."""
        request = unregister_broker.UnregisterBrokerRequest(broker_id=broker_id)
        answer = await self._ask_controller(ApiKey.UNREGISTER_BROKER, request)
        check(answer.error_code, f"broker {broker_id} not unregistered", answer.error_message)

    # --- features -------------------------------------------------------------------------------------------------

    async def describe_features(self) -> FeatureDescription:
        """Return the feature levels finalized in the cluster, and those that the broker asked supports."""

        async def attempt() -> FeatureDescription:
            connection = await self._cluster.any_connection()
            answer = await connection.request(ApiKey.API_VERSIONS, hello(), low=3)
            check(answer.error_code, "describe features")
            return FeatureDescription(
                finalized={feature.name: feature.max_version_level for feature in answer.finalized_features},
                supported={
                    feature.name: FeatureRange(first=feature.min_version, last=feature.max_version)
                    for feature in answer.supported_features
                },
                epoch=answer.finalized_features_epoch,
            )

        return await self._cluster.retry(attempt)

    async def update_features(
        self,
        levels: Mapping[str, int],
        *,
        upgrade: FeatureUpgrade = FeatureUpgrade.UPGRADE,
        validate_only: bool = False,
    ) -> None:
        """Set features to these levels (0 removes one): all of them or none."""
        request = update_features.UpdateFeaturesRequest(
            timeout_ms=int(self.options.request_timeout_ms),
            feature_updates=[
                update_features.FeatureUpdateKey(feature=name, max_version_level=level, upgrade_type=upgrade)
                for name, level in sorted(levels.items())
            ],
            validate_only=validate_only,
        )
        older = update_features.UpdateFeaturesRequest(
            timeout_ms=request.timeout_ms,
            feature_updates=[
                update_features.FeatureUpdateKey(
                    feature=name, max_version_level=level, allow_downgrade=upgrade != FeatureUpgrade.UPGRADE
                )
                for name, level in sorted(levels.items())
            ],
        )
        answer = await self._ask_controller(
            ApiKey.UPDATE_FEATURES,
            request,
            low=1 if validate_only else 0,
            choose=lambda version: request if version >= 1 else older,
        )
        check(answer.error_code, "features not updated", answer.error_message)
        for result in answer.results:
            check(result.error_code, f"feature {result.feature!r} not updated", result.error_message)

    # --- the quorum -----------------------------------------------------------------------------------------------

    async def describe_quorum(self) -> QuorumDescription:
        """Return the metadata quorum's leader, voters and observers, and how far each has replicated (KIP-836)."""
        request = describe_quorum.DescribeQuorumRequest(
            topics=[
                describe_quorum.QuorumTopic(
                    topic_name=METADATA_TOPIC, partitions=[describe_quorum.QuorumPartition(partition_index=0)]
                )
            ]
        )

        async def attempt() -> QuorumDescription:
            connection = await self._cluster.any_connection()
            answer = await connection.request(ApiKey.DESCRIBE_QUORUM, request)
            check(answer.error_code, "describe quorum", answer.error_message)
            return read_quorum(answer)

        return await self._cluster.retry(attempt)

    async def add_raft_voter(
        self,
        voter_id: int,
        endpoints: Iterable[QuorumEndpoint],
        *,
        directory_id: bytes = ZERO_UUID,
        cluster_id: str | None = None,
    ) -> None:
        """Add a node as a voter of the metadata quorum; `directory_id` is that of its metadata directory (KIP-853)."""
        request = add_raft_voter.AddRaftVoterRequest(
            cluster_id=cluster_id,
            timeout_ms=int(self.options.request_timeout_ms),
            voter_id=voter_id,
            voter_directory_id=directory_id,
            listeners=[
                add_raft_voter.Listener(name=endpoint.listener, host=endpoint.host, port=endpoint.port)
                for endpoint in endpoints
            ],
        )
        answer = await self._ask_controller(ApiKey.ADD_RAFT_VOTER, request)
        check(answer.error_code, f"voter {voter_id} not added", answer.error_message)

    async def remove_raft_voter(
        self, voter_id: int, *, directory_id: bytes = ZERO_UUID, cluster_id: str | None = None
    ) -> None:
        """Remove a voter from the metadata quorum (KIP-853)."""
        request = remove_raft_voter.RemoveRaftVoterRequest(
            cluster_id=cluster_id, voter_id=voter_id, voter_directory_id=directory_id
        )
        answer = await self._ask_controller(ApiKey.REMOVE_RAFT_VOTER, request)
        check(answer.error_code, f"voter {voter_id} not removed", answer.error_message)

    # --- leaders and replicas -------------------------------------------------------------------------------------

    async def describe_topic_partitions(self, names: Iterable[str] | None = None) -> list[TopicInfo]:
        """Like `describe_topics`, with the eligible leader replicas if the broker supports them (KIP-966)."""
        wanted = None if names is None else sorted(set(names))

        async def attempt() -> list[TopicInfo]:
            connection = await self._cluster.any_connection()
            found: dict[str, TopicInfo] = {}
            cursor: describe_topic_partitions.Cursor | None = None
            while True:
                request = describe_topic_partitions.DescribeTopicPartitionsRequest(
                    topics=[describe_topic_partitions.TopicRequest(name=name) for name in wanted or ()], cursor=cursor
                )
                answer = await connection.request(ApiKey.DESCRIBE_TOPIC_PARTITIONS, request)
                for topic in answer.topics:
                    check(topic.error_code, f"topic {topic.name!r}")
                    read = read_described_topic(topic)
                    before = found.get(read.name)
                    found[read.name] = read if before is None else before.with_more(read.partitions)
                cursor = answer.next_cursor
                if cursor is None:
                    return [found[name] for name in sorted(found)]

        if wanted == []:
            return []
        try:
            return await self._cluster.retry(attempt, final=MISSING)
        except UnsupportedVersion:
            return await self._topics(wanted)

    async def _topics(self, wanted: list[str] | None) -> list[TopicInfo]:
        """Return topics from metadata, sorted by name. Raises `KafkaError` if a named one is missing."""

        async def attempt() -> list[TopicInfo]:
            known = await self._metadata(wanted)
            for name in wanted or ():
                if name not in known.topics:
                    error = known.errors.get(name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                    raise KafkaError(error, f"topic {name!r}: {error.meaning}")
            return [known.topics[name] for name in sorted(known.topics)]

        return await self._cluster.retry(attempt, final=MISSING)

    async def elect_leaders(
        self, partitions: Iterable[TopicPartition] | None = None, *, unclean: bool = False
    ) -> dict[TopicPartition, KafkaError | None]:
        """Elect each partition's preferred replica as leader (all by default), or with `unclean` any live replica.

        None means that a new leader was elected, ELECTION_NOT_NEEDED that the partition had that leader already. If all
        partitions were asked for, those that needed no election are left out.
        """
        request = elect_leaders.ElectLeadersRequest(
            election_type=elect_leaders.UNCLEAN if unclean else elect_leaders.PREFERRED,
            topic_partitions=None
            if partitions is None
            else [
                elect_leaders.TopicPartitions(topic=topic, partitions=indexes)
                for topic, indexes in by_topic(partitions).items()
            ],
            timeout_ms=int(self.options.request_timeout_ms),
        )
        answer = await self._ask_controller(ApiKey.ELECT_LEADERS, request, low=1 if unclean else 0)
        check(answer.error_code, "no election")
        found: dict[TopicPartition, KafkaError | None] = {}
        for topic in answer.replica_election_results:
            for result in topic.partition_result:
                code = ErrorCode.of(result.error_code)
                failed = None if code is ErrorCode.NONE else KafkaError(code, result.error_message or code.meaning)
                found[TopicPartition(topic.topic, result.partition_id)] = failed
        return found

    async def alter_partition_reassignments(
        self,
        moves: Mapping[TopicPartition, Sequence[int] | None],
        *,
        allow_replication_factor_change: bool = True,
    ) -> None:
        """Begin moving partitions to these brokers, the preferred leader first.

        None cancels a reassignment in progress.
        """
        request = alter_partition_reassignments.AlterPartitionReassignmentsRequest(
            timeout_ms=int(self.options.request_timeout_ms),
            allow_replication_factor_change=allow_replication_factor_change,
            topics=[
                alter_partition_reassignments.ReassignableTopic(
                    name=topic,
                    partitions=[
                        alter_partition_reassignments.ReassignablePartition(
                            partition_index=index, replicas=_replicas(moves[TopicPartition(topic, index)])
                        )
                        for index in indexes
                    ],
                )
                for topic, indexes in by_topic(moves).items()
            ],
        )
        low = 0 if allow_replication_factor_change else 1
        answer = await self._ask_controller(ApiKey.ALTER_PARTITION_REASSIGNMENTS, request, low=low)
        check(answer.error_code, "nothing reassigned", answer.error_message)
        for topic in answer.responses:
            for part in topic.partitions:
                check(part.error_code, f"{topic.name}-{part.partition_index} not reassigned", part.error_message)

    async def list_partition_reassignments(
        self, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, Reassignment]:
        """Return the reassignments in progress, of these partitions or (by default) of all."""
        request = list_partition_reassignments.ListPartitionReassignmentsRequest(
            timeout_ms=int(self.options.request_timeout_ms),
            topics=None
            if partitions is None
            else [
                list_partition_reassignments.ListPartitionReassignmentsTopics(name=topic, partition_indexes=indexes)
                for topic, indexes in by_topic(partitions).items()
            ],
        )
        answer = await self._ask_controller(ApiKey.LIST_PARTITION_REASSIGNMENTS, request)
        check(answer.error_code, "list reassignments", answer.error_message)
        return {
            TopicPartition(topic.name, part.partition_index): Reassignment(
                replicas=tuple(part.replicas),
                adding=tuple(part.adding_replicas),
                removing=tuple(part.removing_replicas),
            )
            for topic in answer.topics
            for part in topic.partitions
        }


def _replicas(brokers: Sequence[int] | None) -> list[int] | None:
    return None if brokers is None else list(brokers)
