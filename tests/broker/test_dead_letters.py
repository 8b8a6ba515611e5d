"""Dead letter queues of share groups over the wire (KIP-1191): their records, and the topics that may be one."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from broker_wire import (
    BOUND_SECONDS,
    StartBroker,
    ask,
    connect,
    create_topic,
    fetch_request,
    produce,
    produce_values,
    say_to_be_a_broker,
)
from share_wire import ACCEPT, REJECT, RELEASE, Member, begin, set_group

from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.compression import Compression
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages import incremental_alter_configs as altering
from kraftpy.protocol.messages import write_share_group_state as write
from kraftpy.protocol.messages.metadata import MetadataRequest
from kraftpy.protocol.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from kraftpy.protocol.record_batch import encode_batch, iter_records, split_batches
from kraftpy.protocol.records import Record
from kraftpy.testing.cluster import EmbeddedBroker

REJECTED = "Offset rejected by client."
TOO_OFTEN = "Offset delivery count exceeded the threshold."


@pytest.fixture(autouse=True)
def _members_are_gone_afterwards() -> Iterator[None]:
    yield
    while Member.there:
        Member.there.pop().vanish()


class Letters:
    """A topic of two partitions, a group that reads it, and the group's dead letter queue."""

    def __init__(self, server: EmbeddedBroker, *, queue: str = "", **group_settings: str) -> None:
        self.server = server
        self.topic = f"share-{time.time_ns()}"
        self.group = f"group-{self.topic}"
        self.queue = queue or f"dlq.{self.topic}"
        with connect(server.bootstrap) as connection:
            self.topic_id = create_topic(connection, self.topic, 2)
            for partition in range(2):
                begin(connection, self.group, self.topic_id, partition, data=server.data_dir / "logs")
            set_group(connection, self.group, **{"errors_deadletterqueue_topic_name": self.queue, **group_settings})

    def make_queue(self, partitions: int = 1, **configs: str) -> None:
        with connect(self.server.bootstrap) as connection:
            configs = {"errors_deadletterqueue_group_enable": "true", **configs}
            create_topic(connection, self.queue, partitions, **configs)

    def produce(self, count: int, partition: int = 0) -> None:
        with connect(self.server.bootstrap) as connection:
            values = (b"value %d" % number for number in range(count))
            produce_values(connection, self.topic, *values, partition=partition)

    def member(self, partition: int = 0) -> Member:
        return Member(self.server.bootstrap, self.group, self.topic_id, partition)

    def read(self, count: int, partition: int = 0) -> list[Record]:
        """Wait for `count` dead letters, and return them."""
        found = self.read_at_least(count, partition)
        assert len(found) == count, found
        return found

    def read_at_least(self, count: int, partition: int = 0) -> list[Record]:
        deadline = time.monotonic() + BOUND_SECONDS
        while True:
            with connect(self.server.bootstrap) as connection:
                request = fetch_request(self.queue, 0, partition=partition, max_wait_ms=100)
                part = ask(connection, ApiKey.FETCH, 12, request).responses[0].partitions[0]
            found = [record for _, batch in split_batches(part.records or b"") for record in iter_records(batch)]
            if len(found) >= count:
                return found
            assert time.monotonic() < deadline, (found, self.server.log_text)

    def until_logged(self, text: str) -> None:
        deadline = time.monotonic() + BOUND_SECONDS
        while text not in self.server.log_text:
            assert time.monotonic() < deadline, self.server.log_text
            time.sleep(0.02)

    def headers(self, offset: int, count: int, cause: str, partition: int = 0) -> dict[str, str]:
        return {
            "__dlq.errors.topic": self.topic,
            "__dlq.errors.partition": str(partition),
            "__dlq.errors.offset": str(offset),
            "__dlq.errors.group": self.group,
            "__dlq.errors.delivery.count": str(count),
            "__dlq.errors.message": cause,
        }


def told(record: Record) -> dict[str, str]:
    """The headers, in order."""
    return {name: (value or b"").decode() for name, value in record.headers}


def test_rejected_records_come_to_the_queue(kraftpy_server: EmbeddedBroker) -> None:
    letters = Letters(kraftpy_server)
    letters.make_queue()
    letters.produce(4)
    member = letters.member()
    member.take(4)
    assert member.acknowledge([(0, 3, [REJECT, ACCEPT, REJECT, REJECT])]) == ErrorCode.NONE
    found = letters.read(3)
    assert [told(record) for record in found] == [letters.headers(offset, 1, REJECTED) for offset in (0, 2, 3)]
    assert [list(told(record)) for record in found] == [list(letters.headers(0, 1, REJECTED))] * 3
    assert all(record.key is None and record.value is None for record in found)
    letters.produce(1)
    assert member.take(1) == [(4, 1)], "the group goes on"


