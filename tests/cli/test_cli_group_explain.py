"""`kraftpy group explain`: each cause is made to happen, and is found.

The test of lost leaders has its own cluster, whose nodes it kills.
"""

from __future__ import annotations

import json
import re
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from broker_wire import ask, connect
from click.testing import CliRunner

from kraftpy.cli import cli
from kraftpy.client import BlockingAdmin, BlockingProducer, NewTopic, TopicPartition
from kraftpy.client.admin.acls import AclBinding, AclOperation, AclPattern, AclPermission, AclResource
from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.frames import encode_request
from kraftpy.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from kraftpy.protocol.messages.consumer_group_heartbeat import ConsumerGroupTopicPartitions as Owned
from kraftpy.protocol.messages.find_coordinator import FindCoordinatorRequest
from kraftpy.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from kraftpy.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from kraftpy.testing import Cluster
from kraftpy.testing.cluster import EmbeddedBroker

BOUND_SECONDS = 30.0
SETTINGS = {
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
    "group.consumer.heartbeat.interval.ms": "5000",
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}
Explain = Callable[..., list[dict[str, Any]]]


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(settings=SETTINGS) as made:
        with connect(made.bootstrap) as connection:
            _until(lambda: _coordinates(connection))
        yield made
        assert "Traceback" not in made.log_text


def _coordinates(connection: socket.socket) -> bool:
    """Whether the broker coordinates groups, once it was asked who does."""
    wanted = FindCoordinatorRequest(key_type=0, coordinator_keys=["any"])
    (found,) = ask(connection, ApiKey.FIND_COORDINATOR, 4, wanted).coordinators
    is_ready: bool = found.error_code == ErrorCode.NONE
    return is_ready


def explained(bootstrap: str, group: str, *options: object, status: int | None = 1) -> list[dict[str, Any]]:
    """The rows that the command prints; `status` None: with whatever exit status they have."""
    arguments = ["group", "explain", group, "--format", "json", "--watch", "1", *map(str, options)]
    result = CliRunner().invoke(cli, arguments, env={"KRAFTPY_BOOTSTRAP_SERVERS": bootstrap})
    has_stopped = any(json.loads(line)["stops"] for line in result.stdout.splitlines())
    expected = int(has_stopped) if status is None else status
    assert result.exit_code == expected, (result.output, result.exception)
    return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.fixture
def explain(broker: EmbeddedBroker) -> Explain:
    def explain(group: str, *options: object, status: int | None = 1) -> list[dict[str, Any]]:
        return explained(broker.bootstrap, group, *options, status=status)

    return explain


@pytest.fixture
def admin(broker: EmbeddedBroker) -> Iterator[BlockingAdmin]:
    with BlockingAdmin(bootstrap_servers=broker.bootstrap) as made:
        yield made


@pytest.fixture
def topic(admin: BlockingAdmin) -> str:
    return _topic(admin, 1)


def _topic(admin: BlockingAdmin, partitions: int) -> str:
    name = f"t-{secrets.token_hex(4)}"
    admin.create_topics([NewTopic(name=name, num_partitions=partitions)])
    return name


def _produce(bootstrap: str, topic: str, count: int, partition: int = 0) -> None:
    with BlockingProducer(bootstrap_servers=bootstrap) as producer:
        for _ in range(count):
            producer.send(topic, b"value", partition=partition)
        producer.flush()


def _consumer(bootstrap: str, group: str, topic: str, **options: object) -> confluent_kafka.Consumer:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "client.id": "reader",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            **{name.replace("_", "."): value for name, value in options.items()},
        }
    )
    consumer.subscribe([topic])
    return consumer


