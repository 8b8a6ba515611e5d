"""Compression and decompression with gzip, snappy, lz4 and zstd, each imported the first time it is used.

`compress` writes what the Java client writes: gzip members, snappy in xerial blocks, lz4 frames of independent 64 KiB
blocks, zstd frames. `decompress` also reads the output of other clients: raw snappy (librdkafka), and several members
or frames.

Invariants of `decompress` for any input: memory is used only as output appears, and at most twice `max_bytes` of it;
time is linear in input and output, because the number of members, frames and blocks with hardly any output is limited
(`MAX_IDLE_PARTS`); no step holds the interpreter's lock for long, so that it may run in a thread. Malformed input is
CORRUPT_MESSAGE; so is output larger than `max_bytes`, as `ExpandsTooFar`.

Left out: zstd dictionaries, lz4 frames with the broken header checksum of message formats 0 and 1 (KIP-57).
See KIP-110 (zstd), KIP-390 (compression levels).
"""

from __future__ import annotations

import mmap
import zlib
from collections.abc import Callable
from enum import IntEnum
from typing import Any, Final, NoReturn

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
MAX_IDLE_PARTS: Final = 4096
"""How many members, frames and blocks may yield no output; each further one needs `_BYTES_PER_PART` of it."""
_BYTES_PER_PART: Final = 256
_FIRST_INPUT_BYTES: Final = 512
_INPUT_BYTES: Final = 1 << 16
_PIECE_BYTES: Final = 1 << 18
"""Output is handled in pieces of this size: each copy holds the interpreter's lock."""


class ExpandsTooFar(KafkaError):
    """The output is, or may be, larger than allowed."""

    def __init__(self, max_bytes: int) -> None:
        super().__init__(ErrorCode.CORRUPT_MESSAGE, f"compressed data expands to more than {max_bytes} bytes")


def compress(codec: Compression, data: Buffer, level: int | None = None) -> bytes:
    """Compress `data` in the codec's framing. `level` is on the codec's own scale (KIP-390); None is its default."""
    if codec == Compression.NONE:
        return copied(data)
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

    return copied(cramjam.zstd.compress(data, _ZSTD_DEFAULT_LEVEL if level is None else level))


def decompress(codec: Compression, data: Buffer, max_bytes: int) -> bytes:
    """Return the uncompressed bytes. Raises KafkaError(CORRUPT_MESSAGE) if malformed or larger than `max_bytes`."""
    if codec == Compression.NONE:
        if len(data) > max_bytes:
            raise ExpandsTooFar(max_bytes)
        return copied(data)
    view = memoryview(data).cast("B")
    if not len(view):
        _corrupt(f"{codec.name.lower()}: empty")
    output = _Output(max_bytes)
    if codec == Compression.GZIP:
        _each(view, output, "gzip members", _gzip_member)
    elif codec == Compression.SNAPPY:
        _decompress_snappy(view, output)
    elif codec == Compression.LZ4:
        _each(view, output, "lz4 frames", _lz4_frame)
    else:
        output.take_from("zstd", "decompress_into", view, _zstd_capacity(view, max_bytes))
    return output.joined()


def copied(data: Any) -> bytes:
    """Return `data` as bytes. Long data are copied piece by piece, so that other threads can run in between."""
    if isinstance(data, bytes):
        return data
    view = memoryview(data)
    if len(view) <= _PIECE_BYTES:
        return bytes(view)
    return b"".join([bytes(view[start : start + _PIECE_BYTES]) for start in range(0, len(view), _PIECE_BYTES)])


