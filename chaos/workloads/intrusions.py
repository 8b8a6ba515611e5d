"""Requests that an intruder sends: of most APIs, about a target, with the rights that each needs.

The rights are written down here once more, from Kafka's documentation ("Protocol ACLs") and the KIPs, and not taken
from the broker's table: otherwise a right that is missing there would be missed here as well. If a right to the cluster
can stand in for another, only the other is named: no intruder has rights to the cluster. Any user may send a request
without `needs`; its answer may contain only the resources that the user may see.

Read: KIP-11, KIP-290, KIP-430, KIP-679, KIP-848, KIP-932.
Left out: delegation tokens, streams groups, requests of controllers among themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from kraftpy.protocol.apis import APIS, ApiKey
from kraftpy.protocol.messages import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    alter_client_quotas,
    alter_partition_reassignments,
    alter_share_group_offsets,
    alter_user_scram_credentials,
    create_acls,
    create_partitions,
    create_topics,
    delete_acls,
    delete_groups,
    delete_records,
    delete_topics,
    describe_acls,
    describe_client_quotas,
    describe_cluster,
    describe_configs,
    describe_groups,
    describe_log_dirs,
    describe_producers,
    describe_quorum,
    describe_topic_partitions,
    describe_transactions,
    describe_user_scram_credentials,
    elect_leaders,
    end_txn,
    fetch,
    find_coordinator,
    heartbeat,
    incremental_alter_configs,
    init_producer_id,
    join_group,
    leave_group,
    list_config_resources,
    list_groups,
    list_offsets,
    list_partition_reassignments,
    list_transactions,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
    produce,
    share_fetch,
    share_group_heartbeat,
    txn_offset_commit,
    unregister_broker,
    update_features,
    write_txn_markers,
)
from kraftpy.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from kraftpy.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from kraftpy.protocol.messages.share_group_describe import ShareGroupDescribeRequest
from kraftpy.protocol.record_batch import encode_batch
from kraftpy.security.acls import CLUSTER_NAME

INTRUDER: Final = "intruder"
"""Begins the names of everything that intruders try to create."""
_NOWHERE: Final = 77
"""The id of a broker and of a producer that do not exist."""
_TIMEOUT_MS: Final = 1_000


class Target(NamedTuple):
    """The resources that a request is about. They exist, apart from the transaction."""

    topic: str
    group: str
    transaction: str
    topic_id: bytes
    user: str
    """The sender, who also tries to grant rights to itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Intrusion:
    """A request, the version to send it in, and the rights that it needs, as names of operations and resource types."""

    key: ApiKey
    request: Callable[[Target], Any]
    version: int = -1
    """-1 for the newest."""
    needs: tuple[tuple[str, str], ...] = ()
    name: str = ""
    """Distinguishes requests of one API."""

    @property
    def title(self) -> str:
        """Return the name of the API, and of the request if it has one."""
        return f"{self.key.name}{self.name and ' '}{self.name}"

    @property
    def in_version(self) -> int:
        """Return the version to send the request in."""
        return APIS[self.key].last if self.version < 0 else self.version

    def rights(self, target: Target) -> list[list[str]]:
        """Return the rights that the request needs for a target: operation, type and name of the resource."""
        names = {
            "TOPIC": target.topic,
            "GROUP": target.group,
            "TRANSACTIONAL_ID": target.transaction,
            "CLUSTER": CLUSTER_NAME,
        }
        return [[operation, kind, names[kind]] for operation, kind in self.needs]


_ANY_ACL: Final = {
    "resource_type_filter": 1,
    "resource_name_filter": None,
    "pattern_type_filter": 1,
    "principal_filter": None,
    "host_filter": None,
    "operation": 1,
    "permission_type": 1,
}


def _batch() -> bytes:
    return bytes(encode_batch([(0, None, INTRUDER.encode(), ())]))


def _fetch(*, replica_id: int = -1, by_id: bool = False) -> Callable[[Target], Any]:
    def request(target: Target) -> Any:
        partition = fetch.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=10_000)
        named = {"topic_id": target.topic_id} if by_id else {"topic": target.topic}
        topics = [fetch.FetchTopic(partitions=[partition], **named)]
        return fetch.FetchRequest(replica_id=replica_id, max_wait_ms=0, min_bytes=0, topics=topics)

    return request


