"""A producer that sends each request of a transaction separately, in the versions that a test wants."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from typing import Any

from broker_wire import BOUND_SECONDS, ask, produce_request

from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from kraftpy.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from kraftpy.protocol.messages.describe_producers import DescribeProducersRequest, TopicRequest
from kraftpy.protocol.messages.describe_transactions import DescribeTransactionsRequest
from kraftpy.protocol.messages.end_txn import EndTxnRequest
from kraftpy.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from kraftpy.protocol.messages.find_coordinator import FindCoordinatorRequest
from kraftpy.protocol.messages.init_producer_id import InitProducerIdRequest
from kraftpy.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from kraftpy.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from kraftpy.protocol.record_batch import encode_batch

PASSING = (
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.NOT_ENOUGH_REPLICAS,
)
NOW = time.time_ns() // 1_000_000
"""The records' timestamp: recent, or the markers between them would begin new segments."""


def until(code: Callable[[], ErrorCode]) -> ErrorCode:
    """Retry like a client until the error is not a transient one, and return it."""
    deadline = time.monotonic() + BOUND_SECONDS
    while (found := code()) in PASSING:
        assert time.monotonic() < deadline, found
        time.sleep(0.02)
    return found


class Version:
    """The versions of the APIs that a client of one kind of transactions sends."""

    def __init__(self, produce: int, end: int, offsets: int, *, adds_implicitly: bool) -> None:
        self.produce, self.end, self.offsets, self.adds_implicitly = produce, end, offsets, adds_implicitly


V1 = Version(11, 4, 4, adds_implicitly=False)
V2 = Version(12, 5, 5, adds_implicitly=True)


class WireProducer:
    """One producer with a transactional id."""

    def __init__(self, connection: socket.socket, transactional_id: str, version: Version, timeout_ms: int = 60_000):
        self.connection = connection
        self.transactional_id = transactional_id
        self.version = version
        self.timeout_ms = timeout_ms
        self.producer_id = self.producer_epoch = -1
        self.sequences: dict[tuple[str, int], int] = {}

    @property
    def identity(self) -> tuple[int, int]:
        return self.producer_id, self.producer_epoch

    def init(self, *, keep: bool = False, version: int = 5) -> ErrorCode:
        """Take the id; with `keep` as the producer that has it already (KIP-360)."""
        find = FindCoordinatorRequest(key=self.transactional_id, key_type=1)
        until(lambda: ErrorCode.of(ask(self.connection, ApiKey.FIND_COORDINATOR, 3, find).error_code))
        request = InitProducerIdRequest(
            transactional_id=self.transactional_id,
            transaction_timeout_ms=self.timeout_ms,
            producer_id=self.producer_id if keep else -1,
            producer_epoch=self.producer_epoch if keep else -1,
        )

        def attempt() -> ErrorCode:
            answered = ask(self.connection, ApiKey.INIT_PRODUCER_ID, version, request)
            if answered.error_code == ErrorCode.NONE:
                self.producer_id, self.producer_epoch = answered.producer_id, answered.producer_epoch
                self.sequences.clear()
            return ErrorCode.of(answered.error_code)

        return until(attempt)

    def add(self, topic: str, *partitions: int) -> ErrorCode:
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.producer_epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name=topic, partitions=list(partitions))],
        )

        def attempt() -> ErrorCode:
            answered = ask(self.connection, ApiKey.ADD_PARTITIONS_TO_TXN, 3, request)
            (topic_result,) = answered.results_by_topic_v3_and_below
            return ErrorCode.of(topic_result.results_by_partition[0].partition_error_code)

        return until(attempt)

    def send(self, topic: str, partition: int = 0, *, add: bool = True, transactional: bool = True) -> ErrorCode:
        """One record, in the transaction."""
        if add and transactional and not self.version.adds_implicitly:
            assert self.add(topic, partition) is ErrorCode.NONE
        sequence = self.sequences.get((topic, partition), 0)
        batch = encode_batch(
            [(NOW, b"key", b"%d-%d" % (self.producer_epoch, sequence), ())],
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            base_sequence=sequence,
            is_transactional=transactional,
        )
        request = produce_request(topic, batch, partition=partition)
        request.transactional_id = self.transactional_id

        def attempt() -> ErrorCode:
            answered = ask(self.connection, ApiKey.PRODUCE, self.version.produce, request)
            return ErrorCode.of(answered.responses[0].partition_responses[0].error_code)

        code = until(attempt)
        if code is ErrorCode.NONE:
            self.sequences[topic, partition] = sequence + 1
        return code

    def add_offsets(self, group: str) -> ErrorCode:
        self._find_group(group)
        request = AddOffsetsToTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            group_id=group,
        )
        return until(lambda: ErrorCode.of(ask(self.connection, ApiKey.ADD_OFFSETS_TO_TXN, 3, request).error_code))

    def _find_group(self, group: str) -> None:
        find = FindCoordinatorRequest(key=group)
        until(lambda: ErrorCode.of(ask(self.connection, ApiKey.FIND_COORDINATOR, 3, find).error_code))

    def commit_offset(self, group: str, topic: str, offset: int) -> ErrorCode:
        self._find_group(group)
        partition = TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
        request = TxnOffsetCommitRequest(
            transactional_id=self.transactional_id,
            group_id=group,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            topics=[TxnOffsetCommitRequestTopic(name=topic, partitions=[partition])],
        )

        def attempt() -> ErrorCode:
            answered = ask(self.connection, ApiKey.TXN_OFFSET_COMMIT, self.version.offsets, request)
            return ErrorCode.of(answered.topics[0].partitions[0].error_code)

        return until(attempt)

    def end(self, *, commit: bool, identity: tuple[int, int] | None = None, version: int | None = None) -> ErrorCode:
        """Send EndTxn and adopt the next id and epoch from its answer, as a client does."""
        producer_id, producer_epoch = self.identity if identity is None else identity
        request = EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            committed=commit,
        )
        version = self.version.end if version is None else version

        def attempt() -> ErrorCode:
            answered = ask(self.connection, ApiKey.END_TXN, version, request)
            if answered.error_code == ErrorCode.NONE and version >= 5:
                if (answered.producer_id, answered.producer_epoch) != self.identity:
                    self.sequences.clear()
                self.producer_id, self.producer_epoch = answered.producer_id, answered.producer_epoch
            return ErrorCode.of(answered.error_code)

        return until(attempt)


