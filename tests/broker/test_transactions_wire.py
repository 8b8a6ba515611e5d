"""Transactions of both versions, request by request over the wire, against a real broker.

v1 is what clients did before KIP-890: partitions are added, the epoch stays. v2: Produce 12 and TxnOffsetCommit 5 add,
EndTxn 5 raises the epoch. Rules 28 to 33 as a client meets them; `tests/transactions` tests the coordinator alone.
"""

from __future__ import annotations

import itertools
import socket
import time
from collections.abc import Iterator

import pytest
from broker_wire import BOUND_SECONDS, ask, connect, create_topic, say_to_be_a_broker
from transactional_wire import (
    NOW,
    V1,
    V2,
    Version,
    WireProducer,
    committed_values,
    described,
    latest,
    producers,
    read,
    until,
    wait_for_state,
)

from kraftpy.client import BlockingAdmin, ResourceType
from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from kraftpy.protocol.messages.list_transactions import ListTransactionsRequest
from kraftpy.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from kraftpy.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from kraftpy.protocol.record_batch import split_batches
from kraftpy.testing.cluster import EmbeddedBroker
from tests.waiting import eventually

FEW_PARTITIONS = {"offsets.topic.num.partitions": "4", "transaction.state.log.num.partitions": "4"}
both = pytest.mark.parametrize("version", [V1, V2], ids=["v1", "v2"])
_names = itertools.count()


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(settings=FEW_PARTITIONS) as made:
        yield made
        assert "Traceback" not in made.log_text


@pytest.fixture
def connection(broker: EmbeddedBroker) -> Iterator[socket.socket]:
    with connect(broker.bootstrap) as made:
        yield made


@pytest.fixture
def topic(connection: socket.socket) -> str:
    name = f"t-{next(_names)}"
    create_topic(connection, name, 3)
    return name


def made(connection: socket.socket, version: Version, **how: int) -> WireProducer:
    producer = WireProducer(connection, f"id-{next(_names)}", version, **how)
    assert producer.init() is ErrorCode.NONE
    return producer


# --- both versions ----------------------------------------------------------------------------------------------------


@both
def test_what_is_committed_is_read_and_what_is_aborted_is_not(
    connection: socket.socket, topic: str, version: Version
) -> None:
    producer = made(connection, version)
    for number in range(6):
        assert producer.send(topic) is ErrorCode.NONE
        assert producer.send(topic) is ErrorCode.NONE
        wait_for_state(connection, producer.transactional_id, "Ongoing")
        assert producer.end(commit=number % 2 == 0) is ErrorCode.NONE
    wait_for_state(connection, producer.transactional_id, "CompleteAbort")
    wanted = {
        V1: [b"0-0", b"0-1", b"0-4", b"0-5", b"0-8", b"0-9"],
        V2: [b"0-0", b"0-1", b"2-0", b"2-1", b"4-0", b"4-1"],
    }
    assert committed_values(connection, topic) == wanted[version]


@both
def test_rule_29_the_epoch_rises_with_every_end_of_v2_alone(
    connection: socket.socket, topic: str, version: Version
) -> None:
    producer = made(connection, version)
    first = producer.identity
    for number in range(1, 4):
        assert producer.send(topic) is ErrorCode.NONE
        assert producer.end(commit=bool(number % 2)) is ErrorCode.NONE
        assert producer.identity == (first[0], number if version is V2 else 0)
        found = wait_for_state(connection, producer.transactional_id, "CompleteCommit", "CompleteAbort")
        assert (found.producer_id, found.producer_epoch) == producer.identity
        assert [(each.producer_id, each.producer_epoch) for each in producers(connection, topic)] == [producer.identity]


def test_rule_29_a_retry_of_the_last_end_is_told_the_same_and_an_older_one_is_fenced(
    connection: socket.socket, topic: str
) -> None:
    producer = made(connection, V2)
    assert producer.send(topic) is ErrorCode.NONE
    before = producer.identity
    assert producer.end(commit=True) is ErrorCode.NONE
    after = producer.identity
    assert producer.end(commit=True, identity=before) is ErrorCode.NONE
    assert producer.identity == after
    assert producer.end(commit=False, identity=before) is ErrorCode.INVALID_TXN_STATE, "it was a commit"
    assert producer.send(topic) is ErrorCode.NONE
    assert producer.end(commit=True, identity=before) is ErrorCode.PRODUCER_FENCED, "late: it must not end this one"
    wait_for_state(connection, producer.transactional_id, "Ongoing")
    assert producer.end(commit=False) is ErrorCode.NONE


