"""Compressed data made to cost more than they are worth: many parts that hold nothing, sizes that are only announced.

Work is counted, never timed: by the decompressors that are made, and by the bytes that are taken from the allocator.
"""

from __future__ import annotations

import tracemalloc
import zlib
from typing import Any

import lz4.frame
import pytest

from kraftpy.protocol.compression import MAX_IDLE_PARTS, XERIAL_MAGIC, Compression, ExpandsTooFar, compress, decompress
from kraftpy.protocol.errors import ErrorCode, KafkaError

MIB = 1 << 20
ALLOWED = 128 * MIB


def refused(codec: Compression, data: bytes, max_bytes: int = ALLOWED) -> KafkaError:
    with pytest.raises(KafkaError) as caught:
        decompress(codec, data, max_bytes)
    assert caught.value.code == ErrorCode.CORRUPT_MESSAGE
    return caught.value


def zstd_frame(*blocks: bytes) -> bytes:
    return b"\x28\xb5\x2f\xfd\x00\x58" + b"".join(blocks)


EMPTY_PARTS = {
    Compression.GZIP: compress(Compression.GZIP, b""),
    Compression.LZ4: compress(Compression.LZ4, b""),
    Compression.ZSTD: compress(Compression.ZSTD, b""),
}


@pytest.mark.parametrize("codec", EMPTY_PARTS, ids=lambda codec: codec.name)
def test_a_megabyte_of_empty_members_is_refused(codec: Compression) -> None:
    part = EMPTY_PARTS[codec]
    error = refused(codec, part * (MIB // len(part)))
    assert f"{MAX_IDLE_PARTS + 1} " in error.message


@pytest.mark.parametrize("codec", EMPTY_PARTS, ids=lambda codec: codec.name)
def test_some_empty_members_and_many_small_ones_are_read(codec: Compression) -> None:
    assert decompress(codec, EMPTY_PARTS[codec] * 1000 + compress(codec, b"x"), ALLOWED) == b"x"
    small = compress(codec, bytes(1000))
    assert decompress(codec, small * 5000, ALLOWED) == bytes(5_000_000)


def test_empty_snappy_blocks_are_counted() -> None:
    refused(Compression.SNAPPY, XERIAL_MAGIC + b"\0\0\0\1" * 2 + b"\0\0\0\1\0" * 200_000)


def test_empty_zstd_blocks_and_skippable_frames_are_counted() -> None:
    refused(Compression.ZSTD, zstd_frame(*[b"\0\0\0"] * 300_000, b"\1\0\0"))
    refused(Compression.ZSTD, b"\x50\x2a\x4d\x18\0\0\0\0" * 100_000)


class _Counted:
    """A decompressor that counts the bytes it was given."""

    given = 0

    def __init__(self, real: Any) -> None:
        self._real = real

    def decompress(self, data: bytes, *rest: Any, **named: Any) -> bytes:
        type(self).given += len(data)
        return self._real.decompress(data, *rest, **named)  # type: ignore[no-any-return]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


@pytest.mark.parametrize("codec", [Compression.GZIP, Compression.LZ4], ids=lambda codec: codec.name)
def test_the_rest_is_not_given_to_every_member_again(codec: Compression, monkeypatch: pytest.MonkeyPatch) -> None:
    data = compress(codec, b"member" * 50) * 4000
    made, frames = zlib.decompressobj, lz4.frame.LZ4FrameDecompressor
    monkeypatch.setattr(zlib, "decompressobj", lambda *given: _Counted(made(*given)))
    monkeypatch.setattr(lz4.frame, "LZ4FrameDecompressor", lambda: _Counted(frames()))
    monkeypatch.setattr(_Counted, "given", 0)
    assert decompress(codec, data, ALLOWED) == b"member" * 200_000
    assert _Counted.given < 4000 * 600  # 512 bytes are given to begin with


def test_a_member_that_follows_a_large_one_begins_where_that_ended() -> None:
    for codec in EMPTY_PARTS:
        large = bytes(range(256)) * 20_000
        data = compress(codec, large) + compress(codec, b"second") + compress(codec, large)
        assert decompress(codec, data, ALLOWED) == large + b"second" + large


@pytest.mark.parametrize("codec", [Compression.GZIP, Compression.LZ4], ids=lambda codec: codec.name)
@pytest.mark.parametrize("kept", [1, 5, 600, 70_000, -1])
def test_a_member_that_is_cut_short(codec: Compression, kept: int) -> None:
    import random

    data = compress(codec, random.Random(1).randbytes(100_000))
    refused(codec, data[:kept])
    refused(codec, compress(codec, b"whole") + data[:kept])


def test_what_blocks_announce_is_not_allocated() -> None:
    """A thousand compressed zstd blocks may hold 128 KiB each; these hold 320 bytes each."""
    packed = compress(Compression.ZSTD, b"abcdefgh" * 40)
    is_single, kind = packed[4] >> 5 & 1, packed[4] >> 6
    block = packed[6 - is_single + (is_single, 2, 4, 8)[kind] :]
    size = int.from_bytes(block[:3], "little") >> 3
    middle = (size << 3 | 2 << 1).to_bytes(3, "little") + block[3 : 3 + size]
    data = zstd_frame(*[middle] * 1000, b"\1\0\0")
    decompress(Compression.ZSTD, compress(Compression.ZSTD, b"x"), MIB)  # imports what it imports
    tracemalloc.start()
    try:
        found = decompress(Compression.ZSTD, data, ALLOWED)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found == b"abcdefgh" * 40_000
    assert peak < 4 * MIB


def test_a_window_and_a_dictionary_that_are_not_there() -> None:
    refused(Compression.ZSTD, b"\x28\xb5\x2f\xfd\x00\xff" + b"\1\0\0")  # a window of 3.75 TB
    refused(Compression.ZSTD, b"\x28\xb5\x2f\xfd\x03\x58\1\2\3\4" + b"\x09\0\0a")  # dictionary 0x04030201


@pytest.mark.parametrize("codec", [*EMPTY_PARTS, Compression.SNAPPY], ids=lambda codec: codec.name)
def test_too_much_is_told_apart_from_damage(codec: Compression) -> None:
    data = compress(codec, bytes(MIB))
    assert isinstance(refused(codec, data, MIB - 1), ExpandsTooFar)
    assert not isinstance(refused(codec, data[: len(data) // 2]), ExpandsTooFar)
