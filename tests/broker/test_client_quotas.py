"""Quotas on one broker: what counts towards them, with a clock that the tests set; and connections that are muted.

The clock of quotas moves only when a test moves it, so that every wait is known exactly.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from one_broker import BOUND_SECONDS, running, until

from kraftpy.broker.broker import Broker
from kraftpy.broker.connection import Connection
from kraftpy.broker.quotas.clients import ClientQuotaManager
from kraftpy.client import Admin, KafkaError, NewTopic
from kraftpy.config import load
from kraftpy.protocol.apis import APIS, ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.frames import decode_response_header, encode_request
from kraftpy.protocol.messages.api_versions import ApiVersionsRequest
from kraftpy.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from kraftpy.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from kraftpy.protocol.messages.delete_topics import DeleteTopicsRequest
from kraftpy.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from kraftpy.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from kraftpy.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kraftpy.protocol.record_batch import encode_batch
from kraftpy.protocol.schema import decode
from kraftpy.quotas.entities import entity_of
from kraftpy.quotas.limits import Limits
from kraftpy.types import Millis

USER = {"user": "ANONYMOUS"}


class SetClock:
    """A clock that stands still until it is set."""

    def __init__(self) -> None:
        self.now_ms = 1_000_000

    def now(self) -> Millis:
        return Millis(self.now_ms)

    def monotonic_ms(self) -> Millis:
        return Millis(self.now_ms)


class Client:
    """A connection that says exactly what a test wants."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, client_id: str) -> None:
        self._reader, self._writer, self._client_id = reader, writer, client_id
        self._asked = 0

    def send(self, key: ApiKey, version: int, request: Any) -> None:
        self._asked += 1
        self._writer.write(encode_request(key, version, self._asked, self._client_id, request))

    async def receive(self, key: ApiKey, version: int) -> Any:
        size = int.from_bytes(await self._reader.readexactly(4), "big")
        data = await self._reader.readexactly(size)
        _, body = decode_response_header(key, version, data)
        return decode(APIS[key].response, body, version)

    async def ask(self, key: ApiKey, version: int, request: Any) -> Any:
        self.send(key, version, request)
        return await asyncio.wait_for(self.receive(key, version), BOUND_SECONDS)

    def close(self) -> None:
        self._writer.close()


@asynccontextmanager
async def connected(broker: Broker, client_id: str = "test") -> AsyncIterator[Client]:
    listener = broker.advertised[0]
    client = Client(*await asyncio.open_connection(listener.host, listener.port), client_id)
    try:
        yield client
    finally:
        client.close()


@asynccontextmanager
async def administering(broker: Broker) -> AsyncIterator[Admin]:
    listener = broker.advertised[0]
    async with Admin(bootstrap_servers=f"{listener.host}:{listener.port}", client_id="admin") as admin:
        yield admin


@asynccontextmanager
async def limited(directory: Path, *settings: str, **values: float) -> AsyncIterator[tuple[Broker, SetClock]]:
    """A broker whose quotas go by a clock that is set, with these quotas of the user of clear connections."""
    clock = SetClock()
    async with running(directory, *settings) as broker:
        broker.client_quotas = ClientQuotaManager(broker.config, clock, lambda: broker.image.quotas.limits)
        async with administering(broker) as admin:
            await admin.create_topics([NewTopic(name="t", num_partitions=1, replication_factor=1)])
            await admin.alter_client_quotas(USER, values)
        yield broker, clock


def produce_request(size: int, acks: int = 1) -> ProduceRequest:
    batch = encode_batch([(1_700_000_000_000, None, bytes(size), ())])
    data = TopicProduceData(name="t", partition_data=[PartitionProduceData(index=0, records=batch)])
    return ProduceRequest(acks=acks, timeout_ms=10_000, topic_data=[data])


