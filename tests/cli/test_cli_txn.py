"""`kraftpy txn`, and the admin client's methods behind it, against a real broker.

Hanging transactions are made as they arose before KIP-890: without verification, a batch is written to a partition that
no coordinator knows of. An open transaction that is known, or was written a moment ago, must not be taken for one.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from click.testing import CliRunner, Result

from kraftpy.cli import cli
from kraftpy.client import BlockingAdmin, BlockingProducer, ErrorCode, KafkaError, NewTopic, TopicPartition
from kraftpy.client.ranges.connection import BlockingConnection
from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kraftpy.protocol.record_batch import encode_batch
from kraftpy.testing.cluster import EmbeddedBroker

BOUND_SECONDS = 30.0
FORGOTTEN = 4711
"""A producer id that no coordinator knows."""
LONG_AGO = time.time_ns() // 1_000_000 - 3_600_000
SETTINGS = {
    "transaction.partition.verification.enable": "false",
    "transaction.state.log.num.partitions": "4",
    "offsets.topic.num.partitions": "4",
}
Run = Callable[..., Result]


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(settings=SETTINGS) as made:
        yield made
        assert "Traceback" not in made.log_text


@pytest.fixture
def run(broker: EmbeddedBroker) -> Run:
    def run(*arguments: object, status: int = 0) -> Result:
        environment = {"KRAFTPY_BOOTSTRAP_SERVERS": broker.bootstrap}
        result = CliRunner().invoke(cli, ["txn", *(str(argument) for argument in arguments)], env=environment)
        assert result.exit_code == status, (result.output, result.exception)
        assert "Traceback" not in result.output
        return result

    return run


@pytest.fixture
def topic(broker: EmbeddedBroker) -> str:
    name = f"t-{secrets.token_hex(4)}"
    with BlockingAdmin(bootstrap_servers=broker.bootstrap) as admin:
        admin.create_topics([NewTopic(name=name, num_partitions=2)])
    return name


@pytest.fixture
def ongoing(broker: EmbeddedBroker, topic: str) -> Iterator[str]:
    """A transactional id with a transaction open in partition 1, which its coordinator knows."""
    transactional_id = f"id-{secrets.token_hex(4)}"
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": transactional_id})
    producer.init_transactions(BOUND_SECONDS)
    producer.begin_transaction()
    producer.produce(topic, b"open", partition=1, timestamp=LONG_AGO)
    assert producer.flush(BOUND_SECONDS) == 0
    yield transactional_id
    producer.abort_transaction(BOUND_SECONDS)


def leave_hanging(
    broker: EmbeddedBroker, topic: str, *, timestamp: int = LONG_AGO, producer_id: int = FORGOTTEN
) -> int:
    """A batch of a transaction in partition 0 that no coordinator knows of; its offset."""
    batch = encode_batch(
        [(timestamp, None, b"hangs", ())],
        producer_id=producer_id,
        producer_epoch=3,
        base_sequence=0,
        is_transactional=True,
    )
    data = PartitionProduceData(index=0, records=batch)
    request = ProduceRequest(
        transactional_id="forgotten",
        acks=-1,
        timeout_ms=5000,
        topic_data=[TopicProduceData(name=topic, partition_data=[data])],
    )
    host, _, port = broker.bootstrap.rpartition(":")
    connection = BlockingConnection(
        host, int(port), client_id="test", request_timeout_ms=30_000, setup_timeout_ms=30_000
    )
    try:
        answered = connection.request(ApiKey.PRODUCE, request, high=11).responses[0].partition_responses[0]
    finally:
        connection.close()
    assert answered.error_code == ErrorCode.NONE
    return int(answered.base_offset)


def rows(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def committed(broker: EmbeddedBroker, topic: str) -> list[bytes]:
    result = CliRunner().invoke(
        cli,
        ["consume", topic, "--partition", "0", "--read-committed", "--json"],
        env={"KRAFTPY_BOOTSTRAP_SERVERS": broker.bootstrap},
    )
    assert result.exit_code == 0, result.output
    return [json.loads(line)["value"].encode() for line in result.stdout.splitlines()]


def test_ids_are_listed_and_described(run: Run, topic: str, ongoing: str) -> None:
    assert ongoing in run("list").stdout.splitlines()
    (listed,) = rows(run("list", "--transactional-id-pattern", f"{ongoing}", "--format", "json"))
    assert listed == {
        "transactional_id": ongoing,
        "coordinator": 1,
        "producer_id": listed["producer_id"],
        "state": "Ongoing",
    }
    assert run("list", "--state", "Ongoing", "--producer-id", listed["producer_id"]).stdout.split() == [ongoing]
    assert ongoing not in run("list", "--duration-filter", "3600000", "--state", "Ongoing").stdout
    assert ongoing not in run("list", "--state", "Empty").stdout.split()
    assert "Lost" in run("list", "--state", "Lost", status=1).stderr
    assert "regular expression" in run("list", "--transactional-id-pattern", "(", status=1).stderr
    (described,) = rows(run("describe", ongoing))
    assert described["partitions"] == [f"{topic}-1"]
    assert {key: described[key] for key in ("state", "producer_id", "producer_epoch", "timeout_ms")} == {
        "state": "Ongoing",
        "producer_id": listed["producer_id"],
        "producer_epoch": 0,
        "timeout_ms": 60_000,
    }
    assert described["duration_ms"] >= 0
    assert "'nobody'" in run("describe", "nobody", status=1).stderr


def test_what_hangs_is_found_and_ended(broker: EmbeddedBroker, run: Run, topic: str, ongoing: str) -> None:
    assert rows(run("find-hanging", topic)) == []
    start_offset = leave_hanging(broker, topic)
    with BlockingProducer(bootstrap_servers=broker.bootstrap) as producer:
        producer.send(topic, b"behind it", partition=0)
    assert committed(broker, topic) == []

    def hanging(*options: Any) -> list[dict[str, Any]]:
        """The hanging transactions found, without their minutes: the next minute may begin between two calls."""
        told = rows(run("find-hanging", *options))
        assert all(each.pop("minutes") >= 60 for each in told)
        return told

    (found,) = hanging(topic)
    assert found == {
        "topic": topic,
        "partition": 0,
        "producer_id": FORGOTTEN,
        "producer_epoch": 3,
        "coordinator_epoch": -1,
        "start_offset": start_offset,
        "last_timestamp": found["last_timestamp"],
    }
    assert hanging() == [found], "of all topics"
    assert hanging("--broker", 1) == [found]
    assert rows(run("find-hanging", "--broker", 2)) == []
    assert rows(run("find-hanging", f"{topic}:1")) == [], "open for long, and known to its coordinator"
    assert rows(run("find-hanging", topic, "--max-transaction-timeout", "100")) == []
    ended = run("abort", f"{topic}:0", "--start-offset", start_offset).stdout
    assert f"producer {FORGOTTEN}, epoch 3, in {topic}-0" in ended
    assert rows(run("find-hanging", topic)) == []
    assert committed(broker, topic) == [b"behind it"]
    assert ongoing in run("list", "--state", "Ongoing").stdout.split(), "the other one goes on"


def test_one_that_was_written_to_a_moment_ago_may_go_on(broker: EmbeddedBroker, run: Run, topic: str) -> None:
    leave_hanging(broker, topic, timestamp=time.time_ns() // 1_000_000, producer_id=FORGOTTEN + 1)
    assert rows(run("find-hanging", topic)) == []
    (found,) = rows(run("find-hanging", topic, "--max-transaction-timeout", "0"))
    assert found["producer_id"] == FORGOTTEN + 1
    run("abort", f"{topic}:0", "--producer-id", FORGOTTEN + 1, "--producer-epoch", 3)
    assert rows(run("find-hanging", topic, "--max-transaction-timeout", "0")) == []


def test_abort_wants_to_know_which(run: Run, topic: str) -> None:
    for arguments, said in (
        ((f"{topic}:0",), "--start-offset"),
        ((f"{topic}:0", "--producer-id", 1), "--producer-epoch"),
        ((f"{topic}:0", "--start-offset", 1, "--producer-id", 1, "--producer-epoch", 0), "--start-offset"),
        ((topic, "--start-offset", 1), "is not TOPIC:PARTITION"),
        ((f"{topic}:0,1", "--start-offset", 1), "is not TOPIC:PARTITION"),
    ):
        assert said in run("abort", *arguments, status=2).stderr
    assert "no transaction is open" in run("abort", f"{topic}:0", "--start-offset", 5, status=1).stderr


def test_an_older_epoch_ends_nothing(broker: EmbeddedBroker, topic: str) -> None:
    leave_hanging(broker, topic, producer_id=FORGOTTEN + 2)
    partition = TopicPartition(topic, 0)
    with BlockingAdmin(bootstrap_servers=broker.bootstrap) as admin:
        with pytest.raises(KafkaError) as refused:
            admin.abort_transaction(partition, FORGOTTEN + 2, 2)
        assert refused.value.code is ErrorCode.INVALID_PRODUCER_EPOCH
        (known,) = admin.describe_producers([partition])[partition]
        assert known.current_transaction_start_offset >= 0
        admin.abort_transaction(partition, FORGOTTEN + 2, 3)


def test_files_of_transactions_are_dumped(tmp_path: Path) -> None:
    settings = {"transaction.state.log.num.partitions": "1"}
    with EmbeddedBroker(tmp_path / "broker", settings=settings) as broker:
        producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "dumped"})
        producer.init_transactions(BOUND_SECONDS)
        producer.begin_transaction()
        producer.produce("t", b"aborted", partition=0)
        producer.flush()
        producer.abort_transaction(BOUND_SECONDS)
        with BlockingAdmin(bootstrap_servers=broker.bootstrap) as admin:
            deadline = time.monotonic() + BOUND_SECONDS
            while admin.describe_transactions(["dumped"])[0].state != "CompleteAbort":
                assert time.monotonic() < deadline
        broker.stop()
        partition = tmp_path / "broker" / "logs" / "t-0"
        dumped = CliRunner().invoke(cli, ["log", "dump", str(partition / "00000000000000000000.txnindex")])
        assert rows(dumped) == [
            {"kind": "aborted", "producer_id": 0, "first_offset": 0, "marker_offset": 1, "last_stable_offset": 2}
        ]
        states = tmp_path / "broker" / "logs" / "__transaction_state-0" / "00000000000000000000.log"
        dumped = CliRunner().invoke(cli, ["log", "dump", str(states), "--records"])
        found = [row for row in rows(dumped) if row["kind"] == "transaction"]
        assert [row["state"] for row in found] == ["Empty", "Ongoing", "PrepareAbort", "CompleteAbort"]
        assert {row["transactional_id"] for row in found} == {"dumped"}
        assert found[1]["partitions"] == ["t-0"]
        verified = CliRunner().invoke(cli, ["log", "verify", str(partition)])
        assert verified.exit_code == 0, verified.output
        index = partition / "00000000000000000000.txnindex"
        index.write_bytes(index.read_bytes()[:9] + b"\7" + index.read_bytes()[10:])
        verified = CliRunner().invoke(cli, ["log", "verify", str(partition)])
        assert verified.exit_code == 1
        assert "no marker of producer 7 at offset 1" in verified.output