def test_records_that_are_delivered_too_often_do_too(kraftpy_server: EmbeddedBroker) -> None:
    letters = Letters(kraftpy_server, share_delivery_count_limit="2")
    letters.make_queue()
    letters.produce(1)
    member = letters.member()
    for count in (1, 2):
        assert member.take(1) == [(0, count)]
        assert member.acknowledge([(0, 0, [RELEASE])]) == ErrorCode.NONE
    (record,) = letters.read(1)
    assert told(record) == letters.headers(0, 2, TOO_OFTEN)


@pytest.mark.parametrize("codec", [Compression.NONE, Compression.GZIP, Compression.ZSTD])
def test_keys_and_values_are_copied_if_the_group_says_so(kraftpy_server: EmbeddedBroker, codec: Compression) -> None:
    letters = Letters(kraftpy_server, errors_deadletterqueue_copy_record_enable="true")
    letters.make_queue(2, compression_type="lz4")
    with connect(kraftpy_server.bootstrap) as connection:
        records: list[Any] = [
            (1, b"key", b"value", (("own", b"header"),)),
            (2, None, bytes(100_000), ()),
            (3, b"tombstone", None, ()),
        ]
        batch = encode_batch(records, compression=codec)
        assert produce(connection, letters.topic, batch, partition=1).error_code == ErrorCode.NONE
    member = letters.member(1)
    member.take(3, partition=1)
    assert member.acknowledge([(0, 2, [REJECT])], partition=1) == ErrorCode.NONE
    found = letters.read(3, partition=1)
    assert [(record.key, record.value) for record in found] == [(key, value) for _, key, value, _ in records]
    assert [told(record) for record in found] == [letters.headers(offset, 1, REJECTED, 1) for offset in range(3)]


def test_what_is_too_large_to_be_copied_is_told_without(kraftpy_server: EmbeddedBroker) -> None:
    """Batches are no larger than the queue allows, however many records there are."""
    letters = Letters(kraftpy_server, errors_deadletterqueue_copy_record_enable="true")
    letters.make_queue(max_message_bytes="2000")
    values = [b"small", bytes(1900), bytes(1000), bytes(1000), bytes(5000), b"small again"]
    with connect(kraftpy_server.bootstrap) as connection:
        for value in values:
            produce_values(connection, letters.topic, value)
    member = letters.member()
    member.take(len(values))
    assert member.acknowledge([(0, len(values) - 1, [REJECT])]) == ErrorCode.NONE
    found = letters.read(len(values))
    assert [int(told(record)["__dlq.errors.offset"]) for record in found] == [*range(len(values))]
    assert [record.value for record in found] == [value if len(value) <= 1000 else None for value in values]


def test_the_queue_is_created_where_that_is_allowed(start_broker: StartBroker) -> None:
    server = start_broker(settings={"errors.deadletterqueue.auto.create.topics.enable": "true", "num.partitions": "3"})
    letters = Letters(server)
    letters.produce(1, partition=1)
    member = letters.member(1)
    member.take(1, partition=1)
    assert member.acknowledge([(0, 0, [REJECT])], partition=1) == ErrorCode.NONE
    (record,) = letters.read(1, partition=1)
    assert told(record) == letters.headers(0, 1, REJECTED, 1)
    with connect(server.bootstrap) as connection:
        described = ask(connection, ApiKey.METADATA, 12, MetadataRequest(topics=None))
    assert {topic.name: len(topic.partitions) for topic in described.topics}[letters.queue] == 3


@pytest.mark.parametrize("resource", ["", "1"], ids=["all brokers", "one broker"])
def test_the_rules_for_queues_change_while_the_broker_runs(start_broker: StartBroker, resource: str) -> None:
    server = start_broker()
    letters = Letters(server, queue="dead.letters")
    letters.produce(1)
    with connect(server.bootstrap) as connection:
        for name, value in (("auto.create.topics.enable", "true"), ("topic.name.prefix", "dead.")):
            setting = altering.AlterableConfig(name=f"errors.deadletterqueue.{name}", value=value, config_operation=0)
            broker = altering.AlterConfigsResource(resource_type=4, resource_name=resource, configs=[setting])
            request = altering.IncrementalAlterConfigsRequest(resources=[broker], validate_only=False)
            (answer,) = ask(connection, ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, request).responses
            assert answer.error_code == ErrorCode.NONE, answer.error_message
    member = letters.member()
    member.take(1)
    assert member.acknowledge([(0, 0, [REJECT])]) == ErrorCode.NONE
    (record,) = letters.read(1)
    assert told(record) == letters.headers(0, 1, REJECTED)