def fetch_request(offset: int = 0, session_id: int = 0, session_epoch: int = -1) -> FetchRequest:
    partition = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    topics = [FetchTopic(topic="t", partitions=[partition])]
    return FetchRequest(max_wait_ms=0, min_bytes=1, topics=topics, session_id=session_id, session_epoch=session_epoch)


def muted(broker: Broker) -> list[Connection]:
    return [connection for connection in broker.connections if connection._is_muted]


async def test_a_producer_above_its_quota_is_answered_and_muted_and_nobody_else_waits(tmp_path: Path) -> None:
    async with limited(tmp_path, producer_byte_rate=100) as (broker, _), connected(broker) as client:
        first = await client.ask(ApiKey.PRODUCE, 9, produce_request(500))
        assert (first.throttle_time_ms, first.responses[0].partition_responses[0].error_code) == (0, ErrorCode.NONE)
        second = await client.ask(ApiKey.PRODUCE, 9, produce_request(100_000))
        assert second.responses[0].partition_responses[0].base_offset == 1
        assert second.throttle_time_ms > 900_000  # some 100,600 bytes in 10 s, of which 1,000 were allowed
        await until(lambda: len(muted(broker)) == 1)
        client.send(ApiKey.PRODUCE, 9, produce_request(10))
        async with connected(broker, "other") as other:
            for _ in range(20):
                assert (await other.ask(ApiKey.API_VERSIONS, 2, ApiVersionsRequest())).error_code == ErrorCode.NONE
            fetched = await other.ask(ApiKey.FETCH, 12, fetch_request())
            assert fetched.responses[0].partitions[0].high_watermark == 2  # the third was not read
            assert len(muted(broker)) == 1
            assert await other.ask(ApiKey.PRODUCE, 9, produce_request(10))
            await until(lambda: len(muted(broker)) == 2)  # the user's quota is that of all its connections


async def test_a_muted_connection_is_served_again_when_its_time_is_over(tmp_path: Path) -> None:
    async with limited(tmp_path, producer_byte_rate=10_000) as (broker, _), connected(broker) as client:
        loop = asyncio.get_running_loop()
        began_at = loop.time()
        client.send(ApiKey.PRODUCE, 9, produce_request(102_000))
        client.send(ApiKey.API_VERSIONS, 2, ApiVersionsRequest())
        produced = await asyncio.wait_for(client.receive(ApiKey.PRODUCE, 9), BOUND_SECONDS)
        assert 100 < produced.throttle_time_ms < 1_000
        assert await asyncio.wait_for(client.receive(ApiKey.API_VERSIONS, 2), BOUND_SECONDS)
        assert loop.time() - began_at >= produced.throttle_time_ms / 1000
        assert not muted(broker)


async def test_a_connection_that_is_muted_for_long_is_idle_and_ends(tmp_path: Path) -> None:
    async with limited(tmp_path, "connections.max.idle.ms=300", producer_byte_rate=1) as (broker, _):
        async with connected(broker) as client:
            produced = await client.ask(ApiKey.PRODUCE, 9, produce_request(100_000))
            assert produced.throttle_time_ms > 1_000_000
            client.send(ApiKey.API_VERSIONS, 2, ApiVersionsRequest())
            with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                await asyncio.wait_for(client.receive(ApiKey.API_VERSIONS, 2), BOUND_SECONDS)
        async with connected(broker) as client:  # a new connection does not get away from it
            assert (await client.ask(ApiKey.PRODUCE, 9, produce_request(1))).throttle_time_ms > 1_000_000


async def test_a_producer_without_acks_is_muted_too(tmp_path: Path) -> None:
    async with limited(tmp_path, producer_byte_rate=100) as (broker, _), connected(broker) as client:
        client.send(ApiKey.PRODUCE, 9, produce_request(100_000, acks=0))
        await until(lambda: len(muted(broker)) == 1)


