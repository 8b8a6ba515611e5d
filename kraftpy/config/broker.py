"""The broker's settings as one frozen, typed object, validated as a whole.

`BrokerConfig()` is a single node with our defaults; `BrokerConfig.of({"log.dirs": "/data"})` takes settings by their
Kafka names; `sources.load` reads a file, the environment and the command line.

Attributes are Kafka's names with dots as underscores. A few are resolved rather than raw: `log_dirs` falls back to
`log.dir`; `listeners` and `advertised_listeners` are `Listener`s (the server replaces an empty host or a port of 0 by
the actual one); `node_id` and `broker_id` are the same.

Settings that change while the broker runs (KIP-226) are in `dynamic`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kraftpy.config import listeners as listening
from kraftpy.config import quorum
from kraftpy.config.broker_settings import BROKER_TABLE
from kraftpy.config.consistency import check_together
from kraftpy.config.console_listener import CONSOLE, parse_console_listener
from kraftpy.config.listener_limits import limit_name, parse_limit
from kraftpy.config.listeners import Listener
from kraftpy.config.metrics import METRICS, is_https, parse_metrics_listener
from kraftpy.config.quorum import Address, Voter
from kraftpy.config.settings import ConfigError, Setting, parse_table
from kraftpy.config.topic import TopicConfig, topic_config
from kraftpy.frozen import frozen
from kraftpy.security.acls import parse_super_users

if TYPE_CHECKING:
    from kraftpy.config.security import ListenerSecurity

BROKER_SETTINGS: dict[str, Setting] = parse_table(BROKER_TABLE)

LEADER_SELECTOR = "org.apache.kafka.common.replica.LeaderSelector"
AUTHORIZER: Final = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
"""The one value of `authorizer.class.name`: the authorizer that keeps its ACLs in the metadata (KIP-801)."""
RACK_AWARE_SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
_MAX_HOST_BYTES: Final = 255
REPLICA_SELECTORS = (LEADER_SELECTOR, RACK_AWARE_SELECTOR)
"""Kafka's class names for the built-in selectors; other classes cannot be loaded."""


class Origin(IntEnum):
    """The source of a broker setting; a later one takes precedence."""

    FILE = 0
    ENVIRONMENT = 1
    OVERRIDE = 2


class WrittenSetting(NamedTuple):
    """A setting as it was written."""

    text: str
    origin: Origin


def _default(name: str) -> Any:
    return BROKER_SETTINGS[name].default_value()


