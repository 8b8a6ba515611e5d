"""Record batches of every kind that a producer may send, legal, wrong and hostile, each made from a number.

`small` makes one of the cheap kinds. `heavy` makes one of those that are small on the wire and large once they are
decoded (millions of records or headers, bombs, empty members); they are made once and kept.
"""

from __future__ import annotations

import functools
import struct
import zlib
from collections.abc import Callable
from random import Random

from crc32c import crc32c

from kraftpy.protocol.compression import XERIAL_MAGIC, Compression, compress
from kraftpy.protocol.record_batch import HEADER_BYTES, ControlType, encode_batch, encode_control_batch
from kraftpy.protocol.records import encode_varint

NOW = 1_700_000_000_000
CODECS = tuple(Compression)
_HEADER = struct.Struct(">qiibIhiqqqhii")
_CRC_START = 21


def batch(
    payload: bytes,
    count: int,
    *,
    codec: int = 0,
    attributes: int = 0,
    last_offset_delta: int | None = None,
    base_offset: int = 0,
    max_timestamp: int = NOW,
    producer: tuple[int, int, int] = (-1, -1, -1),
    magic: int = 2,
    leader_epoch: int = -1,
) -> bytes:
    """Return a batch around this payload, unchecked, with a correct CRC."""
    delta = count - 1 if last_offset_delta is None else last_offset_delta
    body = struct.pack(
        ">hiqqqhii", codec | attributes, _fit(delta, 31), NOW, _fit(max_timestamp, 63), *producer, _fit(count, 31)
    )
    size = 9 + len(body) + len(payload)
    head = struct.pack(">qiib", base_offset, size, leader_epoch, magic)
    return b"".join((head, struct.pack(">I", crc32c(payload, crc32c(body))), body, payload))


def record(offset_delta: int, key: bytes | None = None, value: bytes | None = b"v", headers: bytes = b"\0") -> bytes:
    """Return one record; `headers` with their count before them."""
    parts = [b"\0\0", encode_varint(offset_delta)]
    parts += [b"\x01" if field is None else encode_varint(len(field)) + field for field in (key, value)]
    parts.append(headers)
    body = b"".join(parts)
    return encode_varint(len(body)) + body


def with_crc(broken: bytearray) -> bytes:
    """Return the batch with a CRC that fits its contents."""
    struct.pack_into(">I", broken, 17, crc32c(bytes(broken[_CRC_START:])))
    return bytes(broken)


def _fit(number: int, bits: int) -> int:
    return max(-(1 << bits), min(number, (1 << bits) - 1))


# --- cheap ones ----------------------------------------------------------------------------------------------------


def legal(chance: Random, producer: tuple[int, int, int] = (-1, -1, -1), *, transactional: bool = False) -> bytes:
    """Return a valid batch of a few records in any codec."""
    records = [
        (NOW + number, chance.choice((None, b"", b"k", b"k%d" % number)), chance.choice((None, b"", b"v" * 30)), ())
        for number in range(chance.choice((1, 1, 2, 5, 40)))
    ]
    if chance.random() < 0.3:
        records[0] = (*records[0][:3], (("h", b"x"), ("", None)))  # type: ignore[assignment]
    plain = bytearray(encode_batch(records))
    codec = chance.choice(CODECS)
    attributes = int(codec) | (0x10 if transactional else 0)
    payload = compress(codec, bytes(plain[HEADER_BYTES:]))
    return batch(payload, len(records), attributes=attributes, producer=producer)


def _cut(chance: Random) -> bytes:
    whole = legal(chance)
    return whole[: chance.randrange(len(whole))]


def _flipped(chance: Random) -> bytes:
    broken = bytearray(legal(chance))
    for _ in range(chance.choice((1, 1, 3))):
        broken[chance.randrange(len(broken))] ^= 1 << chance.randrange(8)
    return with_crc(broken) if chance.random() < 0.7 else bytes(broken)


def _wrong_size(chance: Random) -> bytes:
    broken = bytearray(legal(chance))
    struct.pack_into(">i", broken, 8, chance.choice((-1, 0, 1, 48, 49, 2**31 - 1, -(2**31), len(broken))))
    return bytes(broken)


def _wrong_count(chance: Random) -> bytes:
    count = chance.choice((0, -1, 2, 1000, 2**31 - 1, -(2**31)))
    delta = chance.choice((0, count - 1, -1, 2**31 - 1, -(2**31)))
    return batch(record(0), count, last_offset_delta=delta)