@contextmanager
def _reading(*consumers: confluent_kafka.Consumer) -> Iterator[None]:
    """Poll these consumers in a thread; begin when all of them together own something."""
    end = threading.Event()
    ready = threading.Event()

    def poll() -> None:
        while not end.is_set():
            for consumer in consumers:
                consumer.poll(0.05)
            if any(consumer.assignment() for consumer in consumers):
                ready.set()
        for consumer in consumers:
            consumer.close()

    thread = threading.Thread(target=poll)
    thread.start()
    try:
        assert ready.wait(BOUND_SECONDS)
        yield
    finally:
        end.set()
        thread.join(BOUND_SECONDS)


def test_a_group_that_does_not_exist(explain: Explain) -> None:
    (row,) = explain("nobody")
    assert row["cause"] == "no-such-group"
    assert row["stops"] is True


def test_nothing_holds_a_group_that_has_read_all(
    explain: Explain, admin: BlockingAdmin, broker: EmbeddedBroker, topic: str
) -> None:
    _produce(broker.bootstrap, topic, 3)
    admin.alter_group_offsets("done", {TopicPartition(topic, 0): 3})
    assert explain("done", status=0) == []


def test_no_members(explain: Explain, admin: BlockingAdmin, broker: EmbeddedBroker, topic: str) -> None:
    _produce(broker.bootstrap, topic, 3)
    admin.alter_group_offsets("alone", {TopicPartition(topic, 0): 1})
    (row,) = explain("alone")
    assert row["cause"] == "no-members"
    assert "2 offsets to be read" in row["explanation"]


def test_only_markers_are_left(explain: Explain, admin: BlockingAdmin, broker: EmbeddedBroker, topic: str) -> None:
    with BlockingProducer(bootstrap_servers=broker.bootstrap, transactional_id="m") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"value")
        producer.commit_transaction()
    admin.alter_group_offsets("before-markers", {TopicPartition(topic, 0): 1})
    assert explain("before-markers", status=0) == []


def test_retention_has_overtaken_the_group(
    explain: Explain, admin: BlockingAdmin, broker: EmbeddedBroker, topic: str
) -> None:
    _produce(broker.bootstrap, topic, 9)
    admin.alter_group_offsets("late", {TopicPartition(topic, 0): 2})
    admin.delete_records({TopicPartition(topic, 0): 7})
    row = explain("late")[0]
    assert row["cause"] == "offset-behind-retention"
    assert row["partition"] == f"{topic}-0"
    assert row["details"] == {"committed": 2, "first": 7, "end": 9}
    assert "5 offsets were deleted" in row["explanation"]


def test_the_offset_is_beyond_the_end(explain: Explain, admin: BlockingAdmin, topic: str) -> None:
    admin.alter_group_offsets("ahead", {TopicPartition(topic, 0): 10})
    (row,) = explain("ahead")
    assert row["cause"] == "offset-beyond-end"


def test_a_topic_is_gone(explain: Explain, admin: BlockingAdmin, topic: str) -> None:
    admin.alter_group_offsets("reads-more", {TopicPartition(topic, 0): 0})
    (row,) = explain("reads-more", "--topic", "no-such-topic", status=0)
    assert (row["cause"], row["stops"]) == ("topic-is-gone", False)