@frozen
class BrokerConfig:
    """Every setting this broker acts on. `given` holds what was set, by Kafka's names, including ignored settings."""

    # Identity
    node_id: int = _default("node.id")
    broker_id: int = _default("node.id")
    broker_rack: str | None = _default("broker.rack")
    kraftpy_broker_host: str | None = _default("kraftpy.broker.host")
    process_roles: tuple[str, ...] = _default("process.roles")

    # Authorization
    authorizer_class_name: str = _default("authorizer.class.name")
    super_users: str = _default("super.users")
    allow_everyone_if_no_acl_found: bool = _default("allow.everyone.if.no.acl.found")
    kraftpy_console_listener: str | None = _default("kraftpy.console.listener")
    kraftpy_console_config: str | None = _default("kraftpy.console.config")
    kraftpy_console_allow_changes: bool = _default("kraftpy.console.allow.changes")
    kraftpy_audit_log_file: str | None = _default("kraftpy.audit.log.file")
    kraftpy_audit_log_max_bytes: int = _default("kraftpy.audit.log.max.bytes")
    kraftpy_metrics_listener: str | None = _default("kraftpy.metrics.listener")
    kraftpy_metrics_open_health: bool = _default("kraftpy.metrics.open.health")
    kraftpy_metrics_users_file: str | None = _default("kraftpy.metrics.users.file")

    # Network
    listeners: tuple[Listener, ...] = (Listener("PLAINTEXT", "127.0.0.1", 9092),)
    advertised_listeners: tuple[Listener, ...] = (Listener("PLAINTEXT", "127.0.0.1", 9092),)
    listener_security_protocol_map: str = _default("listener.security.protocol.map")
    controller_listener_names: tuple[str, ...] = _default("controller.listener.names")
    inter_broker_listener_name: str | None = _default("inter.broker.listener.name")
    security_inter_broker_protocol: str = _default("security.inter.broker.protocol")
    socket_listen_backlog_size: int = _default("socket.listen.backlog.size")
    socket_request_max_bytes: int = _default("socket.request.max.bytes")
    queued_max_request_bytes: int = _default("queued.max.request.bytes")
    connections_max_idle_ms: int = _default("connections.max.idle.ms")
    max_connections: int = _default("max.connections")
    max_connections_per_ip: int = _default("max.connections.per.ip")
    max_connections_per_ip_overrides: str = _default("max.connections.per.ip.overrides")
    max_connection_creation_rate: int = _default("max.connection.creation.rate")
    quota_window_num: int = _default("quota.window.num")
    quota_window_size_seconds: int = _default("quota.window.size.seconds")
    controller_quota_window_num: int = _default("controller.quota.window.num")
    controller_quota_window_size_seconds: int = _default("controller.quota.window.size.seconds")

    # Data directories
    log_dir: tuple[str, ...] = _default("log.dir")
    log_dirs: tuple[str, ...] = _default("log.dir")
    cordoned_log_dirs: tuple[str, ...] = _default("cordoned.log.dirs")
    num_recovery_threads_per_data_dir: int = _default("num.recovery.threads.per.data.dir")

    # The metadata quorum
    controller_quorum_voters: tuple[Voter, ...] = ()
    controller_quorum_bootstrap_servers: tuple[Address, ...] = ()
    controller_quorum_auto_join_enable: bool = _default("controller.quorum.auto.join.enable")
    controller_quorum_election_timeout_ms: int = _default("controller.quorum.election.timeout.ms")
    controller_quorum_fetch_timeout_ms: int = _default("controller.quorum.fetch.timeout.ms")
    metadata_log_max_record_bytes_between_snapshots: int = _default("metadata.log.max.record.bytes.between.snapshots")
    broker_heartbeat_interval_ms: int = _default("broker.heartbeat.interval.ms")
    broker_session_timeout_ms: int = _default("broker.session.timeout.ms")
    initial_broker_registration_timeout_ms: int = _default("initial.broker.registration.timeout.ms")
    request_timeout_ms: int = _default("request.timeout.ms")
    controlled_shutdown_enable: bool = _default("controlled.shutdown.enable")
    auto_leader_rebalance_enable: bool = _default("auto.leader.rebalance.enable")
    leader_imbalance_check_interval_seconds: int = _default("leader.imbalance.check.interval.seconds")
    kraftpy_quorum_secret: str | None = field(default=_default("kraftpy.quorum.secret"), repr=False)
    kraftpy_metadata_cache_max_bytes: int = _default("kraftpy.metadata.cache.max.bytes")
    kraftpy_request_receive_timeout_ms: int = _default("kraftpy.request.receive.timeout.ms")
    kraftpy_quorum_secret_file: str | None = _default("kraftpy.quorum.secret.file")
    kraftpy_broker_disconnect_grace_ms: int = _default("kraftpy.broker.disconnect.grace.ms")
    kraftpy_flush_before_ack: bool = _default("kraftpy.flush.before.ack")
    kraftpy_max_configs_bytes: int = _default("kraftpy.max.configs.bytes")

    # Delegation tokens
    delegation_token_secret_key: str | None = field(default=_default("delegation.token.secret.key"), repr=False)
    delegation_token_max_lifetime_ms: int = _default("delegation.token.max.lifetime.ms")
    delegation_token_expiry_time_ms: int = _default("delegation.token.expiry.time.ms")
    delegation_token_expiry_check_interval_ms: int = _default("delegation.token.expiry.check.interval.ms")

    # Topics
    auto_create_topics_enable: bool = _default("auto.create.topics.enable")
    delete_topic_enable: bool = _default("delete.topic.enable")
    kraftpy_max_partitions: int = _default("kraftpy.max.partitions")
    num_partitions: int = _default("num.partitions")
    default_replication_factor: int = _default("default.replication.factor")
    min_insync_replicas: int = _default("min.insync.replicas")
    unclean_leader_election_enable: bool = _default("unclean.leader.election.enable")
    message_max_bytes: int = _default("message.max.bytes")
    kraftpy_batch_max_bytes: int = _default("kraftpy.batch.max.bytes")
    kraftpy_batch_max_records: int = _default("kraftpy.batch.max.records")
    kraftpy_batch_max_headers: int = _default("kraftpy.batch.max.headers")
    kraftpy_batch_max_expanded_bytes: int = _default("kraftpy.batch.max.expanded.bytes")
    compression_type: str = _default("compression.type")
    compression_gzip_level: int = _default("compression.gzip.level")
    compression_lz4_level: int = _default("compression.lz4.level")
    compression_zstd_level: int = _default("compression.zstd.level")

    # The log
    log_segment_bytes: int = _default("log.segment.bytes")
    log_roll_ms: int | None = _default("log.roll.ms")
    log_roll_hours: int = _default("log.roll.hours")
    log_roll_jitter_ms: int | None = _default("log.roll.jitter.ms")
    log_roll_jitter_hours: int = _default("log.roll.jitter.hours")
    log_retention_bytes: int = _default("log.retention.bytes")
    log_retention_ms: int | None = _default("log.retention.ms")
    log_retention_minutes: int | None = _default("log.retention.minutes")
    log_retention_hours: int = _default("log.retention.hours")
    log_retention_check_interval_ms: int = _default("log.retention.check.interval.ms")
    log_initial_task_delay_ms: int = _default("log.initial.task.delay.ms")
    log_cleanup_policy: tuple[str, ...] = _default("log.cleanup.policy")
    log_segment_delete_delay_ms: int = _default("log.segment.delete.delay.ms")
    log_index_interval_bytes: int = _default("log.index.interval.bytes")
    log_index_size_max_bytes: int = _default("log.index.size.max.bytes")
    log_preallocate: bool = _default("log.preallocate")
    log_message_timestamp_type: str = _default("log.message.timestamp.type")
    log_message_timestamp_before_max_ms: int = _default("log.message.timestamp.before.max.ms")
    log_message_timestamp_after_max_ms: int = _default("log.message.timestamp.after.max.ms")
    log_flush_interval_messages: int = _default("log.flush.interval.messages")
    log_flush_interval_ms: int | None = _default("log.flush.interval.ms")
    log_flush_scheduler_interval_ms: int = _default("log.flush.scheduler.interval.ms")
    log_flush_offset_checkpoint_interval_ms: int = _default("log.flush.offset.checkpoint.interval.ms")
    log_flush_start_offset_checkpoint_interval_ms: int = _default("log.flush.start.offset.checkpoint.interval.ms")
    log_cleaner_enable: bool = _default("log.cleaner.enable")
    log_cleaner_backoff_ms: int = _default("log.cleaner.backoff.ms")
    log_cleaner_delete_retention_ms: int = _default("log.cleaner.delete.retention.ms")
    log_cleaner_min_cleanable_ratio: float = _default("log.cleaner.min.cleanable.ratio")
    log_cleaner_min_compaction_lag_ms: int = _default("log.cleaner.min.compaction.lag.ms")
    log_cleaner_max_compaction_lag_ms: int = _default("log.cleaner.max.compaction.lag.ms")
    log_cleaner_threads: int = _default("log.cleaner.threads")
    log_cleaner_dedupe_buffer_size: int = _default("log.cleaner.dedupe.buffer.size")
    log_cleaner_io_buffer_load_factor: float = _default("log.cleaner.io.buffer.load.factor")
    log_cleaner_io_buffer_size: int = _default("log.cleaner.io.buffer.size")
    log_cleaner_io_max_bytes_per_second: float = _default("log.cleaner.io.max.bytes.per.second")

    # Fetching
    fetch_max_bytes: int = _default("fetch.max.bytes")
    kraftpy_fetch_check_crcs: bool = _default("kraftpy.fetch.check.crcs")
    kraftpy_fetch_zero_copy_min_bytes: int = _default("kraftpy.fetch.zero.copy.min.bytes")
    max_incremental_fetch_session_cache_slots: int = _default("max.incremental.fetch.session.cache.slots")
    kraftpy_fetch_session_partitions_max: int = _default("kraftpy.fetch.session.partitions.max")
    max_request_partition_size_limit: int = _default("max.request.partition.size.limit")

    # Replication
    num_replica_alter_log_dirs_threads: int | None = _default("num.replica.alter.log.dirs.threads")
    num_replica_fetchers: int = _default("num.replica.fetchers")
    replica_alter_log_dirs_io_max_bytes_per_second: int = _default("replica.alter.log.dirs.io.max.bytes.per.second")
    replica_fetch_backoff_ms: int = _default("replica.fetch.backoff.ms")
    replica_fetch_max_bytes: int = _default("replica.fetch.max.bytes")
    replica_fetch_min_bytes: int = _default("replica.fetch.min.bytes")
    replica_fetch_response_max_bytes: int = _default("replica.fetch.response.max.bytes")
    replica_fetch_wait_max_ms: int = _default("replica.fetch.wait.max.ms")
    replica_lag_time_max_ms: int = _default("replica.lag.time.max.ms")
    replica_selector_class: str | None = _default("replica.selector.class")
    replica_socket_timeout_ms: int = _default("replica.socket.timeout.ms")
    leader_replication_throttled_rate: int = _default("leader.replication.throttled.rate")
    follower_replication_throttled_rate: int = _default("follower.replication.throttled.rate")
    replica_high_watermark_checkpoint_interval_ms: int = _default("replica.high.watermark.checkpoint.interval.ms")

    # Groups and their offsets
    group_initial_rebalance_delay_ms: int = _default("group.initial.rebalance.delay.ms")
    group_min_session_timeout_ms: int = _default("group.min.session.timeout.ms")
    group_max_session_timeout_ms: int = _default("group.max.session.timeout.ms")
    kraftpy_group_coordinator_max_bytes: int = _default("kraftpy.group.coordinator.max.bytes")
    kraftpy_group_max_bytes: int = _default("kraftpy.group.max.bytes")
    group_max_size: int = _default("group.max.size")
    group_consumer_assignment_interval_ms: int = _default("group.consumer.assignment.interval.ms")
    group_consumer_max_assignment_interval_ms: int = _default("group.consumer.max.assignment.interval.ms")
    group_consumer_min_assignment_interval_ms: int = _default("group.consumer.min.assignment.interval.ms")
    group_consumer_assignors: tuple[str, ...] = _default("group.consumer.assignors")
    group_consumer_heartbeat_interval_ms: int = _default("group.consumer.heartbeat.interval.ms")
    group_consumer_max_size: int = _default("group.consumer.max.size")
    kraftpy_group_regex_cache_bytes: int = _default("kraftpy.group.regex.cache.bytes")
    group_consumer_migration_policy: str = _default("group.consumer.migration.policy")
    group_coordinator_rebalance_protocols: tuple[str, ...] = _default("group.coordinator.rebalance.protocols")
    group_consumer_session_timeout_ms: int = _default("group.consumer.session.timeout.ms")
    group_consumer_max_heartbeat_interval_ms: int = _default("group.consumer.max.heartbeat.interval.ms")
    group_consumer_max_session_timeout_ms: int = _default("group.consumer.max.session.timeout.ms")
    group_consumer_min_heartbeat_interval_ms: int = _default("group.consumer.min.heartbeat.interval.ms")
    group_consumer_min_session_timeout_ms: int = _default("group.consumer.min.session.timeout.ms")
    errors_deadletterqueue_auto_create_topics_enable: bool = _default(
        "errors.deadletterqueue.auto.create.topics.enable"
    )
    errors_deadletterqueue_topic_name_prefix: str = _default("errors.deadletterqueue.topic.name.prefix")
    group_share_assignors: tuple[str, ...] = _default("group.share.assignors")
    group_share_initialize_retry_interval_ms: int = _default("group.share.initialize.retry.interval.ms")
    group_share_max_size: int = _default("group.share.max.size")
    offset_metadata_max_bytes: int = _default("offset.metadata.max.bytes")
    offsets_commit_timeout_ms: int = _default("offsets.commit.timeout.ms")
    offsets_retention_minutes: int = _default("offsets.retention.minutes")
    offsets_retention_check_interval_ms: int = _default("offsets.retention.check.interval.ms")
    offsets_topic_num_partitions: int = _default("offsets.topic.num.partitions")
    offsets_topic_replication_factor: int = _default("offsets.topic.replication.factor")
    offsets_topic_segment_bytes: int = _default("offsets.topic.segment.bytes")
    offsets_topic_compression_codec: int = _default("offsets.topic.compression.codec")

    # Transactions
    add_partitions_to_txn_retry_backoff_max_ms: int = _default("add.partitions.to.txn.retry.backoff.max.ms")
    add_partitions_to_txn_retry_backoff_ms: int = _default("add.partitions.to.txn.retry.backoff.ms")
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = _default(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms"
    )
    transaction_partition_verification_enable: bool = _default("transaction.partition.verification.enable")
    transaction_remove_expired_transaction_cleanup_interval_ms: int = _default(
        "transaction.remove.expired.transaction.cleanup.interval.ms"
    )
    kraftpy_transaction_coordinator_max_bytes: int = _default("kraftpy.transaction.coordinator.max.bytes")
    transaction_max_timeout_ms: int = _default("transaction.max.timeout.ms")
    transactional_id_expiration_ms: int = _default("transactional.id.expiration.ms")
    transaction_state_log_num_partitions: int = _default("transaction.state.log.num.partitions")
    transaction_state_log_replication_factor: int = _default("transaction.state.log.replication.factor")
    transaction_state_log_min_isr: int = _default("transaction.state.log.min.isr")
    transaction_state_log_segment_bytes: int = _default("transaction.state.log.segment.bytes")

    # The state of share groups
    kraftpy_share_coordinator_max_bytes: int = _default("kraftpy.share.coordinator.max.bytes")
    share_coordinator_cold_partition_snapshot_interval_ms: int = _default(
        "share.coordinator.cold.partition.snapshot.interval.ms"
    )
    share_coordinator_snapshot_update_records_per_snapshot: int = _default(
        "share.coordinator.snapshot.update.records.per.snapshot"
    )
    share_coordinator_state_topic_compression_codec: int = _default("share.coordinator.state.topic.compression.codec")
    share_coordinator_state_topic_min_isr: int = _default("share.coordinator.state.topic.min.isr")
    share_coordinator_state_topic_num_partitions: int = _default("share.coordinator.state.topic.num.partitions")
    share_coordinator_state_topic_prune_interval_ms: int = _default("share.coordinator.state.topic.prune.interval.ms")
    share_coordinator_state_topic_replication_factor: int = _default("share.coordinator.state.topic.replication.factor")
    share_coordinator_state_topic_segment_bytes: int = _default("share.coordinator.state.topic.segment.bytes")
    share_coordinator_write_timeout_ms: int = _default("share.coordinator.write.timeout.ms")

    # Defaults and bounds of the settings of single groups
    group_share_assignment_interval_ms: int = _default("group.share.assignment.interval.ms")
    group_share_max_assignment_interval_ms: int = _default("group.share.max.assignment.interval.ms")
    group_share_min_assignment_interval_ms: int = _default("group.share.min.assignment.interval.ms")
    group_streams_assignment_interval_ms: int = _default("group.streams.assignment.interval.ms")
    group_streams_max_assignment_interval_ms: int = _default("group.streams.max.assignment.interval.ms")
    group_streams_min_assignment_interval_ms: int = _default("group.streams.min.assignment.interval.ms")
    group_share_delivery_count_limit: int = _default("group.share.delivery.count.limit")
    group_share_heartbeat_interval_ms: int = _default("group.share.heartbeat.interval.ms")
    group_share_max_delivery_count_limit: int = _default("group.share.max.delivery.count.limit")
    group_share_max_heartbeat_interval_ms: int = _default("group.share.max.heartbeat.interval.ms")
    group_share_max_partition_max_record_locks: int = _default("group.share.max.partition.max.record.locks")
    group_share_max_record_lock_duration_ms: int = _default("group.share.max.record.lock.duration.ms")
    group_share_max_session_timeout_ms: int = _default("group.share.max.session.timeout.ms")
    group_share_max_share_sessions: int = _default("group.share.max.share.sessions")
    group_share_min_delivery_count_limit: int = _default("group.share.min.delivery.count.limit")
    group_share_min_heartbeat_interval_ms: int = _default("group.share.min.heartbeat.interval.ms")
    group_share_min_partition_max_record_locks: int = _default("group.share.min.partition.max.record.locks")
    group_share_min_record_lock_duration_ms: int = _default("group.share.min.record.lock.duration.ms")
    group_share_min_session_timeout_ms: int = _default("group.share.min.session.timeout.ms")
    group_share_partition_max_record_locks: int = _default("group.share.partition.max.record.locks")
    group_share_record_lock_duration_ms: int = _default("group.share.record.lock.duration.ms")
    group_share_session_timeout_ms: int = _default("group.share.session.timeout.ms")
    group_streams_heartbeat_interval_ms: int = _default("group.streams.heartbeat.interval.ms")
    group_streams_initial_rebalance_delay_ms: int = _default("group.streams.initial.rebalance.delay.ms")
    group_streams_max_heartbeat_interval_ms: int = _default("group.streams.max.heartbeat.interval.ms")
    group_streams_max_session_timeout_ms: int = _default("group.streams.max.session.timeout.ms")
    group_streams_max_standby_replicas: int = _default("group.streams.max.standby.replicas")
    group_streams_min_heartbeat_interval_ms: int = _default("group.streams.min.heartbeat.interval.ms")
    group_streams_min_session_timeout_ms: int = _default("group.streams.min.session.timeout.ms")
    group_streams_max_size: int = _default("group.streams.max.size")
    group_streams_num_standby_replicas: int = _default("group.streams.num.standby.replicas")
    group_streams_session_timeout_ms: int = _default("group.streams.session.timeout.ms")

    # Metrics of clients, and logs
    telemetry_max_bytes: int = _default("telemetry.max.bytes")
    kraftpy_log_format: str = _default("kraftpy.log.format")
    kraftpy_slow_request_ms: int = _default("kraftpy.slow.request.ms")
    kraftpy_loop_stall_ms: int = _default("kraftpy.loop.stall.ms")
    kraftpy_telemetry_max_bytes: int = _default("kraftpy.telemetry.max.bytes")
    kraftpy_telemetry_otlp_endpoint: str | None = _default("kraftpy.telemetry.otlp.endpoint")

    # Idempotent producers
    kraftpy_max_producers: int = _default("kraftpy.max.producers")
    producer_id_expiration_ms: int = _default("producer.id.expiration.ms")
    producer_id_expiration_check_interval_ms: int = _default("producer.id.expiration.check.interval.ms")

    given: Mapping[str, WrittenSetting] = field(default_factory=dict, compare=False, repr=False)
    secured: tuple[ListenerSecurity, ...] = ()
    """The listeners that are not PLAINTEXT."""

    @classmethod
    def of(cls, settings: Mapping[str, str]) -> BrokerConfig:
        """Return the configuration with these settings, as Kafka's names and texts. Raises ConfigError."""
        return cls.from_given({name: WrittenSetting(text, Origin.OVERRIDE) for name, text in settings.items()})

    @classmethod
    def from_given(cls, given: Mapping[str, WrittenSetting]) -> BrokerConfig:
        """Return the configuration with these settings. Unknown names are kept and ignored. Raises ConfigError."""
        values: dict[str, Any] = {}
        for name, (text, _) in given.items():
            if name in BROKER_SETTINGS:
                values[name] = BROKER_SETTINGS[name].parse(text)
            elif limit_name(name) is not None:
                parse_limit(name, text)
        _resolve(values)
        attributes = {name.replace(".", "_"): value for name, value in values.items()}
        config = cls(given=dict(given), secured=_secured(given, values), **attributes)
        topic_config({}, config)  # the topic defaults must be consistent
        _check_between(config)
        if is_https(config.kraftpy_metrics_listener):
            from kraftpy.config.security import metrics_tls

            metrics_tls(config)
        return config

    @property
    def topic_defaults(self) -> TopicConfig:
        """The settings of a topic without overrides. Computed at each access."""
        return topic_config({}, self)

    @property
    def is_broker(self) -> bool:
        """True if this process serves clients."""
        return "broker" in self.process_roles

    @property
    def is_controller(self) -> bool:
        """True if this process stores the cluster's metadata."""
        return "controller" in self.process_roles

    @property
    def client_listeners(self) -> tuple[Listener, ...]:
        """The listeners that are not the quorum's."""
        return tuple(listener for listener in self.listeners if listener.name not in self.controller_listener_names)

    @property
    def controller_listeners(self) -> tuple[Listener, ...]:
        """The listeners for other nodes of the quorum; empty for a node without the controller role."""
        if not self.is_controller:
            return ()
        return tuple(listener for listener in self.listeners if listener.name in self.controller_listener_names)

    @property
    def inter_broker_mechanism(self) -> str:
        """The SASL mechanism with which this broker logs in to others; by default, the first of their listener."""
        given = self.given.get("sasl.mechanism.inter.broker.protocol")
        if given is not None:
            return given.text.strip()
        listener = self.security_of(self.inter_broker_listener)
        return "" if listener is None or listener.sasl is None else listener.sasl.mechanisms[0]

    @property
    def controller_security(self) -> ListenerSecurity | None:
        """The security of the first controller listener, by which this node reaches controllers; None if PLAINTEXT."""
        return self.security_of(self.controller_listener_names[0]) if self.controller_listener_names else None

    @property
    def controller_mechanism(self) -> str:
        """The SASL mechanism with which this node logs in to controllers; by default, the first of their listener."""
        given = self.given.get("sasl.mechanism.controller.protocol")
        if given is not None:
            return given.text.strip()
        listener = self.controller_security
        return "" if listener is None or listener.sasl is None else listener.sasl.mechanisms[0]

    def security_of(self, listener: str) -> ListenerSecurity | None:
        """Return the security of a listener; None if it is PLAINTEXT."""
        return next((each for each in self.secured if each.listener == listener), None)

    @property
    def is_alone(self) -> bool:
        """True if this node is its own quorum and no other node can connect to it."""
        return self.is_own_quorum and not self.controller_listeners

    @property
    def is_own_quorum(self) -> bool:
        """True if no other voter is configured; others may have been added since."""
        voters = self.controller_quorum_voters
        is_shared = not voters and len(self.controller_quorum_bootstrap_servers) > 1
        return self.is_controller and not is_shared and all(voter.node_id == self.node_id for voter in voters)

    @property
    def inter_broker_listener(self) -> str:
        """The name of the listener on which other brokers reach this one (KIP-103)."""
        if self.inter_broker_listener_name is not None:
            return self.inter_broker_listener_name.upper()
        names = [listener.name for listener in self.client_listeners]
        protocol = self.security_inter_broker_protocol
        return protocol if protocol in names or not names else names[0]