def _wrong_header(chance: Random) -> bytes:
    return batch(
        record(0),
        1,
        attributes=chance.choice((0, 5, 7, 8, 0x10, 0x20, 0x30, 0x40, 0x80, 0x7F00)),
        magic=chance.choice((2, 2, 0, 1, 3, -128, 127)),
        base_offset=chance.choice((0, -1, 2**63 - 1, -(2**63), 5)),
        max_timestamp=chance.choice((NOW, -1, 0, 2**63 - 1, -(2**63))),
        producer=chance.choice(((-1, -1, -1), (0, 0, 0), (2**63 - 1, 32767, 2**31 - 1), (-2, -2, -2), (7, -1, 0))),
        leader_epoch=chance.choice((-1, 0, 2**31 - 1, -(2**31))),
    )


def _odd_offsets(chance: Random) -> bytes:
    deltas = chance.choice(((0, 0), (1, 0), (0, 5), (-1, 0), (0, 2**31 - 1), (0, 2**40), (-(2**31), 2**31)))
    return batch(b"".join(record(delta) for delta in deltas), 2, last_offset_delta=max(deltas))


def _odd_lengths(chance: Random) -> bytes:
    lie = encode_varint(chance.choice((-1, -2, 0, 1, 2**31 - 1, 2**62, -(2**63))))
    inner = b"\0\0\0" + lie + b"abc" + lie + b"\0"
    return batch(chance.choice((lie + inner, encode_varint(len(inner)) + inner, b"\xff" * 30, b"\x80" * 11)), 1)


def _lying_headers(chance: Random) -> bytes:
    return batch(record(0, headers=encode_varint(chance.choice((-1, 1, 1000, 2**31 - 1, 2**40)))), 1)


def _control(chance: Random) -> bytes:
    kind = chance.choice((ControlType.COMMIT, ControlType.ABORT))
    return bytes(encode_control_batch(kind, producer_id=1, producer_epoch=0, timestamp=NOW, coordinator_epoch=0))


def _transactional_without_id(chance: Random) -> bytes:
    return legal(chance, chance.choice(((-1, -1, -1), (0, 0, 0), (1, 0, 0))), transactional=True)


def _garbage_in_codec(chance: Random) -> bytes:
    garbage = chance.choice((b"", b"\1\2\3", b"\x1f\x8b", b"\x04\x22\x4d\x18", b"\x28\xb5\x2f\xfd", XERIAL_MAGIC))
    return batch(garbage + chance.randbytes(chance.choice((0, 3, 40))), 1, codec=chance.randrange(1, 8))


def _cut_in_codec(chance: Random) -> bytes:
    codec = chance.choice(CODECS[1:])
    whole = compress(codec, record(0, value=b"abc" * 100))
    return batch(whole[: chance.randrange(len(whole))], 1, codec=int(codec))


def _many_batches(chance: Random) -> bytes:
    return legal(chance) * chance.choice((2, 3, 50))


def _nothing(chance: Random) -> bytes:
    return chance.choice((b"", b"\0" * 61, b"\xff" * 61, b"\0" * 12))


SMALL: tuple[Callable[[Random], bytes], ...] = (
    _cut, _flipped, _flipped, _wrong_size, _wrong_count, _wrong_header, _odd_offsets, _odd_lengths, _lying_headers,
    _control, _transactional_without_id, _garbage_in_codec, _cut_in_codec, _many_batches, _nothing,
)  # fmt: skip


def small(chance: Random) -> bytes:
    """Return a batch, or a non-batch, that costs little to make and that no broker should notice."""
    return chance.choice(SMALL)(chance)


# --- heavy ones ----------------------------------------------------------------------------------------------------

EMPTY_HEADERS = 8_000_000
TINY_RECORDS = 1_000_000
_ALIKE = 64
_NOTHING_ELSE = b"\1\1\0"
"""The rest of a record behind its offset: no key, no value, no headers."""
MEMBERS_BYTES = 1_000_000


def _empty_headers(codec: Compression) -> bytes:
    """One record with eight million empty headers: some hundred bytes in zstd."""
    headers = encode_varint(EMPTY_HEADERS) + b"\0\1" * EMPTY_HEADERS
    return batch(compress(codec, record(0, headers=headers)), 1, codec=int(codec))


def _tiny_records(codec: Compression) -> bytes:
    """A million records of seven to nine bytes each: legal unless their batch is too large."""
    return batch(compress(codec, tiny_records(TINY_RECORDS)), TINY_RECORDS, codec=int(codec))