def test_an_open_transaction_holds_readers(
    explain: Explain, admin: BlockingAdmin, broker: EmbeddedBroker, topic: str
) -> None:
    _produce(broker.bootstrap, topic, 2)
    with BlockingProducer(bootstrap_servers=broker.bootstrap, transactional_id="open") as producer:
        producer.init_transactions()
        before_ms = _now_ms()
        producer.begin_transaction()
        producer.send(topic, b"uncommitted", timestamp_ms=before_ms - 3_600_000)  # since when is not the record's time
        producer.flush()
        after_ms = _now_ms()
        admin.alter_group_offsets("held", {TopicPartition(topic, 0): 2})
        held = [row for row in explain("held") if row["cause"] == "open-transaction"]
        admin.alter_group_offsets("not-there", {TopicPartition(topic, 0): 0})
        coming = [row for row in explain("not-there") if row["cause"] == "open-transaction"]
        producer.abort_transaction()
    assert [(row["stops"], row["partition"]) for row in held + coming] == [(True, f"{topic}-0"), (False, f"{topic}-0")]
    assert held[0]["details"]["transactional_id"] == "open"
    assert held[0]["details"]["start_offset"] == 2
    assert "transactional id open, producer " in held[0]["explanation"]
    for row in held + coming:
        assert before_ms <= row["details"]["since_ms"] <= after_ms
        said = re.search(r"open from offset 2 since (\S+), ", row["explanation"])
        assert said is not None, row
        assert datetime.fromisoformat(said[1]).timestamp() == row["details"]["since_ms"] // 1000


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def test_a_member_that_does_not_advance(explain: Explain, broker: EmbeddedBroker, topic: str) -> None:
    _produce(broker.bootstrap, topic, 5)
    with _reading(_consumer(broker.bootstrap, "stuck", topic)):
        (row,) = explain("stuck")
    assert row["cause"] == "member-does-not-advance"
    assert row["partition"] == f"{topic}-0"
    assert row["member"].startswith("reader-")
    assert "polls too rarely" in row["explanation"]


def test_a_member_that_stands_still_at_one_partition(
    explain: Explain, admin: BlockingAdmin, broker: EmbeddedBroker
) -> None:
    """It cannot process the next record of one partition, waits there, and goes on with the other."""
    name = _topic(admin, 2)
    for partition in (0, 1):
        _produce(broker.bootstrap, name, 5, partition)
    end, ready = threading.Event(), threading.Event()

    def read() -> None:
        consumer = _consumer(broker.bootstrap, "picky", name)
        while not end.is_set():
            message = consumer.poll(0.05)
            if message is None or message.error() is not None:
                continue
            place = confluent_kafka.TopicPartition(name, message.partition(), message.offset())
            if message.partition() == 0:
                consumer.seek(place)
                consumer.pause([place])
                continue
            _produce(broker.bootstrap, name, 1, 1)  # there is always more to read
            place.offset += 1
            consumer.commit(offsets=[place], asynchronous=False)
            ready.set()
        consumer.close()

    thread = threading.Thread(target=read)
    thread.start()
    try:
        assert ready.wait(BOUND_SECONDS)
        (row,) = explain("picky", "--watch", "3", status=0)
    finally:
        end.set()
        thread.join(BOUND_SECONDS)
    assert (row["cause"], row["stops"]) == ("partition-does-not-advance", False)
    assert row["partition"] == f"{name}-0"
    assert row["member"].startswith("reader-")
    assert row["details"]["partitions"] == [f"{name}-0"]
    assert row["details"]["lag"] == 5
    assert f"though it does read {name}-1: it is busy with those" in row["explanation"]


def test_a_member_that_exceeds_its_poll_interval(
    explain: Explain, admin: BlockingAdmin, broker: EmbeddedBroker, topic: str
) -> None:
    """While it is a member, it does not advance; when max.poll.interval.ms has ended its membership, there is none."""
    _produce(broker.bootstrap, topic, 5)
    consumer = _consumer(broker.bootstrap, "slow-poller", topic, session_timeout_ms=8_000, max_poll_interval_ms=8_000)
    try:
        _until(lambda: consumer.poll(0.1) is not None)  # it has a record to process, and never comes back
        (row,) = explain("slow-poller")
        assert row["cause"] == "member-does-not-advance"
        assert "polls too rarely (max.poll.interval.ms will end its membership)" in row["explanation"]
        _until(lambda: admin.describe_groups(["slow-poller"])["slow-poller"].state == "Empty")
        (row,) = explain("slow-poller")
        assert row["cause"] == "no-members"
        assert "no consumer with group.id=slow-poller runs" in row["explanation"]
        error = consumer.poll(BOUND_SECONDS).error()
        assert error is not None
        assert error.code() == confluent_kafka.KafkaError._MAX_POLL_EXCEEDED
    finally:
        consumer.close()