def _resolve(values: dict[str, Any]) -> None:
    """Resolve settings that depend on each other, in place, and validate combinations."""

    def value(name: str) -> Any:
        return values.get(name, BROKER_SETTINGS[name].default_value())

    _resolve_node_id(values)
    values["log.dirs"] = values.get("log.dirs") or value("log.dir")
    if not values["log.dirs"]:
        raise ConfigError("log.dirs='' is not allowed: expected at least one directory")
    if not value("process.roles"):
        raise ConfigError("process.roles='' is not allowed: expected a list of broker, controller")
    if value("group.min.session.timeout.ms") > value("group.max.session.timeout.ms"):
        raise ConfigError("group.min.session.timeout.ms is above group.max.session.timeout.ms")
    for longer in ("replica.socket.timeout.ms", "replica.lag.time.max.ms"):
        if value("replica.fetch.wait.max.ms") > value(longer):
            raise ConfigError(f"replica.fetch.wait.max.ms is above {longer}")
    if value("replica.selector.class") not in (None, *REPLICA_SELECTORS):
        raise ConfigError(f"replica.selector.class is not allowed: expected one of {', '.join(REPLICA_SELECTORS)}")
    if value("authorizer.class.name") not in ("", AUTHORIZER):
        raise ConfigError(
            f"authorizer.class.name={value('authorizer.class.name')} is not supported: expected {AUTHORIZER}"
        )
    try:
        parse_super_users(value("super.users"))
    except ValueError as error:
        raise ConfigError(f"super.users: {error}") from None
    host = value("kraftpy.broker.host")
    if host is not None and not (host.isprintable() and 0 < len(host.encode()) <= _MAX_HOST_BYTES):
        raise ConfigError(
            f"kraftpy.broker.host is not allowed: expected a printable name, {_MAX_HOST_BYTES} bytes at most"
        )
    if value("broker.session.timeout.ms") < 2 * value("broker.heartbeat.interval.ms"):
        raise ConfigError("broker.session.timeout.ms is below twice broker.heartbeat.interval.ms")
    check_together(value)
    _resolve_request_memory(values, value)
    _resolve_listeners(values, value)
    _resolve_quorum(values, value)
    if (address := value(METRICS)) is not None:
        parse_metrics_listener(address)
    if (address := value(CONSOLE)) is not None:
        parse_console_listener(CONSOLE, address)
        if "broker" not in value("process.roles"):
            raise ConfigError(f"{CONSOLE} is set, but this node is no broker: a console is a client of its node")


