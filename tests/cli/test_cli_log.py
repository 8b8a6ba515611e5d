"""`kraftpy log dump|verify` on files made here, whole and damaged."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kraftpy.cli import cli
from kraftpy.protocol.compression import Compression
from kraftpy.protocol.record_batch import ControlType, encode_batch, encode_control_batch
from kraftpy.share.batches import DeliveryState, StateBatch
from kraftpy.share.records import (
    SNAPSHOT,
    UPDATE,
    ShareKey,
    ShareSnapshotValue,
    ShareUpdateValue,
    write_key,
    write_value,
)
from kraftpy.types import TopicId

FIRST = encode_batch(
    [(1_700_000_000_000, b"k", b"v", [("h", b"x"), ("h", None)]), (1_700_000_000_001, None, b"\xff\xfe", [])],
    compression=Compression.ZSTD,
    leader_epoch=7,
)
SECOND = encode_batch(
    [(1_700_000_000_002, b"k2", None, [])], base_offset=2, producer_id=5, producer_epoch=1, base_sequence=9
)
MARKER = encode_control_batch(
    ControlType.ABORT, timestamp=3, producer_id=5, producer_epoch=1, coordinator_epoch=0, base_offset=3
)


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


@pytest.fixture
def segment(tmp_path: Path) -> Path:
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(FIRST + SECOND + MARKER)
    return path


def test_dump_tells_of_every_batch(segment: Path) -> None:
    result = run("log", "dump", segment)
    assert result.exit_code == 0
    batches = [json.loads(line) for line in result.stdout.splitlines()]
    assert [batch["kind"] for batch in batches] == ["batch"] * 3
    assert [batch["position"] for batch in batches] == [0, len(FIRST), len(FIRST) + len(SECOND)]
    assert [(batch["base_offset"], batch["last_offset"]) for batch in batches] == [(0, 1), (2, 2), (3, 3)]
    assert batches[0]["compression"] == "zstd"
    assert batches[0]["partition_leader_epoch"] == 7
    assert (batches[1]["producer_id"], batches[1]["producer_epoch"], batches[1]["base_sequence"]) == (5, 1, 9)
    assert [batch["is_control"] for batch in batches] == [False, False, True]


def test_dump_tells_of_every_record(segment: Path) -> None:
    rows = [json.loads(line) for line in run("log", "dump", "--records", segment).stdout.splitlines()]
    records = [row for row in rows if row["kind"] == "record"]
    assert records == [
        {
            "kind": "record",
            "offset": 0,
            "timestamp": 1_700_000_000_000,
            "key": "k",
            "value": "v",
            "headers": [{"name": "h", "value": "x"}, {"name": "h", "value": None}],
        },
        {"kind": "record", "offset": 1, "timestamp": 1_700_000_000_001, "key": None, "value_base64": "//4="},
        {"kind": "record", "offset": 2, "timestamp": 1_700_000_000_002, "key": "k2", "value": None},
    ]
    assert [row["control"] for row in rows if row["kind"] == "control"] == ["abort"]


def test_dump_knows_the_state_of_share_groups(tmp_path: Path) -> None:
    key = ShareKey("g", TopicId(bytes(16)), 3)
    batches = [StateBatch(5, 9, DeliveryState.ACKNOWLEDGED, 1)]
    snapshot = ShareSnapshotValue(
        snapshot_epoch=1,
        state_epoch=2,
        leader_epoch=3,
        start_offset=4,
        create_timestamp=0,
        write_timestamp=0,
        state_batches=[],
    )
    update = ShareUpdateValue(snapshot_epoch=1, leader_epoch=3, start_offset=-1, state_batches=[])
    said = [
        (write_key(SNAPSHOT, key), write_value(snapshot, batches)),
        (write_key(UPDATE, key), write_value(update, batches)),
        (write_key(SNAPSHOT, key), None),
        (b"something", b"else"),
    ]
    path = tmp_path / "__share_group_state-0" / "00000000000000000000.log"
    path.parent.mkdir()
    path.write_bytes(encode_batch([(1, *record, []) for record in said]))
    rows = [json.loads(line) for line in run("log", "dump", "--records", path).stdout.splitlines()][1:]
    assert [row["kind"] for row in rows] == ["share_snapshot", "share_update", "share_state_deleted", "record"]
    assert {row["group"] for row in rows[:3]} == {"g"}
    assert rows[0]["state_epoch"] == 2
    assert [row["batches"] for row in rows[:2]] == [["5-9 acknowledged 1"]] * 2


def test_dump_can_begin_at_an_offset_and_stop_after_some_batches(segment: Path) -> None:
    result = run("log", "dump", segment, "--from-offset", 1, "--max-batches", 2)
    assert [json.loads(line)["base_offset"] for line in result.stdout.splitlines()] == [0, 2]
    assert len(run("log", "dump", segment, "--from-offset", 3).stdout.splitlines()) == 1


def test_verify_sums_up_a_sound_file(segment: Path, tmp_path: Path) -> None:
    empty = tmp_path / "00000000000000000004.log"
    empty.touch()
    result = run("log", "verify", segment, empty)
    assert result.exit_code == 0
    whole, nothing = (json.loads(line) for line in result.stdout.splitlines())
    assert whole == {
        "file": str(segment),
        "ok": True,
        "batches": 3,
        "records": 4,
        "size_bytes": segment.stat().st_size,
        "first_offset": 0,
        "last_offset": 3,
    }
    assert (nothing["ok"], nothing["batches"], nothing["last_offset"]) == (True, 0, None)


def _flipped(position: int) -> bytes:
    data = bytearray(FIRST + SECOND)
    data[position] ^= 1
    return bytes(data)


@pytest.mark.parametrize(
    ("data", "position", "next_offset", "reason"),
    [
        (_flipped(len(FIRST) + 65), len(FIRST), 2, "the CRC of offsets 2-2 does not match"),
        (_flipped(70), 0, None, "the CRC of offsets 0-1 does not match"),
        ((FIRST + SECOND)[:-3], len(FIRST), 2, "offsets 2-2 need 70 bytes, but only 67 are left: a torn write?"),
        (FIRST + b"\x01" * 10, len(FIRST), 2, "10 bytes are too few for a batch: a torn write?"),
        (FIRST + bytes(500), len(FIRST), 2, "the last 500 bytes are zeros"),
        (_flipped(16), 0, None, "magic 3 instead of 2"),
        (FIRST + FIRST, len(FIRST), 2, "offsets 0-1 are out of order"),
        (FIRST[:8] + struct.pack(">i", 5) + FIRST[12:], 0, None, "batch length 5 is too small"),
        (FIRST[:8] + struct.pack(">i", -5) + FIRST[12:], 0, None, "batch length -5 is too small"),
        (FIRST[:8] + struct.pack(">i", 2**31 - 1) + FIRST[12:], 0, None, "a torn write?"),
    ],
)
def test_damage_is_named_with_file_position_and_offsets(
    tmp_path: Path, data: bytes, position: int, next_offset: int | None, reason: str
) -> None:
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(data)
    result = run("log", "verify", path)
    assert result.exit_code == 1
    row = json.loads(result.stdout)
    assert (row["ok"], row["position"], row["next_offset"]) == (False, position, next_offset)
    assert reason in row["reason"]
    assert result.stderr.startswith(f"kraftpy: {path}: corrupt at position {position}, ")
    assert result.stderr.count("\n") == 1

    dumped = run("log", "dump", path)
    assert dumped.exit_code == 1
    assert len(dumped.stdout.splitlines()) == (0 if next_offset is None else 1)
    assert reason in dumped.stderr


def test_every_file_is_verified_though_one_is_damaged(segment: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "00000000000000000009.log"
    damaged.write_bytes(_flipped(70))
    result = run("log", "verify", damaged, segment, damaged)
    assert result.exit_code == 1
    assert [json.loads(line)["ok"] for line in result.stdout.splitlines()] == [False, True, False]
    assert result.stderr.count("\n") == 2


def test_records_that_contradict_a_right_crc_are_damage(tmp_path: Path) -> None:
    from crc32c import crc32c

    data = bytearray(encode_batch([(0, b"key", b"value", []), (0, b"key", b"value", [])]))
    data[61] = 99  # the first record's length
    data[17:21] = struct.pack(">I", crc32c(bytes(data[21:])))
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(data)
    assert run("log", "verify", path).exit_code == 1
    assert run("log", "dump", path).exit_code == 0
    assert run("log", "dump", "-r", path).exit_code == 1


def test_indexes_are_dumped_by_entry(tmp_path: Path) -> None:
    index = tmp_path / "00000000000000000100.index"
    index.write_bytes(struct.pack(">iiii", 5, 0, 9, 4200) + bytes(16))
    rows = [json.loads(line) for line in run("log", "dump", index).stdout.splitlines()]
    assert rows == [{"offset": 105, "position": 0}, {"offset": 109, "position": 4200}]
    times = tmp_path / "00000000000000000100.timeindex"
    times.write_bytes(struct.pack(">qiqi", 1_700_000_000_000, 5, 1_700_000_000_009, 9))
    rows = [json.loads(line) for line in run("log", "dump", times).stdout.splitlines()]
    assert rows[1] == {"offset": 109, "timestamp": 1_700_000_000_009}


def test_a_file_that_is_not_there_is_a_wrong_command(tmp_path: Path) -> None:
    assert run("log", "verify", tmp_path / "no.log").exit_code == 2
