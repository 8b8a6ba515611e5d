"""The records of share state are Kafka's, byte by byte; what is not is refused, and nothing else."""

from __future__ import annotations

import pytest

from kraftpy.protocol.errors import ProtocolError
from kraftpy.share.batches import DeliveryState, StateBatch
from kraftpy.share.records import (
    SNAPSHOT,
    UPDATE,
    ShareKey,
    ShareSnapshotValue,
    ShareUpdateValue,
    from_batches,
    read_key,
    read_snapshot,
    read_update,
    write_key,
    write_value,
)
from kraftpy.types import TopicId

KEY = ShareKey("gs1", TopicId(bytes(range(16))), 3)
BATCHES = [StateBatch(5, 9, DeliveryState.ACKNOWLEDGED, 1), StateBatch(10, 10, DeliveryState.AVAILABLE, 2)]
BATCHES_BYTES = (
    "03"  # two of them, and one as a compact array has it
    "0000000000000005 0000000000000009 02 0001 00"
    "000000000000000a 000000000000000a 00 0002 00"
)


def as_bytes(text: str) -> bytes:
    return bytes.fromhex(text.replace(" ", ""))


def test_keys() -> None:
    """The number of the kind, and then what is not flexible: a string with a short length, 16 bytes, an int32."""
    rest = "0003 677331 000102030405060708090a0b0c0d0e0f 00000003"
    assert write_key(SNAPSHOT, KEY) == as_bytes("0000" + rest)
    assert write_key(UPDATE, KEY) == as_bytes("0001" + rest)
    assert read_key(as_bytes("0000" + rest)) == (SNAPSHOT, KEY)
    assert read_key(as_bytes("0001" + rest)) == (UPDATE, KEY)
    assert read_key(as_bytes("0002" + rest)) is None


def test_a_snapshot() -> None:
    value = ShareSnapshotValue(
        snapshot_epoch=1,
        state_epoch=2,
        leader_epoch=3,
        start_offset=4,
        create_timestamp=1744356362818,
        write_timestamp=1744356362819,
        state_batches=[],
    )
    fixed = "0000 00000001 00000002 00000003 0000000000000004 0000019623bdca42 0000019623bdca43" + BATCHES_BYTES
    assert write_value(value, BATCHES) == as_bytes(fixed + "00")
    value.delivery_complete_count = 7
    assert write_value(value, BATCHES) == as_bytes(
        fixed + "01 00 04 00000007"
    )  # one tag: number 0, four bytes (KIP-1226)
    again = read_snapshot(write_value(value, BATCHES))
    assert from_batches(again.state_batches) == BATCHES
    again.state_batches = []
    assert again == value


def test_an_update() -> None:
    value = ShareUpdateValue(snapshot_epoch=1, leader_epoch=3, start_offset=-1, state_batches=[])
    assert write_value(value, BATCHES) == as_bytes("0000 00000001 00000003 ffffffffffffffff" + BATCHES_BYTES + "00")
    again = read_update(write_value(value, BATCHES))
    assert from_batches(again.state_batches) == BATCHES
    again.state_batches = []
    assert again == value


def test_what_is_not_kafkas_is_refused() -> None:
    value = ShareUpdateValue(snapshot_epoch=1, leader_epoch=3, start_offset=-1, state_batches=[])
    good = write_value(value, BATCHES)
    for bad in (b"", b"\x00", b"\x00\x01" + good[2:], good[:-1], good + b"\x00"):
        with pytest.raises(ProtocolError):
            read_update(bad)
    with pytest.raises(ProtocolError):
        read_key(b"\x00")
    with pytest.raises(ProtocolError):
        read_key(write_key(SNAPSHOT, KEY)[:-1])
    acquired = [BATCHES[0]._replace(state=DeliveryState.ACQUIRED)]  # no coordinator is told so
    with pytest.raises(ProtocolError):
        from_batches(read_update(write_value(value, acquired)).state_batches)
