"""More than 100,000 damaged batches through every reader: refused as corrupt or read alike, and never much memory."""

from __future__ import annotations

import random
import resource
import struct

import pytest
from crc32c import crc32c

from kraftpy.client.ranges.columns import decode_columns
from kraftpy.protocol.compression import Compression
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.record_batch import (
    ControlType,
    CorruptBatch,
    Record,
    encode_batch,
    encode_control_batch,
    iter_records,
    split_batches,
    validate_batch,
)
from kraftpy.protocol.records import encode_varint

ROUNDS = 4
INPUTS_PER_ROUND = 27_000
MAX_BYTES = 1 << 20
NOW = 1_700_000_000_000

REFUSALS = {
    ErrorCode.CORRUPT_MESSAGE,
    ErrorCode.INVALID_RECORD,
    ErrorCode.INVALID_TIMESTAMP,
    ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
    ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
}
HEADER_FIELDS = [(0, ">q"), (8, ">i"), (12, ">i"), (16, ">b"), (17, ">I"), (21, ">h"), (23, ">i"), (27, ">q")]
HEADER_FIELDS += [(35, ">q"), (43, ">q"), (51, ">h"), (53, ">i"), (57, ">i")]
NASTY = [0, 1, -1, 2, 3, 48, 49, 61, 127, 128, 255, -(2**15), 2**15 - 1, -(2**31), 2**31 - 1, -(2**63), 2**63 - 1]
NASTY_VARINTS = [encode_varint(number) for number in NASTY] + [
    b"\x80" * 10 + b"\1",
    b"\xff" * 9 + b"\x02",
    b"\xff" * 10,
]


def seeds() -> list[bytes]:
    """Small sound batches of every kind."""
    odd = [
        (NOW, None, None, ()),
        (NOW - 5, b"", b"", (("", b""), ("h", None))),
        (NOW + 10**6, b"k" * 64, b"v" * 64, ()),
        (NOW, b"key", b"value" * 20, (("é", b"x"), ("h", b"y" * 130))),
    ]
    plain = [(NOW + number, b"%d" % number, b"value", ()) for number in range(5)]
    batches = [encode_batch(records, compression=codec) for records in (odd, plain) for codec in Compression]
    batches += [encode_batch([(0, None, b"v" * 9000, ())]), encode_batch(plain) * 2]
    batches += [encode_batch(plain, producer_id=1, producer_epoch=0, base_sequence=0, is_transactional=True)] * 2
    batches.append(
        encode_control_batch(ControlType.ABORT, timestamp=0, producer_id=1, producer_epoch=0, coordinator_epoch=0)
    )
    return batches


def damaged(rng: random.Random, seed: bytes) -> bytearray:
    """Damage the bytes in a few places; half the time a matching CRC lets the damage through to the records."""
    out = bytearray(seed)
    for _ in range(rng.randint(1, 3)):
        kind = rng.randrange(7)
        place = (
            rng.randrange(len(out)) if len(out) < 62 else rng.choice([rng.randrange(61), rng.randrange(61, len(out))])
        )
        if kind == 0:
            out[place] = rng.randrange(256)
        elif kind == 1:
            out[place] ^= 1 << rng.randrange(8)
        elif kind == 2:
            position, layout = rng.choice(HEADER_FIELDS)
            size = struct.calcsize(layout)
            value = rng.choice(NASTY).to_bytes(9, "big", signed=True)[-size:]
            out[position : position + size] = value
        elif kind == 3:
            out[place : place + rng.randint(0, 2)] = rng.choice(NASTY_VARINTS)
        elif kind == 4:
            del out[place : place + rng.randint(1, 20)]
        elif kind == 5:
            out[place:place] = out[place : place + rng.randint(1, 20)]
        else:
            del out[place:]
        if len(out) < 2:
            return out
    if len(out) >= 61 and rng.random() < 0.9:
        if rng.random() < 0.8:
            struct.pack_into(">i", out, 8, len(out) - 12)
        struct.pack_into(">I", out, 17, crc32c(memoryview(out)[21:]))
    return out


def read_one_by_one(data: bytearray) -> list[Record] | str:
    """Return the result of split, validate and iterate, or the reason why they refuse."""
    try:
        batches = split_batches(data)
        for header, batch in batches:
            try:
                validate_batch(header, batch)
            except KafkaError as error:
                assert error.code in REFUSALS  # noqa: PT017 - many inputs are not refused here
        return [
            r for header, batch in batches if not header.is_control for r in iter_records(batch, max_bytes=MAX_BYTES)
        ]
    except CorruptBatch as error:
        assert error.code in REFUSALS  # noqa: PT017
        return error.message


def read_columns(data: bytearray) -> list[Record] | str:
    """Return the same, read by columns."""
    try:
        columns = decode_columns(data, check_crcs=False, max_bytes=MAX_BYTES, start_offset=-(2**63))
        return [
            Record(offset, timestamp, columns.key(row), columns.value(row), columns.headers(row))
            for row, (offset, timestamp) in enumerate(
                zip(columns.offsets.tolist(), columns.timestamps.tolist(), strict=True)
            )
        ]
    except CorruptBatch as error:
        assert error.code in REFUSALS  # noqa: PT017
        return error.message


def wrapped(records: list[Record]) -> list[Record]:
    """Timestamps as 64 bits hold them."""
    return [r._replace(timestamp=(r.timestamp + 2**63) % 2**64 - 2**63) for r in records]


@pytest.mark.parametrize("round_number", range(ROUNDS))
def test_damaged_batches_are_refused_or_read_alike(round_number: int) -> None:
    rng = random.Random(round_number)
    sound = seeds()
    memory_before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    read = 0
    for _ in range(INPUTS_PER_ROUND):
        data = damaged(rng, rng.choice(sound))
        one_by_one, columns = read_one_by_one(data), read_columns(data)
        if isinstance(columns, str):  # columns know more batches than one, and the whole range of offsets
            assert isinstance(one_by_one, str) or "offsets" in columns
        elif isinstance(one_by_one, str):  # a cut last batch is for columns the end of the response
            with pytest.raises(CorruptBatch, match=r"too few for a batch header|only [0-9]+ are there"):
                split_batches(data)
        else:
            read += 1
            assert columns == wrapped(one_by_one)
    assert INPUTS_PER_ROUND * 0.1 < read < INPUTS_PER_ROUND * 0.9, "the damage is too light or too heavy to test much"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory_before < 200 * 1024
