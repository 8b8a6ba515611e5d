"""`kraftpy log verify` on whole partitions and log directories: sound ones pass, and damage anywhere in them is found.

A flipped bit anywhere in a sealed segment is reported with file, position and offsets, and reading continues behind it.
"""

from __future__ import annotations

import fcntl
import json
import os
import random
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from kraftpy.broker.runtime import OsDirectory
from kraftpy.cli import cli
from kraftpy.cli.log_places import OFFSET_CHECKPOINTS
from kraftpy.config import BrokerConfig
from kraftpy.config.topic import topic_config
from kraftpy.log import layout
from kraftpy.log.partition_log import PartitionLog
from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.compression import Compression
from kraftpy.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from kraftpy.protocol.record_batch import encode_batch
from kraftpy.testing.asking import ask
from kraftpy.testing.cluster import EmbeddedBroker
from kraftpy.types import Millis, TopicId, TopicPartition

NOW = Millis(1_700_000_000_000)
NAME = TopicPartition("flights", 0)


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


def rows(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def write_log_directory(path: Path, *, clean: bool = True, batches: int = 240) -> Path:
    """A log directory as a broker leaves it, with one partition of several segments and leader epochs."""
    directory = OsDirectory(path)
    config = topic_config({}, BrokerConfig())
    object.__setattr__(config, "segment_bytes", 20_000)
    object.__setattr__(config, "index_interval_bytes", 1000)
    log = PartitionLog.open(directory.child(str(NAME)), config, now=NOW, topic_id=TopicId(bytes(range(16))))
    for number in range(batches):
        records = [(NOW + number * 10 + each, b"%d" % each, os.urandom(40), []) for each in range(5)]
        batch = encode_batch(
            records,
            compression=Compression(number % 5),
            producer_id=7,
            producer_epoch=0,
            base_sequence=number * 5,
        )
        log.append(batch, leader_epoch=number // 50, now=Millis(NOW + number))
        if not clean and number == batches // 2:
            log.flush()
    if clean:
        log.close()
        layout.mark_clean_shutdown(directory, 12)
    layout.write_offsets(directory, layout.RECOVERY_POINTS, {NAME: log.recovery_point})
    layout.write_offsets(directory, layout.LOG_START_OFFSETS, {NAME: 0})
    layout.write_offsets(directory, layout.HIGH_WATERMARKS, {NAME: log.log_end_offset})
    layout.write_offsets(directory, layout.CLEANER_OFFSETS, {TopicPartition("flights", 1): 0})
    layout.write_meta_properties(directory, {"version": "1", "cluster.id": "c", "node.id": "1", "directory.id": "d"})
    log.release()
    return path


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_log_directory(tmp_path_factory.mktemp("sound") / "data")


@pytest.fixture
def data(sound: Path, tmp_path: Path) -> Iterator[Path]:
    copy = tmp_path / "data"
    shutil.copytree(sound, copy)
    yield copy
    layout_after = run("log", "verify", sound)
    assert layout_after.exit_code == 0, "verifying a copy changes nothing elsewhere"


def segments(data: Path) -> list[Path]:
    return sorted((data / str(NAME)).glob("*.log"))


def flip(path: Path, position: int, bit: int = 0) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1 << bit
    path.write_bytes(content)


def test_a_sound_log_directory_is_read_whole_and_left_as_it_is(data: Path) -> None:
    def contents() -> dict[str, bytes]:
        return {str(each.relative_to(data)): each.read_bytes() for each in data.rglob("*") if each.is_file()}

    before = contents()
    result = run("log", "verify", data)
    assert result.exit_code == 0, result.stderr
    found = rows(result)
    assert [row["file"] for row in found[:-1]] == [str(path) for path in segments(data)]
    assert found[-1] == {
        "ok": True,
        "partitions": 1,
        "segments": len(segments(data)),
        "batches": 240,
        "records": 1200,
        "size_bytes": sum(path.stat().st_size for path in segments(data)),
        "damaged": 0,
    }
    assert len(segments(data)) > 3
    assert contents() == before


def test_a_flipped_bit_anywhere_is_found(data: Path) -> None:
    """Flip fresh random bits each time, in every kind of file with a checksum or a peer; each is undone again."""
    chance = random.Random()
    seed = chance.randrange(2**32)
    chance.seed(seed)
    partition = data / str(NAME)
    files = [*segments(data)[:-1], *partition.glob("*.index"), *partition.glob("*.timeindex")]
    files += [*partition.glob("*.snapshot"), partition / layout.LEADER_EPOCHS]
    files += [data / name for name in (*OFFSET_CHECKPOINTS, layout.META_PROPERTIES, layout.CLEAN_SHUTDOWN)]
    files.append(partition / layout.PARTITION_METADATA)
    for file in files:
        for _ in range(2):
            before = file.read_bytes()
            end = before.find(b"#xxh64") if file.name == layout.META_PROPERTIES else len(before)  # not in the comment
            position, bit = chance.randrange(end), chance.randrange(8)
            flip(file, position, bit)
            result = run("log", "verify", data)
            assert result.exit_code == 1, f"{file.name}, bit {bit} of byte {position} (seed {seed})"
            assert any(not row["ok"] and row.get("file", "") for row in rows(result))
            file.write_bytes(before)
    assert run("log", "verify", data).exit_code == 0


def test_all_damage_of_a_segment_is_found_with_where_it_goes_on(data: Path) -> None:
    segment = segments(data)[1]
    batches = [row for row in rows(run("log", "dump", segment)) if row["kind"] == "batch"]
    hit = [batches[3], batches[10], batches[11], batches[20]]
    flip(segment, hit[0]["position"] + 80)  # its records
    flip(segment, hit[1]["position"] + 10)  # its length: 1 + 2**8 or so, so the next start has to be searched for
    flip(segment, hit[2]["position"] + 16)  # its magic
    flip(segment, hit[3]["position"] + 3)  # its base offset: the CRC does not cover it
    found = rows(run("log", "verify", data / str(NAME)))
    damage = [row for row in found if row.get("file") == str(segment)]
    assert [row["position"] for row in damage if row["position"] != hit[2]["position"]] == [
        hit[0]["position"],
        hit[1]["position"],
        hit[3]["position"],
    ]
    assert damage[0]["next_offset"] == hit[0]["base_offset"]
    assert (damage[0]["resumes_at_position"], damage[0]["resumes_at_offset"]) == (
        batches[4]["position"],
        batches[4]["base_offset"],
    )
    assert damage[-1]["next_offset"] == hit[3]["base_offset"]
    assert found[-1]["damaged"] == 1, "what lies behind the damage is not held against the other files"


def test_what_is_lost_of_a_segment_is_told_in_offsets(data: Path) -> None:
    segment = segments(data)[0]
    batches = [row for row in rows(run("log", "dump", segment)) if row["kind"] == "batch"]
    content = segment.read_bytes()
    start, end = batches[5]["position"], batches[8]["position"]
    segment.write_bytes(content[:start] + os.urandom(end - start) + content[end:])
    result = run("log", "verify", data)
    (damage,) = (row for row in rows(result)[:-1] if not row["ok"])
    assert (damage["position"], damage["next_offset"]) == (start, batches[5]["base_offset"])
    assert (damage["resumes_at_position"], damage["resumes_at_offset"]) == (end, batches[8]["base_offset"])
    assert result.stderr == (
        f"kraftpy: {segment}: corrupt at position {start}, after offset {batches[5]['base_offset'] - 1}: "
        f"{damage['reason']}; readable again at position {end} from offset {batches[8]['base_offset']}\n"
    )


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("an index entry", "for the batch that ends at"),
        ("a time index entry", "brought"),
        ("a missing index", "is missing"),
        ("a missing batch", "no records from offset"),
        ("a missing segment", "no records from offset"),
        ("a leader epoch", "leader-epoch-checkpoint says"),
        ("no leader epochs", "is missing"),
        ("a leader epoch that falls", "have leader epoch 0, after"),
        ("a recovery point", "its log ends at"),
        ("no topic id", "is missing"),
    ],
)
def test_what_contradicts_each_other_is_damage_though_every_checksum_is_right(
    data: Path, name: str, reason: str
) -> None:
    partition = data / str(NAME)
    first, second = segments(data)[:2]
    match name:
        case "an index entry":
            flip(first.with_suffix(".index"), 3)
        case "a time index entry":
            flip(first.with_suffix(".timeindex"), 7)
        case "a missing index":
            first.with_suffix(".index").unlink()
        case "a missing batch":
            batches = [row for row in rows(run("log", "dump", segments(data)[-1])) if row["kind"] == "batch"]
            content = segments(data)[-1].read_bytes()
            start, end = batches[1]["position"], batches[2]["position"]
            segments(data)[-1].write_bytes(content[:start] + content[end:])
            for suffix in (".index", ".timeindex"):
                segments(data)[-1].with_suffix(suffix).write_bytes(b"")
        case "a missing segment":
            second.unlink()
        case "a leader epoch":
            epochs = layout.encode_entries([(0, 0), (1, 240), (2, 500), (3, 750), (4, 1000)])
            (partition / layout.LEADER_EPOCHS).write_bytes(epochs)
        case "no leader epochs":
            (partition / layout.LEADER_EPOCHS).unlink()
        case "a leader epoch that falls":
            batches = [row for row in rows(run("log", "dump", second)) if row["kind"] == "batch"]
            content = bytearray(second.read_bytes())
            struct.pack_into(">i", content, batches[-1]["position"] + 12, 0)
            second.write_bytes(content)
            assert batches[-2]["partition_leader_epoch"] > 0
        case "a recovery point":
            layout.write_offsets(OsDirectory(data), layout.RECOVERY_POINTS, {NAME: 1201})
        case "no topic id":
            (partition / layout.PARTITION_METADATA).unlink()
    result = run("log", "verify", data)
    assert result.exit_code == 1
    assert any(reason in row.get("reason", "") for row in rows(result)), result.stdout


