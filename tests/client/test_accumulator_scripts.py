from __future__ import annotations

from pathlib import Path

import pytest
from client_script import Words, run_script
from hypothesis import given, settings
from hypothesis import strategies as st

from kraftpy.client.producer.accumulator import Accumulator, AccumulatorOptions, Batch
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.record_batch import HEADER_BYTES

SCRIPTS = sorted(Path(__file__).parent.glob("accumulator_*.script"))


def options(**words: object) -> AccumulatorOptions:
    values: dict[str, object] = {
        "batch_size": HEADER_BYTES + 300,
        "linger_ms": 5.0,
        "buffer_memory": 10_000,
        "delivery_timeout_ms": 1_000.0,
        "retries": 2**31 - 1,
        "idempotent": True,
        "max_in_flight": 5,
    }
    return AccumulatorOptions(**{**values, **words})  # type: ignore[arg-type]


class World:
    """One accumulator and its commands; every record counts 100 bytes, so a batch holds three."""

    def __init__(self) -> None:
        self.accumulator = Accumulator(options())
        self.now = 0.0
        self.wire: dict[str, Batch] = {}
        self.sent = 0
        self.known = -1
        self.seen: dict[str, list[tuple[int, int, int]]] = {}

    def run(self, name: str, words: Words) -> list[str]:
        self.now = float(words.pop("now", self.now))
        accumulator = self.accumulator
        match name:
            case "producer":
                flags = {key: words.pop(key) == "yes" for key in ("idempotent", "transactional") if key in words}
                self.accumulator = Accumulator(options(**flags, **{key: int(value) for key, value in words.items()}))
                return []
            case "id":
                accumulator.set_producer(int(words["id"]), int(words["epoch"]))
                return []
            case "known":  # the brokers have had something of this producer for each partition
                self.known = int(words["id"])
                return []
            case "append":
                topic, _, partition = words["to"].rpartition("-")
                queue = accumulator.queue(topic, int(partition))
                queue.known_as = max(queue.known_as, self.known)
                for record in words["records"].split(","):
                    accumulator.append(queue, 7, None, record.encode(), (), 100, lambda: self.now)
                return []
            case "flush":
                accumulator.close_open_batches()
                return []
            case "ready":
                queues, next_ms = accumulator.ready(self.now)
                return [f"ready {','.join(str(queue.partition) for queue in queues) or 'none'} next={next_ms}"]
            case "send":
                queues, _ = accumulator.ready(self.now)
                lines = []
                for batch in accumulator.drain(queues, int(words.get("max", "100000")), self.now):
                    self.sent += 1
                    self.wire[str(self.sent)] = batch
                    lines.append(f"-> {self.sent}: {self.batch(batch)}")
                self.check()
                return lines
            case "ok":
                accumulator.succeeded(self.wire.pop(words["request"]), int(words["offset"]))
                self.check()
                return []
            case "fail":
                batch = self.wire.pop(words["request"])
                verdict = accumulator.failed(batch, KafkaError(ErrorCode[words["error"]]), self.now, 10)
                self.check()
                return [verdict.value]
            case "discard":
                accumulator.discard_unsent(KafkaError(ErrorCode.TRANSACTION_ABORTABLE))
                self.check()
                return []
            case "failures":
                return [",".join(error.code.name for error in accumulator.failures) or "none"]
            case "expire":
                return [f"expired {self.batch(batch)}" for batch in accumulator.expire(self.now)]
            case "state":
                return [
                    f"free={accumulator.free_bytes} incomplete={accumulator.incomplete} "
                    f"producer={accumulator.producer_id}/{accumulator.producer_epoch} unseen={len(accumulator.unseen)}"
                ]
        raise AssertionError(f"no such command: {name}")

    def batch(self, batch: Batch) -> str:
        records = b",".join(record[1 + 1] or b"" for record in batch.records).decode()
        if batch.producer_id < 0:
            return f"{batch.partition} {records}"
        return f"{batch.partition} {records} by {batch.producer_id}/{batch.producer_epoch} from {batch.base_sequence}"

    def check(self) -> None:
        accumulator = self.accumulator
        held = 0
        for queue in accumulator._queues.values():
            every = {*queue.waiting, *queue.in_flight, *([queue.open] if queue.open else [])}
            held += sum(batch.size_bytes - HEADER_BYTES for batch in every)
            assert queue.in_flight == sorted(queue.in_flight)
            assert list(queue.waiting) == sorted(queue.waiting)
            assert queue.on_wire == sum(batch.on_wire for batch in queue.in_flight)
        assert accumulator.free_bytes == accumulator.options.buffer_memory - held


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_accumulator(path: Path) -> None:
    run_script(path, World().run)


