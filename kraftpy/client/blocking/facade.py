"""A small blocking facade: the asyncio clients on an event loop in a background thread.

Meant for scripts, notebooks and tests. Every call waits for its coroutine; nothing else differs. To read known ranges
in bulk, use `RangeReader`, which needs no thread.

Left out: concurrent use (call from one thread at a time).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Self

from kraftpy.client.admin.acls import AclBinding, AclFilter
from kraftpy.client.admin.admin import Admin
from kraftpy.client.admin.model import (
    ActiveProducer,
    ClientQuota,
    ClusterDescription,
    ConfigEntry,
    FeatureDescription,
    FeatureUpgrade,
    GroupDescription,
    GroupListing,
    HangingTransaction,
    LogDir,
    QuorumDescription,
    QuorumEndpoint,
    Reassignment,
    ShareGroupOffset,
    TransactionDescription,
    TransactionListing,
)
from kraftpy.client.admin.tokens import DelegationToken
from kraftpy.client.admin.transactions import MAX_TRANSACTION_TIMEOUT_MS
from kraftpy.client.blocking.background import BackgroundLoop
from kraftpy.client.consumer.consumer import Consumer
from kraftpy.client.metrics import Metrics
from kraftpy.client.model import (
    AlterOperation,
    ConsumerGroupMetadata,
    ConsumerRecord,
    IsolationLevel,
    NewTopic,
    OffsetAndMetadata,
    RecordMetadata,
    ResourceType,
    TopicInfo,
)
from kraftpy.client.offsets import Found
from kraftpy.client.producer.producer import Producer
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.schema import ZERO_UUID
from kraftpy.types import TopicPartition


class BlockingProducer:
    """A `Producer` for programs without an event loop. Takes the same options."""

    def __init__(self, **options: Any) -> None:
        self._producer = Producer(**options)
        self._loop = BackgroundLoop("kraftpy producer")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self.flush()
        finally:
            self.close()

    def send(
        self,
        topic: str,
        value: bytes | None = None,
        key: bytes | None = None,
        *,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Sequence[tuple[str, bytes | None]] = (),
    ) -> RecordMetadata:
        """Send one record and wait for its delivery."""
        return self._loop.run(
            self._producer.send_and_wait(
                topic, value, key, partition=partition, timestamp_ms=timestamp_ms, headers=headers
            )
        )

    def send_many(self, topic: str, records: Iterable[tuple[bytes | None, bytes | None]]) -> int:
        """Send (key, value) pairs, waiting only for buffer space; return how many. `flush` waits for their delivery."""

        async def send_all(chunk: list[tuple[bytes | None, bytes | None]]) -> None:
            for key, value in chunk:
                await self._producer.send(topic, value, key)

        count = 0
        chunk: list[tuple[bytes | None, bytes | None]] = []
        for record in records:
            chunk.append(record)
            if len(chunk) >= 10_000:
                count += len(chunk)
                self._loop.run(send_all(chunk))
                chunk = []
        self._loop.run(send_all(chunk))
        return count + len(chunk)

    def init_transactions(self) -> None:
        """Acquire the transactional id. Call it once, before the first transaction."""
        self._loop.run(self._producer.init_transactions())

    def begin_transaction(self) -> None:
        """Begin a transaction."""
        self._loop.call(self._producer.begin_transaction)

    def send_offsets_to_transaction(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata | int], group_metadata: ConsumerGroupMetadata
    ) -> None:
        """Commit a group's positions as part of the transaction."""
        self._loop.run(self._producer.send_offsets_to_transaction(offsets, group_metadata))

    def commit_transaction(self) -> None:
        """Deliver every record, then commit."""
        self._loop.run(self._producer.commit_transaction())

    def abort_transaction(self) -> None:
        """Abort the transaction: no read_committed consumer sees its records."""
        self._loop.run(self._producer.abort_transaction())

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """A transaction that commits at the end of its block and aborts if the block raises."""
        entered = self._producer.transaction()
        self._loop.run(entered.__aenter__())
        try:
            yield
        except BaseException as failed:
            if not self._loop.run(entered.__aexit__(type(failed), failed, failed.__traceback__)):
                raise
        else:
            self._loop.run(entered.__aexit__(None, None, None))

    def metrics(self) -> Metrics:
        """Return what the producer has measured (`kraftpy.client.metrics`)."""
        return self._producer.metrics()

    def flush(self) -> None:
        """Wait until everything is delivered. Raises the first `KafkaError` of a delivery that failed."""
        self._loop.run(self._producer.flush())

    def close(self) -> None:
        """Deliver what is outstanding, then close."""
        try:
            self._loop.run(self._producer.close())
        finally:
            self._loop.close()