async def test_time_is_not_counted_for_a_producer_without_acks(tmp_path: Path) -> None:
    async with limited(tmp_path, request_percentage=1e-9) as (broker, _), connected(broker) as client:
        client.send(ApiKey.PRODUCE, 9, produce_request(10, acks=0))
        answered = await client.ask(ApiKey.PRODUCE, 9, produce_request(10))
        assert answered.responses[0].partition_responses[0].base_offset == 1
        assert answered.throttle_time_ms == 1_000  # at most one sample


async def test_a_consumer_above_its_quota_gets_nothing_until_it_may(tmp_path: Path) -> None:
    async with limited(tmp_path, consumer_byte_rate=100) as (broker, clock), connected(broker) as client:
        for _ in range(3):
            await client.ask(ApiKey.PRODUCE, 9, produce_request(600))
        first = await client.ask(ApiKey.FETCH, 12, fetch_request())
        records = first.responses[0].partitions[0].records
        assert 600 < len(records) <= 1_000  # no more than the window of 10 s allows, though three batches are there
        assert first.throttle_time_ms == 0
    async with limited(tmp_path / "2", consumer_byte_rate=100) as (broker, clock):
        async with connected(broker) as client:
            for _ in range(3):
                await client.ask(ApiKey.PRODUCE, 9, produce_request(600))
            assert (await client.ask(ApiKey.FETCH, 12, fetch_request())).throttle_time_ms == 0
            second = await client.ask(ApiKey.FETCH, 12, fetch_request(1))
            assert second.responses == []
            wait_ms = second.throttle_time_ms
            assert wait_ms == round((2 * len(records) - 1_000) / 100 * 1000)
        async with connected(broker) as client:
            again = await client.ask(ApiKey.FETCH, 12, fetch_request(1))
            assert (again.responses, again.throttle_time_ms) == ([], wait_ms)  # unsent records did not count
        clock.now_ms += 11_000
        async with connected(broker) as client:
            later = await client.ask(ApiKey.FETCH, 12, fetch_request(1))
            assert later.throttle_time_ms == 0
            assert later.responses[0].partitions[0].records


async def test_a_batch_beyond_the_window_is_sent_once_the_client_need_not_wait(tmp_path: Path) -> None:
    async with limited(tmp_path, consumer_byte_rate=10) as (broker, clock):
        for offset in range(2):
            async with connected(broker) as client:
                await client.ask(ApiKey.PRODUCE, 9, produce_request(600))
                sent = await client.ask(ApiKey.FETCH, 12, fetch_request(offset))
                records = sent.responses[0].partitions[0].records
                burst = 100 if offset == 0 else 0  # the first one has used it up
                assert sent.throttle_time_ms == (len(records) - burst) * 100
                await until(lambda: muted(broker))
            async with connected(broker) as client:
                assert (await client.ask(ApiKey.FETCH, 12, fetch_request(0))).responses == []
            clock.now_ms += sent.throttle_time_ms


async def test_an_empty_answer_ends_a_session_that_began_with_it_and_keeps_an_older_one(tmp_path: Path) -> None:
    async with limited(tmp_path, consumer_byte_rate=100) as (broker, clock):
        async with connected(broker) as client:
            for _ in range(3):
                await client.ask(ApiKey.PRODUCE, 9, produce_request(600))
            begun = await client.ask(ApiKey.FETCH, 12, fetch_request(session_epoch=0))
            assert begun.session_id > 0
            session = {"session_id": begun.session_id, "session_epoch": 1}
            kept = await client.ask(ApiKey.FETCH, 12, fetch_request(1, **session))
            assert (kept.responses, kept.session_id) == ([], begun.session_id)
            assert kept.throttle_time_ms > 0
        async with connected(broker) as client:
            refused = await client.ask(ApiKey.FETCH, 12, fetch_request(1, session_epoch=0))
            assert (refused.responses, refused.session_id) == ([], 0)
            assert len(broker.fetch_sessions) == 1
        clock.now_ms += 11_000
        async with connected(broker) as client:
            session["session_epoch"] = 2
            going_on = await client.ask(ApiKey.FETCH, 12, fetch_request(1, **session))
            assert going_on.responses[0].partitions[0].records


