"""A request of every API that needs rights, about resources that may or may not exist, for the tests of rights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.messages import add_partitions_to_txn as adding
from kraftpy.protocol.messages import alter_client_quotas as quotas
from kraftpy.protocol.messages import alter_configs as altering
from kraftpy.protocol.messages import alter_partition_reassignments as moving
from kraftpy.protocol.messages import alter_replica_log_dirs as log_dirs
from kraftpy.protocol.messages import alter_share_group_offsets as share_offsets
from kraftpy.protocol.messages import alter_user_scram_credentials as scram
from kraftpy.protocol.messages import create_acls as creating_acls
from kraftpy.protocol.messages import create_partitions as partitions
from kraftpy.protocol.messages import create_topics as creating
from kraftpy.protocol.messages import delete_acls as deleting_acls
from kraftpy.protocol.messages import delete_records as records
from kraftpy.protocol.messages import delete_share_group_offsets as no_share_offsets
from kraftpy.protocol.messages import delete_topics as deleting
from kraftpy.protocol.messages import describe_configs as configs
from kraftpy.protocol.messages import describe_producers as producers
from kraftpy.protocol.messages import describe_share_group_offsets as shared
from kraftpy.protocol.messages import describe_topic_partitions as described
from kraftpy.protocol.messages import elect_leaders as electing
from kraftpy.protocol.messages import fetch as fetching
from kraftpy.protocol.messages import incremental_alter_configs as incremental
from kraftpy.protocol.messages import list_offsets as offsets
from kraftpy.protocol.messages import metadata
from kraftpy.protocol.messages import offset_commit as committing
from kraftpy.protocol.messages import offset_delete as forgetting
from kraftpy.protocol.messages import offset_fetch as committed
from kraftpy.protocol.messages import offset_for_leader_epoch as epochs
from kraftpy.protocol.messages import produce as producing
from kraftpy.protocol.messages import share_acknowledge as acknowledging
from kraftpy.protocol.messages import share_fetch as share_fetching
from kraftpy.protocol.messages import streams_group_heartbeat as streams
from kraftpy.protocol.messages import streams_group_topology_description_update as topologies
from kraftpy.protocol.messages import txn_offset_commit as in_transaction
from kraftpy.protocol.messages import write_txn_markers as markers
from kraftpy.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from kraftpy.protocol.messages.add_raft_voter import AddRaftVoterRequest
from kraftpy.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from kraftpy.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from kraftpy.protocol.messages.create_delegation_token import CreateDelegationTokenRequest
from kraftpy.protocol.messages.delete_groups import DeleteGroupsRequest
from kraftpy.protocol.messages.describe_acls import DescribeAclsRequest
from kraftpy.protocol.messages.describe_client_quotas import DescribeClientQuotasRequest
from kraftpy.protocol.messages.describe_cluster import DescribeClusterRequest
from kraftpy.protocol.messages.describe_delegation_token import DescribeDelegationTokenRequest
from kraftpy.protocol.messages.describe_groups import DescribeGroupsRequest
from kraftpy.protocol.messages.describe_log_dirs import DescribeLogDirsRequest
from kraftpy.protocol.messages.describe_quorum import DescribeQuorumRequest, QuorumPartition, QuorumTopic
from kraftpy.protocol.messages.describe_transactions import DescribeTransactionsRequest
from kraftpy.protocol.messages.describe_user_scram_credentials import DescribeUserScramCredentialsRequest
from kraftpy.protocol.messages.end_txn import EndTxnRequest
from kraftpy.protocol.messages.find_coordinator import FindCoordinatorRequest
from kraftpy.protocol.messages.heartbeat import HeartbeatRequest
from kraftpy.protocol.messages.init_producer_id import InitProducerIdRequest
from kraftpy.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from kraftpy.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from kraftpy.protocol.messages.list_config_resources import ListConfigResourcesRequest
from kraftpy.protocol.messages.list_groups import ListGroupsRequest
from kraftpy.protocol.messages.list_partition_reassignments import ListPartitionReassignmentsRequest
from kraftpy.protocol.messages.list_transactions import ListTransactionsRequest
from kraftpy.protocol.messages.remove_raft_voter import RemoveRaftVoterRequest
from kraftpy.protocol.messages.share_group_describe import ShareGroupDescribeRequest
from kraftpy.protocol.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from kraftpy.protocol.messages.streams_group_describe import StreamsGroupDescribeRequest
from kraftpy.protocol.messages.sync_group import SyncGroupRequest
from kraftpy.protocol.messages.unregister_broker import UnregisterBrokerRequest
from kraftpy.protocol.messages.unregister_controller import UnregisterControllerRequest
from kraftpy.protocol.messages.update_features import UpdateFeaturesRequest
from kraftpy.protocol.record_batch import encode_batch

_NOWHERE = 77
"""The id of a broker, a voter and a producer that do not exist."""


class Named(NamedTuple):
    """The resources that a request is about."""

    topic: str
    group: str
    transaction: str
    topic_id: bytes = bytes(16)


def batch(*, is_transactional: bool = False) -> bytes:
    """Return a batch with one record."""
    producer = {"producer_id": _NOWHERE, "producer_epoch": 0, "base_sequence": 0} if is_transactional else {}
    return bytes(encode_batch([(0, None, b"v", ())], is_transactional=is_transactional, **producer))


EVERY_ACL: dict[str, Any] = {
    "resource_type_filter": 1,
    "resource_name_filter": None,
    "pattern_type_filter": 1,
    "principal_filter": None,
    "host_filter": None,
    "operation": 1,
    "permission_type": 1,
}
"""The fields of a filter that every ACL passes."""
_NO_ACL = {**EVERY_ACL, "principal_filter": "User:nobody"}


def _configurable(resource: Callable[..., Any], named: Named, **more: Any) -> list[Any]:
    """A topic, a group and a broker, as resources of requests about settings."""
    return [
        resource(resource_type=2, resource_name=named.topic, **more),
        resource(resource_type=32, resource_name=named.group, **more),
        resource(resource_type=4, resource_name="1", **more),
    ]


REQUESTS: dict[ApiKey, Callable[[Named], Any]] = {
    ApiKey.PRODUCE: lambda named: producing.ProduceRequest(
        transactional_id=named.transaction,
        acks=1,
        timeout_ms=1000,
        topic_data=[
            producing.TopicProduceData(
                name=named.topic,
                partition_data=[producing.PartitionProduceData(index=0, records=batch(is_transactional=True))],
            )
        ],
    ),
    ApiKey.FETCH: lambda named: fetching.FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        topics=[
            fetching.FetchTopic(
                topic=named.topic,
                partitions=[fetching.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)],
            )
        ],
    ),
    ApiKey.LIST_OFFSETS: lambda named: offsets.ListOffsetsRequest(
        topics=[
            offsets.ListOffsetsTopic(
                name=named.topic, partitions=[offsets.ListOffsetsPartition(partition_index=0, timestamp=-1)]
            )
        ]
    ),
    ApiKey.METADATA: lambda named: metadata.MetadataRequest(
        topics=[metadata.MetadataRequestTopic(name=named.topic)],
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=True,
    ),
    ApiKey.OFFSET_COMMIT: lambda named: committing.OffsetCommitRequest(
        group_id=named.group,
        member_id="",
        topics=[
            committing.OffsetCommitRequestTopic(
                name=named.topic,
                partitions=[committing.OffsetCommitRequestPartition(partition_index=0, committed_offset=0)],
            )
        ],
    ),
    ApiKey.OFFSET_FETCH: lambda named: committed.OffsetFetchRequest(
        groups=[
            committed.OffsetFetchRequestGroup(
                group_id=named.group,
                topics=[committed.OffsetFetchRequestTopics(name=named.topic, partition_indexes=[0])],
            )
        ]
    ),
    ApiKey.FIND_COORDINATOR: lambda named: FindCoordinatorRequest(key_type=0, coordinator_keys=[named.group]),
    ApiKey.JOIN_GROUP: lambda named: JoinGroupRequest(
        group_id=named.group,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        member_id="",
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
    ),
    ApiKey.HEARTBEAT: lambda named: HeartbeatRequest(group_id=named.group, generation_id=1, member_id="m"),
    ApiKey.LEAVE_GROUP: lambda named: LeaveGroupRequest(group_id=named.group, members=[MemberIdentity(member_id="m")]),
    ApiKey.SYNC_GROUP: lambda named: SyncGroupRequest(
        group_id=named.group, generation_id=1, member_id="m", protocol_type="consumer", protocol_name="range"
    ),
    ApiKey.DESCRIBE_GROUPS: lambda named: DescribeGroupsRequest(
        groups=[named.group], include_authorized_operations=True
    ),
    ApiKey.LIST_GROUPS: lambda named: ListGroupsRequest(),
    ApiKey.CREATE_TOPICS: lambda named: creating.CreateTopicsRequest(
        topics=[creating.CreatableTopic(name=named.topic, num_partitions=1, replication_factor=1)], validate_only=True
    ),
    ApiKey.DELETE_TOPICS: lambda named: deleting.DeleteTopicsRequest(
        topics=[deleting.DeleteTopicState(name=named.topic, topic_id=bytes(16))]
    ),
    ApiKey.DELETE_RECORDS: lambda named: records.DeleteRecordsRequest(
        topics=[
            records.DeleteRecordsTopic(
                name=named.topic, partitions=[records.DeleteRecordsPartition(partition_index=0, offset=0)]
            )
        ]
    ),
    ApiKey.INIT_PRODUCER_ID: lambda named: InitProducerIdRequest(transactional_id=named.transaction),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: lambda named: epochs.OffsetForLeaderEpochRequest(
        topics=[
            epochs.OffsetForLeaderTopic(
                topic=named.topic, partitions=[epochs.OffsetForLeaderPartition(partition=0, leader_epoch=0)]
            )
        ]
    ),
    ApiKey.ADD_PARTITIONS_TO_TXN: lambda named: adding.AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=named.transaction,
        v3_and_below_producer_id=_NOWHERE,
        v3_and_below_topics=[adding.AddPartitionsToTxnTopic(name=named.topic, partitions=[0])],
    ),
    ApiKey.ADD_OFFSETS_TO_TXN: lambda named: AddOffsetsToTxnRequest(
        transactional_id=named.transaction, producer_id=_NOWHERE, producer_epoch=0, group_id=named.group
    ),
    ApiKey.END_TXN: lambda named: EndTxnRequest(
        transactional_id=named.transaction, producer_id=_NOWHERE, producer_epoch=0, committed=True
    ),
    ApiKey.WRITE_TXN_MARKERS: lambda named: markers.WriteTxnMarkersRequest(
        markers=[
            markers.WritableTxnMarker(
                producer_id=_NOWHERE,
                producer_epoch=0,
                transaction_result=False,
                coordinator_epoch=0,
                topics=[markers.WritableTxnMarkerTopic(name=named.topic, partition_indexes=[0])],
            )
        ]
    ),
    ApiKey.TXN_OFFSET_COMMIT: lambda named: in_transaction.TxnOffsetCommitRequest(
        transactional_id=named.transaction,
        group_id=named.group,
        producer_id=_NOWHERE,
        producer_epoch=0,
        topics=[
            in_transaction.TxnOffsetCommitRequestTopic(
                name=named.topic,
                partitions=[in_transaction.TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=0)],
            )
        ],
    ),
    ApiKey.DESCRIBE_ACLS: lambda named: DescribeAclsRequest(**_NO_ACL),
    ApiKey.CREATE_ACLS: lambda named: creating_acls.CreateAclsRequest(
        creations=[
            creating_acls.AclCreation(
                resource_type=2, resource_name="other", principal="User:x", host="*", operation=3, permission_type=3
            )
        ]
    ),
    ApiKey.DELETE_ACLS: lambda named: deleting_acls.DeleteAclsRequest(
        filters=[deleting_acls.DeleteAclsFilter(**_NO_ACL)]
    ),
    ApiKey.DESCRIBE_CONFIGS: lambda named: configs.DescribeConfigsRequest(
        resources=_configurable(configs.DescribeConfigsResource, named, configuration_keys=["x"])
    ),
    ApiKey.ALTER_CONFIGS: lambda named: altering.AlterConfigsRequest(
        resources=_configurable(altering.AlterConfigsResource, named),
        validate_only=True,
    ),
    ApiKey.ALTER_REPLICA_LOG_DIRS: lambda named: log_dirs.AlterReplicaLogDirsRequest(
        dirs=[
            log_dirs.AlterReplicaLogDir(
                path="/nowhere", topics=[log_dirs.AlterReplicaLogDirTopic(name=named.topic, partitions=[0])]
            )
        ]
    ),
    ApiKey.DESCRIBE_LOG_DIRS: lambda named: DescribeLogDirsRequest(topics=None),
    ApiKey.CREATE_PARTITIONS: lambda named: partitions.CreatePartitionsRequest(
        topics=[partitions.CreatePartitionsTopic(name=named.topic, count=9, assignments=None)], validate_only=True
    ),
    ApiKey.CREATE_DELEGATION_TOKEN: lambda named: CreateDelegationTokenRequest(
        owner_principal_type="User", owner_principal_name=named.group, max_lifetime_ms=-1
    ),
    ApiKey.DESCRIBE_DELEGATION_TOKEN: lambda named: DescribeDelegationTokenRequest(owners=None),
    ApiKey.DELETE_GROUPS: lambda named: DeleteGroupsRequest(groups_names=[named.group]),
    ApiKey.ELECT_LEADERS: lambda named: electing.ElectLeadersRequest(
        topic_partitions=[electing.TopicPartitions(topic=named.topic, partitions=[0])]
    ),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: lambda named: incremental.IncrementalAlterConfigsRequest(
        resources=_configurable(incremental.AlterConfigsResource, named),
        validate_only=True,
    ),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: lambda named: moving.AlterPartitionReassignmentsRequest(
        topics=[
            moving.ReassignableTopic(name=named.topic, partitions=[moving.ReassignablePartition(partition_index=0)])
        ]
    ),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: lambda named: ListPartitionReassignmentsRequest(),
    ApiKey.OFFSET_DELETE: lambda named: forgetting.OffsetDeleteRequest(
        group_id=named.group,
        topics=[
            forgetting.OffsetDeleteRequestTopic(
                name=named.topic, partitions=[forgetting.OffsetDeleteRequestPartition(partition_index=0)]
            )
        ],
    ),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: lambda named: DescribeClientQuotasRequest(),
    ApiKey.ALTER_CLIENT_QUOTAS: lambda named: quotas.AlterClientQuotasRequest(
        entries=[
            quotas.EntryData(
                entity=[quotas.EntityData(entity_type="user", entity_name="nobody")],
                ops=[quotas.OpData(key="producer_byte_rate", value=1.0)],
            )
        ],
        validate_only=True,
    ),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: lambda named: DescribeUserScramCredentialsRequest(),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: lambda named: scram.AlterUserScramCredentialsRequest(
        deletions=[scram.ScramCredentialDeletion(name="nobody", mechanism=1)]
    ),
    ApiKey.DESCRIBE_QUORUM: lambda named: DescribeQuorumRequest(
        topics=[QuorumTopic(topic_name="__cluster_metadata", partitions=[QuorumPartition(partition_index=0)])]
    ),
    ApiKey.UPDATE_FEATURES: lambda named: UpdateFeaturesRequest(validate_only=True),
    ApiKey.DESCRIBE_CLUSTER: lambda named: DescribeClusterRequest(include_cluster_authorized_operations=True),
    ApiKey.DESCRIBE_PRODUCERS: lambda named: producers.DescribeProducersRequest(
        topics=[producers.TopicRequest(name=named.topic, partition_indexes=[0])]
    ),
    ApiKey.UNREGISTER_BROKER: lambda named: UnregisterBrokerRequest(broker_id=_NOWHERE),
    ApiKey.DESCRIBE_TRANSACTIONS: lambda named: DescribeTransactionsRequest(transactional_ids=[named.transaction]),
    ApiKey.LIST_TRANSACTIONS: lambda named: ListTransactionsRequest(),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: lambda named: ConsumerGroupHeartbeatRequest(
        group_id=named.group,
        member_id="m",
        rebalance_timeout_ms=10_000,
        subscribed_topic_names=[named.topic],
        topic_partitions=[],
    ),
    ApiKey.CONSUMER_GROUP_DESCRIBE: lambda named: ConsumerGroupDescribeRequest(
        group_ids=[named.group], include_authorized_operations=True
    ),
    ApiKey.LIST_CONFIG_RESOURCES: lambda named: ListConfigResourcesRequest(),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: lambda named: described.DescribeTopicPartitionsRequest(
        topics=[described.TopicRequest(name=named.topic)]
    ),
    ApiKey.STREAMS_GROUP_HEARTBEAT: lambda named: streams.StreamsGroupHeartbeatRequest(
        group_id=named.group,
        member_id="m",
        rebalance_timeout_ms=10_000,
        process_id="p",
        topology=streams.Topology(
            epoch=1,
            subtopologies=[
                streams.Subtopology(
                    subtopology_id="0",
                    source_topics=[named.topic],
                )
            ],
        ),
        active_tasks=[],
        standby_tasks=[],
        warmup_tasks=[],
    ),
    ApiKey.STREAMS_GROUP_DESCRIBE: lambda named: StreamsGroupDescribeRequest(
        group_ids=[named.group], include_authorized_operations=True
    ),
    ApiKey.SHARE_GROUP_HEARTBEAT: lambda named: ShareGroupHeartbeatRequest(
        group_id=named.group, member_id="m", subscribed_topic_names=[named.topic]
    ),
    ApiKey.SHARE_GROUP_DESCRIBE: lambda named: ShareGroupDescribeRequest(
        group_ids=[named.group], include_authorized_operations=True
    ),
    ApiKey.SHARE_FETCH: lambda named: share_fetching.ShareFetchRequest(
        group_id=named.group,
        member_id="m",
        max_wait_ms=0,
        min_bytes=0,
        max_records=1,
        batch_size=1,
        topics=[
            share_fetching.FetchTopic(
                topic_id=named.topic_id, partitions=[share_fetching.FetchPartition(partition_index=0)]
            )
        ],
    ),
    ApiKey.SHARE_ACKNOWLEDGE: lambda named: acknowledging.ShareAcknowledgeRequest(
        group_id=named.group,
        member_id="m",
        share_session_epoch=1,
        topics=[
            acknowledging.AcknowledgeTopic(
                topic_id=named.topic_id,
                partitions=[
                    acknowledging.AcknowledgePartition(
                        partition_index=0,
                        acknowledgement_batches=[
                            share_fetching.AcknowledgementBatch(first_offset=0, last_offset=0, acknowledge_types=[1])
                        ],
                    )
                ],
            )
        ],
    ),
    ApiKey.ADD_RAFT_VOTER: lambda named: AddRaftVoterRequest(cluster_id="other", voter_id=_NOWHERE),
    ApiKey.REMOVE_RAFT_VOTER: lambda named: RemoveRaftVoterRequest(cluster_id="other", voter_id=_NOWHERE),
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: lambda named: shared.DescribeShareGroupOffsetsRequest(
        groups=[
            shared.DescribeShareGroupOffsetsRequestGroup(
                group_id=named.group,
                topics=[shared.DescribeShareGroupOffsetsRequestTopic(topic_name=named.topic, partitions=[0])],
            )
        ]
    ),
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: lambda named: share_offsets.AlterShareGroupOffsetsRequest(
        group_id=named.group,
        topics=[
            share_offsets.AlterShareGroupOffsetsRequestTopic(
                topic_name=named.topic,
                partitions=[share_offsets.AlterShareGroupOffsetsRequestPartition(partition_index=0, start_offset=0)],
            )
        ],
    ),
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: lambda named: no_share_offsets.DeleteShareGroupOffsetsRequest(
        group_id=named.group,
        topics=[no_share_offsets.DeleteShareGroupOffsetsRequestTopic(topic_name=named.topic)],
    ),
    ApiKey.STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE: lambda named: (
        topologies.StreamsGroupTopologyDescriptionUpdateRequest(
            group_id=named.group,
            member_id="m",
            topology_epoch=1,
            topology_description=topologies.TopologyDescription(),
        )
    ),
    ApiKey.UNREGISTER_CONTROLLER: lambda named: UnregisterControllerRequest(controller_id=_NOWHERE),
}

VERSIONS: dict[ApiKey, int] = {
    ApiKey.PRODUCE: 12,  # the last that name topics
    ApiKey.FETCH: 12,
    ApiKey.OFFSET_COMMIT: 9,
    ApiKey.OFFSET_FETCH: 9,
    ApiKey.ADD_PARTITIONS_TO_TXN: 3,  # the last of clients
}
"""The versions to ask in that are not the newest."""