def _resolve_request_memory(values: dict[str, Any], value: Callable[[str], Any]) -> None:
    largest = value("socket.request.max.bytes")
    limit = values.setdefault("queued.max.request.bytes", max(2 * largest, value("queued.max.request.bytes")))
    if 0 < limit < largest:
        raise ConfigError("queued.max.request.bytes is below socket.request.max.bytes: no request of that size fits")


def _resolve_node_id(values: dict[str, Any]) -> None:
    """Let `node.id` and `broker.id` stand for each other. Raises ConfigError if they differ."""
    older = values.get("broker.id", -1)
    if older != -1 and values.setdefault("node.id", older) != older:
        raise ConfigError("You must set `node.id` to the same value as `broker.id`.")
    values["broker.id"] = values.get("node.id", BROKER_SETTINGS["node.id"].default_value())


def _resolve_listeners(values: dict[str, Any], value: Callable[[str], Any]) -> None:
    controllers = tuple(name.upper() for name in value("controller.listener.names"))
    values["controller.listener.names"] = controllers
    bound = listening.parse_listeners("listeners", value("listeners"))
    protocols = listening.parse_protocol_map(value("listener.security.protocol.map"))
    listening.check_protocols(bound, protocols, controllers, has_quorum="controller" in value("process.roles"))
    values["listeners"] = bound
    if "broker" not in value("process.roles"):
        values["advertised.listeners"] = ()
        return
    if all(listener.name in controllers for listener in bound):
        raise ConfigError("listeners: there is no listener for clients; all are in controller.listener.names")
    values["advertised.listeners"] = listening.advertised(bound, value("advertised.listeners"), controllers)
    inter_broker = value("inter.broker.listener.name")
    if inter_broker is None:
        return
    if inter_broker.upper() not in {listener.name for listener in bound}:
        raise ConfigError(f"inter.broker.listener.name={inter_broker} is not among listeners")
    if inter_broker.upper() in controllers:
        raise ConfigError(f"inter.broker.listener.name={inter_broker} is in controller.listener.names")
    if "security.inter.broker.protocol" in values:
        raise ConfigError("Only one of inter.broker.listener.name and security.inter.broker.protocol should be set.")