@pytest.mark.parametrize("key", [ApiKey.API_VERSIONS, ApiKey.METADATA, ApiKey.FETCH])
async def test_time_counts_for_every_request(tmp_path: Path, key: ApiKey) -> None:
    asked = {ApiKey.API_VERSIONS: ApiVersionsRequest(), ApiKey.METADATA: MetadataRequest(topics=None)}
    version = {ApiKey.API_VERSIONS: 2, ApiKey.METADATA: 12, ApiKey.FETCH: 12}[key]
    async with limited(tmp_path, request_percentage=1e-9) as (broker, _), connected(broker) as client:
        answered = await client.ask(key, version, asked.get(key) or fetch_request())
        assert answered.throttle_time_ms == 1_000
        if key == ApiKey.METADATA:
            assert [topic.name for topic in answered.topics] == ["t"]
            assert answered.brokers[0].port == broker.advertised[0].port


async def test_an_answer_that_is_kept_for_all_clients_tells_each_its_own_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kraftpy.broker.handlers.metadata._LARGE_CLUSTER", 0)
    async with limited(tmp_path) as (broker, _):
        async with administering(broker) as admin:
            await admin.alter_client_quotas({"client-id": "greedy"}, {"request_percentage": 1e-9})
        for version in (12, 2):
            for client_id, wait_ms in (("greedy", 1_000), ("modest", 0), ("greedy", 1_000)):
                async with connected(broker, client_id) as client:
                    answered = await client.ask(ApiKey.METADATA, version, MetadataRequest(topics=None))
                    assert answered.throttle_time_ms == (wait_ms if version >= 3 else 0)
                    assert [topic.name for topic in answered.topics] == ["t"]
                    assert broker.metadata_answers.held > 0


async def test_versions_without_a_throttle_time_are_muted_all_the_same(tmp_path: Path) -> None:
    async with limited(tmp_path, request_percentage=1e-9) as (broker, _), connected(broker) as client:
        assert (await client.ask(ApiKey.METADATA, 0, MetadataRequest(topics=[]))).brokers
        await until(lambda: len(muted(broker)) == 1)


def creation(count: int, name: str) -> CreateTopicsRequest:
    topic = CreatableTopic(name=name, num_partitions=count, replication_factor=1)
    return CreateTopicsRequest(topics=[topic], timeout_ms=20_000)


async def test_mutations_beyond_the_tokens_are_refused(tmp_path: Path) -> None:
    async with limited(tmp_path, controller_mutation_rate=1) as (broker, clock):  # a bucket of 11
        async with connected(broker) as client:
            wanted = CreateTopicsRequest(
                topics=[
                    CreatableTopic(name=name, num_partitions=count, replication_factor=1)
                    for name, count in (("a", 10), ("t", 50), ("b", 5), ("c", 1), ("d", 1))
                ],
                timeout_ms=20_000,
            )
            made = await client.ask(ApiKey.CREATE_TOPICS, 7, wanted)
            errors = {topic.name: topic.error_code for topic in made.topics}
            exceeded = ErrorCode.THROTTLING_QUOTA_EXCEEDED
            assert errors == {"a": 0, "t": ErrorCode.TOPIC_ALREADY_EXISTS, "b": 0, "c": exceeded, "d": exceeded}
            assert {topic.error_message for topic in made.topics if topic.error_code == exceeded} == {
                "The throttling quota has been exceeded."
            }
            assert made.throttle_time_ms == 4_000
            assert broker.image.topic("c") is None
        async with connected(broker) as client:
            growth = CreatePartitionsRequest(topics=[CreatePartitionsTopic(name="a", count=12)], timeout_ms=20_000)
            (grown,) = (await client.ask(ApiKey.CREATE_PARTITIONS, 3, growth)).results
            assert grown.error_code == exceeded
        async with connected(broker) as client:
            deletion = DeleteTopicsRequest(topic_names=["b"], timeout_ms=20_000)
            (kept,) = (await client.ask(ApiKey.DELETE_TOPICS, 5, deletion)).responses
            assert kept.error_code == exceeded
            assert broker.image.topic("b") is not None
        clock.now_ms += 4_000
        async with connected(broker) as client:
            answered = await client.ask(ApiKey.DELETE_TOPICS, 5, deletion)
            assert (answered.throttle_time_ms, answered.responses[0].error_code) == (0, 0)