def _set_retention(target: Target) -> Any:
    config = incremental_alter_configs.AlterableConfig(name="retention.ms", config_operation=0, value="1")
    resource = incremental_alter_configs.AlterConfigsResource(
        resource_type=2, resource_name=target.topic, configs=[config]
    )
    return incremental_alter_configs.IncrementalAlterConfigsRequest(resources=[resource])


def _grant_itself_all(target: Target) -> Any:
    creation = create_acls.AclCreation(
        resource_type=2,
        resource_name=target.topic,
        principal=f"User:{target.user}",
        host="*",
        operation=2,
        permission_type=3,
    )
    return create_acls.CreateAclsRequest(creations=[creation])


def _set_quota(target: Target) -> Any:
    entry = alter_client_quotas.EntryData(
        entity=[alter_client_quotas.EntityData(entity_type="user", entity_name=INTRUDER)],
        ops=[alter_client_quotas.OpData(key="producer_byte_rate", value=1.0)],
    )
    return alter_client_quotas.AlterClientQuotasRequest(entries=[entry])


def _set_password(target: Target) -> Any:
    upsertion = alter_user_scram_credentials.ScramCredentialUpsertion(
        name=INTRUDER, mechanism=2, iterations=4096, salt=bytes(16), salted_password=bytes(64)
    )
    return alter_user_scram_credentials.AlterUserScramCredentialsRequest(upsertions=[upsertion])


def _commit(target: Target) -> Any:
    partition = offset_commit.OffsetCommitRequestPartition(partition_index=0, committed_offset=3)
    topic = offset_commit.OffsetCommitRequestTopic(name=target.topic, partitions=[partition])
    return offset_commit.OffsetCommitRequest(group_id=target.group, member_id="", topics=[topic])


def _commit_in_transaction(target: Target) -> Any:
    partition = txn_offset_commit.TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=3)
    return txn_offset_commit.TxnOffsetCommitRequest(
        transactional_id=target.transaction,
        group_id=target.group,
        producer_id=_NOWHERE,
        producer_epoch=0,
        topics=[txn_offset_commit.TxnOffsetCommitRequestTopic(name=target.topic, partitions=[partition])],
    )


def _join(target: Target) -> Any:
    return join_group.JoinGroupRequest(
        group_id=target.group,
        session_timeout_ms=6_000,
        rebalance_timeout_ms=_TIMEOUT_MS,
        member_id="",
        protocol_type="consumer",
        protocols=[join_group.JoinGroupRequestProtocol(name="range", metadata=b"")],
    )


def _offsets(target: Target) -> Any:
    topic = offset_fetch.OffsetFetchRequestTopics(name=target.topic, partition_indexes=[0])
    return offset_fetch.OffsetFetchRequest(
        groups=[offset_fetch.OffsetFetchRequestGroup(group_id=target.group, topics=[topic])]
    )


def _forget_offsets(target: Target) -> Any:
    partition = offset_delete.OffsetDeleteRequestPartition(partition_index=0)
    topic = offset_delete.OffsetDeleteRequestTopic(name=target.topic, partitions=[partition])
    return offset_delete.OffsetDeleteRequest(group_id=target.group, topics=[topic])


def _markers(target: Target) -> Any:
    marker = write_txn_markers.WritableTxnMarker(
        producer_id=_NOWHERE,
        producer_epoch=0,
        transaction_result=True,
        coordinator_epoch=0,
        topics=[write_txn_markers.WritableTxnMarkerTopic(name=target.topic, partition_indexes=[0])],
    )
    return write_txn_markers.WriteTxnMarkersRequest(markers=[marker])


def _share_fetch(target: Target) -> Any:
    topic = share_fetch.FetchTopic(topic_id=target.topic_id, partitions=[share_fetch.FetchPartition(partition_index=0)])
    return share_fetch.ShareFetchRequest(
        group_id=target.group,
        member_id="AAAAAAAAAAAAAAAAAAAAAA",
        max_wait_ms=0,
        min_bytes=0,
        max_records=10,
        batch_size=10,
        topics=[topic],
    )


def _share_offsets(target: Target) -> Any:
    partition = alter_share_group_offsets.AlterShareGroupOffsetsRequestPartition(partition_index=0, start_offset=0)
    topic = alter_share_group_offsets.AlterShareGroupOffsetsRequestTopic(
        topic_name=target.topic, partitions=[partition]
    )
    return alter_share_group_offsets.AlterShareGroupOffsetsRequest(group_id=target.group, topics=[topic])