def test_processes_find_what_one_finds(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flip(segments(data)[2], 5000)
    alone = run("log", "verify", data)
    monkeypatch.setattr("kraftpy.cli.log_verify._ALONE_BYTES", 0)
    together = run("log", "verify", data, "--jobs", 2)
    assert (together.stdout, together.stderr) == (alone.stdout, alone.stderr)


def test_after_a_crash_only_what_was_synced_must_be_whole(tmp_path: Path) -> None:
    data = write_log_directory(tmp_path / "data", clean=False)
    result = run("log", "verify", data)
    assert result.exit_code == 0, result.stderr
    with segments(data)[-1].open("ab") as file:
        file.write(b"\0" * 100)
    result = run("log", "verify", data)
    assert result.exit_code == 1
    assert "the last 100 bytes are zeros" in result.stderr


def test_a_copy_of_a_partition_is_verified_by_itself(data: Path, tmp_path: Path) -> None:
    copy = tmp_path / "anywhere"
    shutil.copytree(data / str(NAME), copy)
    result = run("log", "verify", copy)
    assert result.exit_code == 0, result.stderr
    assert rows(result)[-1]["batches"] == 240


def test_a_directory_that_is_no_log_is_refused(tmp_path: Path) -> None:
    result = run("log", "verify", tmp_path)
    assert result.exit_code == 2
    assert "neither a log directory nor a partition's" in result.stderr


@pytest.mark.parametrize("command", [("verify",), ("dump",)])
def test_where_the_lock_is_held_nothing_is_read(data: Path, command: tuple[str, ...]) -> None:
    with (data / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for path in (data, data / str(NAME), segments(data)[0]):
            result = run("log", *command, path)
            assert result.exit_code == 2
            assert result.stderr.count("\n") == 1
            assert f"{data} is in use by a running node: stop it first" in result.stderr
            assert not result.stdout
    assert run("log", *command, data).exit_code == 0


def test_a_broker_s_own_directory(tmp_path: Path) -> None:
    """A broker's files are sound after it stopped; while it runs, the commands refuse and it is not disturbed."""
    broker = EmbeddedBroker(tmp_path, settings={"log.dirs": str(tmp_path / "data")})
    kraftpy = [sys.executable, "-m", "kraftpy"]
    with broker:
        environment = {**os.environ, "KRAFTPY_BOOTSTRAP_SERVERS": broker.bootstrap}
        produced = subprocess.run(
            [*kraftpy, "produce", "greetings"], input=b"hello\nworld\n", env=environment, timeout=60
        )
        assert produced.returncode == 0
        consumed = subprocess.run(
            [*kraftpy, "consume", "greetings", "--group", "readers", "--max-messages", "2"],
            env=environment,
            timeout=60,
            capture_output=True,
        )
        assert consumed.returncode == 0, consumed.stderr
        host, _, port = broker.bootstrap.partition(":")
        heartbeat = ConsumerGroupHeartbeatRequest(
            group_id="movers",
            member_id="m",
            rebalance_timeout_ms=1_000,
            subscribed_topic_regex="greet.*",
            topic_partitions=[],
        )
        joined = ask((host, int(port)), ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, heartbeat, timeout=20)
        assert joined.error_code == 0
        refused = run("log", "verify", tmp_path / "data")
        assert refused.exit_code == 2
    result = run("log", "verify", tmp_path / "data")
    assert result.exit_code == 0, result.stderr
    assert rows(result)[-1]["records"] >= 4

    groups = [row for row in rows(run("log", "dump", "--records", tmp_path / "data")) if row.get("group") == "readers"]
    committed = [row for row in groups if row["kind"] == "offset_committed"]
    assert [(row["topic"], row["committed_offset"]) for row in committed][-1] == ("greetings", 2)
    assert {row["kind"] for row in groups} >= {"group", "offset_committed"}
    movers = {
        row["kind"]: row
        for row in rows(run("log", "dump", "--records", tmp_path / "data"))
        if row.get("group") == "movers"
    }
    assert movers["consumer_member"]["subscribed_topic_regex"] == "greet.*"
    assert movers["consumer_regex"]["topics"] == ["greetings"]
    assert movers["consumer_assignment"]["state"] == "STABLE"
    assert movers["consumer_assignment"]["assigned"] == movers["consumer_target"]["partitions"]
    commands = [row.get("command") for row in rows(run("log", "dump", tmp_path / "data" / "metadata" / "journal"))]
    assert "CreateTopics" in commands


def test_dump_of_the_small_files(data: Path) -> None:
    partition = data / str(NAME)
    epochs = rows(run("log", "dump", partition / layout.LEADER_EPOCHS))
    assert epochs == [{"leader_epoch": number, "start_offset": 250 * number} for number in range(5)]
    assert rows(run("log", "dump", data / layout.RECOVERY_POINTS)) == [
        {"topic": "flights", "partition": 0, "offset": 1200}
    ]
    (producer,) = rows(run("log", "dump", partition / "00000000000000001200.snapshot"))
    assert (producer["producer_id"], producer["last_sequence"]) == (7, 1199)
    expected = {"topic_id": bytes(range(16)).hex(), "synced_before_ack": False}
    assert rows(run("log", "dump", partition / layout.PARTITION_METADATA)) == [expected]
    assert rows(run("log", "dump", data / layout.META_PROPERTIES))[0]["cluster.id"] == "c"
    assert rows(run("log", "dump", data / layout.CLEAN_SHUTDOWN)) == [{"broker_epoch": 12}]
    headed = [row["file"] for row in rows(run("log", "dump", partition)) if row["kind"] == "file"]
    assert headed == [str(path) for path in segments(data)]
    flip(partition / layout.LEADER_EPOCHS, 3)
    result = run("log", "dump", partition / layout.LEADER_EPOCHS)
    assert result.exit_code == 1
    assert str(partition / layout.LEADER_EPOCHS) in result.stderr
