"""The commands against a real broker: topics, produce, consume, groups."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from click.testing import CliRunner, Result

from kraftpy.cli import cli
from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from kraftpy.protocol.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from kraftpy.protocol.messages.streams_group_heartbeat import StreamsGroupHeartbeatRequest, Subtopology, Topology
from kraftpy.testing.asking import ask
from kraftpy.testing.cluster import EmbeddedBroker

Run = Callable[..., Result]
SECONDS = 60


@pytest.fixture
def run(kraftpy_server: EmbeddedBroker) -> Run:
    """Run a command against the broker; it must succeed unless `status` says otherwise."""

    def run(*arguments: object, status: int = 0) -> Result:
        environment = {"KRAFTPY_BOOTSTRAP_SERVERS": kraftpy_server.bootstrap}
        result = CliRunner().invoke(cli, [str(argument) for argument in arguments], env=environment)
        assert result.exit_code == status, (result.output, result.exception)
        assert "Traceback" not in result.output
        return result

    return run


@pytest.fixture
def topic() -> str:
    return f"cli-{secrets.token_hex(4)}"


def rows(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def process(server: EmbeddedBroker, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "kraftpy", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "KRAFTPY_BOOTSTRAP_SERVERS": server.bootstrap},
    )


def test_a_topics_life(run: Run, topic: str) -> None:
    assert run("topic", "create", topic, "-p", 3, "-c", "retention.ms=5").stdout == f"created topic {topic}\n"
    again = run("topic", "create", topic, status=1)
    assert again.stderr.startswith("kraftpy: TOPIC_ALREADY_EXISTS: ")
    assert again.stderr.count("\n") == 1
    assert run("topic", "create", topic, "--if-not-exists").stdout == f"topic {topic} already exists\n"
    assert topic in run("topic", "list").stdout.splitlines()
    assert {"topic": topic, "partitions": 3, "replication_factor": 1, "internal": False} in rows(
        run("topic", "list", "--format", "json")
    )
    assert [
        (row["partition"], row["start_offset"], row["end_offset"]) for row in rows(run("topic", "describe", topic))
    ] == [
        (0, 0, 0),
        (1, 0, 0),
        (2, 0, 0),
    ]

    run("topic", "alter", topic, "--partitions", 4, "-c", "cleanup.policy=compact", "-d", "retention.ms")
    settings = {
        row["setting"]: (row["value"], row["source"]) for row in rows(run("topic", "describe", topic, "--configs"))
    }
    assert settings["cleanup.policy"] == ("compact", "dynamic_topic_config")
    assert settings["retention.ms"] == ("604800000", "default_config")
    assert len(rows(run("topic", "describe", topic))) == 4

    assert run("topic", "delete", topic).stdout == f"deleted topic {topic}\n"
    assert run("topic", "delete", topic, status=1).stderr.startswith("kraftpy: UNKNOWN_TOPIC_OR_PARTITION: ")
    assert run("topic", "delete", "--if-exists", topic).stdout == f"topic {topic} does not exist\n"
    assert topic not in run("topic", "list").stdout.splitlines()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("create", "x", "-c", "retention.m=1"), "did you mean retention.ms?"),
        (("create", "x y"), "INVALID_TOPIC_EXCEPTION"),
        (("describe", "cli-nowhere"), "UNKNOWN_TOPIC_OR_PARTITION"),
        (("alter", "cli-nowhere", "-p", "3"), "UNKNOWN_TOPIC_OR_PARTITION"),
    ],
)
def test_what_a_broker_refuses_is_one_line(run: Run, arguments: tuple[str, ...], complaint: str) -> None:
    refused = run("topic", *arguments, status=1)
    assert complaint in refused.stderr
    assert refused.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ("topic", "alter", "x"),
        ("topic", "create", "x", "-c", "retention.ms"),
        ("topic", "create"),
        ("consume", "x", "-B", "-E"),
        ("consume", "x", "-g", "g", "-o", "3"),
        ("consume", "x", "-g", "g", "--from-time", "1h"),
        ("consume", "x", "-g", "g", "-p", "0"),
        ("consume", "x", "--from-time", "soon"),
        ("consume", "x", "-b", "nowhere"),
        ("produce", "x", "-H", "novalue"),
        ("produce", "x", "-K", ""),
        ("group", "reset-offsets", "g", "--all-topics"),
        ("group", "reset-offsets", "g", "--to-latest"),
        ("group", "reset-offsets", "g", "--all-topics", "-t", "x", "--to-latest"),
        ("group", "reset-offsets", "g", "--all-topics", "--to-latest", "--to-earliest"),
        ("group", "reset-offsets", "g", "-t", "x:a", "--to-latest"),
    ],
)
def test_a_wrong_command_is_status_2(run: Run, arguments: tuple[str, ...]) -> None:
    assert "Error: " in run(*arguments, status=2).stderr


def test_nobody_there_is_one_line() -> None:
    result = CliRunner().invoke(cli, ["topic", "list", "-b", "127.0.0.1:1"])
    assert result.exit_code == 1
    assert result.stderr.startswith("kraftpy: cannot reach a broker at 127.0.0.1:1: connection refused")
    assert result.stderr.count("\n") == 1


def test_lines_go_in_and_records_come_out(run: Run, topic: str, tmp_path: Path) -> None:
    run("topic", "create", topic)
    (tmp_path / "a").write_bytes(b"k1:v1\nk2:v:2\r\n:\xff\nk3:NULL")
    run("produce", topic, tmp_path / "a", "-K", ":", "--null-marker", "NULL", "-H", "from=test", "-z", "lz4")
    records = rows(run("consume", topic))
    assert [(row["offset"], row["key"], row.get("value"), row.get("value_base64")) for row in records] == [
        (0, "k1", "v1", None),
        (1, "k2", "v:2", None),
        (2, "", None, "/w=="),
        (3, "k3", None, None),
    ]
    assert all(row["headers"] == [{"name": "from", "value": "test"}] for row in records)

    text = run("consume", topic, "--text", "-k", "-P", "-O", "-H", "-s", "|", "-n", 2).stdout
    assert text == f"{topic}-0|0|k1|from=test|v1\n{topic}-0|1|k2|from=test|v:2\n"
    assert [row["offset"] for row in rows(run("consume", topic, "--offset", 2))] == [2, 3]
    assert rows(run("consume", topic, "--from-end")) == []
    middle = records[0]["timestamp"]
    assert rows(run("consume", topic, "--from-time", middle)) == records
    assert rows(run("consume", topic, "--from-time", "2099-01-01")) == []
    assert run("consume", topic, "-p", 5, status=1).stderr == f"kraftpy: topic {topic} has no partition 5\n"


def test_json_goes_round_unchanged(run: Run, topic: str, tmp_path: Path) -> None:
    run("topic", "create", topic, "-p", 2)
    written = [
        {"partition": 1, "timestamp": 5, "key": "k", "value": "ü", "headers": [{"name": "a", "value": None}]},
        {"partition": 0, "timestamp": 6, "key": None, "value_base64": "//4="},
        {"partition": 1, "timestamp": 7, "key": "k", "value": None},
    ]
    (tmp_path / "in").write_text("".join(json.dumps(row) + "\n\n" for row in written))
    run("produce", topic, "--json", tmp_path / "in")
    first = run("consume", topic).stdout
    got = sorted(rows(run("consume", topic)), key=lambda row: row["timestamp"])
    for row in got:
        assert row.pop("topic") == topic
        row.pop("offset")
    assert got == written

    copy = f"{topic}-copy"
    run("topic", "create", copy, "-p", 2)
    (tmp_path / "copy").write_text(first)
    run("produce", copy, "--json", tmp_path / "copy")
    assert sorted(run("consume", copy).stdout.replace(copy, topic).splitlines()) == sorted(first.splitlines())


@pytest.mark.parametrize(
    ("content", "options", "complaint"),
    [
        ("a:b\nc\n", ("-K", ":"), "record 2: the key separator ':' is missing"),
        ("{}\n", ("--json",), "record 1: neither key nor value is given"),
        ("a\n", ("-p", "7"), "UNKNOWN_TOPIC_OR_PARTITION"),
        ("a" * 2_000_000, (), "MESSAGE_TOO_LARGE"),
    ],
)
def test_input_that_cannot_be_sent_is_named(
    run: Run, topic: str, tmp_path: Path, content: str, options: tuple[str, ...], complaint: str
) -> None:
    run("topic", "create", topic)
    (tmp_path / "in").write_text(content)
    refused = run("produce", topic, tmp_path / "in", *options, status=1)
    assert complaint in refused.stderr
    assert refused.stderr.count("\n") == 1


def test_a_topic_that_nobody_creates_is_not_waited_for_long(
    start_broker: Callable[..., EmbeddedBroker], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("kraftpy.cli.produce.TOPIC_SECONDS", 0.2)
    server = start_broker(settings={"auto.create.topics.enable": "false"})
    (tmp_path / "in").write_text("a\n")
    result = CliRunner().invoke(cli, ["produce", "nowhere", str(tmp_path / "in"), "-b", server.bootstrap])
    assert (result.exit_code, result.stderr) == (
        1,
        "kraftpy: topic nowhere does not exist, and the broker does not create it\n",
    )


def test_progress_is_shown_on_standard_error(run: Run, topic: str, tmp_path: Path) -> None:
    (tmp_path / "in").write_text("".join(f"{number}\n" for number in range(1234)))
    result = run("produce", topic, "--progress", tmp_path / "in")
    assert result.stdout == ""
    assert "1,234 records" in result.stderr
    assert len(rows(run("consume", topic))) == 1234


def test_standard_input_is_read_and_ctrl_c_ends_it(kraftpy_server: EmbeddedBroker, run: Run, topic: str) -> None:
    with process(kraftpy_server, "produce", topic) as whole:
        out, err = whole.communicate("one\ntwo", timeout=SECONDS)
    assert (whole.returncode, out, err) == (0, "", "")

    follower = process(kraftpy_server, "consume", topic, "--follow", "--from-beginning", "--text")
    broken_off = process(kraftpy_server, "produce", topic)
    assert follower.stdout is not None
    assert broken_off.stdin is not None
    with follower, broken_off:
        assert [follower.stdout.readline() for _ in range(2)] == ["one\n", "two\n"]
        broken_off.stdin.write("three\n")
        broken_off.stdin.flush()
        assert follower.stdout.readline() == "three\n"
        for one in (broken_off, follower):
            one.send_signal(signal.SIGINT)
            _, err = one.communicate(timeout=SECONDS)
            assert (one.returncode, err) == (130, "")


def test_a_reader_that_goes_away_is_no_failure(
    kraftpy_server: EmbeddedBroker, run: Run, topic: str, tmp_path: Path
) -> None:
    (tmp_path / "in").write_text("".join(f"{'x' * 500}{number}\n" for number in range(2000)))
    run("produce", topic, tmp_path / "in")
    with process(kraftpy_server, "consume", topic) as writer:
        assert writer.stdout is not None
        assert writer.stderr is not None
        assert json.loads(writer.stdout.readline())["offset"] == 0
        writer.stdout.close()
        assert writer.stderr.read() == ""
        assert writer.wait(SECONDS) == 0


def test_a_groups_life(run: Run, topic: str, tmp_path: Path) -> None:
    group = f"{topic}-readers"
    run("topic", "create", topic)
    (tmp_path / "in").write_text("".join(f"{number}\n" for number in range(10)))
    run("produce", topic, tmp_path / "in")
    assert run("group", "describe", group, status=1).stderr == f"kraftpy: group {group} does not exist\n"

    assert [row["value"] for row in rows(run("consume", topic, "-g", group, "-n", 3))] == ["0", "1", "2"]
    (row,) = rows(run("group", "describe", group))
    assert (row["committed_offset"], row["end_offset"], row["lag"], row["state"]) == (3, 10, 7, "Empty")
    assert 0 < row["lag_ms"] < 1000 * SECONDS
    assert [row["value"] for row in rows(run("consume", topic, "-g", group))] == [str(n) for n in range(3, 10)]
    assert group in run("group", "list").stdout.splitlines()
    (row,) = rows(run("group", "describe", group))
    assert (row["lag"], row["lag_ms"]) == (0, 0)
    assert rows(run("group", "describe", group, "--members")) == []

    planned = run("group", "reset-offsets", group, "-t", topic, "--shift-by", -4)
    assert [(row["committed_offset"], row["new_offset"]) for row in rows(planned)] == [(10, 6)]
    assert "nothing was changed" in planned.stderr
    assert rows(run("group", "describe", group))[0]["committed_offset"] == 10
    done = run("group", "reset-offsets", group, "--all-topics", "--to-offset", 99, "--execute")
    assert [row["new_offset"] for row in rows(done)] == [10]
    assert done.stderr == f"kraftpy: {topic}-0: moved to 10, the nearest offset its log holds\n"
    for target, offset in ((("--to-earliest",), 0), (("--to-latest",), 10), (("--to-datetime", "1h"), 0)):
        run("group", "reset-offsets", group, "-t", f"{topic}:0", *target, "--execute")
        assert rows(run("group", "describe", group))[0]["committed_offset"] == offset
    missing = run("group", "reset-offsets", group, "-t", f"{topic}:0,4", "--to-latest", status=1)
    assert missing.stderr == f"kraftpy: topic {topic} has no partition 4\n"

    assert run("group", "delete", group).stdout == f"deleted group {group}\n"
    assert run("group", "delete", group, status=1).stderr.startswith("kraftpy: GROUP_ID_NOT_FOUND: ")


def test_a_groups_lag_in_time_is_the_age_of_the_first_record_it_has_not_read(
    kraftpy_server: EmbeddedBroker, run: Run, topic: str
) -> None:
    group = f"{topic}-late"
    run("topic", "create", topic, "-p", 3)
    now = time.time_ns() // 1_000_000
    hour = 3_600_000
    producer = confluent_kafka.Producer({"bootstrap.servers": kraftpy_server.bootstrap})
    for partition, ages in enumerate(((5, 3, 1), (4, 2))):  # of the third nothing is there
        for hours in ages:
            producer.produce(topic, b"x", partition=partition, timestamp=now - hours * hour)
    assert producer.flush(SECONDS) == 0
    for partition, offset in ((0, 1), (1, 0), (2, 0)):
        run("group", "reset-offsets", group, "-t", f"{topic}:{partition}", "--to-offset", offset, "--execute")
    found = {row["partition"]: (row["lag"], row["lag_ms"]) for row in rows(run("group", "describe", group))}
    assert {partition: lag for partition, (lag, _) in found.items()} == {0: 2, 1: 2, 2: 0}
    assert 3 * hour <= found[0][1] < 3 * hour + 1000 * SECONDS
    assert 4 * hour <= found[1][1] < 4 * hour + 1000 * SECONDS
    assert found[2][1] == 0


def test_a_group_has_settings_of_its_own_before_it_is_there(run: Run, topic: str) -> None:
    group = f"{topic}-settled"
    set_to = run("group", "alter", group, "-c", "consumer.session.timeout.ms=50000")
    assert set_to.stdout == f"altered group {group}\n"
    described = {row["setting"]: row for row in rows(run("group", "describe", group, "--configs"))}
    session, interval = (described[f"consumer.{name}.ms"] for name in ("session.timeout", "heartbeat.interval"))
    assert (session["value"], session["source"]) == ("50000", "dynamic_group_config")
    assert (interval["value"], interval["source"]) == ("5000", "default_config")
    refused = run("group", "alter", group, "-c", "consumer.session.timeout.ms=1", status=1)
    assert (
        "consumer.session.timeout.ms must be greater than or equal to group.consumer.min.session.timeout.ms"
        in refused.stderr
    )
    run("group", "alter", group, "-d", "consumer.session.timeout.ms")
    described = {row["setting"]: row for row in rows(run("group", "describe", group, "--configs"))}
    assert described["consumer.session.timeout.ms"]["value"] == "45000"
    assert run("group", "alter", group, status=2).stderr.endswith("give --config or --delete-config\n")


def test_a_group_whose_coordinator_assigns_is_described_like_any_other(
    kraftpy_server: EmbeddedBroker, run: Run, topic: str, tmp_path: Path
) -> None:
    group = f"{topic}-movers"
    host, _, port = kraftpy_server.bootstrap.partition(":")
    run("topic", "create", topic, "-p", 2)
    run("group", "describe", group, status=1)  # there are coordinators from now on
    run("group", "alter", group, "-c", "consumer.assignment.interval.ms=0")
    for member, epoch in (("m1", 2), ("m2", 3)):
        heartbeat = ConsumerGroupHeartbeatRequest(
            group_id=group,
            member_id=member,
            rebalance_timeout_ms=60_000,
            subscribed_topic_names=[topic],
            topic_partitions=[],
        )
        joined = ask((host, int(port)), ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, heartbeat, timeout=SECONDS)
        assert (joined.error_code, joined.member_epoch) == (0, epoch)

    (row,) = rows(run("group", "describe", group, "--state"))
    assert (row["state"], row["type"], row["protocol"], row["members"]) == ("Reconciling", "consumer", "uniform", 2)
    assert (row["epoch"], row["assignment_epoch"]) == (3, 3)
    first, second = rows(run("group", "describe", group, "--members"))
    assert (first["member"], first["epoch"], first["partitions"]) == ("m1", 2, [f"{topic}-0", f"{topic}-1"])
    assert (second["member"], second["epoch"], second["partitions"]) == ("m2", 3, [])
    assert first["target"] + second["target"] == [f"{topic}-0", f"{topic}-1"]
    owners = [(row["partition"], row["member"]) for row in rows(run("group", "describe", group, "--offsets"))]
    assert owners == [(0, "m1"), (1, "m1")]
    (row,) = [row for row in rows(run("group", "list", "--format", "json")) if row["group"] == group]
    assert (row["state"], row["type"]) == ("Reconciling", "consumer")
    refused = run("group", "reset-offsets", group, "-t", topic, "--to-earliest", "--execute", status=1)
    assert refused.stderr == f"kraftpy: group {group} has 2 members: stop them before resetting its offsets\n"
    assert run("group", "delete", group, status=1).stderr.startswith("kraftpy: NON_EMPTY_GROUP: ")


def test_a_share_group_is_described_moved_and_deleted(
    kraftpy_server: EmbeddedBroker, run: Run, topic: str, tmp_path: Path
) -> None:
    group = f"{topic}-sharers"
    host, _, port = kraftpy_server.bootstrap.partition(":")
    run("topic", "create", topic, "-p", 2)
    run("group", "describe", group, status=1)  # there are coordinators from now on
    (tmp_path / "in").write_text("a\nb\nc\n")
    run("produce", topic, tmp_path / "in")

    def beat(member: str, epoch: int, topics: list[str] | None = None) -> Any:
        heartbeat = ShareGroupHeartbeatRequest(
            group_id=group, member_id=member, member_epoch=epoch, subscribed_topic_names=topics
        )
        told = ask((host, int(port)), ApiKey.SHARE_GROUP_HEARTBEAT, 1, heartbeat, timeout=SECONDS)
        assert told.error_code == 0, told
        return told

    epoch = beat("m1", 0, [topic]).member_epoch
    beat("m2", 0, [topic])
    deadline = time.monotonic() + SECONDS
    while sum(len(row["partitions"]) for row in rows(run("group", "describe", group, "--members"))) < 2:
        assert time.monotonic() < deadline
        epoch = beat("m1", 0, [topic]).member_epoch
        beat("m2", 0, [topic])
    (row,) = rows(run("group", "describe", group, "--state"))
    assert (row["state"], row["type"], row["protocol"], row["members"]) == ("Stable", "share", "simple", 2)
    assert row["epoch"] == row["assignment_epoch"] >= epoch
    first, second = rows(run("group", "describe", group, "--members"))
    assert (first["member"], second["member"]) == ("m1", "m2")
    assert sorted(first["partitions"] + second["partitions"]) == [f"{topic}-0", f"{topic}-1"]
    offsets = rows(run("group", "describe", group))
    assert [(row["partition"], row["start_offset"], row["lag"], row["members"]) for row in offsets] == [
        (0, None, None, 1),  # not read from yet, so its start offset is not known
        (1, None, None, 1),
    ]
    (listed,) = [row for row in rows(run("group", "list", "--format", "json")) if row["group"] == group]
    assert (listed["state"], listed["type"], listed["protocol_type"]) == ("Stable", "share", "share")
    refused = run("group", "reset-offsets", group, "-t", topic, "--to-earliest", "--execute", status=1)
    assert refused.stderr == f"kraftpy: group {group} has 2 members: stop them before resetting its offsets\n"
    assert run("group", "delete", group, status=1).stderr.startswith("kraftpy: NON_EMPTY_GROUP: ")

    beat("m1", -1)
    beat("m2", -1)
    planned = rows(run("group", "reset-offsets", group, "-t", topic, "--to-earliest"))
    assert [(row["start_offset"], row["new_offset"]) for row in planned] == [(None, 0), (None, 0)]
    run("group", "reset-offsets", group, "-t", topic, "--to-offset", 1, "--execute")
    offsets = rows(run("group", "describe", group))
    assert sum(row["end_offset"] for row in offsets) == 3
    for row in offsets:
        assert row["start_offset"] == min(1, row["end_offset"])
        assert row["lag"] in (None, row["end_offset"] - row["start_offset"])
    assert run("group", "delete", group).stdout == f"deleted group {group}\n"
    assert run("group", "describe", group, status=1).stderr == f"kraftpy: group {group} does not exist\n"


def test_a_streams_group_is_described_like_any_other(kraftpy_server: EmbeddedBroker, run: Run, topic: str) -> None:
    group = f"{topic}-counters"
    host, _, port = kraftpy_server.bootstrap.partition(":")
    run("topic", "create", topic, "-p", 2)
    run("group", "alter", group, "-c", "streams.initial.rebalance.delay.ms=0")
    run("group", "describe", group, status=1)  # there are coordinators from now on
    heartbeat = StreamsGroupHeartbeatRequest(
        group_id=group,
        member_id="m1",
        rebalance_timeout_ms=60_000,
        topology=Topology(subtopologies=[Subtopology(subtopology_id="0", source_topics=[topic])]),
        active_tasks=[],
        standby_tasks=[],
        warmup_tasks=[],
        process_id="p",
        client_tags=[],
    )
    joined = ask((host, int(port)), ApiKey.STREAMS_GROUP_HEARTBEAT, 0, heartbeat, timeout=SECONDS)
    assert (joined.error_code, joined.member_epoch) == (0, 2)
    assert [(each.subtopology_id, each.partitions) for each in joined.active_tasks] == [("0", [0, 1])]
    (row,) = rows(run("group", "describe", group, "--state"))
    assert (row["state"], row["type"], row["epoch"], row["members"]) == ("Stable", "streams", 2, 1)
    (row,) = rows(run("group", "describe", group, "--members"))
    assert (row["member"], row["partitions"]) == ("m1", [f"{topic}-0", f"{topic}-1"])
    owners = [(row["partition"], row["member"]) for row in rows(run("group", "describe", group, "--offsets"))]
    assert owners == [(0, "m1"), (1, "m1")]
    (row,) = [row for row in rows(run("group", "list", "--format", "json")) if row["group"] == group]
    assert row["type"] == "streams"
    assert run("group", "delete", group, status=1).stderr.startswith("kraftpy: NON_EMPTY_GROUP: ")


def test_a_group_with_members_is_described_and_keeps_its_offsets(
    kraftpy_server: EmbeddedBroker, run: Run, topic: str, tmp_path: Path
) -> None:
    group = f"{topic}-readers"
    (tmp_path / "in").write_text("a\n")
    run("produce", topic, tmp_path / "in")
    with process(kraftpy_server, "consume", topic, "-g", group, "-f") as member:
        assert member.stdout is not None
        assert json.loads(member.stdout.readline())["value"] == "a"
        (row,) = rows(run("group", "describe", group, "--members"))
        assert (row["client"], row["partitions"], row["state"]) == ("kraftpy-consume", [f"{topic}-0"], "Stable")
        (row,) = rows(run("group", "describe", group))
        assert row["client"].startswith("kraftpy-consume@")
        refused = run("group", "reset-offsets", group, "--all-topics", "--to-earliest", "--execute", status=1)
        assert refused.stderr == f"kraftpy: group {group} has a member: stop it before resetting its offsets\n"
        assert run("group", "delete", group, status=1).stderr.startswith("kraftpy: NON_EMPTY_GROUP: ")
        member.send_signal(signal.SIGINT)
        member.communicate(timeout=SECONDS)
    assert rows(run("group", "describe", group))[0]["committed_offset"] == 1
