"""gzip, snappy, lz4 and zstd behind two functions, each imported the first time it is used.

`compress` writes what the Java client writes: gzip members, snappy in xerial blocks, lz4 frames of independent 64 KiB
blocks, zstd frames. `decompress` also reads what others write: raw snappy (librdkafka), several members or frames.

Invariant: `decompress` never allocates much more than `max_bytes`, nor much more than its input can hold, whatever the
input claims. Anything malformed, or that would come out larger than `max_bytes`, is CORRUPT_MESSAGE.

Left out: zstd dictionaries, lz4 frames with the broken header checksum of message formats 0 and 1 (KIP-57).
See KIP-110 (zstd), KIP-390 (compression levels).
"""

from __future__ import annotations

import zlib
from enum import IntEnum
from typing import Final, NoReturn

from kraftpy.ports import Buffer
from kraftpy.protocol.errors import ErrorCode, KafkaError


class Compression(IntEnum):
    """A codec, by its number in the attributes of a record batch."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER: Final = XERIAL_MAGIC + (1).to_bytes(4, "big") + (1).to_bytes(4, "big")
_XERIAL_BLOCK_BYTES: Final = 32 * 1024

_SNAPPY_MAX_RATIO: Final = 22  # a 3-byte copy yields at most 64 bytes
_ZSTD_MAGIC: Final = 0xFD2FB528
_ZSTD_SKIPPABLE: Final = 0x184D2A50
_ZSTD_BLOCK_BYTES: Final = 128 * 1024
_ZSTD_DEFAULT_LEVEL: Final = 3
_GZIP_WBITS: Final = 31


def compress(codec: Compression, data: Buffer, level: int | None = None) -> bytes:
    """`data` in the codec's framing. `level` as the codec counts it (KIP-390); None is the codec's own default."""
    if codec == Compression.NONE:
        return bytes(data)
    if codec == Compression.GZIP:
        return zlib.compress(data, -1 if level is None else level, _GZIP_WBITS)
    if codec == Compression.SNAPPY:
        return _compress_snappy(data)
    if codec == Compression.LZ4:
        import lz4.frame

        packed: bytes = lz4.frame.compress(
            data,
            compression_level=0 if level is None else level,
            block_size=lz4.frame.BLOCKSIZE_MAX64KB,
            block_linked=False,
            store_size=False,
        )
        return packed
    import cramjam

    return bytes(cramjam.zstd.compress(data, _ZSTD_DEFAULT_LEVEL if level is None else level))


def decompress(codec: Compression, data: Buffer, max_bytes: int) -> bytes:
    """The bytes that were compressed. KafkaError(CORRUPT_MESSAGE) where malformed or larger than `max_bytes`."""
    if codec == Compression.NONE:
        if len(data) > max_bytes:
            _too_large(max_bytes)
        return bytes(data)
    if codec == Compression.GZIP:
        return _decompress_gzip(data, max_bytes)
    if codec == Compression.SNAPPY:
        return _decompress_snappy(data, max_bytes)
    if codec == Compression.LZ4:
        return _decompress_lz4(data, max_bytes)
    return _decompress_zstd(data, max_bytes)


def _corrupt(reason: str) -> NoReturn:
    raise KafkaError(ErrorCode.CORRUPT_MESSAGE, reason)


def _too_large(max_bytes: int) -> NoReturn:
    _corrupt(f"compressed data expands to more than {max_bytes} bytes")


def _decompress_gzip(data: Buffer, max_bytes: int) -> bytes:
    """Every member of a gzip stream, one after the other."""
    parts: list[bytes] = []
    room = max_bytes
    rest: Buffer = data
    while rest:
        member = zlib.decompressobj(_GZIP_WBITS)
        try:
            part = member.decompress(rest, room + 1)
        except zlib.error as error:
            _corrupt(f"gzip: {error}")
        room -= len(part)
        if room < 0:
            _too_large(max_bytes)
        if not member.eof:
            _corrupt("gzip: the stream is cut short")
        parts.append(part)
        rest = member.unused_data
    if not parts:
        _corrupt("gzip: empty")
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _compress_snappy(data: Buffer) -> bytes:
    """Xerial framing: a header, then blocks of raw snappy, each after its length (4 bytes)."""
    import cramjam

    view = memoryview(data)
    parts: list[bytes] = [_XERIAL_HEADER]
    for start in range(0, max(len(view), 1), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK_BYTES]))
        parts += (len(block).to_bytes(4, "big"), block)
    return b"".join(parts)


def _decompress_snappy(data: Buffer, max_bytes: int) -> bytes:
    """Xerial blocks if the data open with their magic, else one raw snappy block."""
    view = memoryview(data)
    if bytes(view[:8]) != XERIAL_MAGIC:
        return _snappy_block(view, max_bytes, max_bytes)
    if len(view) < len(_XERIAL_HEADER):
        _corrupt("snappy: the xerial header is cut short")
    parts: list[bytes] = []
    room = max_bytes
    position = len(_XERIAL_HEADER)
    while position < len(view):
        size = int.from_bytes(view[position : position + 4], "big")
        position += 4
        if size > len(view) - position:
            _corrupt("snappy: a block is cut short")
        part = _snappy_block(view[position : position + size], room, max_bytes)
        room -= len(part)
        parts.append(part)
        position += size
    return b"".join(parts)


def _snappy_block(block: memoryview, room: int, max_bytes: int) -> bytes:
    """One raw snappy block, which states its length up front: believed only where the block can hold it."""
    import cramjam

    size = shift = 0
    for byte in block[:5]:
        size |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            break
    else:
        _corrupt("snappy: no length")
    if size > room:
        _too_large(max_bytes)
    if size > _SNAPPY_MAX_RATIO * len(block):
        _corrupt(f"snappy: {len(block)} bytes cannot hold {size}")
    try:
        return bytes(cramjam.snappy.decompress_raw(block))
    except cramjam.DecompressionError as error:
        _corrupt(f"snappy: {error}")


def _decompress_lz4(data: Buffer, max_bytes: int) -> bytes:
    """Every lz4 frame, one after the other."""
    import lz4.frame

    parts: list[bytes] = []
    room = max_bytes
    rest: Buffer | None = data
    while rest:
        frame = lz4.frame.LZ4FrameDecompressor()
        try:
            part: bytes = frame.decompress(rest, max_length=room + 1)
        except RuntimeError as error:
            _corrupt(f"lz4: {error}")
        room -= len(part)
        if room < 0:
            _too_large(max_bytes)
        if not frame.eof:
            _corrupt("lz4: the frame is cut short")
        parts.append(part)
        rest = frame.unused_data
    if not parts:
        _corrupt("lz4: empty")
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _decompress_zstd(data: Buffer, max_bytes: int) -> bytes:
    """Every zstd frame, into a buffer of the size the block headers allow (RFC 8878)."""
    import cramjam

    capacity = _zstd_capacity(memoryview(data))
    out = bytearray(min(capacity, max_bytes))
    try:
        size = cramjam.zstd.decompress_into(data, out)
    except cramjam.DecompressionError as error:
        if capacity > max_bytes:
            _corrupt(f"zstd: malformed, or expands to more than {max_bytes} bytes")
        _corrupt(f"zstd: {error}")
    return bytes(memoryview(out)[:size])


def _zstd_capacity(view: memoryview) -> int:
    """The most bytes these frames can hold, from their block headers alone: exact but for the last compressed block."""
    capacity = position = 0
    while position < len(view):
        magic = int.from_bytes(view[position : position + 4], "little")
        if magic & 0xFFFFFFF0 == _ZSTD_SKIPPABLE:
            position += 8 + int.from_bytes(view[position + 4 : position + 8], "little")
            continue
        if magic != _ZSTD_MAGIC or len(view) < position + 5:
            _corrupt("zstd: not a frame")
        descriptor = view[position + 4]
        single_segment = descriptor >> 5 & 1
        size_bytes = (single_segment, 2, 4, 8)[descriptor >> 6]
        position += 5 + (1 - single_segment) + (0, 1, 2, 4)[descriptor & 3] + size_bytes
        last = 0
        while not last:
            if position + 3 > len(view):
                _corrupt("zstd: the frame is cut short")
            block = int.from_bytes(view[position : position + 3], "little")
            last, kind, size = block & 1, block >> 1 & 3, block >> 3
            position += 3
            if kind == 1:  # one byte, repeated
                capacity += size
                position += 1
            else:
                capacity += size if kind == 0 else _ZSTD_BLOCK_BYTES
                position += size
        position += 4 * (descriptor >> 2 & 1)
    if position > len(view) or not len(view):
        _corrupt("zstd: the frame is cut short")
    return capacity
