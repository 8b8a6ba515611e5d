"""The whole client against our own broker, in a process of its own; crossed with confluent-kafka.

One file because the tests are independent of each other, and all use the same broker process.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from kraftpy.client import (
    Admin,
    AlterOperation,
    BlockingAdmin,
    BlockingConsumer,
    BlockingProducer,
    Consumer,
    ConsumerRecord,
    ErrorCode,
    KafkaError,
    NewTopic,
    OffsetAndMetadata,
    OffsetOutOfRange,
    OffsetSpec,
    Producer,
    RangeReader,
    RebalanceListener,
    ResourceType,
    TopicPartition,
)
from kraftpy.client.consumer.group_member import GroupMember
from kraftpy.client.ranges.columns import decode_columns

if TYPE_CHECKING:
    from kraftpy.testing.cluster import EmbeddedBroker

QUICK = {"heartbeat_interval_ms": 100, "session_timeout_ms": 6_000, "auto_offset_reset": "earliest"}


@pytest.fixture
def bootstrap(kraftpy_server: EmbeddedBroker) -> str:
    return kraftpy_server.bootstrap


@pytest.fixture
async def topic(bootstrap: str) -> str:
    name = f"topic-{uuid.uuid4().hex[:8]}"
    async with Admin(bootstrap_servers=bootstrap) as admin:
        await admin.create_topics([NewTopic(name=name, num_partitions=4)])
    return name


async def fill(bootstrap: str, topic: str, count: int, **options: object) -> None:
    async with Producer(bootstrap_servers=bootstrap, **options) as producer:
        for n in range(count):
            await producer.send(topic, b"%d" % n, key=b"%d" % (n % 10), partition=n % 4, timestamp_ms=10_000 + n)


async def eventually(condition: Callable[[], bool], *, seconds: float = 30) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - what is waited for happens elsewhere
            await asyncio.sleep(0.02)


async def group_state(admin: Admin, group_id: str, wanted: str, *, seconds: float = 30) -> None:
    async with asyncio.timeout(seconds):
        while (await admin.describe_groups([group_id]))[group_id].state != wanted:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def read(consumer: Consumer, count: int, *, seconds: float = 30) -> list[ConsumerRecord]:
    records: list[ConsumerRecord] = []
    async with asyncio.timeout(seconds):
        while len(records) < count:
            for some in (await consumer.getmany(timeout_ms=1_000)).values():
                records += some
    return records


class Member:
    """A consumer of a group, read by a task of its own; every record and rebalance is written down."""

    def __init__(self, consumer: Consumer, group: asyncio.TaskGroup) -> None:
        self.consumer = consumer
        self.records: list[ConsumerRecord] = []
        self.task = group.create_task(self._read(), name="member")

    async def _read(self) -> None:
        async for record in self.consumer:
            self.records.append(record)

    async def leave(self) -> None:
        await self.consumer.close()
        await self.task


class Log(RebalanceListener):
    """The callbacks that a member's rebalance listener received."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, int]] = []
        self.held: set[TopicPartition] = set()

    async def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
        self.lines.append(("assigned", len(partitions)))
        assert not self.held & set(partitions)
        self.held |= set(partitions)

    def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
        self.lines.append(("revoked", len(partitions)))
        assert set(partitions) <= self.held
        self.held -= set(partitions)