class _Output:
    """The output so far, and how much more is allowed."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.size = 0
        self._pieces: list[bytes] = []
        self._parts = 0

    def begin(self, what: str) -> None:
        """Begin another member, frame or block; refuse it if many of them have yielded little."""
        self._parts += 1
        if self._parts > MAX_IDLE_PARTS + self.size // _BYTES_PER_PART:
            _corrupt(f"{self._parts} {what} hold only {self.size} bytes")

    @property
    def next_bytes(self) -> int:
        """How many bytes to ask for next: one piece, or one byte more than is allowed."""
        return min(_PIECE_BYTES, self.max_bytes - self.size + 1)

    def add(self, piece: bytes) -> None:
        """Append a piece of output."""
        self.size += len(piece)
        if self.size > self.max_bytes:
            raise ExpandsTooFar(self.max_bytes)
        self._pieces.append(piece)

    def take_from(self, codec: str, function: str, data: memoryview, capacity: int) -> None:
        """Append the output of one of cramjam's functions, at most `capacity` bytes.

        A large capacity is only an address range: memory is used only as it is written.
        """
        import cramjam

        room = self.max_bytes - self.size
        into: bytearray | mmap.mmap
        if min(capacity, room) <= _PIECE_BYTES:
            into = bytearray(min(capacity, room))
        else:
            try:
                into = mmap.mmap(-1, min(capacity, room))
            except OSError as error:  # no free address range of this size, which is no disk error
                raise MemoryError(str(error)) from error
        try:
            size = getattr(getattr(cramjam, codec), function)(data, into)
            for start in range(0, size, _PIECE_BYTES):
                self.add(bytes(into[start : min(start + _PIECE_BYTES, size)]))
        except cramjam.DecompressionError as error:
            if capacity > room:
                raise ExpandsTooFar(self.max_bytes) from error
            _corrupt(f"{codec}: {error}")
        finally:
            if isinstance(into, mmap.mmap):
                into.close()

    def joined(self) -> bytes:
        """Return the whole output."""
        return self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)


def _corrupt(reason: str) -> NoReturn:
    raise KafkaError(ErrorCode.CORRUPT_MESSAGE, reason)


def _each(
    view: memoryview, output: _Output, what: str, decompress_one: Callable[[memoryview, int, _Output], int]
) -> None:
    """Decompress all members or frames, one after the other."""
    position = 0
    while position < len(view):
        output.begin(what)
        position = decompress_one(view, position, output)


def _gzip_member(view: memoryview, position: int, output: _Output) -> int:
    """Decompress one member; return the position after it. Input is passed in small pieces, because zlib copies the
    unused rest.
    """
    member = zlib.decompressobj(_GZIP_WBITS)
    piece: Buffer = b""
    input_bytes = _FIRST_INPUT_BYTES
    try:
        while not member.eof:
            if not piece:
                piece = view[position : position + input_bytes]
                position += len(piece)
                input_bytes = min(2 * input_bytes, _INPUT_BYTES)
            came = member.decompress(piece, output.next_bytes)
            if not piece and not came and not member.eof:
                _corrupt("gzip: the stream is cut short")
            output.add(came)
            piece = member.unconsumed_tail
    except zlib.error as error:
        _corrupt(f"gzip: {error}")
    return position - len(member.unused_data)


def _compress_snappy(data: Buffer) -> bytes:
    """Compress in xerial framing: a header, then blocks of raw snappy, each after its length (4 bytes)."""
    import cramjam

    view = memoryview(data)
    parts: list[bytes] = [_XERIAL_HEADER]
    for start in range(0, max(len(view), 1), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK_BYTES]))
        parts += (len(block).to_bytes(4, "big"), block)
    return b"".join(parts)


def _decompress_snappy(view: memoryview, output: _Output) -> None:
    """Decompress xerial blocks if the data begin with their magic, else one raw snappy block."""
    if bytes(view[:8]) != XERIAL_MAGIC:
        _snappy_block(view, output)
        return
    if len(view) < len(_XERIAL_HEADER):
        _corrupt("snappy: the xerial header is cut short")
    position = len(_XERIAL_HEADER)
    while position < len(view):
        output.begin("snappy blocks")
        size = int.from_bytes(view[position : position + 4], "big")
        position += 4
        if size > len(view) - position:
            _corrupt("snappy: a block is cut short")
        _snappy_block(view[position : position + size], output)
        position += size


def _snappy_block(block: memoryview, output: _Output) -> None:
    """Decompress one raw snappy block. The length it states is believed only if a block of this size can hold that
    much.
    """
    size = shift = 0
    for byte in block[:5]:
        size |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            break
    else:
        _corrupt("snappy: no length")
    if size > output.max_bytes - output.size:
        raise ExpandsTooFar(output.max_bytes)
    if size > _SNAPPY_MAX_RATIO * len(block):
        _corrupt(f"snappy: {len(block)} bytes cannot hold {size}")
    output.take_from("snappy", "decompress_raw_into", block, size)


def _lz4_frame(view: memoryview, position: int, output: _Output) -> int:
    """Decompress one frame; return the position after it. Input is passed in small pieces, as with gzip."""
    import lz4.frame

    frame = lz4.frame.LZ4FrameDecompressor()
    input_bytes = _FIRST_INPUT_BYTES
    try:
        while not frame.eof:
            piece: Buffer = b""
            if frame.needs_input:
                piece = view[position : position + input_bytes]
                if not piece:
                    _corrupt("lz4: the frame is cut short")
                position += len(piece)
                input_bytes = min(2 * input_bytes, _INPUT_BYTES)
            came: bytes = frame.decompress(piece, max_length=output.next_bytes)
            output.add(came)
    except RuntimeError as error:
        _corrupt(f"lz4: {error}")
    return position - len(frame.unused_data or b"")


def _zstd_capacity(view: memoryview, max_bytes: int) -> int:
    """Return an upper bound on what these frames hold, from block headers alone; exact if no block is compressed.

    Raises ExpandsTooFar if the uncompressed blocks alone hold more than `max_bytes`.
    """
    most_parts = MAX_IDLE_PARTS + max_bytes // _BYTES_PER_PART
    capacity = plain = position = parts = 0
    while position < len(view):
        magic = int.from_bytes(view[position : position + 4], "little")
        parts += 1
        if parts > MAX_IDLE_PARTS + capacity // _BYTES_PER_PART:
            _corrupt(f"zstd: {parts} frames and blocks hold at most {capacity} bytes")
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
            parts += 1
            if parts > most_parts or parts > MAX_IDLE_PARTS + capacity // _BYTES_PER_PART:
                _corrupt(f"zstd: {parts} frames and blocks hold at most {capacity} bytes")
            if kind == 2:
                capacity += _ZSTD_BLOCK_BYTES
                position += size
            else:
                capacity += size
                plain += size
                position += 1 if kind else size  # kind 1 is a single byte, repeated `size` times
                if plain > max_bytes:
                    raise ExpandsTooFar(max_bytes)
        position += 4 * (descriptor >> 2 & 1)
    if position > len(view):
        _corrupt("zstd: the frame is cut short")
    return capacity
