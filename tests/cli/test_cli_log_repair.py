"""`kraftpy log truncate|recover`: what they leave agrees with itself, and with the node that starts on it."""

from __future__ import annotations

import fcntl
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from kraftpy.broker.runtime import OsDirectory
from kraftpy.cli import cli
from kraftpy.client import BlockingAdmin, BlockingConsumer, BlockingProducer, NewTopic
from kraftpy.config import BrokerConfig
from kraftpy.config.topic import topic_config
from kraftpy.log import layout
from kraftpy.log.partition_log import PartitionLog
from kraftpy.protocol.record_batch import encode_batch
from kraftpy.testing.cluster import EmbeddedBroker
from kraftpy.types import Millis, TopicId, TopicPartition

NOW = Millis(1_700_000_000_000)
NAME = TopicPartition("flights", 0)
OTHER = TopicPartition("flights", 1)
BATCHES, PER_BATCH = 200, 5
END = BATCHES * PER_BATCH


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


def rows(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("original") / "data"
    directory = OsDirectory(path)
    config = topic_config({}, BrokerConfig())
    object.__setattr__(config, "segment_bytes", 20_000)
    for name in (NAME, OTHER):
        log = PartitionLog.open(directory.child(str(name)), config, now=NOW, topic_id=TopicId(bytes(range(16))))
        for number in range(BATCHES):
            records = [(NOW + number, b"%d" % each, b"x" * 60, []) for each in range(PER_BATCH)]
            batch = encode_batch(records, producer_id=7, producer_epoch=0, base_sequence=number * PER_BATCH)
            log.append(batch, leader_epoch=number // 50, now=NOW)
        log.close()
    for checkpoint in (layout.RECOVERY_POINTS, layout.HIGH_WATERMARKS, layout.CLEANER_OFFSETS):
        layout.write_offsets(directory, checkpoint, {NAME: END, OTHER: END})
    layout.write_offsets(directory, layout.LOG_START_OFFSETS, {NAME: 3, OTHER: 0})
    layout.write_meta_properties(directory, {"version": "1", "cluster.id": "c", "node.id": "1", "directory.id": "d"})
    layout.mark_clean_shutdown(directory, 12)
    return path


@pytest.fixture
def data(original: Path, tmp_path: Path) -> Path:
    shutil.copytree(original, tmp_path / "data")
    return tmp_path / "data"


def segments(data: Path) -> list[Path]:
    return sorted((data / str(NAME)).glob("*.log"))


def contents(data: Path) -> dict[str, bytes]:
    return {str(each.relative_to(data)): each.read_bytes() for each in data.rglob("*") if each.is_file()}


def batches(data: Path) -> Iterator[dict[str, Any]]:
    return (row for row in rows(run("log", "dump", data / str(NAME))) if row["kind"] == "batch")


@pytest.mark.parametrize("to_offset", [0, 1, 437, 440, 999])
def test_truncate_leaves_a_log_that_ends_there(data: Path, to_offset: int) -> None:
    before = {row["base_offset"]: row for row in batches(data)}
    untouched = (data / str(OTHER) / segments(data)[0].name).read_bytes()
    expected = to_offset // PER_BATCH * PER_BATCH
    arguments = ("log", "truncate", data / str(NAME), "--to-offset", to_offset)

    whole = contents(data)
    (planned,) = rows(run(*arguments, "--dry-run"))
    assert contents(data) == whole, "a dry run changes nothing"
    assert run(*arguments).exit_code == 2, "nobody was asked"
    assert contents(data) == whole

    result = run(*arguments, "--yes")
    assert result.exit_code == 0, result.stderr
    (done,) = rows(result)
    for row in (planned, done):
        assert (row["log_end_offset"], row["new_log_end_offset"]) == (END, expected)
        assert (row["records"], row["batches"]) == (END - expected, BATCHES - expected // PER_BATCH)
    assert (planned["changed"], done["changed"]) == (False, True)

    assert list(batches(data)) == [row for offset, row in before.items() if offset < expected]
    assert run("log", "verify", data).exit_code == 0, run("log", "verify", data).stderr
    directory = OsDirectory(data)
    for checkpoint in (layout.RECOVERY_POINTS, layout.HIGH_WATERMARKS, layout.CLEANER_OFFSETS):
        offsets = layout.read_offsets(directory, checkpoint)
        assert offsets[NAME] <= expected
        assert offsets[OTHER] == END
    assert layout.read_offsets(directory, layout.RECOVERY_POINTS)[NAME] == expected
    assert layout.read_offsets(directory, layout.LOG_START_OFFSETS)[NAME] == min(3, expected)
    assert not (data / layout.CLEAN_SHUTDOWN).exists(), "the copy has lost what it promised: not a clean stop"
    assert (data / str(OTHER) / segments(data)[0].name).read_bytes() == untouched


@pytest.mark.parametrize("to_offset", [END, END + 7])
def test_truncate_refuses_an_offset_that_cuts_nothing_off(data: Path, to_offset: int) -> None:
    whole = contents(data)
    result = run("log", "truncate", data / str(NAME), "--to-offset", to_offset, "--yes")
    assert result.exit_code == 1
    assert f"holds offsets 0 to {END}" in result.stderr
    assert contents(data) == whole


def test_recover_of_a_sound_directory_makes_its_indexes_anew_and_nothing_else(data: Path) -> None:
    whole = contents(data)
    for index in (data / str(NAME)).glob("*index"):
        index.write_bytes(b"\1" * 24)
    result = run("log", "recover", data)
    assert result.exit_code == 0, result.stderr
    found = {row["directory"]: row for row in rows(result)}
    assert found.keys() == {str(data / str(NAME)), str(data / str(OTHER))}
    row = found[str(data / str(NAME))]
    assert (row["log_start_offset"], row["log_end_offset"], row["cut_bytes"]) == (3, END, 0)
    assert run("log", "verify", data).exit_code == 0
    after = contents(data)
    kept = (".log", "index", "offset-checkpoint", "partition.metadata")
    assert [name for name in whole if name.endswith(kept) and after[name] != whole[name]] == []
    assert (data / layout.CLEAN_SHUTDOWN).exists(), "nothing is lost: the stop is as clean as it was"


def test_recover_cuts_a_torn_tail_and_says_so(data: Path) -> None:
    (data / layout.CLEAN_SHUTDOWN).unlink()
    last = segments(data)[-1]
    sound = last.read_bytes()
    last.write_bytes(sound + bytes(70))
    result = run("log", "recover", data / str(NAME))
    assert result.exit_code == 0, result.stderr
    (row,) = rows(result)
    assert (row["cut_bytes"], row["log_end_offset"]) == (70, END)
    assert row["notes"]
    assert last.read_bytes() == sound
    assert run("log", "verify", data).exit_code == 0


def test_recover_from_the_start_ends_the_log_at_the_first_damage(data: Path) -> None:
    hit = segments(data)[1]
    content = bytearray(hit.read_bytes())
    content[100] ^= 1
    hit.write_bytes(content)
    first_lost = layout.offset_of(hit.name, layout.LOG)
    result = run("log", "recover", data / str(NAME))
    assert result.exit_code == 0
    assert rows(result)[0]["log_end_offset"] == END, "what was synced is not cut unless it is asked for"
    assert run("log", "recover", data / str(NAME), "--from-start").exit_code == 2

    result = run("log", "recover", data / str(NAME), "--from-start", "--yes")
    assert result.exit_code == 0
    assert "the next start counts as one after a crash" in result.stderr
    (row,) = rows(result)
    assert row["log_end_offset"] == first_lost
    assert row["deleted_segments"] > 0
    assert not (data / layout.CLEAN_SHUTDOWN).exists()
    assert layout.read_offsets(OsDirectory(data), layout.HIGH_WATERMARKS) == {NAME: first_lost, OTHER: END}
    assert run("log", "verify", data).exit_code == 0


def test_recover_of_a_copy_cuts_in_its_last_segment_alone_unless_told(data: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(data / str(NAME), copy)
    damaged = sorted(copy.glob("*.log"))[1]
    content = bytearray(damaged.read_bytes())
    content[100] ^= 1
    damaged.write_bytes(content)
    result = run("log", "recover", copy)
    assert result.exit_code == 0, result.stderr
    (row,) = rows(result)
    assert row["scanned_bytes"] == segments(data)[-1].stat().st_size
    assert row["log_end_offset"] == END
    (row,) = rows(run("log", "recover", copy, "--from-start", "--yes"))
    assert row["log_end_offset"] == layout.offset_of(damaged.name, layout.LOG)


@pytest.mark.parametrize("command", [("truncate", "--to-offset", "5", "--yes"), ("recover",)])
def test_where_the_lock_is_held_nothing_is_changed(data: Path, command: tuple[str, ...]) -> None:
    lock = data / ".lock"
    with lock.open("w") as held:
        whole = contents(data)
        fcntl.flock(held, fcntl.LOCK_SH)  # another command that reads is in the way as well
        result = run("log", command[0], data / str(NAME), *command[1:])
        assert result.exit_code == 2
        assert f"{data} is in use by a running node" in result.stderr
        assert contents(data) == whole


def test_a_broker_goes_on_from_where_its_log_was_cut(tmp_path: Path) -> None:
    broker = EmbeddedBroker(tmp_path, settings={"log.dirs": str(tmp_path / "data")})

    def send(values: list[bytes]) -> None:
        with BlockingProducer(bootstrap_servers=broker.bootstrap, acks="all") as producer:
            for value in values:
                producer.send("flights", value)

    with broker:
        with BlockingAdmin(bootstrap_servers=broker.bootstrap) as admin:
            admin.create_topics([NewTopic(name="flights", num_partitions=1)])
        send([b"%d" % number for number in range(10)])
    partition = tmp_path / "data" / "flights-0"
    result = run("log", "truncate", partition, "--to-offset", 6, "--yes")
    assert result.exit_code == 0, result.stderr
    with broker:
        send([b"again"])
        with BlockingConsumer("flights", bootstrap_servers=broker.bootstrap, auto_offset_reset="earliest") as consumer:
            found: list[tuple[int, bytes | None]] = []
            while not found or found[-1][1] != b"again":
                more = [record for batch in consumer.getmany(timeout_ms=10_000).values() for record in batch]
                assert more, found
                found += [(record.offset, record.value) for record in more]
    assert found == [*((number, b"%d" % number) for number in range(6)), (6, b"again")]
    recovered = run("log", "recover", tmp_path / "data")
    assert recovered.exit_code == 0, recovered.stderr
    assert run("log", "verify", tmp_path / "data").exit_code == 0