def test_v2_may_abort_what_has_not_begun_and_gets_an_epoch_for_it(connection: socket.socket, topic: str) -> None:
    producer = made(connection, V2)
    before = producer.identity
    assert producer.end(commit=True) is ErrorCode.INVALID_TXN_STATE
    assert producer.end(commit=False) is ErrorCode.NONE
    assert producer.identity == (before[0], before[1] + 1)
    assert producer.send(topic) is ErrorCode.NONE
    assert producer.end(commit=True) is ErrorCode.NONE


def test_v1_has_nothing_to_end_before_it_began(connection: socket.socket) -> None:
    producer = made(connection, V1)
    assert producer.end(commit=False) is ErrorCode.INVALID_TXN_STATE
    assert producer.end(commit=True) is ErrorCode.INVALID_TXN_STATE


# --- partitions -------------------------------------------------------------------------------------------------------


def test_rule_30_v2_adds_partitions_by_writing_and_v1_may_not_write_to_what_was_not_added(
    connection: socket.socket, topic: str
) -> None:
    old, new = made(connection, V1), made(connection, V2)
    assert old.send(topic, 0, add=False) is ErrorCode.TRANSACTION_ABORTABLE
    assert old.add(topic, 1) is ErrorCode.NONE
    assert old.send(topic, 0, add=False) is ErrorCode.TRANSACTION_ABORTABLE
    assert old.send(topic, 1, add=False) is ErrorCode.NONE
    for partition in (0, 2):
        assert new.send(topic, partition) is ErrorCode.NONE
    for producer, partitions in ((old, [1]), (new, [0, 2])):
        found = described(connection, producer.transactional_id)
        assert [(each.topic, list(each.partitions)) for each in found.topics] == [(topic, partitions)]
        assert producer.end(commit=True) is ErrorCode.NONE
    eventually(lambda: latest(connection, topic, 1) == latest(connection, topic, 0) == 2, "the markers are written")


def test_rule_30_a_batch_after_the_end_opens_nothing_that_would_hang(connection: socket.socket, topic: str) -> None:
    producer = made(connection, V1)
    assert producer.send(topic) is ErrorCode.NONE
    assert producer.end(commit=True) is ErrorCode.NONE
    wait_for_state(connection, producer.transactional_id, "CompleteCommit")
    assert producer.send(topic, add=False) is ErrorCode.TRANSACTION_ABORTABLE
    assert [each.current_txn_start_offset for each in producers(connection, topic)] == [-1]


def test_rule_31_nothing_is_written_outside_of_an_open_transaction(connection: socket.socket, topic: str) -> None:
    producer = made(connection, V1)
    assert producer.send(topic) is ErrorCode.NONE
    assert producer.send(topic, transactional=False) is ErrorCode.INVALID_TXN_STATE
    assert producer.end(commit=True) is ErrorCode.NONE