async def test_mutations_in_earlier_versions_are_done_and_the_client_waits(tmp_path: Path) -> None:
    async with limited(tmp_path, controller_mutation_rate=1) as (broker, _):
        for number in (1, 2):
            async with connected(broker) as client:
                made = await client.ask(ApiKey.CREATE_TOPICS, 5, creation(20, f"n{number}"))
                assert made.topics[0].error_code == 0
                assert made.throttle_time_ms == (9_000, 29_000)[number - 1]
                await until(lambda: muted(broker))
        async with connected(broker) as client:
            asked = MetadataRequest(
                topics=[MetadataRequestTopic(name="made-by-asking")], allow_auto_topic_creation=True
            )
            found = await client.ask(ApiKey.METADATA, 9, asked)
            assert found.topics[0].partitions
            assert found.throttle_time_ms == 30_000


async def test_mutations_that_fail_do_not_count_and_those_that_are_only_checked_do(tmp_path: Path) -> None:
    async with limited(tmp_path, controller_mutation_rate=1) as (broker, _), connected(broker) as client:
        for _ in range(5):
            topic = CreatableTopic(name="x", num_partitions=10, replication_factor=3)
            wanted = CreateTopicsRequest(topics=[topic], timeout_ms=20_000)
            made = await client.ask(ApiKey.CREATE_TOPICS, 7, wanted)
            assert made.topics[0].error_code == ErrorCode.INVALID_REPLICATION_FACTOR
        checked = creation(12, "y")
        checked.validate_only = True
        assert (await client.ask(ApiKey.CREATE_TOPICS, 7, checked)).topics[0].error_code == 0
        made = await client.ask(ApiKey.CREATE_TOPICS, 7, creation(1, "z"))
        assert made.topics[0].error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
        assert made.throttle_time_ms == 1_000