def _move(target: Target) -> Any:
    partition = alter_partition_reassignments.ReassignablePartition(partition_index=0, replicas=[1])
    topic = alter_partition_reassignments.ReassignableTopic(name=target.topic, partitions=[partition])
    return alter_partition_reassignments.AlterPartitionReassignmentsRequest(timeout_ms=_TIMEOUT_MS, topics=[topic])


def _topic(target: Target) -> Any:
    named = [metadata.MetadataRequestTopic(name=target.topic)]
    return metadata.MetadataRequest(topics=named, allow_auto_topic_creation=False)


def _topic_of_id(target: Target) -> Any:
    named = [metadata.MetadataRequestTopic(topic_id=target.topic_id)]
    return metadata.MetadataRequest(topics=named, allow_auto_topic_creation=False)


def _produce(target: Target) -> Any:
    data = produce.PartitionProduceData(index=0, records=_batch())
    topic = produce.TopicProduceData(name=target.topic, partition_data=[data])
    return produce.ProduceRequest(acks=-1, timeout_ms=_TIMEOUT_MS, topic_data=[topic])


def _latest(target: Target) -> Any:
    partition = list_offsets.ListOffsetsPartition(partition_index=0, timestamp=-1)
    topic = list_offsets.ListOffsetsTopic(name=target.topic, partitions=[partition])
    return list_offsets.ListOffsetsRequest(topics=[topic])


def _settings(target: Target) -> Any:
    resource = describe_configs.DescribeConfigsResource(
        resource_type=2, resource_name=target.topic, configuration_keys=["retention.ms"]
    )
    return describe_configs.DescribeConfigsRequest(resources=[resource])


def _epochs(target: Target) -> Any:
    partition = offset_for_leader_epoch.OffsetForLeaderPartition(partition=0, leader_epoch=0)
    topic = offset_for_leader_epoch.OffsetForLeaderTopic(topic=target.topic, partitions=[partition])
    return offset_for_leader_epoch.OffsetForLeaderEpochRequest(topics=[topic])


def _delete_records(target: Target) -> Any:
    partition = delete_records.DeleteRecordsPartition(partition_index=0, offset=1)
    topic = delete_records.DeleteRecordsTopic(name=target.topic, partitions=[partition])
    return delete_records.DeleteRecordsRequest(topics=[topic], timeout_ms=_TIMEOUT_MS)


def _delete_topic(target: Target) -> Any:
    topic = delete_topics.DeleteTopicState(name=target.topic, topic_id=bytes(16))
    return delete_topics.DeleteTopicsRequest(topics=[topic], timeout_ms=_TIMEOUT_MS)


def _delete_topic_of_id(target: Target) -> Any:
    topic = delete_topics.DeleteTopicState(name=None, topic_id=target.topic_id)
    return delete_topics.DeleteTopicsRequest(topics=[topic], timeout_ms=_TIMEOUT_MS)


def _create_topic(target: Target) -> Any:
    topic = create_topics.CreatableTopic(name=f"{INTRUDER}-topic", num_partitions=1, replication_factor=1)
    return create_topics.CreateTopicsRequest(topics=[topic], timeout_ms=_TIMEOUT_MS)


def _add_partition(target: Target) -> Any:
    topic = create_partitions.CreatePartitionsTopic(name=target.topic, count=2, assignments=None)
    return create_partitions.CreatePartitionsRequest(topics=[topic], timeout_ms=_TIMEOUT_MS)


def _transactional_partitions(target: Target) -> Any:
    topic = add_partitions_to_txn.AddPartitionsToTxnTopic(name=target.topic, partitions=[0])
    return add_partitions_to_txn.AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=target.transaction,
        v3_and_below_producer_id=_NOWHERE,
        v3_and_below_topics=[topic],
    )


def _elect(target: Target) -> Any:
    partitions = [elect_leaders.TopicPartitions(topic=target.topic, partitions=[0])]
    return elect_leaders.ElectLeadersRequest(topic_partitions=partitions, timeout_ms=_TIMEOUT_MS)


def _quorum(target: Target) -> Any:
    topic = describe_quorum.QuorumTopic(
        topic_name="__cluster_metadata", partitions=[describe_quorum.QuorumPartition(partition_index=0)]
    )
    return describe_quorum.DescribeQuorumRequest(topics=[topic])