@pytest.mark.parametrize("version", [4, 5])
def test_brokers_add_and_verify_for_several_transactions_at_once(
    broker: EmbeddedBroker, connection: socket.socket, topic: str, version: int
) -> None:
    say_to_be_a_broker(connection, broker.data_dir / "logs")
    first, second = made(connection, V2), made(connection, V2)

    def asked(*, verify: bool) -> list[list[int]]:
        request = AddPartitionsToTxnRequest(
            transactions=[
                AddPartitionsToTxnTransaction(
                    transactional_id=each.transactional_id,
                    producer_id=each.producer_id,
                    producer_epoch=each.producer_epoch,
                    verify_only=verify,
                    topics=[AddPartitionsToTxnTopic(name=topic, partitions=[0, 1])],
                )
                for each in (first, second)
            ]
        )
        answered = ask(connection, ApiKey.ADD_PARTITIONS_TO_TXN, version, request)
        assert answered.error_code == ErrorCode.NONE
        ids = [each.transactional_id for each in answered.results_by_transaction]
        assert ids == [first.transactional_id, second.transactional_id]
        return [
            [part.partition_error_code for topic in each.topic_results for part in topic.results_by_partition]
            for each in answered.results_by_transaction
        ]

    abortable = [int(ErrorCode.TRANSACTION_ABORTABLE)] * 2
    assert asked(verify=True) == [abortable, abortable]
    assert asked(verify=False) == [[0, 0], [0, 0]]
    assert asked(verify=True) == [[0, 0], [0, 0]]
    assert first.end(commit=True) is ErrorCode.NONE
    wait_for_state(connection, first.transactional_id, "CompleteCommit")
    fenced = [int(ErrorCode.PRODUCER_FENCED)] * 2
    first.producer_epoch -= 1
    assert asked(verify=True) == [fenced, [0, 0]]
    assert second.end(commit=False) is ErrorCode.NONE


# --- who has the id ---------------------------------------------------------------------------------------------------


@both
def test_rule_28_a_new_producer_fences_the_old_one_and_aborts_its_transaction(
    connection: socket.socket, topic: str, version: Version
) -> None:
    zombie = made(connection, version)
    assert zombie.send(topic) is ErrorCode.NONE
    owner = WireProducer(connection, zombie.transactional_id, version)
    assert owner.init() is ErrorCode.NONE
    assert owner.producer_id == zombie.producer_id
    assert owner.producer_epoch > zombie.producer_epoch + 1, "one epoch for the abort, that nobody has, and one for it"
    assert zombie.send(topic, add=False) in (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_TXN_STATE)
    assert zombie.end(commit=True) is ErrorCode.PRODUCER_FENCED
    assert owner.send(topic) is ErrorCode.NONE
    assert owner.end(commit=True) is ErrorCode.NONE
    assert committed_values(connection, topic) == [b"%d-0" % (zombie.producer_epoch + 2)]


def test_versions_from_before_kip_588_know_no_fence(connection: socket.socket, topic: str) -> None:
    zombie = made(connection, V1)
    assert zombie.send(topic) is ErrorCode.NONE
    assert WireProducer(connection, zombie.transactional_id, V1).init() is ErrorCode.NONE
    assert zombie.end(commit=True, version=1) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert zombie.end(commit=True, version=2) is ErrorCode.PRODUCER_FENCED
    assert zombie.init(keep=True, version=3) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert zombie.init(keep=True, version=4) is ErrorCode.PRODUCER_FENCED


def test_a_producer_that_keeps_its_id_goes_on_with_the_next_epoch(connection: socket.socket, topic: str) -> None:
    """KIP-360: after an error; a retry of that very request gets the same answer."""
    producer = made(connection, V1)
    before = producer.identity
    assert producer.init(keep=True) is ErrorCode.NONE
    assert producer.identity == (before[0], before[1] + 1)
    after = producer.identity
    producer.producer_id, producer.producer_epoch = before
    assert producer.init(keep=True) is ErrorCode.NONE
    assert producer.identity == after


@pytest.mark.parametrize("version", range(6))
def test_every_version_of_init_producer_id_gives_the_next_epoch(connection: socket.socket, version: int) -> None:
    producer = made(connection, V1)
    assert producer.init(version=version) is ErrorCode.NONE
    assert producer.producer_epoch == 1