# --- producing --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
async def test_what_is_produced_is_what_is_consumed(bootstrap: str, topic: str, codec: str) -> None:
    headers = (("a", b"1"), ("a", None), ("é", b""))
    async with Producer(bootstrap_servers=bootstrap, compression_type=codec) as producer:
        deliveries = [
            await producer.send(topic, b"v%d" % n if n % 3 else None, key=b"k" if n % 2 else None, headers=headers)
            for n in range(300)
        ]
        placed = [await delivery for delivery in deliveries]
    async with Consumer(topic, bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
        found = {(record.partition, record.offset): record for record in await read(consumer, 300)}
    for n, metadata in enumerate(placed):
        record = found[(metadata.partition, metadata.offset)]
        assert record.value == (b"v%d" % n if n % 3 else None)
        assert record.key == (b"k" if n % 2 else None)
        assert record.headers == headers
        assert record.timestamp_ms == metadata.timestamp_ms


async def test_a_batch_beyond_the_topics_limit_is_split_and_a_record_beyond_it_fails(bootstrap: str) -> None:
    name = f"small-{uuid.uuid4().hex[:8]}"
    async with Admin(bootstrap_servers=bootstrap) as admin:
        await admin.create_topics([NewTopic(name=name, num_partitions=1, config={"max.message.bytes": "2000"})])
    producer = Producer(bootstrap_servers=bootstrap, batch_size=50_000, linger_ms=50)
    deliveries = [await producer.send(name, b"x" * 300 + b"%d" % n) for n in range(40)]
    too_large = await producer.send(name, b"y" * 5_000)
    offsets = [(await delivery).offset for delivery in deliveries]
    assert offsets == list(range(40))
    with pytest.raises(KafkaError, match="MESSAGE_TOO_LARGE"):
        await too_large
    assert (await producer.send_and_wait(name, b"after")).offset == 40
    await producer.close()


async def test_flush_tells_of_a_loss_nobody_looked_at(bootstrap: str) -> None:
    name = f"small-{uuid.uuid4().hex[:8]}"
    async with Admin(bootstrap_servers=bootstrap) as admin:
        await admin.create_topics([NewTopic(name=name, num_partitions=1, config={"max.message.bytes": "500"})])
    producer = Producer(bootstrap_servers=bootstrap)
    await producer.send(name, b"y" * 5_000)
    with pytest.raises(KafkaError, match="1 record"):
        await producer.flush()
    await producer.flush()
    await producer.close()


async def test_records_of_a_partition_keep_their_order_from_many_tasks(bootstrap: str, topic: str) -> None:
    async with Producer(bootstrap_servers=bootstrap, batch_size=500, linger_ms=0) as producer:

        async def send_some(lane: int) -> None:
            for n in range(100):
                await producer.send(topic, b"%d" % n, key=b"%d" % lane, partition=lane % 4)
                if n % 7 == 0:
                    await asyncio.sleep(0)

        await asyncio.gather(*(send_some(lane) for lane in range(8)))
    async with Consumer(topic, bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
        records = await read(consumer, 800)
    for lane in range(8):
        assert [int(r.value or b"") for r in records if r.key == b"%d" % lane] == list(range(100))


async def test_an_unknown_topic_that_may_not_be_made_fails_in_time(bootstrap: str) -> None:
    async with Producer(bootstrap_servers=bootstrap, max_block_ms=300, allow_auto_create_topics=False) as producer:
        with pytest.raises(KafkaError, match="UNKNOWN_TOPIC_OR_PARTITION"):
            await producer.send(f"no-{uuid.uuid4().hex}", b"x")
        with pytest.raises(KafkaError, match="INVALID_TOPIC"):
            await producer.send("not/a/topic", b"x")


async def test_a_producer_outlives_its_broker(start_broker: Callable[..., EmbeddedBroker]) -> None:
    broker = start_broker()
    async with Producer(bootstrap_servers=broker.bootstrap, reconnect_backoff_max_ms=100) as producer:
        await producer.send_and_wait("t", b"before", partition=0)
        await asyncio.to_thread(broker.kill)
        waiting = [await producer.send("t", b"%d" % n, partition=0) for n in range(20)]
        await asyncio.to_thread(broker.start)
        async with asyncio.timeout(40):
            offsets = [(await delivery).offset for delivery in waiting]
    assert offsets == list(range(offsets[0], offsets[0] + 20))
    async with Consumer("t", bootstrap_servers=broker.bootstrap, auto_offset_reset="earliest") as consumer:
        values = [record.value for record in await read(consumer, 20)]
    assert values[-20:] == [b"%d" % n for n in range(20)]


# --- groups -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["range", "roundrobin", "sticky", "cooperative-sticky"])
async def test_members_come_and_go_and_every_record_is_read(bootstrap: str, topic: str, strategy: str) -> None:
    group_id = f"group-{uuid.uuid4().hex[:8]}"
    logs = [Log() for _ in range(3)]

    def consumer(listener: RebalanceListener) -> Consumer:
        return Consumer(
            topic,
            bootstrap_servers=bootstrap,
            group_id=group_id,
            listener=listener,
            partition_assignment_strategy=[strategy],
            auto_commit_interval_ms=50,
            **QUICK,
        )

    sent = 0

    async def send(count: int) -> None:
        nonlocal sent
        async with Producer(bootstrap_servers=bootstrap) as producer:
            for n in range(sent, sent + count):
                await producer.send(topic, b"%d" % n, partition=n % 4)
        sent += count

    async with asyncio.TaskGroup() as tasks:
        members = [Member(consumer(logs[0]), tasks)]
        await send(100)
        await eventually(lambda: len(members[0].records) == 100)
        members += [Member(consumer(log), tasks) for log in logs[1:]]
        await eventually(lambda: sorted(len(log.held) for log in logs) == [1, 1, 2])
        assert set.union(*(log.held for log in logs)) == {TopicPartition(topic, n) for n in range(4)}
        await send(100)
        everything = lambda: {record.value for member in members for record in member.records}  # noqa: E731
        await eventually(lambda: len(everything()) == 200)
        await members[0].leave()
        await eventually(lambda: sorted(len(log.held) for log in logs) == [0, 2, 2])
        await send(100)
        await eventually(lambda: len(everything()) == 300)
        for member in members[1:]:
            await member.leave()
    assert [log.held for log in logs] == [set(), set(), set()]
    if strategy == "cooperative-sticky":
        assert ("revoked", 4) not in logs[0].lines  # it never had to give up everything
    async with Admin(bootstrap_servers=bootstrap) as admin:
        committed = await admin.list_group_offsets(group_id)
        assert {name: place.offset for name, place in committed.items()} == {
            TopicPartition(topic, n): 75 for n in range(4)
        }
    counted = Counter(record.value for member in members for record in member.records)
    assert max(counted.values()) == 1  # no member crashed, so nothing was read twice


async def test_a_group_goes_on_where_it_committed(bootstrap: str, topic: str) -> None:
    await fill(bootstrap, topic, 40)
    group_id = f"group-{uuid.uuid4().hex[:8]}"
    options = {"bootstrap_servers": bootstrap, "group_id": group_id, "enable_auto_commit": False, **QUICK}
    async with Consumer(topic, **options) as consumer:
        records = await read(consumer, 40)
        assert len(records) == 40
        places = {TopicPartition(topic, n): OffsetAndMetadata(5 + n, f"note {n}", 0) for n in range(4)}
        await consumer.commit(places)
        assert await consumer.committed() == places
        consumer.seek_to_committed()
        assert await consumer.position(TopicPartition(topic, 3)) == 8
    async with Consumer(topic, **options) as consumer:
        again = await read(consumer, 40 - 5 - 6 - 7 - 8)
        assert {record.partition: record.offset for record in reversed(again)} == {0: 5, 1: 6, 2: 7, 3: 8}
        await consumer.commit()
        assert {place.offset for place in (await consumer.committed()).values() if place is not None} == {10}


async def test_automatic_commits_stay_behind_what_is_being_worked_on(bootstrap: str, topic: str) -> None:
    await fill(bootstrap, topic, 40)
    group_id = f"group-{uuid.uuid4().hex[:8]}"
    consumer = Consumer(topic, bootstrap_servers=bootstrap, group_id=group_id, auto_commit_interval_ms=20, **QUICK)
    async with consumer, Admin(bootstrap_servers=bootstrap) as admin:
        worked_on = await asyncio.wait_for(anext(consumer), 30)
        name = TopicPartition(topic, worked_on.partition)
        for _ in range(10):  # many commits are due while the application works on its first record
            await asyncio.sleep(0.02)
            place = (await admin.list_group_offsets(group_id)).get(name)
            assert place is None or place.offset == 0
        await asyncio.wait_for(anext(consumer), 30)
        async with asyncio.timeout(30):
            while (place := (await admin.list_group_offsets(group_id)).get(name)) is None or place.offset != 1:  # noqa: ASYNC110
                await asyncio.sleep(0.02)


@pytest.mark.parametrize("is_by_offset", [True, False])
@pytest.mark.parametrize("is_member", [True, False])
async def test_automatic_commits_take_nothing_back(
    bootstrap: str, topic: str, is_member: bool, is_by_offset: bool
) -> None:
    """The application commits the record that it works on; the automatic commits that follow leave it at that."""
    await fill(bootstrap, topic, 40)
    group_id = f"group-{uuid.uuid4().hex[:8]}"
    topics = (topic,) if is_member else ()
    consumer = Consumer(*topics, bootstrap_servers=bootstrap, group_id=group_id, auto_commit_interval_ms=20, **QUICK)
    if not is_member:
        consumer.assign([TopicPartition(topic, 0)])
    async with consumer, Admin(bootstrap_servers=bootstrap) as admin:
        worked_on = await asyncio.wait_for(anext(consumer), 30)
        name = TopicPartition(topic, worked_on.partition)
        await consumer.commit({name: 1} if is_by_offset else None)
        for _ in range(10):  # many commits are due meanwhile
            await asyncio.sleep(0.02)
            assert (await admin.list_group_offsets(group_id))[name].offset == 1


async def test_what_the_application_fails_at_is_not_committed(bootstrap: str, topic: str) -> None:
    await fill(bootstrap, topic, 40)
    group_id, handled = f"group-{uuid.uuid4().hex[:8]}", 0

    async def work() -> None:
        nonlocal handled
        async with Consumer(topic, bootstrap_servers=bootstrap, group_id=group_id, **QUICK) as consumer:
            async for _ in consumer:
                handled += 1
                if handled == 13:
                    raise ArithmeticError

    with pytest.raises(ArithmeticError):
        await asyncio.wait_for(work(), 30)
    async with Admin(bootstrap_servers=bootstrap) as admin:
        committed = await admin.list_group_offsets(group_id)
    assert sum(place.offset for place in committed.values()) == 12


async def test_partitions_are_not_taken_away_while_the_application_works(bootstrap: str, topic: str) -> None:
    await fill(bootstrap, topic, 40)
    group_id, log = f"group-{uuid.uuid4().hex[:8]}", Log()
    options = {"bootstrap_servers": bootstrap, "group_id": group_id, **QUICK}
    async with Consumer(topic, listener=log, **options) as first:
        await asyncio.wait_for(anext(first), 30)
        async with Consumer(topic, **options) as second, asyncio.TaskGroup() as tasks:
            beside = Member(second, tasks)
            async with Admin(bootstrap_servers=bootstrap) as admin:
                await group_state(admin, group_id, "PreparingRebalance")
            assert len(log.held) == 4
            assert beside.records == []
            in_hand = await asyncio.wait_for(anext(first), 30)  # back for more: now they may change hands
            assert in_hand.topic == topic
            reading = Member(first, tasks)
            await eventually(lambda: len(log.held) == 2)
            await eventually(lambda: len(beside.records) + len(reading.records) >= 38)
            await beside.leave()
            await reading.leave()


async def test_who_stops_asking_is_left_out_and_comes_back(bootstrap: str, topic: str) -> None:
    await fill(bootstrap, topic, 40)
    group_id, log = f"group-{uuid.uuid4().hex[:8]}", Log()
    options = {"bootstrap_servers": bootstrap, "group_id": group_id, **QUICK}
    async with Consumer(topic, listener=log, max_poll_interval_ms=300, **options) as slow:
        await asyncio.wait_for(anext(slow), 30)
        async with Admin(bootstrap_servers=bootstrap) as admin:
            await group_state(admin, group_id, "Empty")
        assert len(log.held) == 4  # it has not heard of it: it is busy
        records = await read(slow, 39)
        assert len({(record.partition, record.offset) for record in records}) >= 39
        assert log.lines[1:] == [("revoked", 4), ("assigned", 4)]


@pytest.mark.parametrize(("protocol", "leave"), [("classic", "_leave"), ("consumer", "_consumer_leave")])
async def test_partitions_are_given_up_before_others_are_taken_though_leaving_takes_long(
    bootstrap: str, topic: str, monkeypatch: pytest.MonkeyPatch, protocol: str, leave: str
) -> None:
    """The coordinator's answer to the request to leave is held up until the member has partitions again."""
    told, log = asyncio.Event(), Log()
    real = getattr(GroupMember, leave)

    async def slow_leave(member: GroupMember, effect: object) -> None:
        await real(member, effect)
        await told.wait()

    monkeypatch.setattr(GroupMember, leave, slow_leave)
    await fill(bootstrap, topic, 40)
    group_id = f"group-{uuid.uuid4().hex[:8]}"
    options = {"bootstrap_servers": bootstrap, "group_id": group_id, "auto_offset_reset": "earliest"}
    async with Consumer(topic, listener=log, max_poll_interval_ms=300, group_protocol=protocol, **options) as slow:
        await asyncio.wait_for(anext(slow), 30)
        async with Admin(bootstrap_servers=bootstrap) as admin:
            await group_state(admin, group_id, "Empty")
        found = await slow.getmany(timeout_ms=30_000, max_records=10)
        told.set()
        records = [record for some in found.values() for record in some] + await read(slow, 30)
        assert len({(record.partition, record.offset) for record in records}) == len(records) == 40
        assert log.lines[1:] == [("revoked", 4), ("assigned", 4)]


async def test_a_static_member_comes_back_to_its_partitions_without_a_rebalance(bootstrap: str, topic: str) -> None:
    group_id = f"group-{uuid.uuid4().hex[:8]}"
    options = {"bootstrap_servers": bootstrap, "group_id": group_id, **QUICK}
    async with asyncio.TaskGroup() as tasks:
        stays, returns = Log(), Log()
        first = Member(Consumer(topic, listener=stays, group_instance_id="a", **options), tasks)
        second = Member(Consumer(topic, listener=returns, group_instance_id="b", **options), tasks)
        await eventually(lambda: len(stays.held) == len(returns.held) == 2)
        held, heard = set(returns.held), list(stays.lines)
        await second.leave()
        again = Log()
        third = Member(Consumer(topic, listener=again, group_instance_id="b", **options), tasks)
        await eventually(lambda: again.held == held)
        assert stays.lines == heard
        await first.leave()
        await third.leave()


async def test_a_second_consumer_under_one_instance_id_fences_the_first(bootstrap: str, topic: str) -> None:
    options = {"bootstrap_servers": bootstrap, "group_id": f"group-{uuid.uuid4().hex[:8]}", **QUICK}
    log = Log()
    async with Consumer(topic, group_instance_id="a", **options) as first:
        await first.getmany(timeout_ms=100)
        await eventually(lambda: len(first.assignment()) == 4)
        async with (
            Consumer(topic, group_instance_id="a", listener=log, **options) as second,
            asyncio.TaskGroup() as tasks,
        ):
            member = Member(second, tasks)
            with pytest.raises(KafkaError, match="FENCED_INSTANCE_ID"):
                await read(first, 1)
            await eventually(lambda: len(log.held) == 4)
            await member.leave()


async def test_a_pattern_finds_topics_that_come_later(bootstrap: str) -> None:
    stem = uuid.uuid4().hex[:8]
    async with Admin(bootstrap_servers=bootstrap) as admin, asyncio.TaskGroup() as tasks:
        await admin.create_topics([NewTopic(name=f"{stem}-1", num_partitions=1)])
        consumer = Consumer(
            pattern=f"{stem}-.*",
            bootstrap_servers=bootstrap,
            group_id=stem,
            metadata_max_age_ms=200,
            **QUICK,
        )
        member = Member(consumer, tasks)
        await eventually(lambda: consumer.assignment() == {TopicPartition(f"{stem}-1", 0)})
        await admin.create_topics([NewTopic(name=f"{stem}-2", num_partitions=1), NewTopic(name=f"x{stem}-3")])
        await eventually(lambda: len(consumer.assignment()) == 2)
        assert consumer.subscription() == {f"{stem}-1", f"{stem}-2"}
        await fill_one(bootstrap, f"{stem}-2")
        await eventually(lambda: len(member.records) == 1)
        await member.leave()


async def fill_one(bootstrap: str, topic: str) -> None:
    async with Producer(bootstrap_servers=bootstrap) as producer:
        await producer.send_and_wait(topic, b"one")


async def test_partitions_that_are_added_are_read(bootstrap: str, topic: str) -> None:
    options = {"bootstrap_servers": bootstrap, "metadata_max_age_ms": 200, **QUICK}
    async with (
        Admin(bootstrap_servers=bootstrap) as admin,
        Consumer(topic, group_id=f"group-{uuid.uuid4().hex[:8]}", **options) as member,
        Consumer(topic, **options) as alone,
        asyncio.TaskGroup() as tasks,
    ):
        reading = [Member(member, tasks), Member(alone, tasks)]
        await eventually(lambda: len(member.assignment()) == len(alone.assignment()) == 4)
        await admin.create_partitions({topic: 6})
        await eventually(lambda: len(member.assignment()) == len(alone.assignment()) == 6)
        for one in reading:
            await one.leave()


# --- places -----------------------------------------------------------------------------------------------------------


async def test_offsets_by_time_and_resets(bootstrap: str, topic: str) -> None:
    await fill(bootstrap, topic, 40)
    zero = TopicPartition(topic, 0)
    async with Consumer(bootstrap_servers=bootstrap, auto_offset_reset="none") as consumer:
        found = await consumer.offsets_for_times({zero: 10_013, TopicPartition(topic, 1): 99_999})
        assert found[zero] is not None
        assert (found[zero].offset, found[zero].timestamp_ms) == (4, 10_016)
        assert found[TopicPartition(topic, 1)] is None
        most = (await consumer.offsets_for_times({zero: OffsetSpec.MAX_TIMESTAMP}))[zero]
        assert most is not None
        assert most.timestamp_ms == 10_036
        consumer.assign([zero])
        with pytest.raises(KafkaError, match="auto_offset_reset is none"):
            await asyncio.wait_for(anext(consumer), 30)
        consumer.seek(zero, 4_000)
        with pytest.raises(KafkaError, match="OFFSET_OUT_OF_RANGE"):
            await asyncio.wait_for(anext(consumer), 30)
        consumer.seek(zero, 9)
        assert (await asyncio.wait_for(anext(consumer), 30)).offset == 9


async def test_records_deleted_under_a_reader_send_it_to_the_first_that_is_left(bootstrap: str, topic: str) -> None:
    await fill(bootstrap, topic, 40)
    zero = TopicPartition(topic, 0)
    async with (
        Admin(bootstrap_servers=bootstrap) as admin,
        Consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer,
    ):
        assert await admin.delete_records({zero: 6}) == {zero: 6}
        consumer.assign([zero])
        consumer.seek(zero, 2)
        assert (await asyncio.wait_for(anext(consumer), 30)).offset == 6

    def out_of_range() -> None:
        with RangeReader(bootstrap) as reader:
            with pytest.raises(OffsetOutOfRange) as failure:
                list(reader.read(zero, 2, 8))
            assert (failure.value.log_start_offset, failure.value.offset) == (6, 2)

    await asyncio.to_thread(out_of_range)


async def test_the_range_reader_goes_on_over_a_restart(start_broker: Callable[..., EmbeddedBroker]) -> None:
    broker = start_broker()
    async with Producer(bootstrap_servers=broker.bootstrap, batch_size=2_000) as producer:
        for n in range(2_000):
            await producer.send("t", b"%05d" % n, partition=0)

    def read_range() -> list[int]:
        partition, values = TopicPartition("t", 0), []
        with RangeReader(broker.bootstrap, max_partition_fetch_bytes=4_000) as reader:
            for place, chunk in enumerate(reader.read(partition, 10, 1_990)):
                columns = decode_columns(chunk.records, start_offset=chunk.start_offset, end_offset=chunk.end_offset)
                values += [int(columns.value(row) or b"") for row in range(len(columns))]
                if place == 3:
                    broker.kill()
                    broker.start()
        return values

    assert await asyncio.to_thread(read_range) == list(range(10, 1_990))


# --- admin ------------------------------------------------------------------------------------------------------------


async def test_topics_and_settings(bootstrap: str) -> None:
    name = f"topic-{uuid.uuid4().hex[:8]}"
    resource = (ResourceType.TOPIC, name)
    async with Admin(bootstrap_servers=bootstrap) as admin:
        await admin.create_topics([NewTopic(name=name, num_partitions=2)], validate_only=True)
        with pytest.raises(KafkaError, match="UNKNOWN_TOPIC"):
            await admin.describe_topics([name])
        await admin.create_topics([NewTopic(name=name, num_partitions=2, config={"retention.ms": "1000"})])
        with pytest.raises(KafkaError, match="TOPIC_ALREADY_EXISTS"):
            await admin.create_topics([NewTopic(name=name)])
        assert name in await admin.list_topics()
        described = (await admin.describe_topics([name]))[0]
        assert (described.name, len(described.partitions), len(described.topic_id)) == (name, 2, 16)
        entry = (await admin.describe_configs([resource]))[resource]["retention.ms"]
        assert (entry.value, entry.is_default) == ("1000", False)
        await admin.alter_configs(
            {resource: {"retention.ms": None, "cleanup.policy": (AlterOperation.APPEND, "compact")}}
        )
        entries = (await admin.describe_configs([resource]))[resource]
        assert entries["retention.ms"].is_default
        assert entries["cleanup.policy"].value == "delete,compact"
        with pytest.raises(KafkaError, match="INVALID_CONFIG"):
            await admin.alter_configs({resource: {"retention.ms": "soon"}})
        await admin.create_partitions({name: 5})
        with pytest.raises(KafkaError, match="INVALID_PARTITIONS"):
            await admin.create_partitions({name: 5})
        assert len((await admin.describe_topics([name]))[0].partitions) == 5
        await admin.delete_topics([name])
        with pytest.raises(KafkaError, match="UNKNOWN_TOPIC"):
            await admin.delete_topics([name])


async def test_groups_and_their_offsets(bootstrap: str, topic: str) -> None:
    group_id = f"group-{uuid.uuid4().hex[:8]}"
    zero, one = TopicPartition(topic, 0), TopicPartition(topic, 1)
    async with Admin(bootstrap_servers=bootstrap) as admin:
        async with Consumer(topic, bootstrap_servers=bootstrap, group_id=group_id, client_id="me", **QUICK) as consumer:
            await consumer.getmany(timeout_ms=200)
            await eventually(lambda: len(consumer.assignment()) == 4)
            described = (await admin.describe_groups([group_id]))[group_id]
            assert (described.state, described.protocol) == ("Stable", "range")
            assert described.members[0].client_id == "me"
            assert len(described.members[0].partitions) == 4
            with pytest.raises(KafkaError, match="NON_EMPTY_GROUP"):
                await admin.delete_groups([group_id])
            with pytest.raises(KafkaError):
                await admin.alter_group_offsets(group_id, {zero: 0})
        await admin.alter_group_offsets(group_id, {zero: 3, one: OffsetAndMetadata(4, "note")})
        assert (await admin.list_group_offsets(group_id))[one] == OffsetAndMetadata(4, "note", -1)
        await admin.delete_group_offsets(group_id, [zero])
        assert zero not in await admin.list_group_offsets(group_id)
        for unknown in (TopicPartition(topic, 99), TopicPartition("not-there", 0)):
            with pytest.raises(KafkaError, match="UNKNOWN_TOPIC_OR_PARTITION"):
                await admin.delete_group_offsets(group_id, [one, unknown])
        assert one not in await admin.list_group_offsets(group_id), "what is there went all the same"
        assert group_id in [listed.group_id for listed in await admin.list_groups()]
        await admin.delete_groups([group_id])
        assert group_id not in [listed.group_id for listed in await admin.list_groups()]
        with pytest.raises(KafkaError, match="GROUP_ID_NOT_FOUND"):
            await admin.delete_groups([group_id])
        assert (await admin.describe_groups([group_id]))[group_id].state == "Dead"


async def test_the_insides_of_a_broker(bootstrap: str, topic: str) -> None:
    await fill(bootstrap, topic, 8)
    zero = TopicPartition(topic, 0)
    async with Admin(bootstrap_servers=bootstrap) as admin:
        cluster = await admin.describe_cluster()
        assert cluster.controller_id in {node.node_id for node in cluster.nodes}
        directory = (await admin.describe_log_dirs())[0]
        assert directory.partitions[zero].size_bytes > 0
        producers = (await admin.describe_producers([zero]))[zero]
        assert [state.last_sequence for state in producers] == [1]


# --- beside others ----------------------------------------------------------------------------------------------------


async def test_a_group_with_librdkafka_rebalances_cooperatively(bootstrap: str, topic: str) -> None:
    confluent_kafka = pytest.importorskip("confluent_kafka")
    await fill(bootstrap, topic, 100)
    group_id, seen, stop, log = f"group-{uuid.uuid4().hex[:8]}", set[bytes | None](), asyncio.Event(), Log()

    def read_beside() -> None:
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group_id,
                "auto.offset.reset": "earliest",
                "partition.assignment.strategy": "cooperative-sticky",
                "heartbeat.interval.ms": 200,
            }
        )
        consumer.subscribe([topic])
        while not stop.is_set():
            message = consumer.poll(0.1)
            if message is not None and message.error() is None:
                seen.add(message.value())
        consumer.close()

    consumer = Consumer(
        topic,
        bootstrap_servers=bootstrap,
        group_id=group_id,
        listener=log,
        partition_assignment_strategy=["cooperative-sticky"],
        **QUICK,
    )
    async with asyncio.TaskGroup() as tasks:
        member = Member(consumer, tasks)
        await eventually(lambda: len(log.held) == 4)
        other = asyncio.create_task(asyncio.to_thread(read_beside))
        try:
            await eventually(lambda: len(log.held) == 2)
            await fill(bootstrap, topic, 200)
            await eventually(lambda: len({record.value for record in member.records} | seen) == 200)
            assert seen
        finally:
            stop.set()
            await other
        await eventually(lambda: len(log.held) == 4)
        await member.leave()
    assert ("revoked", 4) not in log.lines[:-1]