@pytest.mark.parametrize(
    ("queue", "why"),
    [
        ("dlq.nowhere", "DLQ topic does not exist and auto create is disabled on cluster for share group: {}"),
        ("dlq.closed", "DLQ is not enabled on configured DLQ topic for share group: {}"),
        ("open", "Configured DLQ topic name does not comply with the DLQ topic prefix in share group: {}"),
    ],
)
def test_a_topic_that_is_no_queue_costs_the_dead_letters_only(start_broker: StartBroker, queue: str, why: str) -> None:
    server = start_broker()
    with connect(server.bootstrap) as connection:
        create_topic(connection, "dlq.closed")
        create_topic(connection, "open", errors_deadletterqueue_group_enable="true")
    letters = Letters(server, queue=queue)
    letters.produce(2)
    member = letters.member()
    member.take(2)
    assert member.acknowledge([(0, 0, [REJECT]), (1, 1, [RELEASE])]) == ErrorCode.NONE
    letters.until_logged(why.format(letters.group))
    assert "Traceback" not in server.log_text
    assert member.take(1) == [(1, 2)]


def test_an_internal_topic_is_refused_as_a_queue(kraftpy_server: EmbeddedBroker) -> None:
    with (
        connect(kraftpy_server.bootstrap) as connection,
        pytest.raises(AssertionError, match="must not start with '__'"),
    ):
        set_group(connection, "any", errors_deadletterqueue_topic_name="__consumer_offsets")


def test_the_feature_level_decides(start_broker: StartBroker) -> None:
    """share.version 1 has no dead letter queues; at 2 they begin."""
    server = start_broker()
    letters = Letters(server)
    letters.make_queue()
    letters.produce(2)
    member = letters.member()
    member.take(2)
    set_level(server, 1, upgrade_type=2)
    assert member.acknowledge([(0, 0, [REJECT])]) == ErrorCode.NONE
    set_level(server, 2)
    assert member.acknowledge([(1, 1, [REJECT])]) == ErrorCode.NONE
    (record,) = letters.read(1)
    assert told(record) == letters.headers(1, 1, REJECTED)


def set_level(server: EmbeddedBroker, level: int, upgrade_type: int = 1) -> None:
    update = FeatureUpdateKey(feature="share.version", max_version_level=level, upgrade_type=upgrade_type)
    with connect(server.bootstrap) as connection:
        request = UpdateFeaturesRequest(timeout_ms=10_000, feature_updates=[update])
        answered = ask(connection, ApiKey.UPDATE_FEATURES, 1, request)
    assert answered.error_code == ErrorCode.NONE, answered


def test_the_next_leader_completes_what_was_given_up(kraftpy_server: EmbeddedBroker) -> None:
    """By its state, records are archiving: the broker that wrote the state ended before it wrote the dead letters."""
    letters = Letters(kraftpy_server)
    letters.make_queue()
    letters.produce(4)
    with connect(kraftpy_server.bootstrap) as connection:
        say_to_be_a_broker(connection, kraftpy_server.data_dir / "logs")
        part = write.PartitionData(
            partition=0,
            state_epoch=1,
            leader_epoch=0,
            start_offset=0,
            state_batches=[
                write.StateBatch(first_offset=0, last_offset=1, delivery_state=3, delivery_count=1),
                write.StateBatch(first_offset=2, last_offset=2, delivery_state=3, delivery_count=5),
            ],
        )
        topic = write.WriteStateData(topic_id=letters.topic_id, partitions=[part])
        request = write.WriteShareGroupStateRequest(group_id=letters.group, topics=[topic])
        answered = ask(connection, ApiKey.WRITE_SHARE_GROUP_STATE, 1, request)
        assert answered.results[0].partitions[0].error_code == ErrorCode.NONE, answered
    member = letters.member()
    assert member.take(1) == [(3, 1)]
    assert [told(record) for record in letters.read(3)] == [
        letters.headers(0, 1, REJECTED),
        letters.headers(1, 1, REJECTED),
        letters.headers(2, 5, TOO_OFTEN),
    ]


def test_a_dead_letter_is_there_after_a_kill_whenever_it_comes(start_broker: StartBroker) -> None:
    """At least once: twice if the broker was killed before it knew that the queue has it."""
    server = start_broker()
    letters = Letters(server)
    letters.make_queue()
    letters.produce(1)
    member = letters.member()
    member.take(1)
    assert member.acknowledge([(0, 0, [REJECT])]) == ErrorCode.NONE
    server.kill()
    server.start()
    letters.member().fetch()
    found = letters.read_at_least(1)
    assert len(found) <= 2
    assert all(told(record) == letters.headers(0, 1, REJECTED) for record in found)