def _consumer_heartbeat(target: Target) -> Any:
    return ConsumerGroupHeartbeatRequest(
        group_id=target.group,
        member_id=INTRUDER,
        rebalance_timeout_ms=_TIMEOUT_MS,
        subscribed_topic_names=[target.topic],
        topic_partitions=[],
    )


def _producers(target: Target) -> Any:
    topic = describe_producers.TopicRequest(name=target.topic, partition_indexes=[0])
    return describe_producers.DescribeProducersRequest(topics=[topic])


def _of_cluster(operation: str) -> tuple[tuple[str, str], ...]:
    return ((operation, "CLUSTER"),)


_READ_TOPIC, _WRITE_TOPIC, _DESCRIBE_TOPIC = ("READ", "TOPIC"), ("WRITE", "TOPIC"), ("DESCRIBE", "TOPIC")
_READ_GROUP, _DESCRIBE_GROUP, _DELETE_GROUP = ("READ", "GROUP"), ("DESCRIBE", "GROUP"), ("DELETE", "GROUP")
_WRITE_TRANSACTION: Final = ("WRITE", "TRANSACTIONAL_ID")

PROBES: Final[tuple[Intrusion, ...]] = (
    Intrusion(key=ApiKey.METADATA, request=_topic, needs=(_DESCRIBE_TOPIC,)),
    Intrusion(key=ApiKey.FETCH, version=12, request=_fetch(), needs=(_READ_TOPIC,)),
    Intrusion(key=ApiKey.PRODUCE, version=12, request=_produce, needs=(_WRITE_TOPIC,)),
    Intrusion(key=ApiKey.LIST_OFFSETS, request=_latest, needs=(_DESCRIBE_TOPIC,)),
    Intrusion(key=ApiKey.DESCRIBE_CONFIGS, request=_settings, needs=(("DESCRIBE_CONFIGS", "TOPIC"),)),
    Intrusion(
        key=ApiKey.HEARTBEAT,
        request=lambda target: heartbeat.HeartbeatRequest(group_id=target.group, generation_id=1, member_id=INTRUDER),
        needs=(_READ_GROUP,),
    ),
    Intrusion(
        key=ApiKey.DESCRIBE_GROUPS,
        request=lambda target: describe_groups.DescribeGroupsRequest(groups=[target.group]),
        needs=(_DESCRIBE_GROUP,),
    ),
)
"""Requests that need one right each, and are refused exactly if it is missing."""