def _secured(given: Mapping[str, WrittenSetting], values: Mapping[str, Any]) -> tuple[ListenerSecurity, ...]:
    """Resolve the security of the listeners that are not PLAINTEXT, and of the one by which controllers are reached."""
    name = "listener.security.protocol.map"
    protocols = listening.parse_protocol_map(values.get(name, BROKER_SETTINGS[name].default_value()))
    bound = [listener.name for listener in values["listeners"]]
    elsewhere = [each for each in values["controller.listener.names"][:1] if each not in bound]
    secured = [each for each in (*bound, *elsewhere) if protocols.get(each, "PLAINTEXT") != "PLAINTEXT"]
    if not secured:
        return ()
    from kraftpy.config.security import resolve

    return resolve(given, secured, protocols, elsewhere)


def _check_between(config: BrokerConfig) -> None:
    """Check that this node can log in to others. Raises ConfigError."""
    if config.is_alone:
        return
    if config.is_broker:
        listener = config.security_of(config.inter_broker_listener)
        _check_login(listener, "sasl.mechanism.inter.broker.protocol", config.inter_broker_mechanism, "this broker")
    if not config.is_own_quorum:
        listener = config.controller_security
        _check_login(listener, "sasl.mechanism.controller.protocol", config.controller_mechanism, "this node")