async def test_brokers_and_those_without_a_quota_are_exempt(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        async with administering(broker) as admin:
            await admin.alter_client_quotas({"client-id": "greedy"}, {"request_percentage": 1e-9})
        assert broker.client_quotas.in_use
        async with connected(broker, "modest") as client:
            assert (await client.ask(ApiKey.API_VERSIONS, 2, ApiVersionsRequest())).throttle_time_ms == 0
        async with connected(broker, "greedy") as client:
            broker.connections[-1].proved_broker = (1, 1)
            assert (await client.ask(ApiKey.API_VERSIONS, 2, ApiVersionsRequest())).throttle_time_ms == 0
            broker.connections[-1].proved_broker = None
            assert (await client.ask(ApiKey.API_VERSIONS, 2, ApiVersionsRequest())).throttle_time_ms == 1_000
        async with administering(broker) as admin:
            await admin.alter_client_quotas({"client-id": "greedy"}, {"request_percentage": None})
        assert not broker.client_quotas.in_use


async def test_quotas_survive_a_restart(tmp_path: Path) -> None:
    async with limited(tmp_path, producer_byte_rate=100, request_percentage=12.5):
        pass
    async with running(tmp_path) as broker:
        assert broker.client_quotas.in_use
        async with administering(broker) as admin:
            (found,) = await admin.describe_client_quotas()
            assert found.entity == USER
            assert found.values == {"producer_byte_rate": 100, "request_percentage": 12.5}


async def test_quotas_take_of_the_memory_for_settings(tmp_path: Path) -> None:
    async with running(tmp_path, "kraftpy.max.configs.bytes=2000") as broker, administering(broker) as admin:
        await admin.alter_client_quotas({"user": "a"}, {"producer_byte_rate": 1})
        with pytest.raises(KafkaError) as refused:
            await admin.alter_client_quotas({"user": "b" * 2000}, {"producer_byte_rate": 1})
        assert refused.value.code == ErrorCode.POLICY_VIOLATION
        await admin.alter_client_quotas({"user": "a"}, {"producer_byte_rate": None})
        assert broker.image.quotas.bytes == 0


def manager(clock: SetClock, limits: Limits, **settings: object) -> ClientQuotaManager:
    config = load("", {}, ["log.dirs=/nowhere"]).config
    return ClientQuotaManager(config, clock, lambda: limits, most_counters=100)


def test_a_changed_quota_applies_to_what_was_used_before() -> None:
    clock, limits = SetClock(), Limits()
    quotas = manager(clock, limits)
    limits.set(entity_of([("user", "u")]), "producer_byte_rate", 1000)
    assert quotas.record(quotas.limit("u", "c", "producer_byte_rate"), "producer_byte_rate", 5000) == 0
    limits.set(entity_of([("user", "u")]), "producer_byte_rate", 100)
    assert quotas.record(quotas.limit("u", "d", "producer_byte_rate"), "producer_byte_rate", 0) == 40_000
    limits.set(entity_of([("user", "u")]), "producer_byte_rate", None)
    assert quotas.limit("u", "c", "producer_byte_rate") is None


def test_invented_client_ids_take_bounded_memory_and_do_not_free_anybody() -> None:
    clock, limits = SetClock(), Limits()
    quotas = manager(clock, limits)
    limits.set(entity_of([("client-id", None)]), "producer_byte_rate", 100)
    key = "producer_byte_rate"
    for number in range(1000):
        assert quotas.record(quotas.limit("u", "steady", key), key, 100) == max(0, number - 9) * 1000
        quotas.record(quotas.limit("u", str(number), key), key, 1)
        assert len(quotas._rates) <= 100


def test_long_client_ids_take_no_more_memory_than_short_ones() -> None:
    clock, limits = SetClock(), Limits()
    quotas = manager(clock, limits)
    limits.set(entity_of([("client-id", None)]), "producer_byte_rate", 100)
    limits.set(entity_of([("client-id", None)]), "controller_mutation_rate", 1)
    for number in range(50):
        client_id = f"{number}" + "x" * 30_000
        for _ in range(2):
            waited = quotas.record(quotas.limit("u", client_id, "producer_byte_rate"), "producer_byte_rate", 1_000)
            quotas.take(quotas.limit("u", client_id, "controller_mutation_rate"), 1, strict=True)
        assert waited == 10_000, "each has a counter of its own"
    assert len(quotas._rates) == 50
    assert not quotas._found
    kept = [*quotas._rates._counters, *quotas._buckets._counters]
    assert max(len(name or "") for _, *names in kept for name in names) <= 256


def test_the_rate_is_held_by_a_client_that_waits_as_told() -> None:
    clock, limits = SetClock(), Limits()
    quotas = manager(clock, limits)
    limits.set(entity_of([("user", "u")]), "producer_byte_rate", 10_000)
    limit, began_ms, sent = quotas.limit("u", "c", "producer_byte_rate"), clock.now_ms, 0
    while clock.now_ms - began_ms < 300_000:
        sent += 3_000
        clock.now_ms += 50 + quotas.record(limit, "producer_byte_rate", 3_000)  # six times the rate without a wait
    assert 0.95 <= sent / (10_000 * 300) <= 1.1
