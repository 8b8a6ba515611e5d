"""The transactional producer against our own broker, in both versions of transactions; crossed with librdkafka."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING

import pytest

from kraftpy.client import (
    Admin,
    ApplicationRecoverable,
    BlockingConsumer,
    BlockingProducer,
    Consumer,
    ConsumerGroupMetadata,
    ErrorCode,
    KafkaError,
    NewTopic,
    OffsetAndMetadata,
    Producer,
    ProducerFenced,
    TopicPartition,
    TransactionAbortable,
    TransactionAborted,
    TransactionFatal,
)
from kraftpy.client.producer import transaction_manager as transactional

if TYPE_CHECKING:
    from kraftpy.testing.cluster import EmbeddedBroker


@pytest.fixture
def bootstrap(kraftpy_server: EmbeddedBroker) -> str:
    return kraftpy_server.bootstrap


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def version(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """The version of transactions: in version 1 the producer does not see that the cluster has version 2."""
    if request.param == 1:
        monkeypatch.setattr(transactional, "FEATURE", "transaction.version.not.looked.at")
    number: int = request.param
    return number


@pytest.fixture
async def topic(bootstrap: str) -> str:
    return await make_topic(bootstrap)


async def make_topic(bootstrap: str, **config: str) -> str:
    name = f"topic-{uuid.uuid4().hex[:8]}"
    async with Admin(bootstrap_servers=bootstrap) as admin:
        await admin.create_topics([NewTopic(name=name, num_partitions=3, config=config)])
    return name


def new_id() -> str:
    return f"tx-{uuid.uuid4().hex[:8]}"


async def values(bootstrap: str, topic: str, isolation_level: str = "read_committed") -> list[bytes | None]:
    """Read all that is available now, by partition and offset."""
    options = {"bootstrap_servers": bootstrap, "auto_offset_reset": "earliest", "isolation_level": isolation_level}
    async with Consumer(**options) as consumer:
        partitions = [TopicPartition(topic, n) for n in range(3)]
        ends = await consumer.end_offsets(partitions)
        consumer.assign(partitions)
        records = []
        async with asyncio.timeout(30):
            while any([await consumer.position(name) < ends[name] for name in partitions]):
                for some in (await consumer.getmany(timeout_ms=100)).values():
                    records += some
        return [record.value for record in sorted(records, key=lambda record: (record.partition, record.offset))]


async def test_what_is_committed_is_read_and_what_is_aborted_is_not(bootstrap: str, topic: str, version: int) -> None:
    async with Producer(bootstrap_servers=bootstrap, transactional_id=new_id()) as producer:
        await producer.init_transactions()
        for n in range(6):
            producer.begin_transaction()
            for partition in range(3):
                await producer.send(topic, b"%d" % n, partition=partition)
            if n % 2:
                await producer.abort_transaction()
            else:
                await producer.commit_transaction()
        assert producer._transactions is not None
        assert producer._transactions.version == version
    assert await values(bootstrap, topic) == [b"0", b"2", b"4"] * 3


async def test_nothing_of_an_open_transaction_is_read_until_it_commits(
    bootstrap: str, topic: str, version: int
) -> None:
    async with Producer(bootstrap_servers=bootstrap, transactional_id=new_id()) as producer:
        await producer.init_transactions()
        async with producer.transaction():
            sent = await producer.send_and_wait(topic, b"a", partition=0)
            assert await values(bootstrap, topic) == []
            assert await values(bootstrap, topic, "read_uncommitted") == [b"a"]
        assert await values(bootstrap, topic) == [b"a"]
    assert sent.offset == 0


async def test_a_block_that_raises_is_aborted(bootstrap: str, topic: str, version: int) -> None:
    async with Producer(bootstrap_servers=bootstrap, transactional_id=new_id()) as producer:
        await producer.init_transactions()
        with pytest.raises(ValueError, match="no"):  # noqa: PT012
            async with producer.transaction():
                written = await producer.send_and_wait(topic, b"gone")
                unsent = await producer.send(topic, b"never", partition=2)
                raise ValueError("no")
        assert written.offset == 0
        with pytest.raises(TransactionAborted):
            await unsent
        async with producer.transaction():
            await producer.send(topic, b"kept")
    assert await values(bootstrap, topic) == [b"kept"]


async def test_an_empty_transaction_is_nothing(bootstrap: str, topic: str, version: int) -> None:
    async with Producer(bootstrap_servers=bootstrap, transactional_id=new_id()) as producer:
        await producer.init_transactions()
        for _ in range(3):
            async with producer.transaction():
                pass
        producer.begin_transaction()
        await producer.abort_transaction()
        async with producer.transaction():
            await producer.send(topic, b"x")
    assert await values(bootstrap, topic) == [b"x"]


async def test_a_record_that_fails_makes_the_transaction_abortable_only(bootstrap: str, version: int) -> None:
    topic = await make_topic(bootstrap, **{"max.message.bytes": "1000"})
    async with Producer(bootstrap_servers=bootstrap, transactional_id=new_id()) as producer:
        await producer.init_transactions()
        for _ in range(2):
            producer.begin_transaction()
            await producer.send_and_wait(topic, b"with it", partition=0)
            await producer.send(topic, b"y" * 2_000, partition=0)
            with pytest.raises(TransactionAbortable, match="MESSAGE_TOO_LARGE"):
                await producer.commit_transaction()
            with pytest.raises(TransactionAbortable, match="MESSAGE_TOO_LARGE"):
                await producer.send(topic, b"after")
            with pytest.raises(TransactionAbortable):
                await producer.flush()
            await producer.abort_transaction()
        with pytest.raises(TransactionAbortable, match="MESSAGE_TOO_LARGE"):
            async with producer.transaction():
                await producer.send(topic, b"y" * 2_000, partition=0)
        for n in range(3):
            async with producer.transaction():
                await producer.send(topic, b"%d" % n, partition=0)
    assert await values(bootstrap, topic) == [b"0", b"1", b"2"]


async def test_a_new_producer_fences_the_one_before_and_ends_its_transaction(
    bootstrap: str, topic: str, version: int
) -> None:
    name = new_id()
    async with (
        Producer(bootstrap_servers=bootstrap, transactional_id=name) as old,
        Producer(bootstrap_servers=bootstrap, transactional_id=name) as new,
    ):
        await old.init_transactions()
        old.begin_transaction()
        await old.send_and_wait(topic, b"old", partition=0)
        await new.init_transactions()
        async with new.transaction():
            await new.send(topic, b"new", partition=0)
        with pytest.raises(ProducerFenced) as fenced:
            await old.commit_transaction()
        assert isinstance(fenced.value, ApplicationRecoverable)
        for act in (old.abort_transaction, old.init_transactions, old.commit_transaction):
            with pytest.raises(ProducerFenced):
                await act()
        with pytest.raises(ProducerFenced):
            old.begin_transaction()
        with pytest.raises(ProducerFenced):
            await old.send(topic, b"no")
        async with new.transaction():
            await new.send(topic, b"newer", partition=0)
    assert await values(bootstrap, topic) == [b"new", b"newer"]


async def test_a_fenced_producer_learns_of_it_by_writing_as_well(bootstrap: str, topic: str, version: int) -> None:
    name = new_id()
    async with (
        Producer(bootstrap_servers=bootstrap, transactional_id=name) as old,
        Producer(bootstrap_servers=bootstrap, transactional_id=name) as new,
    ):
        await old.init_transactions()
        async with old.transaction():
            await old.send(topic, b"old", partition=0)
        await new.init_transactions()
        async with new.transaction():
            await new.send(topic, b"new", partition=0)
        with pytest.raises(KafkaError) as refused:
            async with old.transaction():
                await old.send(topic, b"too late", partition=0)
        assert isinstance(refused.value, ProducerFenced | TransactionAbortable)
        with pytest.raises(ProducerFenced):
            old.begin_transaction()
    assert await values(bootstrap, topic) == [b"old", b"new"]


async def test_a_transaction_that_takes_too_long_is_aborted(
    start_broker: Callable[..., EmbeddedBroker], version: int
) -> None:
    broker = start_broker(settings={"transaction.abort.timed.out.transaction.cleanup.interval.ms": 50})
    topic = await make_topic(broker.bootstrap)
    options = {"bootstrap_servers": broker.bootstrap, "transactional_id": new_id(), "transaction_timeout_ms": 100}
    async with Producer(**options) as slow, Producer(**options) as next_one:
        await slow.init_transactions()
        slow.begin_transaction()
        await slow.send_and_wait(topic, b"slow", partition=0)
        async with asyncio.timeout(30):
            while (await end(broker.bootstrap, topic)) < 2:  # noqa: ASYNC110 - the marker of the abort
                await asyncio.sleep(0.05)
        if version == 1:
            with pytest.raises(ProducerFenced):
                await slow.commit_transaction()
        else:
            with pytest.raises(TransactionAbortable, match="timed out"):
                await slow.commit_transaction()
            await slow.abort_transaction()
            async with slow.transaction():
                await slow.send(topic, b"slow again", partition=0)
        await next_one.init_transactions()
        async with next_one.transaction():
            await next_one.send(topic, b"next", partition=0)
    assert await values(broker.bootstrap, topic) == ([b"next"] if version == 1 else [b"slow again", b"next"])


async def end(bootstrap: str, topic: str) -> int:
    name = TopicPartition(topic, 0)
    async with Consumer(bootstrap_servers=bootstrap, isolation_level="read_committed") as consumer:
        return (await consumer.end_offsets([name]))[name]


async def test_what_is_asked_out_of_turn_is_refused_and_changes_nothing(bootstrap: str, topic: str) -> None:
    async with Producer(bootstrap_servers=bootstrap) as plain:
        with pytest.raises(RuntimeError, match="transactional_id"):
            plain.begin_transaction()
        with pytest.raises(RuntimeError, match="transactional_id"):
            await plain.init_transactions()
    async with Producer(bootstrap_servers=bootstrap, transactional_id=new_id()) as producer:
        with pytest.raises(RuntimeError, match=r"begin_transaction: the producer's state is .*, not ready"):
            producer.begin_transaction()
        await producer.init_transactions()
        with pytest.raises(RuntimeError, match="init_transactions"):
            await producer.init_transactions()
        with pytest.raises(RuntimeError, match=r"send: the producer's state is .*, not in transaction"):
            await producer.send(topic, b"x")
        with pytest.raises(RuntimeError, match="commit_transaction"):
            await producer.commit_transaction()
        async with producer.transaction():
            with pytest.raises(RuntimeError, match="begin_transaction"):
                producer.begin_transaction()
            await producer.send(topic, b"fine")
    assert await values(bootstrap, topic) == [b"fine"]


async def test_a_timeout_the_broker_does_not_allow_is_fatal(bootstrap: str) -> None:
    async with Producer(
        bootstrap_servers=bootstrap, transactional_id=new_id(), transaction_timeout_ms=10**9
    ) as producer:
        for _ in range(2):
            with pytest.raises(TransactionFatal, match="INVALID_TRANSACTION_TIMEOUT"):
                await producer.init_transactions()


async def test_a_producer_that_is_closed_in_a_transaction_aborts_it(bootstrap: str, topic: str, version: int) -> None:
    producer = Producer(bootstrap_servers=bootstrap, transactional_id=new_id())
    await producer.init_transactions()
    producer.begin_transaction()
    await producer.send_and_wait(topic, b"x", partition=0)
    await producer.close()
    assert await end(bootstrap, topic) == 2
    assert await values(bootstrap, topic) == []


async def test_init_transactions_can_be_waited_for_again(start_broker: Callable[..., EmbeddedBroker]) -> None:
    broker = start_broker()
    options = {"bootstrap_servers": broker.bootstrap, "reconnect_backoff_max_ms": 100}
    await asyncio.to_thread(broker.kill)
    async with Producer(transactional_id=new_id(), max_block_ms=200, **options) as producer:
        with pytest.raises(KafkaError, match="init_transactions") as late:
            await producer.init_transactions()
        assert late.value.code is ErrorCode.REQUEST_TIMED_OUT
        await asyncio.to_thread(broker.start)
        async with asyncio.timeout(40):
            while await is_late(producer.init_transactions()):
                pass
        async with producer.transaction():
            await producer.send("t", b"x")


async def is_late(call: Coroutine[None, None, None]) -> bool:
    try:
        await call
    except KafkaError as late:
        return late.code is ErrorCode.REQUEST_TIMED_OUT
    return False


async def test_transactions_outlive_their_broker(start_broker: Callable[..., EmbeddedBroker], version: int) -> None:
    broker = start_broker()
    topic = await make_topic(broker.bootstrap)
    options = {"bootstrap_servers": broker.bootstrap, "reconnect_backoff_max_ms": 100}
    async with Producer(transactional_id=new_id(), **options) as producer:
        await producer.init_transactions()
        async with producer.transaction():
            await producer.send_and_wait(topic, b"0", partition=0)
            await asyncio.to_thread(broker.kill)
            again = await producer.send(topic, b"1", partition=0)
            await asyncio.to_thread(broker.start)
            await again
        producer.begin_transaction()
        await producer.send_and_wait(topic, b"2", partition=0)
        await asyncio.to_thread(broker.kill)
        ending = asyncio.create_task(producer.commit_transaction())
        await asyncio.sleep(0)
        await asyncio.to_thread(broker.start)
        await asyncio.wait_for(ending, 60)
        producer.begin_transaction()
        await producer.send_and_wait(topic, b"3", partition=0)
        await asyncio.to_thread(broker.kill)
        ending = asyncio.create_task(producer.abort_transaction())
        await asyncio.sleep(0)
        await asyncio.to_thread(broker.start)
        await asyncio.wait_for(ending, 60)
        async with producer.transaction():
            await producer.send(topic, b"4", partition=0)
    assert await values(broker.bootstrap, topic) == [b"0", b"1", b"2", b"4"]


# --- offsets ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_offsets_are_committed_with_the_records_made_of_them(
    bootstrap: str, topic: str, version: int, protocol: str
) -> None:
    target, group_id = await make_topic(bootstrap), f"group-{uuid.uuid4().hex[:8]}"
    async with Producer(bootstrap_servers=bootstrap) as producer:
        for n in range(30):
            await producer.send(topic, b"%d" % n, partition=n % 3)
    options = {
        "bootstrap_servers": bootstrap,
        "group_id": group_id,
        "group_protocol": protocol,
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
    }
    tries = 0
    async with Producer(bootstrap_servers=bootstrap, transactional_id=new_id()) as producer:
        await producer.init_transactions()
        for _ in range(4):  # consumers come and go; each resumes from the last commit
            async with Consumer(topic, **options) as consumer, asyncio.timeout(60):
                for _ in range(2):
                    records = await consumer.getmany(timeout_ms=30_000, max_records=4)
                    tries += 1
                    try:
                        async with producer.transaction():
                            for some in records.values():
                                for record in some:
                                    await producer.send(target, record.value, partition=record.partition)
                            places = {name: some[-1].offset + 1 for name, some in records.items()}
                            await producer.send_offsets_to_transaction(places, consumer.group_metadata())
                            if tries % 4 == 3:
                                raise InterruptedError
                    except InterruptedError:
                        break
    async with Admin(bootstrap_servers=bootstrap) as admin:
        committed = await admin.list_group_offsets(group_id)
    read = sorted(int(value or b"") for value in await values(bootstrap, target))
    assert sum(place.offset for place in committed.values()) == len(read) == len(set(read)) > 10
    for name, place in committed.items():
        assert [n for n in read if n % 3 == name.partition] == list(range(name.partition, 3 * place.offset, 3))


async def test_offsets_of_a_consumer_the_group_has_given_up_abort_the_transaction(
    bootstrap: str, topic: str, version: int
) -> None:
    group_id = f"group-{uuid.uuid4().hex[:8]}"
    name = TopicPartition(topic, 0)
    options = {"bootstrap_servers": bootstrap, "group_id": group_id, "enable_auto_commit": False}
    async with Producer(bootstrap_servers=bootstrap, transactional_id=new_id()) as producer:
        await producer.init_transactions()
        async with Consumer(topic, **options) as consumer:
            async with asyncio.timeout(30):
                while name not in consumer.assignment():
                    await consumer.getmany(timeout_ms=100)
            before = consumer.group_metadata()
            assert before.generation_id > 0
            assert before.member_id
        with pytest.raises(TransactionAbortable) as refused:  # noqa: PT012
            async with producer.transaction():
                await producer.send(topic, b"x", partition=0)
                await producer.send_offsets_to_transaction({name: 7}, before)
        assert refused.value.code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION)
        alone = ConsumerGroupMetadata(group_id)
        async with producer.transaction():
            await producer.send_offsets_to_transaction({name: OffsetAndMetadata(8, "note")}, alone)
            await producer.send_offsets_to_transaction({}, alone)
    async with Admin(bootstrap_servers=bootstrap) as admin:
        assert (await admin.list_group_offsets(group_id))[name][:2] == (8, "note")
    assert await values(bootstrap, topic) == []


# --- without an event loop, and with another client -------------------------------------------------------------------


def test_transactions_without_an_event_loop(bootstrap: str) -> None:
    topic, group_id = asyncio.run(make_topic(bootstrap)), f"group-{uuid.uuid4().hex[:8]}"
    options = {"bootstrap_servers": bootstrap, "auto_offset_reset": "earliest"}
    with (
        BlockingProducer(bootstrap_servers=bootstrap, transactional_id=new_id()) as producer,
        BlockingConsumer(topic, group_id=group_id, enable_auto_commit=False, **options) as consumer,
    ):
        producer.init_transactions()
        with producer.transaction():
            producer.send(topic, b"a", partition=0)
            producer.send_many(topic, [(b"k", b"b")] * 10)
        with pytest.raises(ZeroDivisionError), producer.transaction():  # noqa: PT012
            producer.send(topic, b"gone", partition=0)
            print(1 / 0)
        producer.begin_transaction()
        producer.send(topic, b"gone as well", partition=0)
        producer.abort_transaction()
        producer.begin_transaction()
        consumer.getmany(timeout_ms=1)
        producer.send_offsets_to_transaction({TopicPartition(topic, 0): 1}, ConsumerGroupMetadata(group_id))
        producer.commit_transaction()
        assert consumer.group_metadata().group_id == group_id
    assert sorted(asyncio.run(values(bootstrap, topic))) == [b"a"] + [b"b"] * 10


async def test_librdkafka_reads_what_was_committed_and_takes_over_the_id(
    bootstrap: str, topic: str, version: int
) -> None:
    confluent_kafka = pytest.importorskip("confluent_kafka")
    name = new_id()

    def take_over() -> None:
        other = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "transactional.id": name})
        other.init_transactions(30)
        other.begin_transaction()
        other.produce(topic, b"theirs", partition=0)
        other.commit_transaction(30)

    def read() -> list[bytes]:
        consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": uuid.uuid4().hex})
        consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
        messages = consumer.consume(num_messages=3, timeout=30)
        consumer.close()
        return [message.value() for message in messages]

    async with Producer(bootstrap_servers=bootstrap, transactional_id=name) as producer:
        await producer.init_transactions()
        async with producer.transaction():
            await producer.send(topic, b"ours", partition=0)
        producer.begin_transaction()
        await producer.send_and_wait(topic, b"lost", partition=0)
        await asyncio.to_thread(take_over)
        with pytest.raises(ProducerFenced):
            await producer.commit_transaction()
    async with Producer(bootstrap_servers=bootstrap, transactional_id=name) as producer:
        await producer.init_transactions()
        async with producer.transaction():
            await producer.send(topic, b"ours again", partition=0)
    assert await asyncio.to_thread(read) == [b"ours", b"theirs", b"ours again"]
