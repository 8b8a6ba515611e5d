"""The wire's smallest pieces: lengths, strings, byte strings, counts and tagged fields, read and written.

A reader takes `(buffer, position)` and returns `(value, next position)`. Every length is compared with the bytes left
in the buffer before anything of that length is made, and every count with the bytes left divided by the smallest
possible element, so that a frame can never make us allocate more than about fifty times itself, the cost of Python's
objects (no bound at all was the fault behind CVE-2026-111108 and CVE-2026-111115 elsewhere). `budget` is a list of one
integer, the number of elements this message may still have; many small nested arrays share it.

A reader may also run past the end with `IndexError` or `struct.error`; `schema.decode` turns these into
`ProtocolError`. Writers return `bytes`.

Readers are as lenient as Kafka's: bytes that are not UTF-8 become U+FFFD, tagged fields may come in any order, and any
negative length means null where null is allowed.

"Compact" forms hold a length as an unsigned varint, plus one so that zero means null (KIP-482); the older ones hold a
big-endian int16 or int32, negative for null.

Left out: unknown tagged fields are skipped, not kept.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Mapping
from struct import Struct
from typing import Any

from kraftpy.ports import Buffer
from kraftpy.protocol.errors import ProtocolError, TooManyElements

MAX_STRING_BYTES = 0x7FFF
"""The longest string in either form; Kafka refuses longer ones in the compact form too."""

MAX_TAGGED_FIELDS = 1000
"""The most tagged fields in one section. Kafka itself has never defined more than four."""

MAX_ELEMENTS = 1_000_000
"""The most array elements and tagged fields in one message, all levels together."""

Budget = list[int]
TagReader = Callable[[Buffer, int, Budget], tuple[Any, int]]

_INT16 = Struct(">h")
_INT32 = Struct(">i")
_ONE_BYTE = tuple(bytes((n,)) for n in range(0x80))


def uvarint(value: int) -> bytes:
    """`value` (not negative) in groups of seven bits, lowest first."""
    if value < 0x80:
        return _ONE_BYTE[value]
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def read_uvarint(buffer: Buffer, position: int) -> tuple[int, int]:
    """Read an unsigned varint of at most 32 bits."""
    byte = buffer[position]
    position += 1
    if byte < 0x80:
        return byte, position
    value = byte & 0x7F
    for shift in (7, 14, 21, 28):
        byte = buffer[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value > 0xFFFFFFFF:
                break
            return value, position
    raise ProtocolError("a varint of more than 32 bits")


# --- lengths -------------------------------------------------------------------------------------------------------


def _checked(buffer: Buffer, position: int, length: int, what: str) -> int:
    """Return the position after `length` bytes from `position`, which is inside the buffer."""
    end = position + length
    if length < 0 or end > len(buffer):
        raise ProtocolError(f"{what} of {length} bytes where {len(buffer) - position} are left")
    return end


def _string(buffer: Buffer, position: int, length: int) -> tuple[str, int]:
    end = position + length
    if length < 0 or length > MAX_STRING_BYTES or end > len(buffer):
        raise ProtocolError(f"a string of {length} bytes where {len(buffer) - position} are left")
    try:
        return str(buffer[position:end], "utf-8"), end
    except UnicodeDecodeError:
        return _mended(buffer[position:end]), end


_AS_JAVA = "kraftpy.as-java"
_SURROGATE = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]")


def _replaced(error: UnicodeError) -> tuple[str, int]:
    """Replace bytes that are not UTF-8 as Java does: a surrogate by one character, whereas Python uses three."""
    assert isinstance(error, UnicodeDecodeError)
    is_surrogate = _SURROGATE.match(error.object, error.start) is not None
    return "\ufffd", error.start + 3 if is_surrogate else error.end


codecs.register_error(_AS_JAVA, _replaced)


def _mended(data: Buffer) -> str:
    """Return the text of bytes that are not all UTF-8. A replacement takes three bytes, so it may be too long."""
    text = str(data, "utf-8", _AS_JAVA)
    if len(text.encode()) > MAX_STRING_BYTES:
        raise ProtocolError(f"a string of {len(data)} bytes that are not UTF-8")
    return text


def read_string(buffer: Buffer, position: int) -> tuple[str, int]:
    """A string with an int16 length."""
    return _string(buffer, position + 2, _INT16.unpack_from(buffer, position)[0])


def read_nullable_string(buffer: Buffer, position: int) -> tuple[str | None, int]:
    """A string with an int16 length, negative for null."""
    length = _INT16.unpack_from(buffer, position)[0]
    return (None, position + 2) if length < 0 else _string(buffer, position + 2, length)


def read_compact_string(buffer: Buffer, position: int) -> tuple[str, int]:
    """A string with a varint length."""
    length = buffer[position]
    if length >= 0x80:
        length, position = read_uvarint(buffer, position)
    else:
        position += 1
    return _string(buffer, position, length - 1)


def read_compact_nullable_string(buffer: Buffer, position: int) -> tuple[str | None, int]:
    """A string with a varint length, 0 for null."""
    if buffer[position] == 0:
        return None, position + 1
    return read_compact_string(buffer, position)


def read_bytes(buffer: Buffer, position: int) -> tuple[bytes, int]:
    """Bytes with an int32 length, copied."""
    position, end = position + 4, _checked(buffer, position + 4, _INT32.unpack_from(buffer, position)[0], "bytes")
    return bytes(buffer[position:end]), end


def read_nullable_bytes(buffer: Buffer, position: int) -> tuple[bytes | None, int]:
    """Bytes with an int32 length, negative for null, copied."""
    if _INT32.unpack_from(buffer, position)[0] < 0:
        return None, position + 4
    return read_bytes(buffer, position)


def read_compact_bytes(buffer: Buffer, position: int) -> tuple[bytes, int]:
    """Bytes with a varint length, copied."""
    length, position = read_uvarint(buffer, position)
    end = _checked(buffer, position, length - 1, "bytes")
    return bytes(buffer[position:end]), end


def read_compact_nullable_bytes(buffer: Buffer, position: int) -> tuple[bytes | None, int]:
    """Bytes with a varint length, 0 for null, copied."""
    length, position = read_uvarint(buffer, position)
    if length == 0:
        return None, position
    end = _checked(buffer, position, length - 1, "bytes")
    return bytes(buffer[position:end]), end


def read_records(buffer: Buffer, position: int) -> tuple[memoryview, int]:
    """Record batches with an int32 length: a view of the buffer, not a copy."""
    position, end = position + 4, _checked(buffer, position + 4, _INT32.unpack_from(buffer, position)[0], "records")
    return memoryview(buffer)[position:end], end


def read_nullable_records(buffer: Buffer, position: int) -> tuple[memoryview | None, int]:
    """Record batches with an int32 length, negative for null: a view."""
    if _INT32.unpack_from(buffer, position)[0] < 0:
        return None, position + 4
    return read_records(buffer, position)


def read_compact_records(buffer: Buffer, position: int) -> tuple[memoryview, int]:
    """Record batches with a varint length: a view."""
    length, position = read_uvarint(buffer, position)
    end = _checked(buffer, position, length - 1, "records")
    return memoryview(buffer)[position:end], end


def read_compact_nullable_records(buffer: Buffer, position: int) -> tuple[memoryview | None, int]:
    """Record batches with a varint length, 0 for null: a view."""
    length, position = read_uvarint(buffer, position)
    if length == 0:
        return None, position
    end = _checked(buffer, position, length - 1, "records")
    return memoryview(buffer)[position:end], end


def string(value: str) -> bytes:
    """Return `value` after an int16 length. Raises `struct.error` if it is too long."""
    data = value.encode()
    return _INT16.pack(len(data)) + data


def nullable_string(value: str | None) -> bytes:
    """Return `value` after an int16 length, which is -1 for null."""
    return b"\xff\xff" if value is None else string(value)


def compact_string(value: str) -> bytes:
    """Return `value` after a varint length."""
    data = value.encode()
    length = len(data)
    if length < 0x7F:
        return _ONE_BYTE[length + 1] + data
    if length > MAX_STRING_BYTES:
        raise ValueError(f"a string of {length} bytes; the longest is {MAX_STRING_BYTES}")
    return uvarint(length + 1) + data


def compact_nullable_string(value: str | None) -> bytes:
    """Return `value` after a varint length, which is 0 for null."""
    return b"\x00" if value is None else compact_string(value)


# --- arrays --------------------------------------------------------------------------------------------------------


def _affordable(buffer: Buffer, position: int, count: int, min_size: int, budget: Budget) -> int:
    if count < 0 or count * min_size > len(buffer) - position:
        raise ProtocolError(f"{count} elements of at least {min_size} bytes where {len(buffer) - position} are left")
    budget[0] -= count
    if budget[0] < 0:
        raise TooManyElements("more elements than one message may have")
    return count


def read_count(buffer: Buffer, position: int, min_size: int, budget: Budget) -> tuple[int, int]:
    """Read an array's int32 length; each element takes at least `min_size` bytes."""
    count = _INT32.unpack_from(buffer, position)[0]
    return _affordable(buffer, position + 4, count, min_size, budget), position + 4