@functools.cache
def tiny_records(count: int) -> bytes:
    """Return so many records without key and value, 64 at a time: their offsets differ in the lowest bits only."""
    made = [record(number, value=None) for number in range(min(count, _ALIKE))]
    for block in range(1, -(-count // _ALIKE)):
        first = block * _ALIKE
        upper = encode_varint(first)[1:]
        before = bytes([2 * (6 + len(upper))]) + b"\0\0"
        within = [before + bytes([0x80 | 2 * number]) for number in range(min(count - first, _ALIKE))]
        made += [upper.join([within[0], *(_NOTHING_ELSE + each for each in within[1:]), _NOTHING_ELSE])]
    return b"".join(made)


def _same_records(codec: Compression) -> bytes:
    """A million copies of one record: hardly a byte in zstd, and invalid from the second on."""
    return batch(compress(codec, record(0, value=None) * TINY_RECORDS), TINY_RECORDS, codec=int(codec))


def _one_long_value(codec: Compression) -> bytes:
    return batch(compress(codec, record(0, value=bytes(60_000_000))), 1, codec=int(codec))


def _zstd_bomb() -> bytes:
    """Frames of repeated bytes that would be 4 GB."""
    block = struct.pack("<I", (131_072 << 3) | 2)[:3] + b"\0"
    last = struct.pack("<I", (131_072 << 3) | 3)[:3] + b"\0"
    frame = struct.pack("<I", 0xFD2FB528) + b"\x00\x88" + block * 31 + last
    return batch(frame * 1000, 1, codec=4)


def _empty_members(codec: Compression) -> bytes:
    """A megabyte of empty gzip members or frames, followed by a record."""
    empty = compress(codec, b"")
    return batch(empty * (MEMBERS_BYTES // len(empty)) + compress(codec, record(0)), 1, codec=int(codec))


def _skippable_frames(codec: Compression) -> bytes:
    skippable = struct.pack("<II", 0x184D2A50, 0)
    return batch(skippable * (MEMBERS_BYTES // 8) + compress(codec, record(0)), 1, codec=int(codec))


def _empty_blocks() -> bytes:
    """Xerial blocks of empty raw snappy."""
    block = struct.pack(">I", 1) + b"\0"
    return batch(XERIAL_MAGIC + struct.pack(">ii", 1, 1) + block * (MEMBERS_BYTES // 5), 1, codec=2)


def _gzip_long_name() -> bytes:
    """A gzip member whose file name is a megabyte."""
    deflate = zlib.compressobj(wbits=-15)
    body = deflate.compress(record(0)) + deflate.flush()
    return batch(b"\x1f\x8b\x08\x08\0\0\0\0\0\x03" + b"n" * MEMBERS_BYTES + b"\0" + body + bytes(8), 1, codec=1)


HEAVY: dict[str, Callable[[], bytes]] = {
    **{f"empty headers in {codec.name}": functools.partial(_empty_headers, codec) for codec in CODECS[1:]},
    **{f"tiny records in {codec.name}": functools.partial(_tiny_records, codec) for codec in CODECS[1:]},
    **{f"the same record in {codec.name}": functools.partial(_same_records, codec) for codec in CODECS[1:]},
    **{f"a long value in {codec.name}": functools.partial(_one_long_value, codec) for codec in CODECS[1:]},
    "a bomb in ZSTD": _zstd_bomb,
    "empty members in GZIP": functools.partial(_empty_members, Compression.GZIP),
    "empty members in LZ4": functools.partial(_empty_members, Compression.LZ4),
    "empty members in ZSTD": functools.partial(_empty_members, Compression.ZSTD),
    "empty blocks in SNAPPY": _empty_blocks,
    "skippable frames in LZ4": functools.partial(_skippable_frames, Compression.LZ4),
    "skippable frames in ZSTD": functools.partial(_skippable_frames, Compression.ZSTD),
    "a long name in GZIP": _gzip_long_name,
}
"""Batches that cost a broker much for few bytes, by name. Those above `max.message.bytes` have to be refused for it."""


@functools.cache
def heavy_named(name: str) -> bytes:
    """Return the heavy batch of that name."""
    return HEAVY[name]()


def heavy(chance: Random) -> bytes:
    """Return one of the heavy batches."""
    return heavy_named(chance.choice(sorted(HEAVY)))
