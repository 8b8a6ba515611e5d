"""Long work is done in slices, and others are served between them."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest
from broker_wire import BOUND_SECONDS, StartBroker, answer, ask, connect

from kraftpy.broker.apis import LONG_ELEMENTS, MAX_REQUEST_ELEMENTS, _elements
from kraftpy.broker.encoded_answers import Encoded, EncodedAnswers
from kraftpy.broker.garbage_collection import Collections
from kraftpy.broker.handlers.metadata import metadata
from kraftpy.broker.request import RequestContext
from kraftpy.broker.slicing import UNITS_PER_ITERATION, Slices
from kraftpy.metadata.commands import Endpoint
from kraftpy.metadata.image import Image
from kraftpy.metadata.records import BrokerRegistered, PartitionCreated, TopicCreated
from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.frames import encode_request
from kraftpy.protocol.messages.api_versions import ApiVersionsRequest
from kraftpy.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from kraftpy.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from kraftpy.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from kraftpy.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kraftpy.protocol.schema import decode, encode
from kraftpy.testing.cluster import EmbeddedBroker
from kraftpy.types import BrokerId, Millis, TopicId

if TYPE_CHECKING:
    from kraftpy.broker.broker import Broker

PARTITIONS = 700


async def test_a_turn_of_the_loop_has_room_for_so_many_units() -> None:
    slices = Slices()
    done = 0
    by_turn: list[int] = []

    async def work() -> None:
        nonlocal done
        for _ in range(100):
            await slices.breathe(100)
            done += 100

    workers = [asyncio.create_task(work()) for _ in range(5)]
    while not all(worker.done() for worker in workers):
        before = done
        await asyncio.sleep(0)
        by_turn.append(done - before)
    assert done == 50_000
    assert max(by_turn) <= 2 * UNITS_PER_ITERATION, "what two turns have room for, where they meet"
    assert len(by_turn) >= 50_000 // UNITS_PER_ITERATION


async def test_slices_are_taken_in_turn() -> None:
    slices = Slices()
    order: list[str] = []

    async def work(name: str, pieces: int) -> None:
        for _ in range(pieces):
            await slices.breathe(UNITS_PER_ITERATION)
            order.append(name)

    await asyncio.gather(work("long", 20), work("short", 2))
    assert order.index("short") < 3
    assert [index for index, name in enumerate(order) if name == "short"][-1] < 6, "it did not wait for the long one"


async def test_one_piece_larger_than_a_turn_is_done_all_the_same() -> None:
    slices = Slices()
    async with asyncio.timeout(BOUND_SECONDS):
        await slices.breathe(10 * UNITS_PER_ITERATION)
        await slices.breathe(10 * UNITS_PER_ITERATION)


async def test_who_gives_up_waiting_holds_nobody_up() -> None:
    slices = Slices()
    await slices.breathe(UNITS_PER_ITERATION)
    waiting = [asyncio.create_task(slices.breathe(UNITS_PER_ITERATION)) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    async with asyncio.timeout(BOUND_SECONDS):
        await asyncio.gather(*waiting[1:])


async def test_an_answer_is_made_once_for_all_who_ask() -> None:
    answers, made = EncodedAnswers(limit=100), 0
    gate = asyncio.Event()

    async def make() -> tuple[bytes, bool]:
        nonlocal made
        made += 1
        await gate.wait()
        return bytes(60), True

    asking = [asyncio.create_task(answers.get("a", make)) for _ in range(30)]
    await asyncio.sleep(0)
    asking[0].cancel()  # the one who makes it leaves: another takes over
    gate.set()
    found = await asyncio.gather(*asking[1:])
    assert {len(each) for each in found} == {60}
    assert made == 2
    await answers.get("b", make)
    assert answers.held == 60, "both together are more than the limit"
    assert made == 3
    await answers.get("a", make)
    assert made == 4


async def test_an_answer_that_changed_meanwhile_is_not_kept() -> None:
    answers = EncodedAnswers(limit=100)

    async def make() -> tuple[bytes, bool]:
        return bytes(10), False

    await answers.get("a", make)
    assert answers.held == 0


def test_elements_are_counted_as_far_as_needed() -> None:
    topics = [
        MetadataResponseTopic(partitions=[MetadataResponsePartition(partition_index=0, replica_nodes=[1, 2])])
        for _ in range(10)
    ]
    response = MetadataResponse(topics=topics)
    assert _elements(response, 1000) == 10 + 10 + 20
    assert _elements(response, 15) >= 15


def test_a_long_request_is_answered_and_others_meanwhile(start_broker: StartBroker) -> None:
    """More elements than are decoded at once; the answer of another connection does not wait for it."""
    broker: EmbeddedBroker = start_broker()
    many = ListOffsetsTopic(
        name="none",
        partitions=[ListOffsetsPartition(partition_index=index, timestamp=-1) for index in range(40_000)],
    )
    with connect(broker.bootstrap) as long, connect(broker.bootstrap) as short:
        long.sendall(
            encode_request(ApiKey.LIST_OFFSETS, 5, 7, "test", ListOffsetsRequest(replica_id=-1, topics=[many]))
        )
        for _ in range(5):
            assert ask(short, ApiKey.API_VERSIONS, 0, ApiVersionsRequest()).error_code == ErrorCode.NONE
        found = answer(long, ApiKey.LIST_OFFSETS, 5)
        assert [each.partition_index for each in found.topics[0].partitions] == list(range(40_000))


def test_a_produce_request_of_many_partitions_is_answered(start_broker: StartBroker) -> None:
    broker: EmbeddedBroker = start_broker()
    data = [PartitionProduceData(index=index, records=b"") for index in range(2 * LONG_ELEMENTS)]
    request = ProduceRequest(acks=1, timeout_ms=1000, topic_data=[TopicProduceData(name="none", partition_data=data)])
    with connect(broker.bootstrap) as connection:
        found = ask(connection, ApiKey.PRODUCE, 8, request)
    codes = {each.error_code for each in found.responses[0].partition_responses}
    assert len(found.responses[0].partition_responses) == 2 * LONG_ELEMENTS
    assert codes == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


def test_too_many_elements_close_the_connection(start_broker: StartBroker) -> None:
    broker: EmbeddedBroker = start_broker()
    topics = [MetadataRequestTopic(name="none")] * (MAX_REQUEST_ELEMENTS + 1)
    with connect(broker.bootstrap) as connection:
        connection.sendall(encode_request(ApiKey.METADATA, 9, 7, "test", MetadataRequest(topics=topics)))
        assert connection.recv(1) == b""
    assert "more elements than one message may have" in broker.log_text


def test_the_answer_for_all_topics_is_that_of_the_cluster_as_it_is(start_broker: StartBroker) -> None:
    """A cluster large enough for the answer to be kept: asked twice, and again when a topic came."""
    broker: EmbeddedBroker = start_broker()

    def create(connection: object, name: str, partitions: int) -> None:
        topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=1, assignments=[], configs=[])
        made = ask(connection, ApiKey.CREATE_TOPICS, 5, CreateTopicsRequest(topics=[topic], timeout_ms=20_000))  # type: ignore[arg-type]
        assert made.topics[0].error_code == ErrorCode.NONE

    with connect(broker.bootstrap) as connection:
        create(connection, "many", PARTITIONS)
        for version in (1, 9, 12):
            first = ask(connection, ApiKey.METADATA, version, MetadataRequest(topics=None))
            again = ask(connection, ApiKey.METADATA, version, MetadataRequest(topics=None))
            assert first == again
            assert [len(topic.partitions) for topic in first.topics] == [PARTITIONS]
            named = ask(
                connection, ApiKey.METADATA, version, MetadataRequest(topics=[MetadataRequestTopic(name="many")])
            )
            assert named.topics == first.topics
            assert named.brokers == first.brokers
        create(connection, "one-more", 1)
        after = ask(connection, ApiKey.METADATA, 12, MetadataRequest(topics=None))
        assert [topic.name for topic in after.topics] == ["many", "one-more"]


async def test_a_crowd_that_asks_for_all_topics_costs_one_answer_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    image, encoded, turns = Image(), 0, 0
    endpoint = Endpoint(listener="PLAINTEXT", host="127.0.0.1", port=9092)
    one = BrokerId(1)
    image.replay(
        BrokerRegistered(
            broker_id=one,
            broker_epoch=1,
            incarnation_id=bytes(16),
            endpoints=(endpoint,),
            rack=None,
            fenced=False,
            registered_ms=Millis(0),
        )
    )
    topics = 3 * UNITS_PER_ITERATION // 4
    for number in range(topics):
        topic_id = TopicId(number.to_bytes(16, "big"))
        image.replay(TopicCreated(name=f"topic-{number}", topic_id=topic_id, created_ms=Millis(0)))
        image.replay(
            PartitionCreated(
                topic=f"topic-{number}", topic_id=topic_id, partition=0, replicas=(one,), isr=(one,), leader=one
            )
        )

    def counted(message: object, version: int) -> bytes:
        nonlocal encoded
        encoded += 1
        return encode(message, version)

    monkeypatch.setattr("kraftpy.broker.handlers.metadata.encode", counted)
    broker = SimpleNamespace(
        image=image, controller_id=1, node_id=1, slices=Slices(), metadata_answers=EncodedAnswers(1 << 24)
    )
    context = RequestContext(
        api_key=ApiKey.METADATA, api_version=12, client_id="", client_host="", listener="PLAINTEXT"
    )
    asking = [
        asyncio.ensure_future(metadata(cast("Broker", broker), MetadataRequest(topics=None), context))
        for _ in range(30)
    ]
    while not all(each.done() for each in asking):
        turns += 1
        await asyncio.sleep(0)
    found = {await each for each in asking}
    assert encoded == 1
    assert turns >= 4 * topics // UNITS_PER_ITERATION, "others had their turn"
    (only,) = found
    assert isinstance(only, Encoded)
    assert len(decode(MetadataResponse, only.body, 12).topics) == topics


@pytest.fixture
def _frozen_again() -> Iterator[None]:
    """Leave frozen what the other tests have frozen: no collection looks at it while this test thaws it."""
    gc.disable()
    yield
    gc.freeze()
    gc.enable()


@pytest.mark.usefixtures("_frozen_again")
def test_a_full_collection_that_takes_long_sets_aside_what_there_is() -> None:
    usual = gc.get_threshold()
    collections = Collections()
    try:
        assert gc.get_threshold() != usual, "nearly none while the node starts"
        collections.started()
        assert gc.get_threshold() == usual
        frozen = gc.get_freeze_count()
        assert frozen > 0
        kept = [[] for _ in range(1000)]  # type: ignore[var-annotated]
        collections.collected("start", {"generation": 2})
        collections._began_at -= 1
        collections.collected("stop", {"generation": 2})
        assert gc.get_freeze_count() >= frozen + len(kept)
    finally:
        collections.stop()
    assert gc.get_freeze_count() == 0