def test_a_rebalance_loop_of_a_member_that_exceeds_its_poll_interval(
    explain: Explain, admin: BlockingAdmin, broker: EmbeddedBroker
) -> None:
    """It leaves whenever it takes too long for what it read, and comes back with its next poll."""
    name = _topic(admin, 2)
    end = threading.Event()

    def poll_rarely() -> None:
        options = {"session_timeout_ms": 2_000, "max_poll_interval_ms": 2_000, "heartbeat_interval_ms": 500}
        consumer = _consumer(broker.bootstrap, "looping", name, client_id="rare", **options)
        with BlockingAdmin(bootstrap_servers=broker.bootstrap) as own:

            def is_member() -> bool:
                members = own.describe_groups(["looping"])["looping"].members
                return end.is_set() or any(member.client_id == "rare" for member in members)

            while not end.is_set():
                while not (consumer.assignment() or end.is_set()):
                    consumer.poll(0.05)
                _until(lambda: not is_member() or end.is_set())  # without a poll
                consumer.poll(0)  # tells that it is no member any more
        consumer.close()

    with _reading(_consumer(broker.bootstrap, "looping", name)):
        thread = threading.Thread(target=poll_rarely)
        thread.start()
        try:
            found: dict[str, Any] = {}
            for watched_s in (12, 24, 40):  # on a busy machine, a round takes its time
                rows = explain("looping", "--watch", str(watched_s), status=None)
                loops = [row for row in rows if row["cause"] == "rebalance-loop"]
                found = next((row for row in loops if "rare@127.0.0.1 left and came back" in row["explanation"]), {})
                if found:
                    break
        finally:
            end.set()
            thread.join(BOUND_SECONDS)
    assert found, rows
    assert "longer than max.poll.interval.ms between two polls" in found["explanation"]
    assert found["details"]["left"]["rare@127.0.0.1"] >= 1
    assert "reader@127.0.0.1" not in found["details"]["left"]


def test_more_members_than_partitions_and_one_without_member(
    explain: Explain, admin: BlockingAdmin, broker: EmbeddedBroker, topic: str
) -> None:
    other = _topic(admin, 1)
    _produce(broker.bootstrap, other, 4)
    admin.alter_group_offsets("idle", {TopicPartition(other, 0): 1})
    with _reading(_consumer(broker.bootstrap, "idle", topic), _consumer(broker.bootstrap, "idle", topic)):
        _until(lambda: _members(admin, "idle") == 2)
        rows = explain("idle")
    assert {row["cause"]: row["stops"] for row in rows} == {
        "partition-without-member": True,
        "more-members-than-partitions": False,
    }
    assert rows[0]["partition"] == f"{other}-0"
    assert rows[1]["explanation"].startswith("1 of 2 members have nothing to read")


def _members(admin: BlockingAdmin, group: str) -> int:
    described = admin.describe_groups([group])[group]
    return len(described.members) if described.state == "Stable" else 0


def _until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + BOUND_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_rebalance_loop(explain: Explain, broker: EmbeddedBroker, topic: str) -> None:
    end = threading.Event()

    def come_and_go() -> None:
        while not end.is_set():
            consumer = _consumer(broker.bootstrap, "restless", topic)
            until = time.monotonic() + 0.3
            while time.monotonic() < until:
                consumer.poll(0.05)
            consumer.close()

    with _reading(_consumer(broker.bootstrap, "restless", topic)):
        thread = threading.Thread(target=come_and_go)
        thread.start()
        try:
            deadline = time.monotonic() + BOUND_SECONDS
            rows = explain("restless", "--watch", "5")
            while "rebalance-loop" not in {row["cause"] for row in rows} and time.monotonic() < deadline:
                rows = explain("restless", "--watch", "5")
        finally:
            end.set()
            thread.join(BOUND_SECONDS)
    row = next(row for row in rows if row["cause"] == "rebalance-loop")
    assert row["details"]["changes"] >= 2
    assert "left and came back" in row["explanation"]


