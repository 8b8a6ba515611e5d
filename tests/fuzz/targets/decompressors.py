"""The decompressors: the first byte is the codec, the rest is what it is to expand.

CORRUPT_MESSAGE or at most `MOST_BYTES`; work and memory grow with the input and that limit, however the input is cut
into members, frames and blocks.
"""

from __future__ import annotations

from collections.abc import Iterator

from kraftpy.protocol.compression import XERIAL_MAGIC, Compression, compress, decompress
from kraftpy.protocol.errors import KafkaError

ALLOWED = (KafkaError,)
MOST_BYTES = 1 << 20
MORE_BYTES = 4 * MOST_BYTES


def one(data: bytes) -> None:
    """A codec and its bytes."""
    if not data:
        return
    expanded = decompress(Compression(data[0] % 5), data[1:], MOST_BYTES)
    assert len(expanded) <= MOST_BYTES


def seeds() -> Iterator[tuple[str, bytes]]:
    """Some and none, once and several times, in each codec; what may be skipped."""
    for codec in Compression:
        head = bytes((int(codec),))
        empty, some, long = compress(codec, b""), compress(codec, b"abc" * 50), compress(codec, bytes(70_000))
        yield f"{codec.name}-empty", head + empty
        yield f"{codec.name}-some", head + some
        if len(long) < 5000:
            yield f"{codec.name}-long", head + long
        yield f"{codec.name}-members", head + some + empty * 20 + some
        yield f"{codec.name}-cut", head + some[: len(some) // 2]
        yield f"{codec.name}-many-members", head + empty * (3000 // max(len(empty), 1))
    skippable = b"\x50\x2a\x4d\x18\0\0\0\0"
    for codec in (Compression.LZ4, Compression.ZSTD):
        yield f"{codec.name}-skippable", bytes((int(codec),)) + skippable * 300 + compress(codec, b"x")
    yield "SNAPPY-blocks", b"\2" + XERIAL_MAGIC + b"\0\0\0\1\0\0\0\1" + b"\0\0\0\1\0" * 500