def read_nullable_count(buffer: Buffer, position: int, min_size: int, budget: Budget) -> tuple[int, int]:
    """Read an array's int32 length, negative for null."""
    if _INT32.unpack_from(buffer, position)[0] < 0:
        return -1, position + 4
    return read_count(buffer, position, min_size, budget)


def read_compact_count(buffer: Buffer, position: int, min_size: int, budget: Budget) -> tuple[int, int]:
    """Read an array's varint length."""
    count = buffer[position]
    if count >= 0x80:
        count, position = read_uvarint(buffer, position)
    else:
        position += 1
    return _affordable(buffer, position, count - 1, min_size, budget), position


def read_compact_nullable_count(buffer: Buffer, position: int, min_size: int, budget: Budget) -> tuple[int, int]:
    """Read an array's varint length, 0 for null."""
    if buffer[position] == 0:
        return -1, position + 1
    return read_compact_count(buffer, position, min_size, budget)


class Numbers:
    """Arrays of one fixed-width type, given as its code in `struct`. Formats of short ones, such as replica ids, are
    kept.
    """

    __slots__ = ("_code", "_short")

    def __init__(self, code: str) -> None:
        self._code = code
        self._short = tuple(Struct(f">{count}{code}") for count in range(9))

    def _layout(self, count: int) -> Struct:
        return self._short[count] if count < 9 else Struct(f">{count}{self._code}")

    def read(self, buffer: Buffer, position: int, count: int) -> list[Any]:
        """Read `count` values, which `read_count` has found to fit."""
        return list(self._layout(count).unpack_from(buffer, position))

    def write(self, values: list[Any]) -> bytes:
        """Return an int32 length and the values."""
        count = len(values)
        return _INT32.pack(count) + self._layout(count).pack(*values)

    def compact_write(self, values: list[Any]) -> bytes:
        """Return a varint length and the values."""
        count = len(values)
        return uvarint(count + 1) + self._layout(count).pack(*values)