PROTOCOLS = [JoinGroupRequestProtocol(name="range", metadata=bytes.fromhex("000000000000ffffffff"))]


def _join(member_id: str, group: str) -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id=group,
        session_timeout_ms=30_000,
        rebalance_timeout_ms=60_000,
        member_id=member_id,
        protocol_type="consumer",
        protocols=PROTOCOLS,
    )


def _joined(connection: socket.socket, group: str) -> str:
    needed = ask(connection, ApiKey.JOIN_GROUP, 5, _join("", group))
    assert needed.error_code == ErrorCode.MEMBER_ID_REQUIRED
    return str(needed.member_id)


def test_a_rebalance_that_waits_for_a_member(explain: Explain, broker: EmbeddedBroker) -> None:
    with connect(broker.bootstrap) as first, connect(broker.bootstrap) as second:
        name = _joined(first, "waiting")
        generation = ask(first, ApiKey.JOIN_GROUP, 5, _join(name, "waiting")).generation_id
        sync = SyncGroupRequest(
            group_id="waiting",
            generation_id=generation,
            member_id=name,
            assignments=[SyncGroupRequestAssignment(member_id=name, assignment=b"")],
        )
        assert ask(first, ApiKey.SYNC_GROUP, 3, sync).error_code == ErrorCode.NONE
        other = _joined(second, "waiting")
        second.sendall(encode_request(ApiKey.JOIN_GROUP, 5, 8, "test", _join(other, "waiting")))  # the first never does
        rows = explain("waiting")
    row = next(row for row in rows if row["cause"] == "rebalance-waits")
    assert "PreparingRebalance" in row["explanation"]
    assert "one of them does not poll" in row["explanation"]


def test_a_member_that_keeps_partitions(explain: Explain, admin: BlockingAdmin, broker: EmbeddedBroker) -> None:
    name = _topic(admin, 2)

    def beat(connection: socket.socket, member: str, epoch: int, owned: list[Owned] | None) -> Any:
        request = ConsumerGroupHeartbeatRequest(
            group_id="keeping",
            member_id=member,
            member_epoch=epoch,
            rebalance_timeout_ms=60_000,
            subscribed_topic_names=[name] if epoch == 0 else None,
            topic_partitions=owned,
        )
        answer = ask(connection, ApiKey.CONSUMER_GROUP_HEARTBEAT, 0, request)
        assert answer.error_code == ErrorCode.NONE, answer.error_message
        return answer

    with connect(broker.bootstrap) as first, connect(broker.bootstrap) as second:
        answer = beat(first, "A" * 22, 0, [])
        owned = [
            Owned(topic_id=each.topic_id, partitions=list(each.partitions))
            for each in answer.assignment.topic_partitions
        ]
        beat(first, "A" * 22, answer.member_epoch, owned)
        beat(second, "B" * 22, 0, [])
        beat(first, "A" * 22, answer.member_epoch, owned)  # it is told to give one up, and keeps it

        def is_waited_for() -> bool:
            beat(first, "A" * 22, answer.member_epoch, None)
            return admin.describe_groups(["keeping"])["keeping"].state == "Reconciling"

        _until(is_waited_for)
        rows = explain("keeping")
    row = next(row for row in rows if row["cause"] == "member-keeps-partitions")
    assert row["member"] == "A" * 22
    assert len(row["details"]["waiting"]) == 1


def test_the_lag_grows(explain: Explain, admin: BlockingAdmin, broker: EmbeddedBroker, topic: str) -> None:
    partition, end = TopicPartition(topic, 0), threading.Event()
    _produce(broker.bootstrap, topic, 100)
    admin.alter_group_offsets("slow", {partition: 0})

    def write_more_than_is_read() -> None:
        at = 0
        with BlockingAdmin(bootstrap_servers=broker.bootstrap) as own:
            while not end.is_set():
                _produce(broker.bootstrap, topic, 20)
                at += 1
                own.alter_group_offsets("slow", {partition: at})

    thread = threading.Thread(target=write_more_than_is_read)
    thread.start()
    try:
        row = next(row for row in explain("slow", "--watch", "3") if row["cause"] == "falls-behind")
    finally:
        end.set()
        thread.join(BOUND_SECONDS)
    assert row["stops"] is False
    assert row["details"]["written_per_second"] > row["details"]["read_per_second"] > 0