async def test_confluent_kafka_reads_what_we_wrote_and_we_read_what_it_wrote(bootstrap: str, topic: str) -> None:
    confluent_kafka = pytest.importorskip("confluent_kafka")
    await fill(bootstrap, topic, 200, compression_type="zstd")

    def theirs() -> list[bytes]:
        consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": uuid.uuid4().hex})
        consumer.assign([confluent_kafka.TopicPartition(topic, n, 0) for n in range(4)])
        values: list[bytes] = []
        while len(values) < 200:
            messages = consumer.consume(num_messages=200 - len(values), timeout=20)
            assert messages
            values += [message.value() for message in messages]
        consumer.close()
        producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "compression.type": "lz4"})
        for n in range(200, 400):
            producer.produce(topic, b"%d" % n, headers=[("h", b"x")])
        assert producer.flush(20) == 0
        return values

    assert {int(value) for value in await asyncio.to_thread(theirs)} == set(range(200))
    async with Consumer(topic, bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
        records = await read(consumer, 400)
    assert {int(record.value or b"") for record in records} == set(range(400))


def test_the_blocking_facade(bootstrap: str) -> None:
    name, group_id = f"topic-{uuid.uuid4().hex[:8]}", f"group-{uuid.uuid4().hex[:8]}"
    with BlockingAdmin(bootstrap_servers=bootstrap) as admin:
        admin.create_topics([NewTopic(name=name, num_partitions=1)])
        assert name in admin.list_topics()
        with BlockingProducer(bootstrap_servers=bootstrap) as producer:
            assert producer.send(name, b"0").offset == 0
            assert producer.send_many(name, ((None, b"%d" % n) for n in range(1, 50))) == 49
        with BlockingConsumer(name, bootstrap_servers=bootstrap, group_id=group_id, **QUICK) as consumer:
            values = []
            for record in consumer:
                values.append(int(record.value or b""))
                if len(values) == 50:
                    break
            assert values == list(range(50))
            consumer.commit()
        assert admin.list_group_offsets(group_id)[TopicPartition(name, 0)].offset == 50
        with pytest.raises(KafkaError) as failure:
            admin.describe_topics([name + "x"])
        assert failure.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_a_reader_is_told_of_a_response_above_its_limit(bootstrap: str, topic: str) -> None:
    """A batch larger than all that the options allow was asked for again without an end, and `poll` said nothing."""
    async with Producer(bootstrap_servers=bootstrap) as producer:
        await producer.send(topic, bytes(50_000), partition=0)
    partition = TopicPartition(topic, 0)
    small = {"fetch_max_bytes": 1_000, "receive_message_max_bytes": 20_000, "auto_offset_reset": "earliest"}
    async with Consumer(bootstrap_servers=bootstrap, **small) as consumer:
        consumer.assign([partition])
        with pytest.raises(KafkaError, match="receive_message_max_bytes=20000"):
            await asyncio.wait_for(anext(consumer), 30)
    async with Consumer(bootstrap_servers=bootstrap, **{**small, "receive_message_max_bytes": 60_000}) as consumer:
        consumer.assign([partition])
        assert (await asyncio.wait_for(anext(consumer), 30)).value == bytes(50_000)

    def read() -> None:
        with (
            RangeReader(bootstrap, max_partition_fetch_bytes=1_000, receive_message_max_bytes=20_000) as reader,
            pytest.raises(KafkaError, match="receive_message_max_bytes=20000"),
        ):
            list(reader.read(partition, 0, 1))

    await asyncio.to_thread(read)


async def test_topics_that_are_asked_for_do_not_wait_for_a_pause(bootstrap: str, topic: str) -> None:
    """The pauses between rounds of metadata are for failures, and for metadata that may change."""
    patient = {"retry_backoff_ms": 600_000, "retry_backoff_max_ms": 600_000}
    async with Admin(bootstrap_servers=bootstrap) as admin:
        await admin.create_topics([NewTopic(name=f"{topic}-2", num_partitions=1)])
    async with Producer(bootstrap_servers=bootstrap, **patient) as producer, asyncio.timeout(30):
        for name in (topic, f"{topic}-2"):
            await producer.send_and_wait(name, b"v", partition=0)
    async with Consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest", **patient) as consumer:
        for name in (topic, f"{topic}-2"):
            consumer.assign([TopicPartition(name, 0)])
            consumer.seek(TopicPartition(name, 0), 0)
            assert [record.value for record in await read(consumer, 1)] == [b"v"]