# --- tagged fields -------------------------------------------------------------------------------------------------


def read_tags(
    buffer: Buffer, position: int, budget: Budget, known: Mapping[int, tuple[str, TagReader]], into: object
) -> int:
    """Read a section of tagged fields, set the known ones on `into`, and return the position after it (KIP-482).

    If a field appears twice, the last one counts. A known field must take exactly the bytes it announced.
    """
    count, position = read_uvarint(buffer, position)
    if count > MAX_TAGGED_FIELDS:
        raise ProtocolError(f"{count} tagged fields")
    _affordable(buffer, position, count, 2, budget)
    for _ in range(count):
        tag, position = read_uvarint(buffer, position)
        size, position = read_uvarint(buffer, position)
        end = _checked(buffer, position, size, "a tagged field")
        if tag in known:
            name, read = known[tag]
            value, position = read(buffer, position, budget)
            if position != end:
                raise ProtocolError(f"tagged field {name} announced {size} bytes and took {size + position - end}")
            setattr(into, name, value)
        position = end
    return position


def skip_tags(buffer: Buffer, position: int, budget: Budget) -> int:
    """Return the position after a section of tagged fields in which no tag is known."""
    if buffer[position] == 0:
        return position + 1
    return read_tags(buffer, position, budget, {}, None)