def test_rights_that_members_lack(explain: Explain, admin: BlockingAdmin, topic: str) -> None:
    admin.alter_group_offsets("guarded", {TopicPartition(topic, 0): 0})
    who = ("--principal", "User:app")
    rows = explain("guarded", *who)
    assert [row["details"]["resource"] for row in rows if row["cause"] == "no-right"] == [
        "group guarded",
        f"topic {topic}",
    ]
    admin.create_acls(
        [_allowing(AclResource.GROUP, "guarded", "User:app"), _allowing(AclResource.TOPIC, topic, "User:other")]
    )
    (row,) = explain("guarded", *who)
    assert "ACLs allow it to others only" in row["explanation"]
    assert explain("guarded", "--principal", "User:ANONYMOUS", status=0) == []  # a super user
    explain("guarded", "--principal", "nobody", status=2)


def _allowing(kind: AclResource, name: str, principal: str) -> AclBinding:
    return AclBinding(
        resource_type=kind,
        name=name,
        pattern_type=AclPattern.LITERAL,
        principal=principal,
        host="*",
        operation=AclOperation.READ,
        permission=AclPermission.ALLOW,
    )


def test_a_table_is_for_people(broker: EmbeddedBroker) -> None:
    arguments = ["group", "explain", "nobody", "--format", "table", "--watch", "0"]
    result = CliRunner().invoke(cli, arguments, env={"KRAFTPY_BOOTSTRAP_SERVERS": broker.bootstrap, "COLUMNS": "200"})
    assert result.exit_code == 1
    assert "no-such-group" in result.stdout
    assert "group nobody does not exist" in " ".join(result.stdout.split())


def test_leaders_that_are_gone(tmp_path: Path) -> None:
    """A partition, then the partition of __consumer_offsets that keeps the group, has no leader."""
    settings = {"offsets.topic.num.partitions": "1", "offsets.topic.replication.factor": "1"}
    with Cluster(3, directory=tmp_path / "nodes", settings=settings) as cluster:
        bootstrap = cluster.bootstrap_servers
        with BlockingAdmin(bootstrap_servers=bootstrap) as admin:
            admin.create_topics([NewTopic(name="warm", num_partitions=1)])
            admin.alter_group_offsets("g", {TopicPartition("warm", 0): 0})
            (info,) = [info for info in admin.describe_topics() if info.name == "__consumer_offsets"]
            home = info.partitions[0].leader
            away = next(node for node in (1, 2, 3) if node != home)
            admin.create_topics([NewTopic(name="away", replica_assignment={0: [away]})])
            admin.alter_group_offsets("g", {TopicPartition("away", 0): 0})
            cluster.kill(away)
            _until(lambda: admin.describe_topics(["away"])[0].partitions[0].leader < 0)
        row = next(row for row in explained(bootstrap, "g") if row["cause"] == "partition-without-leader")
        assert row["partition"] == "away-0"
        assert f"its only replica is on broker {away}, which is not alive" in row["explanation"]
        cluster.start(away)
        cluster.kill(home)
        with BlockingAdmin(bootstrap_servers=bootstrap) as admin:
            _until(lambda: admin.describe_topics(["__consumer_offsets"])[0].partitions[0].leader < 0)
        (row,) = explained(bootstrap, "g")
        assert row["cause"] == "coordinator-not-available"
        assert (
            f"__consumer_offsets-0, has no leader: its only replica is on broker {home}, which is not alive"
            in row["explanation"]
        )
