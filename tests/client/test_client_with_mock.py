"""Producer and consumer against librdkafka's mock cluster, checked with librdkafka itself."""

from __future__ import annotations

import asyncio
import gc
import json
import time
import uuid
import warnings
from collections.abc import Callable

import pytest
from click.testing import CliRunner

from kraftpy.cli import cli
from kraftpy.client import (
    Admin,
    Consumer,
    ConsumerGroupMetadata,
    KafkaError,
    OffsetSpec,
    Producer,
    RangeReader,
    TopicPartition,
    UnknownTopic,
    UnsupportedVersion,
)
from kraftpy.client.ranges.columns import decode_columns

confluent_kafka = pytest.importorskip("confluent_kafka")

Message = tuple[int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]


def topic_name() -> str:
    return f"topic-{uuid.uuid4().hex[:8]}"


def read_with_librdkafka(bootstrap: str, topic: str, count: int, partitions: int = 4) -> dict[int, list[Message]]:
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": uuid.uuid4().hex, "enable.auto.commit": False}
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, n, 0) for n in range(partitions)])
    found: dict[int, list[Message]] = {n: [] for n in range(partitions)}
    seen = 0
    try:
        while seen < count:
            batch = consumer.consume(num_messages=min(count - seen, 10_000), timeout=20)
            assert batch, f"librdkafka read {seen} of {count}"
            for message in batch:
                assert message.error() is None, message.error()
                headers = tuple((name, value) for name, value in message.headers() or ())
                found[message.partition()].append((message.offset(), message.key(), message.value(), headers))
            seen += len(batch)
    finally:
        consumer.close()
    return found


async def test_transactions_are_what_librdkafkas_mock_expects(mock_cluster: str) -> None:
    topic, group_id = topic_name(), uuid.uuid4().hex
    async with Producer(bootstrap_servers=mock_cluster, transactional_id=uuid.uuid4().hex) as producer:
        await producer.init_transactions()
        for n in range(3):
            async with producer.transaction():
                for partition in range(4):
                    await producer.send(topic, b"%d" % n, partition=partition)
                places = {TopicPartition(topic, 0): n}
                await producer.send_offsets_to_transaction(places, ConsumerGroupMetadata(group_id))
            producer.begin_transaction()
            await producer.send_and_wait(topic, b"aborted", partition=0)
            await producer.abort_transaction()
    # It writes no markers and keeps no offsets of transactions, but it checks ids, epochs, states and numbers.
    found = await asyncio.to_thread(read_with_librdkafka, mock_cluster, topic, 15)
    assert [value for _, _, value, _ in found[1]] == [b"0", b"1", b"2"]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