def _check_login(listener: ListenerSecurity | None, setting: str, mechanism: str, own_name: str) -> None:
    """Check that this node has credentials for a mechanism of a listener. Raises ConfigError."""
    if listener is None or listener.sasl is None:
        return
    if mechanism not in listener.sasl.mechanisms:
        raise ConfigError(f"{setting}={mechanism} is not a mechanism of {listener.listener}")
    prefix = f"listener.name.{listener.listener.lower()}.{mechanism.lower()}."
    if mechanism == "OAUTHBEARER":
        if listener.sasl.tokens is None:
            name = f"{prefix}sasl.oauthbearer.token.endpoint.url"
            raise ConfigError(f"{name} is not set: {own_name} logs in to others with {mechanism}, which needs it")
        return
    name = f"{prefix}sasl.jaas.config"
    if mechanism == "GSSAPI":
        if listener.sasl.gssapi is None:
            raise ConfigError(f"{name} lacks the keytab with which {own_name} logs in to others")
        return
    own = listener.sasl.logins.get(mechanism)
    if own is None or not own.username or not own.password:
        raise ConfigError(f"{name} lacks the username and password with which {own_name} logs in to others")


def _resolve_quorum(values: dict[str, Any], value: Callable[[str], Any]) -> None:
    voters = quorum.parse_voters(value(quorum.VOTERS))
    bootstrap = tuple(quorum.parse_address(quorum.BOOTSTRAP, text) for text in value(quorum.BOOTSTRAP))
    roles, controllers = value("process.roles"), values["controller.listener.names"]
    quorum.check_roles(roles, value("node.id"), voters, bootstrap, values["listeners"], controllers)
    values[quorum.VOTERS], values[quorum.BOOTSTRAP] = voters, bootstrap
    if value(quorum.AUTO_JOIN):
        quorum.check_auto_join(roles, values["listeners"], controllers)
    if "controller" in roles and len(voters or bootstrap) <= 1:
        return
    protocol = values.get("security.inter.broker.protocol")
    if "broker" in roles and protocol is not None and all(protocol != each.name for each in values["listeners"]):
        raise ConfigError(f"security.inter.broker.protocol={protocol} is not among listeners")
    if "broker" in roles and value("inter.broker.listener.name") is None:
        names = [listener.name for listener in values["listeners"] if listener.name not in controllers]
        if len(names) > 1 and "PLAINTEXT" not in names:
            raise ConfigError(f"inter.broker.listener.name must name the one of {', '.join(names)} that brokers use")
    # Kafka's own defaults, which a single node cannot satisfy
    values.setdefault("offsets.topic.replication.factor", 3)
    values.setdefault("transaction.state.log.replication.factor", 3)
    values.setdefault("transaction.state.log.min.isr", 2)
