"""The transaction coordinators of this broker: one for each partition of `__transaction_state` that it leads.

Each is the pure state machine of `transactions`; `coordinator_shards` is the loop around it, and `markers` has the
markers it decides on written. Clients' requests go through `ask`. Partition leaders use `begin_writing`: it finds the
coordinator, on this broker or another, and verifies that a producer may write to partitions in its transaction, or
adds them to it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import assert_never

from kraftpy.broker.containment import Tasks
from kraftpy.broker.coordinator_shards import Shard, Shards
from kraftpy.broker.internal_topics import TRANSACTION_STATE
from kraftpy.broker.metadata.log import MetadataLog
from kraftpy.broker.peers import Peers
from kraftpy.broker.replication.replica import Replica
from kraftpy.broker.replication.replicas import Replicas
from kraftpy.broker.slicing import PIECE, Slices, cut
from kraftpy.broker.transactions.markers import MarkerSender, Marking
from kraftpy.broker.transactions.producer_ids import ProducerIds
from kraftpy.config import BrokerConfig
from kraftpy.groups.routing import partition_for_group
from kraftpy.ports import Buffer, Clock
from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from kraftpy.protocol.messages.write_txn_markers import WritableTxnMarker
from kraftpy.protocol.record_batch import BatchHeader, encode_batch
from kraftpy.protocol.record_batch import Record as BatchRecord
from kraftpy.transactions.config import TransactionConfig
from kraftpy.transactions.coordinator import TransactionCoordinator
from kraftpy.transactions.events import (
    AddPartitions,
    Append,
    Appended,
    Command,
    Effect,
    MarkersWritten,
    Note,
    Reply,
    Request,
    Result,
    Survived,
    Tick,
    VerifyPartitions,
    WriteMarkers,
)
from kraftpy.transactions.memory import Room
from kraftpy.transactions.records import Record as TransactionRecord
from kraftpy.transactions.records import by_topic, read_value
from kraftpy.transactions.transaction import EPOCH_BUMPS, Transaction, TransactionValue
from kraftpy.types import BrokerId, TopicPartition

logger = logging.getLogger(__name__)

_COMMIT_TIMEOUT_MS = 15_000
_ENCODED_AT_ONCE = 3_000
"""A record with more partitions is encoded in a thread."""
_FIRST_BATCHED_VERSION = 4
_NOT_KNOWN_TO_COORDINATOR = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.OPERATION_NOT_ATTEMPTED)
_SHOWN_CHARACTERS = 100


class TransactionCoordinators(Shards[TransactionCoordinator]):
    """The coordinators of all transactional ids whose partition of `__transaction_state` this broker leads."""

    topic = TRANSACTION_STATE
    commit_timeout_ms = _COMMIT_TIMEOUT_MS

    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        tasks: Tasks,
        metadata: MetadataLog,
        replicas: Replicas,
        producer_ids: ProducerIds,
        markers: MarkerSender,
        peers: Peers,
        slices: Slices,
    ) -> None:
        super().__init__(clock, tasks, metadata, replicas, slices)
        self._config = config
        self._room = Room(config.kraftpy_transaction_coordinator_max_bytes, self._refused)
        self._machine_config = _transaction_config(config)
        self._producer_ids = producer_ids
        self._markers = markers
        self._peers = peers
        self._encoding: set[asyncio.Task[None]] = set()
        self.listing = asyncio.Lock()
        """Held while transactional ids are matched against a regular expression."""

    # --- the machines ------------------------------------------------------------------------

    def _make(self, replica: Replica) -> TransactionCoordinator:
        return TransactionCoordinator(self._machine_config, self._room)

    def _tick(self) -> Tick:
        return Tick()

    def _parse(self, key: Buffer | None, value: Buffer | None) -> TransactionValue | None:
        return None if key is None or value is None else read_value(value)

    def _replay_record(
        self, machine: TransactionCoordinator, header: BatchHeader, record: BatchRecord, parsed: TransactionValue | None
    ) -> None:
        if not header.is_control:
            machine.replay(record.key, record.value, parsed)

    # --- requests ----------------------------------------------------------------------------

    def partition_of(self, transactional_id: str) -> int | None:
        """Return the partition of `__transaction_state` that the id belongs to, or None if the topic does not exist."""
        topic = self._metadata.image.topic(TRANSACTION_STATE)
        return None if topic is None else partition_for_group(transactional_id, len(topic.partitions))

    def _shard_of(self, transactional_id: str) -> Shard[TransactionCoordinator] | None:
        partition = self.partition_of(transactional_id)
        return None if partition is None else self._serving(partition)

    async def ask(self, command: Command) -> Result:
        """Have the id's coordinator on this broker handle a command, and return its result."""
        shard = self._shard_of(command.transactional_id)
        if shard is None:
            return Result(error_code=ErrorCode.NOT_COORDINATOR)
        fresh_producer_id = -1
        if shard.machine.needs_producer_id(command):
            try:
                fresh_producer_id = await self._producer_ids.next()
            except KafkaError as error:
                text = "no producer id for %s: %s"
                self._complaints.write(
                    logger, logging.WARNING, "producer ids", "", text, command.transactional_id, error
                )
                return Result(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE)
            shard = self._shard_of(command.transactional_id)
            if shard is None:
                return Result(error_code=ErrorCode.NOT_COORDINATOR)
        request_id = next(self._request_ids)
        request = Request(request_id=request_id, command=command, fresh_producer_id=fresh_producer_id)
        answer: Result | ErrorCode = await self._asked(shard, request_id, request)
        return Result(error_code=answer) if isinstance(answer, ErrorCode) else answer

    def known(self) -> list[tuple[str, Transaction]] | None:
        """Return all ids coordinated here, in no particular order, or None while some of them are still loading."""
        if not all(shard.machine.is_loaded for shard in self._shards.values()):
            return None
        return [each for shard in self._shards.values() for each in shard.machine.transactions.items()]

    def find(self, transactional_id: str) -> Transaction | ErrorCode:
        """Return one transactional id, or the error code that says why this broker does not have it."""
        shard = self._shard_of(transactional_id)
        if shard is None:
            return ErrorCode.NOT_COORDINATOR
        if not shard.machine.is_loaded:
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        found = shard.machine.transactions.get(transactional_id)
        return ErrorCode.TRANSACTIONAL_ID_NOT_FOUND if found is None or found.value is None else found

    # --- for partition leaders ---------------------------------------------------------------

    async def begin_writing(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: frozenset[TopicPartition],
        *,
        is_adding: bool,
    ) -> Mapping[TopicPartition, ErrorCode]:
        """Return an error code per partition: NONE if it is part of the producer's transaction (KIP-890).

        With `is_adding`, partitions are added to the transaction if they are not part of it yet; while another change
        to the transaction is in progress, that is retried for up to add.partitions.to.txn.retry.backoff.max.ms.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._config.add_partitions_to_txn_retry_backoff_max_ms / 1000
        while True:
            codes = await self._ask_coordinator(
                transactional_id, producer_id, producer_epoch, partitions, is_adding=is_adding
            )
            is_busy = ErrorCode.CONCURRENT_TRANSACTIONS in codes.values()
            if not (is_adding and is_busy) or loop.time() >= deadline:
                return codes
            await asyncio.sleep(self._config.add_partitions_to_txn_retry_backoff_ms / 1000)

    async def _ask_coordinator(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: frozenset[TopicPartition],
        *,
        is_adding: bool,
    ) -> Mapping[TopicPartition, ErrorCode]:
        number = self.partition_of(transactional_id)
        if number is None:
            return dict.fromkeys(partitions, ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        topic = self._metadata.image.topic(TRANSACTION_STATE)
        assert topic is not None
        leader = BrokerId(topic.partitions[number].leader)
        if leader == self._config.node_id:
            return await self.add_or_verify(
                transactional_id, producer_id, producer_epoch, partitions, is_adding=is_adding
            )
        if leader < 0:
            return dict.fromkeys(partitions, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        asked = AddPartitionsToTxnTransaction(
            transactional_id=transactional_id,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            verify_only=not is_adding,
            topics=[
                AddPartitionsToTxnTopic(name=name, partitions=indexes) for name, indexes in by_topic(partitions).items()
            ],
        )
        try:
            response = await self._peers.ask(
                leader,
                ApiKey.ADD_PARTITIONS_TO_TXN,
                AddPartitionsToTxnRequest(transactions=[asked]),
                low=_FIRST_BATCHED_VERSION,
            )
        except KafkaError as error:
            return dict.fromkeys(partitions, error.code)
        if response.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED:  # our broker epoch has just changed
            return dict.fromkeys(partitions, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if response.error_code != ErrorCode.NONE:
            return dict.fromkeys(partitions, ErrorCode.of(response.error_code))
        codes = dict.fromkeys(partitions, ErrorCode.UNKNOWN_SERVER_ERROR)
        is_behind = False
        """True if the coordinator's image is behind: this broker does lead the partitions."""
        for each in (topic for result in response.results_by_transaction for topic in result.topic_results):
            for parts in cut(each.results_by_partition):
                if len(partitions) > PIECE:
                    await self._slices.breathe(1 + len(parts))
                for part in parts:
                    partition, code = TopicPartition(each.name, part.partition_index), part.partition_error_code
                    is_behind = is_behind or code in _NOT_KNOWN_TO_COORDINATOR
                    if partition in codes:
                        codes[partition] = ErrorCode.of(code)
        return dict.fromkeys(partitions, ErrorCode.COORDINATOR_NOT_AVAILABLE) if is_behind else codes

    async def add_or_verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: frozenset[TopicPartition],
        *,
        is_adding: bool,
    ) -> Mapping[TopicPartition, ErrorCode]:
        """Do what `begin_writing` does, if this broker is the coordinator."""
        command: Command
        if is_adding:
            command = AddPartitions(
                transactional_id=transactional_id,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                partitions=partitions,
                client_version=EPOCH_BUMPS,
            )
        else:
            command = VerifyPartitions(
                transactional_id=transactional_id,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                partitions=partitions,
            )
        result = await self.ask(command)
        if result.error_code != ErrorCode.NONE:
            return dict.fromkeys(partitions, result.error_code)
        abortable = ErrorCode.TRANSACTION_ABORTABLE
        return {each: abortable if each in result.missing else ErrorCode.NONE for each in partitions}

    # --- effects -----------------------------------------------------------------------------

    def _carry_out(self, shard: Shard[TransactionCoordinator], effect: Effect) -> Sequence[Effect]:
        match effect:
            case Reply():
                self._answer(shard, effect.request_id, effect.result)
            case Append():
                if effect.partition_count > _ENCODED_AT_ONCE:
                    task = self._tasks.create_task(self._append_large(shard, effect), name="large transaction")
                    self._encoding.add(task)
                    task.add_done_callback(self._encoding.discard)
                else:
                    return self._append_record(shard, effect.token, lambda: effect.record)
            case WriteMarkers():
                self._send_markers(shard, effect)
            case Survived():
                name = f"{effect.name[:_SHOWN_CHARACTERS]!r}"
                self._tasks.survive(f"{effect.kind} of transactional id {name}", effect.error, kind=effect.kind)
            case Note():
                logger.info("transactional id %s: %s", effect.transactional_id, effect.text)
            case _:
                assert_never(effect)
        return ()

    def _append_record(
        self, shard: Shard[TransactionCoordinator], token: int, record: Callable[[], TransactionRecord]
    ) -> Sequence[Effect]:
        def encoded() -> bytes:
            key, value = record()
            return encode_batch([(self._clock.now(), key, value, ())])

        def reported(outcome: ErrorCode) -> Appended:
            return Appended(token=token, error_code=outcome)

        return self._write(shard, encoded, reported)

    async def _append_large(self, shard: Shard[TransactionCoordinator], effect: Append) -> None:
        """Encode the record of a large transaction in a thread, then append it. Its id waits for that anyway."""
        try:
            record = await self._slices.apart(lambda: effect.record)
        except Exception as error:
            self._tasks.survive(f"encoding a record for {shard.replica.topic_partition}", error)
            if self._is_current(shard):
                self._step(shard, Appended(token=effect.token, error_code=ErrorCode.UNKNOWN_SERVER_ERROR))
            return
        if self._is_current(shard):
            self._run(shard, self._append_record(shard, effect.token, lambda: record))

    def stop(self) -> None:
        """Unload every shard for good; waiting clients get an error that makes them look for the new coordinator."""
        super().stop()
        for task in self._encoding:
            task.cancel()

    def _send_markers(self, shard: Shard[TransactionCoordinator], effect: WriteMarkers) -> None:
        def is_wanted() -> bool:
            return self._is_current(shard)

        def written(partitions: frozenset[TopicPartition]) -> None:
            if self._is_current(shard):
                event = MarkersWritten(
                    transactional_id=effect.transactional_id,
                    producer_id=effect.producer_id,
                    producer_epoch=effect.producer_epoch,
                    partitions=partitions,
                )
                self._step(shard, event)

        marker = WritableTxnMarker(
            producer_id=effect.producer_id,
            producer_epoch=effect.producer_epoch,
            transaction_result=effect.is_commit,
            coordinator_epoch=shard.replica.leader_epoch,
            transaction_version=effect.client_version,
        )
        self._markers.send(Marking(marker, effect.partitions, is_wanted, written))


def _transaction_config(config: BrokerConfig) -> TransactionConfig:
    return TransactionConfig(
        kraftpy_transaction_coordinator_max_bytes=config.kraftpy_transaction_coordinator_max_bytes,
        transaction_max_timeout_ms=config.transaction_max_timeout_ms,
        transactional_id_expiration_ms=config.transactional_id_expiration_ms,
        transaction_abort_timed_out_transaction_cleanup_interval_ms=(
            config.transaction_abort_timed_out_transaction_cleanup_interval_ms
        ),
        transaction_remove_expired_transaction_cleanup_interval_ms=(
            config.transaction_remove_expired_transaction_cleanup_interval_ms
        ),
    )