class BlockingConsumer:
    """A `Consumer` for programs without an event loop. Takes the same arguments; iterating over it never ends."""

    def __init__(self, *topics: str, **options: Any) -> None:
        self._consumer = Consumer(*topics, **options)
        self._loop = BackgroundLoop("kraftpy consumer")
        try:
            self._loop.run(self._consumer.start())
        except BaseException:
            self._loop.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[ConsumerRecord]:
        while True:
            for records in self.getmany(timeout_ms=1_000).values():
                yield from records

    def getmany(
        self, *, timeout_ms: float = 0, max_records: int | None = None
    ) -> dict[TopicPartition, list[ConsumerRecord]]:
        """Return up to `max_records` records by partition, waiting up to `timeout_ms` for the first."""
        return self._loop.run(self._consumer.getmany(timeout_ms=timeout_ms, max_records=max_records))

    def metrics(self) -> Metrics:
        """Return what the consumer has measured (`kraftpy.client.metrics`)."""
        return self._consumer.metrics()

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read exactly these partitions."""
        self._loop.call(lambda: self._consumer.assign(partitions))

    def subscribe(self, topics: Iterable[str] = (), *, pattern: str | None = None) -> None:
        """Subscribe to these topics, or to all whose name matches a pattern."""
        self._loop.call(lambda: self._consumer.subscribe(topics, pattern=pattern))

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Continue at `offset`."""
        self._loop.call(lambda: self._consumer.seek(partition, offset))

    def assignment(self) -> frozenset[TopicPartition]:
        """Return the partitions being read."""
        return self._consumer.assignment()

    def position(self, partition: TopicPartition) -> int:
        """Return the offset of the next record."""
        return self._loop.run(self._consumer.position(partition))

    def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata | int] | None = None) -> None:
        """Commit offsets; by default the current positions."""
        self._loop.run(self._consumer.commit(offsets))

    def committed(
        self, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Return the group's committed offsets."""
        return self._loop.run(self._consumer.committed(partitions))

    def group_metadata(self) -> ConsumerGroupMetadata:
        """Return this member's identity, for `BlockingProducer.send_offsets_to_transaction`."""
        return self._loop.call(self._consumer.group_metadata)

    def offsets_for_times(self, times: Mapping[TopicPartition, int]) -> Found:
        """Return each partition's first record at or after a time in ms, or None."""
        return self._loop.run(self._consumer.offsets_for_times(times))

    def close(self) -> None:
        """Commit, leave the group and close all connections."""
        try:
            self._loop.run(self._consumer.close())
        finally:
            self._loop.close()


class BlockingAdmin:
    """An `Admin` for programs without an event loop. Takes the same options.

    One class because its methods are those of `Admin`, one for one.
    """

    def __init__(self, **options: Any) -> None:
        self._admin = Admin(**options)
        self._loop = BackgroundLoop("kraftpy admin")
        try:
            self._loop.run(self._admin.start())
        except BaseException:
            self._loop.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections."""
        try:
            self._loop.run(self._admin.close())
        finally:
            self._loop.close()

    def describe_cluster(self, *, include_fenced: bool = False) -> ClusterDescription:
        """Return the cluster's id, brokers and controller."""
        return self._loop.run(self._admin.describe_cluster(include_fenced=include_fenced))

    def unregister_broker(self, broker_id: int) -> None:
        """Remove the registration of a broker that will not come back."""
        self._loop.run(self._admin.unregister_broker(broker_id))

    def describe_features(self) -> FeatureDescription:
        """Return the feature levels of the cluster."""
        return self._loop.run(self._admin.describe_features())

    def update_features(
        self,
        levels: Mapping[str, int],
        *,
        upgrade: FeatureUpgrade = FeatureUpgrade.UPGRADE,
        validate_only: bool = False,
    ) -> None:
        """Set features to these levels."""
        self._loop.run(self._admin.update_features(levels, upgrade=upgrade, validate_only=validate_only))

    def describe_quorum(self) -> QuorumDescription:
        """Return the metadata quorum's leader and voters, and how far each has replicated."""
        return self._loop.run(self._admin.describe_quorum())

    def add_raft_voter(
        self,
        voter_id: int,
        endpoints: Iterable[QuorumEndpoint],
        *,
        directory_id: bytes = ZERO_UUID,
        cluster_id: str | None = None,
    ) -> None:
        """Add a node as a voter of the metadata quorum."""
        self._loop.run(
            self._admin.add_raft_voter(voter_id, endpoints, directory_id=directory_id, cluster_id=cluster_id)
        )

    def remove_raft_voter(
        self, voter_id: int, *, directory_id: bytes = ZERO_UUID, cluster_id: str | None = None
    ) -> None:
        """Remove a voter from the metadata quorum."""
        self._loop.run(self._admin.remove_raft_voter(voter_id, directory_id=directory_id, cluster_id=cluster_id))

    def elect_leaders(
        self, partitions: Iterable[TopicPartition] | None = None, *, unclean: bool = False
    ) -> dict[TopicPartition, KafkaError | None]:
        """Elect each partition's preferred replica as leader, or with `unclean` any replica that is alive."""
        return self._loop.run(self._admin.elect_leaders(partitions, unclean=unclean))

    def alter_partition_reassignments(
        self, moves: Mapping[TopicPartition, Sequence[int] | None], *, allow_replication_factor_change: bool = True
    ) -> None:
        """Begin moving partitions to these brokers; None cancels a reassignment in progress."""
        self._loop.run(
            self._admin.alter_partition_reassignments(
                moves, allow_replication_factor_change=allow_replication_factor_change
            )
        )

    def list_partition_reassignments(
        self, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, Reassignment]:
        """Return the reassignments in progress."""
        return self._loop.run(self._admin.list_partition_reassignments(partitions))

    def list_topics(self, *, include_internal: bool = False) -> list[str]:
        """Return the names of all topics, sorted."""
        return self._loop.run(self._admin.list_topics(include_internal=include_internal))

    def describe_topics(self, names: Iterable[str] | None = None) -> list[TopicInfo]:
        """Return topics with their partitions."""
        return self._loop.run(self._admin.describe_topics(names))

    def describe_topic_partitions(self, names: Iterable[str] | None = None) -> list[TopicInfo]:
        """Return topics with their partitions and eligible leader replicas."""
        return self._loop.run(self._admin.describe_topic_partitions(names))

    def create_topics(self, topics: Iterable[NewTopic], *, validate_only: bool = False) -> None:
        """Create topics, or with `validate_only`, just check whether that is possible."""
        self._loop.run(self._admin.create_topics(topics, validate_only=validate_only))

    def delete_topics(self, names: Iterable[str]) -> None:
        """Delete topics and all their records."""
        self._loop.run(self._admin.delete_topics(names))

    def create_partitions(self, totals: Mapping[str, int], *, validate_only: bool = False) -> None:
        """Raise the number of partitions of each topic to the given total."""
        self._loop.run(self._admin.create_partitions(totals, validate_only=validate_only))

    def delete_records(self, before: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Delete the records before an offset. Returns the new log start offsets."""
        return self._loop.run(self._admin.delete_records(before))

    def describe_configs(
        self,
        resources: Iterable[tuple[ResourceType, str]],
        *,
        names: Sequence[str] | None = None,
        documentation: bool = False,
        synonyms: bool = False,
    ) -> dict[tuple[ResourceType, str], dict[str, ConfigEntry]]:
        """Return the settings of resources, by name; with `names`, only those. The broker "" stands for all brokers."""
        return self._loop.run(
            self._admin.describe_configs(resources, names=names, documentation=documentation, synonyms=synonyms)
        )

    def list_config_resources(self, kinds: Collection[ResourceType] = ()) -> list[tuple[ResourceType, str]]:
        """List the resources that have settings, or may have: all, or those of some kinds (KIP-1142)."""
        return self._loop.run(self._admin.list_config_resources(kinds))

    def alter_configs(
        self,
        changes: Mapping[tuple[ResourceType, str], Mapping[str, str | tuple[AlterOperation, str | None] | None]],
        *,
        validate_only: bool = False,
    ) -> None:
        """Change individual settings."""
        self._loop.run(self._admin.alter_configs(changes, validate_only=validate_only))

    def replace_configs(
        self, settings: Mapping[tuple[ResourceType, str], Mapping[str, str]], *, validate_only: bool = False
    ) -> None:
        """Replace all settings of resources by these. Uses AlterConfigs, for brokers before KIP-339."""
        self._loop.run(self._admin.replace_configs(settings, validate_only=validate_only))

    def list_groups(self, *, states: Sequence[str] = ()) -> list[GroupListing]:
        """Return the groups of all brokers; with `states`, only groups in one of them."""
        return self._loop.run(self._admin.list_groups(states=states))

    def describe_groups(self, group_ids: Iterable[str]) -> dict[str, GroupDescription]:
        """Return groups with their members."""
        return self._loop.run(self._admin.describe_groups(group_ids))

    def delete_groups(self, group_ids: Iterable[str]) -> None:
        """Delete groups and their offsets."""
        self._loop.run(self._admin.delete_groups(group_ids))

    def list_group_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return a group's committed offsets; by default, those of every partition that has one."""
        return self._loop.run(self._admin.list_group_offsets(group_id, partitions))

    def alter_group_offsets(self, group_id: str, offsets: Mapping[TopicPartition, OffsetAndMetadata | int]) -> None:
        """Commit offsets on behalf of a group that has no members."""
        self._loop.run(self._admin.alter_group_offsets(group_id, offsets))

    def delete_group_offsets(self, group_id: str, partitions: Iterable[TopicPartition]) -> None:
        """Delete committed offsets."""
        self._loop.run(self._admin.delete_group_offsets(group_id, partitions))

    def list_share_group_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, ShareGroupOffset]:
        """Return a share group's start offsets; by default, those of all partitions that it has ever read."""
        return self._loop.run(self._admin.list_share_group_offsets(group_id, partitions))

    def alter_share_group_offsets(self, group_id: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Set the start offsets of a share group that has no members."""
        self._loop.run(self._admin.alter_share_group_offsets(group_id, offsets))

    def delete_share_group_offsets(self, group_id: str, topics: Iterable[str]) -> None:
        """Delete the start offsets of a share group that has no members."""
        self._loop.run(self._admin.delete_share_group_offsets(group_id, topics))

    def list_offsets(
        self, wanted: Mapping[TopicPartition, int], *, isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED
    ) -> Found:
        """Return each partition's offset for an `OffsetSpec` or a time in ms."""
        return self._loop.run(self._admin.list_offsets(wanted, isolation=isolation))

    def describe_log_dirs(self, broker_ids: Iterable[int] | None = None) -> list[LogDir]:
        """Return the log directories of brokers."""
        return self._loop.run(self._admin.describe_log_dirs(broker_ids))

    def alter_replica_log_dirs(
        self, broker_id: int, paths: Mapping[TopicPartition, str]
    ) -> dict[TopicPartition, ErrorCode]:
        """Move a broker's replicas to other log directories of that broker."""
        return self._loop.run(self._admin.alter_replica_log_dirs(broker_id, paths))

    def describe_producers(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, list[ActiveProducer]]:
        """Return the producers whose state each partition keeps."""
        return self._loop.run(self._admin.describe_producers(partitions))

    def list_transactions(
        self,
        *,
        states: Iterable[str] = (),
        producer_ids: Iterable[int] = (),
        running_longer_than_ms: int = -1,
        pattern: str | None = None,
    ) -> list[TransactionListing]:
        """Return the transactional ids that meet every condition."""
        return self._loop.run(
            self._admin.list_transactions(
                states=states,
                producer_ids=producer_ids,
                running_longer_than_ms=running_longer_than_ms,
                pattern=pattern,
            )
        )

    def describe_transactions(self, transactional_ids: Iterable[str]) -> list[TransactionDescription]:
        """Describe transactional ids as their coordinators know them."""
        return self._loop.run(self._admin.describe_transactions(transactional_ids))

    def describe_scram_users(self, names: Iterable[str] = ()) -> dict[str, dict[str, int]]:
        """Return the iterations of users' SCRAM credentials by mechanism, of all users by default."""
        return self._loop.run(self._admin.describe_scram_users(names))

    def set_scram_password(
        self, name: str, password: str, *, mechanism: str = "SCRAM-SHA-512", iterations: int = 4096
    ) -> None:
        """Set a user's password for a mechanism. Creates the user if it does not exist."""
        self._loop.run(self._admin.set_scram_password(name, password, mechanism=mechanism, iterations=iterations))

    def delete_scram_passwords(self, name: str, mechanisms: Iterable[str]) -> None:
        """Delete a user's SCRAM credentials for these mechanisms."""
        self._loop.run(self._admin.delete_scram_passwords(name, mechanisms))

    def create_delegation_token(
        self, *, renewers: Iterable[str] = (), max_lifetime_ms: int = -1, owner: str | None = None
    ) -> DelegationToken:
        """Create a delegation token for this client's principal or for `owner`."""
        made = self._admin.create_delegation_token(renewers=renewers, max_lifetime_ms=max_lifetime_ms, owner=owner)
        return self._loop.run(made)

    def describe_delegation_tokens(self, owners: Iterable[str] | None = None) -> list[DelegationToken]:
        """Return the delegation tokens that this client may see, of these owners or of all."""
        return self._loop.run(self._admin.describe_delegation_tokens(owners))

    def renew_delegation_token(self, hmac: bytes, period_ms: int = -1) -> int:
        """Renew a delegation token; return when it expires."""
        return self._loop.run(self._admin.renew_delegation_token(hmac, period_ms))

    def expire_delegation_token(self, hmac: bytes, period_ms: int = -1) -> int:
        """Change when a delegation token expires, or remove it; return when it expires."""
        return self._loop.run(self._admin.expire_delegation_token(hmac, period_ms))

    def describe_acls(self, wanted: AclFilter | None = None) -> list[AclBinding]:
        """Return the ACLs that a filter selects; without a filter, all ACLs."""
        return self._loop.run(self._admin.describe_acls(wanted))

    def create_acls(self, bindings: Iterable[AclBinding]) -> None:
        """Create ACLs; existing ones stay as they are."""
        self._loop.run(self._admin.create_acls(bindings))

    def delete_acls(self, wanted: AclFilter) -> list[AclBinding]:
        """Delete the ACLs that a filter selects, and return them."""
        return self._loop.run(self._admin.delete_acls(wanted))

    def describe_client_quotas(
        self, entity: Mapping[str, str | None] | None = None, *, types: Iterable[str] = (), strict: bool = False
    ) -> list[ClientQuota]:
        """Return the entities with quotas that match: all by default."""
        return self._loop.run(self._admin.describe_client_quotas(entity, types=types, strict=strict))

    def alter_client_quotas(
        self, entity: Mapping[str, str | None], values: Mapping[str, float | None], *, validate_only: bool = False
    ) -> None:
        """Set an entity's quotas by key; None removes one. Its other quotas stay."""
        self._loop.run(self._admin.alter_client_quotas(entity, values, validate_only=validate_only))

    def abort_transaction(
        self, partition: TopicPartition, producer_id: int, producer_epoch: int, coordinator_epoch: int = 0
    ) -> None:
        """Write an abort marker to a partition for a transaction that no coordinator will complete."""
        self._loop.run(self._admin.abort_transaction(partition, producer_id, producer_epoch, coordinator_epoch))

    def find_hanging_transactions(
        self,
        partitions: Iterable[TopicPartition],
        now_ms: int,
        *,
        max_transaction_timeout_ms: int = MAX_TRANSACTION_TIMEOUT_MS,
    ) -> list[HangingTransaction]:
        """Return the transactions that no coordinator will complete."""
        return self._loop.run(
            self._admin.find_hanging_transactions(
                partitions, now_ms, max_transaction_timeout_ms=max_transaction_timeout_ms
            )
        )