INTRUSIONS: Final[tuple[Intrusion, ...]] = (
    *PROBES,
    # anybody may ask these, and is told only what he may see
    Intrusion(
        key=ApiKey.METADATA,
        name="of all topics",
        request=lambda _: metadata.MetadataRequest(topics=None, include_topic_authorized_operations=True),
    ),
    Intrusion(key=ApiKey.METADATA, name="by id", request=_topic_of_id),
    Intrusion(key=ApiKey.FETCH, name="by id", request=_fetch(by_id=True)),
    Intrusion(key=ApiKey.DELETE_TOPICS, name="by id", request=_delete_topic_of_id),
    Intrusion(
        key=ApiKey.DESCRIBE_TOPIC_PARTITIONS,
        name="of all topics",
        request=lambda _: describe_topic_partitions.DescribeTopicPartitionsRequest(topics=[]),
    ),
    Intrusion(key=ApiKey.LIST_GROUPS, request=lambda _: list_groups.ListGroupsRequest()),
    Intrusion(key=ApiKey.LIST_TRANSACTIONS, request=lambda _: list_transactions.ListTransactionsRequest()),
    Intrusion(
        key=ApiKey.DESCRIBE_CLUSTER,
        request=lambda _: describe_cluster.DescribeClusterRequest(include_cluster_authorized_operations=True),
    ),
    # topics
    Intrusion(key=ApiKey.FETCH, name="as a replica", version=12, request=_fetch(replica_id=2), needs=(_READ_TOPIC,)),
    Intrusion(
        key=ApiKey.DESCRIBE_TOPIC_PARTITIONS,
        request=lambda target: describe_topic_partitions.DescribeTopicPartitionsRequest(
            topics=[describe_topic_partitions.TopicRequest(name=target.topic)]
        ),
        needs=(_DESCRIBE_TOPIC,),
    ),
    Intrusion(key=ApiKey.CREATE_TOPICS, request=_create_topic, needs=_of_cluster("CREATE")),
    Intrusion(key=ApiKey.DELETE_TOPICS, request=_delete_topic, needs=(("DELETE", "TOPIC"),)),
    Intrusion(key=ApiKey.DELETE_RECORDS, request=_delete_records, needs=(("DELETE", "TOPIC"),)),
    Intrusion(key=ApiKey.CREATE_PARTITIONS, request=_add_partition, needs=(("ALTER", "TOPIC"),)),
    Intrusion(key=ApiKey.OFFSET_FOR_LEADER_EPOCH, request=_epochs, needs=(_DESCRIBE_TOPIC,)),
    Intrusion(key=ApiKey.INCREMENTAL_ALTER_CONFIGS, request=_set_retention, needs=(("ALTER_CONFIGS", "TOPIC"),)),
    Intrusion(key=ApiKey.DESCRIBE_PRODUCERS, request=_producers, needs=(_READ_TOPIC,)),
    # groups
    Intrusion(
        key=ApiKey.FIND_COORDINATOR,
        request=lambda target: find_coordinator.FindCoordinatorRequest(key_type=0, coordinator_keys=[target.group]),
        needs=(_DESCRIBE_GROUP,),
    ),
    Intrusion(key=ApiKey.JOIN_GROUP, request=_join, needs=(_READ_GROUP,)),
    Intrusion(
        key=ApiKey.LEAVE_GROUP,
        request=lambda target: leave_group.LeaveGroupRequest(
            group_id=target.group, members=[leave_group.MemberIdentity(member_id=INTRUDER)]
        ),
        needs=(_READ_GROUP,),
    ),
    Intrusion(key=ApiKey.OFFSET_COMMIT, version=9, request=_commit, needs=(_READ_GROUP, _READ_TOPIC)),
    Intrusion(key=ApiKey.OFFSET_FETCH, version=9, request=_offsets, needs=(_DESCRIBE_GROUP, _DESCRIBE_TOPIC)),
    Intrusion(key=ApiKey.OFFSET_DELETE, request=_forget_offsets, needs=(_DELETE_GROUP, _READ_TOPIC)),
    Intrusion(
        key=ApiKey.DELETE_GROUPS,
        request=lambda target: delete_groups.DeleteGroupsRequest(groups_names=[target.group]),
        needs=(_DELETE_GROUP,),
    ),
    Intrusion(key=ApiKey.CONSUMER_GROUP_HEARTBEAT, request=_consumer_heartbeat, needs=(_READ_GROUP, _DESCRIBE_TOPIC)),
    Intrusion(
        key=ApiKey.CONSUMER_GROUP_DESCRIBE,
        request=lambda target: ConsumerGroupDescribeRequest(group_ids=[target.group]),
        needs=(_DESCRIBE_GROUP,),
    ),
    Intrusion(
        key=ApiKey.SHARE_GROUP_HEARTBEAT,
        request=lambda target: share_group_heartbeat.ShareGroupHeartbeatRequest(
            group_id=target.group, member_id=INTRUDER, subscribed_topic_names=[target.topic]
        ),
        needs=(_READ_GROUP, _DESCRIBE_TOPIC),
    ),
    Intrusion(
        key=ApiKey.SHARE_GROUP_DESCRIBE,
        request=lambda target: ShareGroupDescribeRequest(group_ids=[target.group]),
        needs=(_DESCRIBE_GROUP,),
    ),
    Intrusion(key=ApiKey.SHARE_FETCH, request=_share_fetch, needs=(_READ_GROUP,)),
    Intrusion(key=ApiKey.ALTER_SHARE_GROUP_OFFSETS, request=_share_offsets, needs=(_READ_GROUP, _READ_TOPIC)),
    # transactions
    Intrusion(
        key=ApiKey.INIT_PRODUCER_ID,
        request=lambda target: init_producer_id.InitProducerIdRequest(transactional_id=target.transaction),
        needs=(_WRITE_TRANSACTION,),
    ),
    Intrusion(
        key=ApiKey.ADD_PARTITIONS_TO_TXN, version=3, request=_transactional_partitions, needs=(_WRITE_TRANSACTION,)
    ),
    Intrusion(
        key=ApiKey.ADD_OFFSETS_TO_TXN,
        request=lambda target: add_offsets_to_txn.AddOffsetsToTxnRequest(
            transactional_id=target.transaction, producer_id=_NOWHERE, producer_epoch=0, group_id=target.group
        ),
        needs=(_WRITE_TRANSACTION,),
    ),
    Intrusion(
        key=ApiKey.END_TXN,
        request=lambda target: end_txn.EndTxnRequest(
            transactional_id=target.transaction, producer_id=_NOWHERE, producer_epoch=0, committed=True
        ),
        needs=(_WRITE_TRANSACTION,),
    ),
    Intrusion(key=ApiKey.TXN_OFFSET_COMMIT, request=_commit_in_transaction, needs=(_WRITE_TRANSACTION,)),
    Intrusion(key=ApiKey.WRITE_TXN_MARKERS, request=_markers, needs=_of_cluster("CLUSTER_ACTION")),
    Intrusion(
        key=ApiKey.DESCRIBE_TRANSACTIONS,
        request=lambda target: describe_transactions.DescribeTransactionsRequest(
            transactional_ids=[target.transaction]
        ),
        needs=(("DESCRIBE", "TRANSACTIONAL_ID"),),
    ),
    # the cluster
    Intrusion(
        key=ApiKey.DESCRIBE_ACLS,
        request=lambda _: describe_acls.DescribeAclsRequest(**_ANY_ACL),  # type: ignore[arg-type]
        needs=_of_cluster("DESCRIBE"),
    ),
    Intrusion(key=ApiKey.CREATE_ACLS, request=_grant_itself_all, needs=_of_cluster("ALTER")),
    Intrusion(
        key=ApiKey.DELETE_ACLS,
        request=lambda _: delete_acls.DeleteAclsRequest(
            filters=[delete_acls.DeleteAclsFilter(**_ANY_ACL)]  # type: ignore[arg-type]
        ),
        needs=_of_cluster("ALTER"),
    ),
    Intrusion(
        key=ApiKey.DESCRIBE_LOG_DIRS,
        request=lambda _: describe_log_dirs.DescribeLogDirsRequest(topics=None),
        needs=_of_cluster("DESCRIBE"),
    ),
    Intrusion(key=ApiKey.ELECT_LEADERS, request=_elect, needs=_of_cluster("ALTER")),
    Intrusion(key=ApiKey.ALTER_PARTITION_REASSIGNMENTS, request=_move, needs=_of_cluster("ALTER")),
    Intrusion(
        key=ApiKey.LIST_PARTITION_REASSIGNMENTS,
        request=lambda _: list_partition_reassignments.ListPartitionReassignmentsRequest(),
        needs=_of_cluster("DESCRIBE"),
    ),
    Intrusion(
        key=ApiKey.DESCRIBE_CLIENT_QUOTAS,
        request=lambda _: describe_client_quotas.DescribeClientQuotasRequest(),
        needs=_of_cluster("DESCRIBE_CONFIGS"),
    ),
    Intrusion(key=ApiKey.ALTER_CLIENT_QUOTAS, request=_set_quota, needs=_of_cluster("ALTER_CONFIGS")),
    Intrusion(
        key=ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS,
        request=lambda _: describe_user_scram_credentials.DescribeUserScramCredentialsRequest(),
        needs=_of_cluster("DESCRIBE"),
    ),
    Intrusion(key=ApiKey.ALTER_USER_SCRAM_CREDENTIALS, request=_set_password, needs=_of_cluster("ALTER")),
    Intrusion(key=ApiKey.DESCRIBE_QUORUM, request=_quorum, needs=_of_cluster("DESCRIBE")),
    Intrusion(
        key=ApiKey.UPDATE_FEATURES,
        request=lambda _: update_features.UpdateFeaturesRequest(validate_only=True),
        needs=_of_cluster("ALTER"),
    ),
    Intrusion(
        key=ApiKey.UNREGISTER_BROKER,
        request=lambda _: unregister_broker.UnregisterBrokerRequest(broker_id=_NOWHERE),
        needs=_of_cluster("ALTER"),
    ),
    Intrusion(
        key=ApiKey.LIST_CONFIG_RESOURCES,
        request=lambda _: list_config_resources.ListConfigResourcesRequest(),
        needs=_of_cluster("DESCRIBE_CONFIGS"),
    ),
)