# --- what others see --------------------------------------------------------------------------------------------------


def described(connection: socket.socket, transactional_id: str) -> Any:
    request = DescribeTransactionsRequest(transactional_ids=[transactional_id])
    return ask(connection, ApiKey.DESCRIBE_TRANSACTIONS, 0, request).transaction_states[0]


def wait_for_state(connection: socket.socket, transactional_id: str, *states: str) -> Any:
    """Wait until the coordinator reports one of these states."""
    deadline = time.monotonic() + BOUND_SECONDS
    while (found := described(connection, transactional_id)).transaction_state not in states:
        assert time.monotonic() < deadline, found
        time.sleep(0.02)
    return found


def producers(connection: socket.socket, topic: str, partition: int = 0) -> list[Any]:
    request = DescribeProducersRequest(topics=[TopicRequest(name=topic, partition_indexes=[partition])])
    answered = ask(connection, ApiKey.DESCRIBE_PRODUCERS, 0, request)
    return list(answered.topics[0].partitions[0].active_producers)


def latest(connection: socket.socket, topic: str, isolation_level: int, version: int = 7, timestamp: int = -1) -> int:
    """ListOffsets: the end, as readers of that isolation level have it; or what they have of another time."""
    partition = ListOffsetsPartition(partition_index=0, timestamp=timestamp)
    request = ListOffsetsRequest(
        isolation_level=isolation_level, topics=[ListOffsetsTopic(name=topic, partitions=[partition])]
    )
    answered = ask(connection, ApiKey.LIST_OFFSETS, version, request).topics[0].partitions[0]
    assert answered.error_code == ErrorCode.NONE
    return int(answered.offset)


def read(
    connection: socket.socket,
    topic: str,
    *,
    offset: int = 0,
    version: int = 12,
    isolation_level: int = 1,
    topic_id: bytes = bytes(16),
    max_bytes: int = 1 << 20,
) -> Any:
    """Fetch partition 0 and return the result."""
    wanted = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=max_bytes)
    request = FetchRequest(
        max_wait_ms=0,
        min_bytes=1,
        isolation_level=isolation_level,
        topics=[FetchTopic(topic=topic, topic_id=topic_id, partitions=[wanted])],
    )
    return ask(connection, ApiKey.FETCH, version, request).responses[0].partitions[0]


def committed_values(connection: socket.socket, topic: str) -> list[bytes]:
    """Every value of a committed transaction, by what the protocol says a consumer has to do."""
    from kraftpy.protocol.record_batch import ControlType, decode_control_record, iter_records, split_batches

    found: list[bytes] = []
    offset, pending, aborting = 0, [], set[int]()
    while True:
        answered = read(connection, topic, offset=offset)
        assert answered.error_code == ErrorCode.NONE, answered.error_code
        if not answered.records:
            return found
        pending = sorted((each.first_offset, each.producer_id) for each in answered.aborted_transactions or ())
        for header, batch in split_batches(answered.records):
            while pending and pending[0][0] <= header.last_offset:
                aborting.add(pending.pop(0)[1])
            if header.is_control:
                if decode_control_record(next(iter_records(batch))).type is ControlType.ABORT:
                    aborting.discard(header.producer_id)
            elif header.producer_id not in aborting or not header.is_transactional:
                found += [record.value or b"" for record in iter_records(batch) if record.offset >= offset]
            offset = header.next_offset