async def test_librdkafka_reads_what_the_producer_sent(mock_cluster: str, codec: str) -> None:
    topic = topic_name()
    async with Producer(bootstrap_servers=mock_cluster, compression_type=codec, batch_size=2_000) as producer:
        deliveries = [
            await producer.send(
                topic,
                None if n == 3 else b"value %d" % n,
                key=None if n == 5 else b"key %d" % (n % 17),
                headers=[("h", b"%d" % n), ("empty", b""), ("null", None)] if n % 2 else (),
                partition=n % 4,
            )
            for n in range(500)
        ]
        placed = [await delivery for delivery in deliveries]
    found = await asyncio.to_thread(read_with_librdkafka, mock_cluster, topic, 500)
    for n, metadata in enumerate(placed):
        offset, key, value, headers = found[n % 4][n // 4]
        assert (metadata.topic, metadata.partition, metadata.offset) == (topic, n % 4, offset)
        assert value == (None if n == 3 else b"value %d" % n)
        assert key == (None if n == 5 else b"key %d" % (n % 17))
        assert headers == ((("h", b"%d" % n), ("empty", b""), ("null", None)) if n % 2 else ())


@pytest.mark.parametrize("acks", [0, 1, "all"])
async def test_every_kind_of_acknowledgement(mock_cluster: str, acks: int | str) -> None:
    topic = topic_name()
    async with Producer(bootstrap_servers=mock_cluster, acks=acks) as producer:
        metadata = await producer.send_and_wait(topic, b"one")
        assert (metadata.offset == -1) is (acks == 0)
    assert sum(map(len, (await asyncio.to_thread(read_with_librdkafka, mock_cluster, topic, 1)).values())) == 1


async def test_keys_go_where_librdkafka_would_send_them(mock_cluster: str) -> None:
    topic, keys = topic_name(), [b"key-%d" % n for n in range(200)]
    theirs: dict[bytes, int] = {}

    def delivered(error: object, message: object) -> None:
        assert error is None
        theirs[message.key()] = message.partition()  # type: ignore[attr-defined]

    def send_with_librdkafka() -> None:
        producer = confluent_kafka.Producer({"bootstrap.servers": mock_cluster, "partitioner": "murmur2_random"})
        for key in keys:
            producer.produce(topic, b"v", key=key, on_delivery=delivered)
        producer.flush(20)

    await asyncio.to_thread(send_with_librdkafka)
    async with Producer(bootstrap_servers=mock_cluster) as producer:
        ours = {key: (await producer.send_and_wait(topic, b"v", key=key)).partition for key in keys[:40]}
    assert ours == {key: theirs[key] for key in keys[:40]}


async def test_backpressure_waits_for_room_and_loses_nothing(mock_cluster: str) -> None:
    topic = topic_name()
    async with Producer(bootstrap_servers=mock_cluster, buffer_memory=50_000, batch_size=10_000) as producer:
        for n in range(2_000):
            await producer.send(topic, b"%05d" % n + b"x" * 200, partition=0)
            assert producer._accumulator.free_bytes >= 0
    found = await asyncio.to_thread(read_with_librdkafka, mock_cluster, topic, 2_000)
    assert [int((value or b"")[:5]) for _, _, value, _ in found[0]] == list(range(2_000))


async def test_what_is_refused_at_once(mock_cluster: str) -> None:
    async with Producer(bootstrap_servers=mock_cluster, max_request_size=1_000) as producer:
        topic = topic_name()
        with pytest.raises(LookupError):
            producer.send_nowait(topic, b"x")
        with pytest.raises(KafkaError, match="MESSAGE_TOO_LARGE"):
            await producer.send(topic, b"x" * 1_000)
        with pytest.raises(KafkaError, match="partitions 0 to 3"):
            await producer.send(topic, b"x", partition=4)
        with pytest.raises(KafkaError, match="partitions 0 to 3"):
            await producer.send(topic, b"x", partition=-1)
        with pytest.raises(TypeError, match="value must be bytes"):
            await producer.send(topic, "text")  # type: ignore[arg-type]
        assert (await producer.send_nowait(topic, b"x")).topic == topic
    with pytest.raises(RuntimeError):
        await producer.send(topic, b"x")


async def test_a_group_commits_where_librdkafka_goes_on(mock_cluster: str, honest_versions: None) -> None:
    """One member at a time: the mock's groups can stall for good when two join at once."""
    topic, group = topic_name(), uuid.uuid4().hex
    async with Producer(bootstrap_servers=mock_cluster) as producer:
        for n in range(100):
            await producer.send(topic, b"%d" % n, partition=n % 4)
    seen: set[bytes | None] = set()
    async with Consumer(
        topic, bootstrap_servers=mock_cluster, group_id=group, auto_offset_reset="earliest", enable_auto_commit=False
    ) as consumer:
        async with asyncio.timeout(40):
            while len(seen) < 100:
                for records in (await consumer.getmany(timeout_ms=200)).values():
                    seen.update(record.value for record in records)
        await consumer.commit({TopicPartition(topic, n): 20 + n for n in range(4)})

    def go_on() -> set[tuple[int, int]]:
        beside = confluent_kafka.Consumer({"bootstrap.servers": mock_cluster, "group.id": group})
        places = beside.committed([confluent_kafka.TopicPartition(topic, n) for n in range(4)], timeout=20)
        beside.close()
        return {(place.partition, place.offset) for place in places}

    assert await asyncio.to_thread(go_on) == {(n, 20 + n) for n in range(4)}


async def test_the_range_reader_reads_exactly_the_range(mock_cluster: str) -> None:
    topic = topic_name()
    async with Producer(bootstrap_servers=mock_cluster, batch_size=1_000) as producer:
        for n in range(1_000):
            await producer.send(topic, b"%d" % n, key=b"k", partition=2, timestamp_ms=1_000 + n)

    def read(start: int, end: int) -> list[int]:
        partition, values = TopicPartition(topic, 2), []
        with RangeReader(mock_cluster, max_partition_fetch_bytes=3_000) as reader:
            assert reader.topics([topic])[topic].partitions[2].leader > 0
            assert reader.earliest([partition]) == {partition: 0}
            assert reader.latest([partition]) == {partition: 1_000}
            position = start
            for chunk in reader.read(partition, start, end):
                assert chunk.start_offset == position
                columns = decode_columns(chunk.records, start_offset=chunk.start_offset, end_offset=chunk.end_offset)
                values += [int(columns.value(row) or b"") for row in range(len(columns))]
                position = chunk.end_offset
            assert position == end
        return values

    assert await asyncio.to_thread(read, 0, 1_000) == list(range(1_000))
    assert await asyncio.to_thread(read, 123, 777) == list(range(123, 777))
    assert await asyncio.to_thread(read, 500, 500) == []

    def unknown() -> None:
        with RangeReader(mock_cluster) as reader, pytest.raises(UnknownTopic):
            reader.topics([topic_name()])

    await asyncio.to_thread(unknown)


async def test_a_record_at_any_leader_ends_a_wait(mock_cluster: str) -> None:
    """The requests that the others have not answered stay for the next wait, and its answer may be empty."""
    topic = topic_name()
    async with Producer(bootstrap_servers=mock_cluster) as producer:
        for partition in range(4):
            await producer.send(topic, b"first", partition=partition)
        await producer.flush()
        with RangeReader(mock_cluster) as reader:
            ends = {TopicPartition(topic, partition): 1 for partition in range(4)}

            def wait() -> None:
                deadline = time.monotonic() + 60
                while not reader.wait_beyond(ends, 500):
                    assert time.monotonic() < deadline

            leaders = {info.leader for info in (await asyncio.to_thread(reader.topics, [topic]))[topic].partitions}
            assert len(leaders) > 1
            for partition in range(4):
                waiting = asyncio.create_task(asyncio.to_thread(wait))
                await producer.send_and_wait(topic, b"later", partition=partition)
                await waiting
                ends[TopicPartition(topic, partition)] += 1
                assert await asyncio.to_thread(reader.latest, ends) == ends


async def test_a_range_that_outlives_its_reader_hangs_up(mock_cluster: str, recwarn: pytest.WarningsRecorder) -> None:
    topic = topic_name()
    async with Producer(bootstrap_servers=mock_cluster) as producer:
        await producer.send(topic, b"one", partition=0)

    def read() -> None:
        with RangeReader(mock_cluster) as reader:
            chunks = reader.read(TopicPartition(topic, 0), 0, 1)
            next(chunks)  # the last: nothing more is asked for
        chunks.close()  # type: ignore[attr-defined]

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        await asyncio.to_thread(read)
        gc.collect()
    assert [str(warning.message) for warning in recwarn] == []


async def test_positions_and_lookups(mock_cluster: str) -> None:
    topic = topic_name()
    partition = TopicPartition(topic, 1)
    async with Producer(bootstrap_servers=mock_cluster) as producer:
        for n in range(20):
            await producer.send(topic, b"%d" % n, partition=1)
    async with Consumer(bootstrap_servers=mock_cluster) as consumer:
        consumer.assign([partition])
        assert await consumer.position(partition) == 20  # auto_offset_reset is latest
        assert await consumer.beginning_offsets([partition]) == {partition: 0}
        assert await consumer.end_offsets([partition]) == {partition: 20}
        assert (await consumer.offsets_for_times({partition: OffsetSpec.LATEST}))[partition].offset == 20  # type: ignore[union-attr]
        consumer.seek(partition, 5)
        record = await asyncio.wait_for(anext(consumer), 20)
        assert (record.offset, record.value) == (5, b"5")
        consumer.seek_to_beginning()
        assert (await asyncio.wait_for(anext(consumer), 20)).offset == 0
        consumer.pause([partition])
        assert await consumer.getmany(timeout_ms=50) == {}
        consumer.resume([partition])
        many = await consumer.getmany(timeout_ms=20_000, max_records=4)
        assert [record.offset for record in many[partition]] == [1, 2, 3, 4]
        assert consumer.lag(partition) == 15
        with pytest.raises(KafkaError, match="not assigned"):
            consumer.seek(TopicPartition(topic, 3), 0)


def check_left_over(before: set[asyncio.Task[object]]) -> Callable[[], None]:
    def check() -> None:
        assert {task for task in asyncio.all_tasks() if task not in before} == set()

    return check


async def test_closing_leaves_no_task_behind_also_in_the_middle_of_everything(mock_cluster: str) -> None:
    check = check_left_over(asyncio.all_tasks())
    producer = Producer(bootstrap_servers=mock_cluster, linger_ms=10_000)
    delivery = await producer.send(topic_name(), b"x")
    await producer.close(timeout_ms=10_000)
    assert delivery.done()
    consumer = await Consumer(topic_name(), bootstrap_servers=mock_cluster, group_id="never-joined").start()
    await consumer.close()
    with pytest.raises(StopAsyncIteration):
        await anext(consumer)
    check()


async def test_the_admin_client_makes_do_with_what_a_broker_serves(mock_cluster: str) -> None:
    topic = topic_name()
    async with Producer(bootstrap_servers=mock_cluster) as producer:
        await producer.send_and_wait(topic, b"x")
    async with Admin(bootstrap_servers=mock_cluster) as admin:
        assert len((await admin.describe_cluster(include_fenced=True)).nodes) >= 1
        (info,) = await admin.describe_topic_partitions([topic])
        assert [info] == await admin.describe_topics([topic])
        assert info.partitions[0].eligible_leader_replicas is None  # it cannot tell
        for asking in (
            admin.describe_quorum(),
            admin.elect_leaders(),
            admin.list_partition_reassignments(),
            admin.unregister_broker(1),
            admin.remove_raft_voter(1),
            admin.update_features({"metadata.version": 30}),
        ):
            with pytest.raises(UnsupportedVersion):
                await asking


async def test_the_cluster_command_tells_what_a_broker_serves(mock_cluster: str) -> None:
    done = await asyncio.to_thread(CliRunner().invoke, cli, ["cluster", "status", "-b", mock_cluster])
    assert done.exit_code == 0, done.output
    whole = json.loads(done.stdout.splitlines()[0])
    assert (whole["kind"], whole["voters"], whole["offline"]) == ("cluster", None, 0)