class Log:
    """A partition's leader as KIP-98 describes it: takes what comes next, knows the last five, refuses the rest.

    From a producer that it does not know it accepts any first batch (rule 23).
    """

    def __init__(self) -> None:
        self.records: list[bytes] = []
        self.epoch = -1
        self.next_sequence = 0
        self.last: list[tuple[int, int, int]] = []

    def append(self, batch: Batch) -> ErrorCode:
        if batch.producer_epoch < self.epoch:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        if self.epoch < 0:
            self.epoch, self.next_sequence = batch.producer_epoch, batch.base_sequence
        if batch.producer_epoch > self.epoch:
            if batch.base_sequence != 0:
                return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
            self.epoch, self.next_sequence, self.last = batch.producer_epoch, 0, []
        key = (batch.base_sequence, len(batch.records))
        for sequence, count, _ in self.last:
            if (sequence, count) == key:
                return ErrorCode.NONE
        if batch.base_sequence != self.next_sequence:
            return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        self.last = [*self.last[-4:], (*key, len(self.records))]
        self.next_sequence += len(batch.records)
        self.records += [record[2] or b"" for record in batch.records]
        return ErrorCode.NONE


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_a_network_that_loses_requests_and_answers_loses_no_record_doubles_none_and_keeps_the_order(
    data: st.DataObject,
) -> None:
    accumulator = Accumulator(options(delivery_timeout_ms=1e9, buffer_memory=10**9, linger_ms=0.0))
    accumulator.set_producer(1, 0)
    logs = {0: Log(), 1: Log()}
    now = 0.0
    wire: list[Batch] = []
    sent: dict[int, list[bytes]] = {0: [], 1: []}
    for step in range(data.draw(st.integers(10, 60))):
        now += data.draw(st.sampled_from([1.0, 20.0]))
        match data.draw(st.sampled_from(["append", "append", "send", "send", "answer", "answer"])):
            case "append":
                partition = data.draw(st.sampled_from([0, 1]))
                record = f"{partition}:{step}".encode()
                accumulator.append(accumulator.queue("t", partition), 0, None, record, (), 100, lambda at=now: at)
                sent[partition].append(record)
            case "send":
                wire += accumulator.drain(accumulator.ready(now)[0], 10**6, now)
            case "answer" if wire:
                _answer(
                    accumulator, logs, wire.pop(0), now, data.draw(st.sampled_from(["ok", "ok", "lost", "unheard"]))
                )
    for _ in range(10_000):
        now += 50.0
        accumulator.close_open_batches()
        wire += accumulator.drain(accumulator.ready(now)[0], 10**6, now)
        if not wire and not accumulator.incomplete:
            break
        if wire:
            _answer(accumulator, logs, wire.pop(0), now, "ok")
    assert accumulator.incomplete == 0
    assert accumulator.free_bytes == accumulator.options.buffer_memory
    assert {partition: log.records for partition, log in logs.items()} == sent


def _answer(accumulator: Accumulator, logs: dict[int, Log], batch: Batch, now: float, fate: str) -> None:
    """`lost`: the request never arrives. `unheard`: its answer does not."""
    code = ErrorCode.NETWORK_EXCEPTION if fate == "lost" else logs[batch.partition.partition].append(batch)
    if fate == "unheard":
        code = ErrorCode.NETWORK_EXCEPTION
    if code is ErrorCode.NONE:
        accumulator.succeeded(batch, 0)
    else:
        accumulator.failed(batch, KafkaError(code), now, 10)


def test_every_record_knows_its_own_offset_and_timestamp_also_after_splits() -> None:
    accumulator = Accumulator(options(batch_size=100_000, idempotent=False))
    queue = accumulator.queue("t", 0)
    batches = [accumulator.append(queue, 100 + n, None, b"x", (), 100, lambda: 0.0) for n in range(5)]
    whole = batches[0]
    heard: list[bool] = []
    whole.callbacks.append(lambda: heard.append(whole.done))
    accumulator.close_open_batches()
    pending = accumulator.drain([queue], 10**6, 0.0)
    offset = 50
    while pending or accumulator.incomplete:
        batch = (pending or accumulator.drain([queue], 10**6, 0.0)).pop(0)
        pending = []
        if len(batch.records) > 1:
            accumulator.failed(batch, KafkaError(ErrorCode.MESSAGE_TOO_LARGE), 0.0, 0.0)
        else:
            accumulator.succeeded(batch, offset)
            offset += 10
    assert heard == [True]
    assert [whole.outcome(n) for n in range(5)] == [(50 + 10 * n, 100 + n) for n in range(5)]
    assert accumulator.free_bytes == accumulator.options.buffer_memory
