"""The APIs that the broker serves, each with its handler as `module:function` in this package.

An API that is missing here is not advertised.
"""

from __future__ import annotations

from kraftpy.protocol.apis import ApiKey

HANDLERS: dict[int, str] = {
    ApiKey.PRODUCE: "produce:produce",
    ApiKey.FETCH: "fetch:fetch",
    ApiKey.LIST_OFFSETS: "offsets:list_offsets",
    ApiKey.METADATA: "metadata:metadata",
    ApiKey.OFFSET_COMMIT: "groups:offset_commit",
    ApiKey.OFFSET_FETCH: "groups:offset_fetch",
    ApiKey.FIND_COORDINATOR: "groups:find_coordinator",
    ApiKey.JOIN_GROUP: "groups:join_group",
    ApiKey.HEARTBEAT: "groups:heartbeat",
    ApiKey.LEAVE_GROUP: "groups:leave_group",
    ApiKey.SYNC_GROUP: "groups:sync_group",
    ApiKey.DESCRIBE_GROUPS: "groups:describe_groups",
    ApiKey.LIST_GROUPS: "groups:list_groups",
    ApiKey.SASL_HANDSHAKE: "security:sasl_handshake",
    ApiKey.API_VERSIONS: "cluster:api_versions",
    ApiKey.CREATE_TOPICS: "topics:create_topics",
    ApiKey.DELETE_TOPICS: "topics:delete_topics",
    ApiKey.DELETE_RECORDS: "topics:delete_records",
    ApiKey.INIT_PRODUCER_ID: "producers:init_producer_id",
    ApiKey.OFFSET_FOR_LEADER_EPOCH: "offsets:offset_for_leader_epoch",
    ApiKey.ADD_PARTITIONS_TO_TXN: "transactions:add_partitions_to_txn",
    ApiKey.ADD_OFFSETS_TO_TXN: "transactions:add_offsets_to_txn",
    ApiKey.END_TXN: "transactions:end_txn",
    ApiKey.WRITE_TXN_MARKERS: "transactions:write_txn_markers",
    ApiKey.TXN_OFFSET_COMMIT: "transactions:txn_offset_commit",
    ApiKey.DESCRIBE_CONFIGS: "configs:describe_configs",
    ApiKey.ALTER_CONFIGS: "configs:alter_configs",
    ApiKey.ALTER_REPLICA_LOG_DIRS: "log_dirs:alter_replica_log_dirs",
    ApiKey.DESCRIBE_LOG_DIRS: "log_dirs:describe_log_dirs",
    ApiKey.SASL_AUTHENTICATE: "security:sasl_authenticate",
    ApiKey.CREATE_PARTITIONS: "topics:create_partitions",
    ApiKey.DELETE_GROUPS: "groups:delete_groups",
    ApiKey.ELECT_LEADERS: "leaders:elect_leaders",
    ApiKey.INCREMENTAL_ALTER_CONFIGS: "configs:incremental_alter_configs",
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: "leaders:alter_partition_reassignments",
    ApiKey.LIST_PARTITION_REASSIGNMENTS: "leaders:list_partition_reassignments",
    ApiKey.OFFSET_DELETE: "groups:offset_delete",
    ApiKey.DESCRIBE_CLIENT_QUOTAS: "quotas:describe_client_quotas",
    ApiKey.ALTER_CLIENT_QUOTAS: "quotas:alter_client_quotas",
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: "security:describe_user_scram_credentials",
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: "security:alter_user_scram_credentials",
    ApiKey.DESCRIBE_QUORUM: "quorum:describe_quorum",
    ApiKey.UPDATE_FEATURES: "cluster:update_features",
    ApiKey.DESCRIBE_CLUSTER: "cluster:describe_cluster",
    ApiKey.DESCRIBE_PRODUCERS: "producers:describe_producers",
    ApiKey.UNREGISTER_BROKER: "cluster:unregister_broker",
    ApiKey.DESCRIBE_TRANSACTIONS: "transactions:describe_transactions",
    ApiKey.LIST_TRANSACTIONS: "transactions:list_transactions",
    ApiKey.CONSUMER_GROUP_HEARTBEAT: "groups:consumer_group_heartbeat",
    ApiKey.CONSUMER_GROUP_DESCRIBE: "groups:consumer_group_describe",
    ApiKey.LIST_CONFIG_RESOURCES: "configs:list_config_resources",
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: "metadata:describe_topic_partitions",
    ApiKey.STREAMS_GROUP_HEARTBEAT: "streams_groups:streams_group_heartbeat",
    ApiKey.STREAMS_GROUP_DESCRIBE: "streams_groups:streams_group_describe",
    ApiKey.SHARE_GROUP_HEARTBEAT: "share_groups:share_group_heartbeat",
    ApiKey.SHARE_GROUP_DESCRIBE: "share_groups:share_group_describe",
    ApiKey.SHARE_FETCH: "share:share_fetch",
    ApiKey.SHARE_ACKNOWLEDGE: "share:share_acknowledge",
    ApiKey.INITIALIZE_SHARE_GROUP_STATE: "share_state:answer",
    ApiKey.READ_SHARE_GROUP_STATE: "share_state:answer",
    ApiKey.WRITE_SHARE_GROUP_STATE: "share_state:answer",
    ApiKey.DELETE_SHARE_GROUP_STATE: "share_state:answer",
    ApiKey.READ_SHARE_GROUP_STATE_SUMMARY: "share_state:answer",
    ApiKey.ADD_RAFT_VOTER: "quorum:add_raft_voter",
    ApiKey.REMOVE_RAFT_VOTER: "quorum:remove_raft_voter",
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: "share_groups:describe_share_group_offsets",
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: "share_groups:alter_share_group_offsets",
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: "share_groups:delete_share_group_offsets",
    ApiKey.STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE: "streams_groups:streams_group_topology_description_update",
    ApiKey.UNREGISTER_CONTROLLER: "cluster:unregister_controller",
}

CONTROLLER_APIS = frozenset(
    {
        ApiKey.SASL_HANDSHAKE,
        ApiKey.API_VERSIONS,
        ApiKey.CREATE_TOPICS,
        ApiKey.DELETE_TOPICS,
        ApiKey.DESCRIBE_CONFIGS,
        ApiKey.ALTER_CONFIGS,
        ApiKey.SASL_AUTHENTICATE,
        ApiKey.CREATE_PARTITIONS,
        ApiKey.ELECT_LEADERS,
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
        ApiKey.LIST_PARTITION_REASSIGNMENTS,
        ApiKey.ALTER_CLIENT_QUOTAS,
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS,
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
        ApiKey.DESCRIBE_QUORUM,
        ApiKey.UPDATE_FEATURES,
        ApiKey.DESCRIBE_CLUSTER,
        ApiKey.UNREGISTER_BROKER,
        ApiKey.ADD_RAFT_VOTER,
        ApiKey.REMOVE_RAFT_VOTER,
        ApiKey.UNREGISTER_CONTROLLER,
    }
)
"""The APIs that a controller listener serves to clients (KIP-919), as Kafka's does."""


def served(*, by_controllers: bool = False) -> list[ApiKey]:
    """Return every API that this node serves on a listener for clients, or on a controller listener, by key."""
    return [ApiKey(key) for key in sorted(HANDLERS) if not by_controllers or key in CONTROLLER_APIS]