def test_timeouts_beyond_the_broker_s_are_refused(connection: socket.socket) -> None:
    for timeout_ms, code in (
        (900_000, ErrorCode.NONE),
        (900_001, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        (0, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
    ):
        assert WireProducer(connection, f"id-{next(_names)}", V1, timeout_ms).init() is code


# --- offsets ----------------------------------------------------------------------------------------------------------


def _offset(connection: socket.socket, group: str, topic: str, *, stable: bool = False) -> tuple[int, ErrorCode]:
    wanted = OffsetFetchRequestTopics(name=topic, partition_indexes=[0])
    request = OffsetFetchRequest(
        groups=[OffsetFetchRequestGroup(group_id=group, topics=[wanted])], require_stable=stable
    )
    found = ask(connection, ApiKey.OFFSET_FETCH, 8, request).groups[0]
    if found.error_code != ErrorCode.NONE:
        return -1, ErrorCode.of(found.error_code)
    partition = found.topics[0].partitions[0]
    return partition.committed_offset, ErrorCode.of(partition.error_code)


@both
def test_rule_33_offsets_count_when_the_transaction_commits(
    connection: socket.socket, topic: str, version: Version
) -> None:
    producer = made(connection, version)
    group = f"g-{next(_names)}"
    for number, commit in ((10, True), (20, False), (30, True)):
        if version is V1:
            assert producer.add_offsets(group) is ErrorCode.NONE
        assert producer.commit_offset(group, topic, number) is ErrorCode.NONE
        (names,) = [each.topic for each in described(connection, producer.transactional_id).topics]
        assert names == "__consumer_offsets"
        before = {10: -1, 20: 10, 30: 10}[number]
        assert _offset(connection, group, topic) == (before, ErrorCode.NONE)
        assert _offset(connection, group, topic, stable=True)[1] is ErrorCode.UNSTABLE_OFFSET_COMMIT
        assert producer.end(commit=commit) is ErrorCode.NONE
        wait_for_state(connection, producer.transactional_id, "CompleteCommit", "CompleteAbort")
        assert _offset(connection, group, topic, stable=True) == (number if commit else 10, ErrorCode.NONE)


def test_v1_may_not_commit_offsets_that_were_not_added(connection: socket.socket, topic: str) -> None:
    producer = made(connection, V1)
    assert producer.commit_offset(f"g-{next(_names)}", topic, 1) is ErrorCode.TRANSACTION_ABORTABLE


# --- readers ----------------------------------------------------------------------------------------------------------


@both
def test_rule_32_readers_of_committed_records_stop_at_the_last_stable_offset(
    connection: socket.socket, topic: str, version: Version
) -> None:
    first, second = made(connection, version), made(connection, version)
    assert first.send(topic) is ErrorCode.NONE  # 0
    assert first.end(commit=True) is ErrorCode.NONE  # 1
    wait_for_state(connection, first.transactional_id, "CompleteCommit")
    assert first.send(topic) is ErrorCode.NONE  # 2
    assert second.send(topic) is ErrorCode.NONE  # 3
    assert second.end(commit=True) is ErrorCode.NONE  # 4
    wait_for_state(connection, second.transactional_id, "CompleteCommit")
    for api_version in (2, 5, 6, 7):
        assert latest(connection, topic, 1, api_version) == 2
        assert latest(connection, topic, 0, api_version) == 5
    for timestamp in (-3, NOW + 1):  # the largest of all; later than the records, and so of a marker
        assert latest(connection, topic, 0, timestamp=timestamp) >= 1
        assert latest(connection, topic, 1, timestamp=timestamp) in (-1, 1), "nothing behind the last stable offset"
    answered = read(connection, topic)
    assert (answered.last_stable_offset, answered.high_watermark) == (2, 5)
    assert [header.last_offset for header, _ in split_batches(answered.records)] == [0, 1]
    assert len(split_batches(read(connection, topic, isolation_level=0).records)) == 5
    assert not read(connection, topic, offset=2).records
    assert first.end(commit=False) is ErrorCode.NONE  # 5
    wait_for_state(connection, first.transactional_id, "CompleteAbort")
    assert latest(connection, topic, 1) == 6


def test_rule_32_every_version_of_fetch_tells_of_the_aborted_transactions_in_its_range(
    broker: EmbeddedBroker, connection: socket.socket
) -> None:
    topic = f"t-{next(_names)}"
    topic_id = create_topic(connection, topic)
    producer, other = made(connection, V1), made(connection, V1)
    for number in range(4):  # 0 1, 2 3, 4 5, 6 7: two records' offsets each, data and marker
        assert producer.send(topic) is ErrorCode.NONE
        assert producer.end(commit=number % 2 == 0) is ErrorCode.NONE
        wait_for_state(connection, producer.transactional_id, "CompleteCommit", "CompleteAbort")
    assert other.send(topic) is ErrorCode.NONE  # 8
    assert other.end(commit=False) is ErrorCode.NONE  # 9
    wait_for_state(connection, other.transactional_id, "CompleteAbort")
    aborted = [(producer.producer_id, 2), (producer.producer_id, 6), (other.producer_id, 8)]
    for version in range(4, 19):

        def told(offset: int, version: int = version, **how: int) -> list[tuple[int, int]] | None:
            answered = read(connection, topic, offset=offset, version=version, topic_id=topic_id, **how)
            assert answered.error_code == ErrorCode.NONE
            found = answered.aborted_transactions
            return None if found is None else [(each.producer_id, each.first_offset) for each in found]

        assert told(0) == told(3) == aborted, version
        assert told(4) == told(6) == aborted[1:]
        assert told(9) == aborted[2:]
        assert told(0, max_bytes=1) == [], "one batch, of what is committed"
        assert not told(0, isolation_level=0)


# --- markers and operators --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [1, 2])
def test_rule_31_a_marker_of_an_older_coordinator_or_producer_is_refused(
    connection: socket.socket, topic: str, version: int
) -> None:
    producer = made(connection, V1)

    def mark(producer_epoch: int, coordinator_epoch: int) -> ErrorCode:
        marker = WritableTxnMarker(
            producer_id=producer.producer_id,
            producer_epoch=producer_epoch,
            transaction_result=False,
            topics=[WritableTxnMarkerTopic(name=topic, partition_indexes=[0])],
            coordinator_epoch=coordinator_epoch,
        )
        answered = ask(connection, ApiKey.WRITE_TXN_MARKERS, version, WriteTxnMarkersRequest(markers=[marker]))
        return ErrorCode.of(answered.markers[0].topics[0].partitions[0].error_code)

    assert producer.init() is ErrorCode.NONE
    assert producer.send(topic) is ErrorCode.NONE
    assert mark(0, 7) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert mark(1, 7) is ErrorCode.NONE
    assert mark(1, 6) is ErrorCode.TRANSACTION_COORDINATOR_FENCED
    (known,) = producers(connection, topic)
    assert (known.producer_epoch, known.coordinator_epoch, known.current_txn_start_offset) == (1, 7, -1)


def test_a_late_marker_of_v2_ends_no_later_transaction(connection: socket.socket, topic: str) -> None:
    """Rule 29, KIP-1228: only an epoch above the producer's is the end of what it has open."""
    producer = made(connection, V2)
    assert producer.send(topic) is ErrorCode.NONE
    assert producer.end(commit=True) is ErrorCode.NONE
    assert producer.send(topic) is ErrorCode.NONE
    late = WritableTxnMarker(
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        transaction_result=True,
        topics=[WritableTxnMarkerTopic(name=topic, partition_indexes=[0])],
        coordinator_epoch=100,
        transaction_version=2,
    )
    answered = ask(connection, ApiKey.WRITE_TXN_MARKERS, 2, WriteTxnMarkersRequest(markers=[late]))
    assert answered.markers[0].topics[0].partitions[0].error_code == ErrorCode.INVALID_PRODUCER_EPOCH
    assert [each.current_txn_start_offset for each in producers(connection, topic)] == [2]
    assert producer.end(commit=False) is ErrorCode.NONE


def test_transactions_are_listed_by_state_producer_duration_and_pattern(connection: socket.socket, topic: str) -> None:
    mark = f"list-{next(_names)}"
    ids = [f"{mark}/one:1", f"{mark}/two ü", f"{mark}.three"]
    made_here = [WireProducer(connection, each, V2) for each in ids]
    for producer in made_here:
        assert producer.init() is ErrorCode.NONE
    assert made_here[0].send(topic) is ErrorCode.NONE

    def listed(version: int = 2, **filters: object) -> list[str]:
        answered = ask(connection, ApiKey.LIST_TRANSACTIONS, version, ListTransactionsRequest(**filters))  # type: ignore[arg-type]
        assert answered.error_code == ErrorCode.NONE
        return [each.transactional_id for each in answered.transaction_states if each.transactional_id.startswith(mark)]

    for version in (0, 1, 2):
        assert listed(version) == sorted(ids)
        assert listed(version, state_filters=["Ongoing"]) == [ids[0]]
        assert listed(version, producer_id_filters=[made_here[1].producer_id]) == [ids[1]]
    for version in (1, 2):
        assert listed(version, state_filters=["Ongoing"], duration_filter=3_600_000) == []
        deadline = time.monotonic() + BOUND_SECONDS
        while listed(version, state_filters=["Ongoing"], duration_filter=0) != [ids[0]]:  # once it is open for 1 ms
            assert time.monotonic() < deadline
    assert listed(transactional_id_pattern=f"{mark}.*") == sorted(ids)
    assert listed(transactional_id_pattern=f"{mark}/.*") == sorted(ids[:2])
    assert listed(transactional_id_pattern=f"{mark}/two\\sü") == [ids[1]]
    assert listed(transactional_id_pattern=f"{mark}/one[[:punct:]]\\d") == [ids[0]]
    assert listed(transactional_id_pattern="two") == [], "all of the id has to match"
    assert listed(transactional_id_pattern="") == listed(transactional_id_pattern=None) == sorted(ids)
    refused = ask(
        connection, ApiKey.LIST_TRANSACTIONS, 2, ListTransactionsRequest(transactional_id_pattern="(?=lookahead)")
    )
    assert refused.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
    unknown = ask(connection, ApiKey.LIST_TRANSACTIONS, 2, ListTransactionsRequest(state_filters=["Lost", "Empty"]))
    assert unknown.unknown_state_filters == ["Lost"]
    assert made_here[0].end(commit=True) is ErrorCode.NONE


# --- time, and a broker that dies -------------------------------------------------------------------------------------


QUICK = {
    **FEW_PARTITIONS,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "50",
    "transaction.remove.expired.transaction.cleanup.interval.ms": "50",
}


@both
def test_rule_33_what_is_open_for_too_long_is_aborted_and_its_producer_fenced(version: Version) -> None:
    with EmbeddedBroker(settings=QUICK) as broker, connect(broker.bootstrap) as connection:
        create_topic(connection, "t")
        producer = made(connection, version, timeout_ms=300)
        assert producer.send("t") is ErrorCode.NONE
        found = wait_for_state(connection, producer.transactional_id, "CompleteAbort")
        assert found.producer_epoch == producer.producer_epoch + 1
        assert committed_values(connection, "t") == []
        assert latest(connection, "t", 1) == 2
        # One epoch on and aborted: of v2 that could be its own abort, asked again, and a commit contradicts it.
        is_v2 = version is V2
        assert producer.end(commit=True) is (ErrorCode.INVALID_TXN_STATE if is_v2 else ErrorCode.PRODUCER_FENCED)
        assert producer.send("t", add=False) in (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_TXN_STATE)


def test_rules_24_and_33_ids_and_producers_that_nobody_uses_are_forgotten() -> None:
    settings = {
        **QUICK,
        "transactional.id.expiration.ms": "300",
        "producer.id.expiration.ms": "400",
        "producer.id.expiration.check.interval.ms": "50",
    }
    with EmbeddedBroker(settings=settings) as broker, connect(broker.bootstrap) as connection:
        create_topic(connection, "t")
        idle, busy = made(connection, V1), made(connection, V1)
        for producer in (idle, busy):
            assert producer.send("t") is ErrorCode.NONE
        assert idle.end(commit=True) is ErrorCode.NONE
        deadline = time.monotonic() + BOUND_SECONDS
        while described(connection, idle.transactional_id).error_code != ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        while {each.producer_id for each in producers(connection, "t")} != {busy.producer_id}:
            assert time.monotonic() < deadline, "a producer with a transaction open stays, the other one goes"
            time.sleep(0.02)
        wait_for_state(connection, busy.transactional_id, "Ongoing")
        assert idle.end(commit=True) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
        assert busy.end(commit=True) is ErrorCode.NONE


def test_a_broker_that_is_killed_knows_the_same_transactions() -> None:
    with EmbeddedBroker(settings={**FEW_PARTITIONS, "log.segment.bytes": "1048576"}) as broker:
        with connect(broker.bootstrap) as connection:
            create_topic(connection, "t", 1, internal_segment_bytes="1000")
            producer, open_one = made(connection, V2), made(connection, V2)
            for number in range(24):
                assert producer.send("t") is ErrorCode.NONE
                assert producer.end(commit=number % 3 == 0) is ErrorCode.NONE
                wait_for_state(connection, producer.transactional_id, "CompleteCommit", "CompleteAbort")
            assert open_one.send("t") is ErrorCode.NONE
            before = read(connection, "t"), committed_values(connection, "t"), latest(connection, "t", 1)
            aborted = [(each.producer_id, each.first_offset) for each in before[0].aborted_transactions]
            assert aborted
        for stop in (broker.kill, broker.stop, broker.kill):
            stop()
            broker.start()
            with connect(broker.bootstrap) as connection:
                until(lambda: ErrorCode.of(described(connection, open_one.transactional_id).error_code))
                answered = read(connection, "t")
                assert answered.records == before[0].records
                assert [(each.producer_id, each.first_offset) for each in answered.aborted_transactions] == aborted
                assert (committed_values(connection, "t"), latest(connection, "t", 1)) == before[1:]
                assert described(connection, open_one.transactional_id).transaction_state == "Ongoing"
        with connect(broker.bootstrap) as connection:
            open_one.connection = connection
            assert open_one.end(commit=True) is ErrorCode.NONE
            wait_for_state(connection, open_one.transactional_id, "CompleteCommit")
            assert committed_values(connection, "t") == [*before[1], b"0-0"]


def test_what_is_kept_of_transactions_is_compacted_and_outlives_it() -> None:
    """`__transaction_state`: of each id the last record stays."""
    settings = {
        **FEW_PARTITIONS,
        "transaction.state.log.num.partitions": "1",
        "log.cleaner.backoff.ms": "50",
        "log.cleaner.min.cleanable.ratio": "0.01",
    }
    with EmbeddedBroker(settings=settings) as broker:
        partition = broker.data_dir / "logs" / "__transaction_state-0"
        with connect(broker.bootstrap) as connection:
            create_topic(connection, "t")
            quiet, busy = made(connection, V2), made(connection, V2)
            with BlockingAdmin(bootstrap_servers=broker.bootstrap) as admin:
                admin.alter_configs({(ResourceType.TOPIC, "__transaction_state"): {"internal.segment.bytes": "4000"}})
            assert quiet.send("t") is ErrorCode.NONE
            for _ in range(40):
                assert busy.send("t") is ErrorCode.NONE
                assert busy.end(commit=True) is ErrorCode.NONE
            deadline = time.monotonic() + BOUND_SECONDS
            while (size := sum(file.stat().st_size for file in partition.glob("*.log"))) > 7000:
                assert time.monotonic() < deadline, size
                time.sleep(0.05)
            epoch = busy.producer_epoch
        broker.kill()
        broker.start()
        with connect(broker.bootstrap) as connection:
            quiet.connection = busy.connection = connection
            assert wait_for_state(connection, busy.transactional_id, "CompleteCommit").producer_epoch == epoch
            assert wait_for_state(connection, quiet.transactional_id, "Ongoing").producer_id == quiet.producer_id
            for producer in (quiet, busy):
                assert producer.send("t") is ErrorCode.NONE
                assert producer.end(commit=True) is ErrorCode.NONE


def test_without_verification_a_late_batch_of_v1_is_let_in() -> None:
    """`transaction.partition.verification.enable=false`: as before KIP-890, and so something may hang."""
    settings = {**FEW_PARTITIONS, "transaction.partition.verification.enable": "false"}
    with EmbeddedBroker(settings=settings) as broker, connect(broker.bootstrap) as connection:
        create_topic(connection, "t")
        producer = made(connection, V1)
        assert producer.send("t", add=False) is ErrorCode.NONE
        assert described(connection, producer.transactional_id).transaction_state == "Empty"
        (known,) = producers(connection, "t")
        assert (known.current_txn_start_offset, known.last_timestamp) == (0, NOW)
