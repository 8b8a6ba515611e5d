"""Conversion between a connection's bytes and requests or responses: frames and headers, without I/O.

A frame is four bytes of size and that many bytes. `FrameDecoder` refuses a bad size as soon as it has seen it, and
holds no more than has arrived: a peer that announces 100 MiB and sends nothing costs nothing.

A request begins with its API key, version, correlation id and client id, followed by tagged fields in flexible
versions; a response begins with the correlation id, followed by tagged fields (KIP-482). If a request's API or version
is not served here, only the part before the tagged fields is read, which never changes, so that it can be answered.

An ApiVersions response always has a header of version 0, and the response to an unsupported version is itself in
version 0 (KIP-511).

Invariant: a stream yields the same frames however it is split into reads.
"""

from __future__ import annotations

from struct import Struct
from struct import error as struct_error
from typing import Final

from kraftpy.ports import Buffer
from kraftpy.protocol import schema
from kraftpy.protocol.apis import APIS, ApiKey, request_header_version, response_header_version
from kraftpy.protocol.errors import FrameTooLarge, ProtocolError
from kraftpy.protocol.primitives import MAX_TAGGED_FIELDS, nullable_string, read_nullable_string, skip_tags

_SIZE: Final = Struct(">i")
_REQUEST: Final = Struct(">hhi")
_API_VERSIONS: Final = int(ApiKey.API_VERSIONS)  # a plain number: members of an enum are looked up slowly


class FrameDecoder:
    """Cuts a stream into frames. After a `ProtocolError`, neither it nor the connection can be used any longer.

    `max_frame_bytes` may be changed at any time, and applies to the next size that is read.
    """

    __slots__ = ("_pending", "_want", "max_frame_bytes")

    def __init__(self, max_frame_bytes: int) -> None:
        self.max_frame_bytes = max_frame_bytes
        self._pending = bytearray()  # the beginning of a frame, its size included
        self._want = _SIZE.size  # the length of `_pending` at which the next step is possible

    @property
    def buffered_bytes(self) -> int:
        """The number of bytes that wait for the rest of their frame."""
        return len(self._pending)

    def feed(self, data: Buffer) -> list[memoryview]:
        """Return the frames that `data` completes, without their sizes. They may be views of `data` if it is `bytes`.

        Raises `ProtocolError` for a negative size, `FrameTooLarge` for one above `max_frame_bytes`.
        """
        view = memoryview(data if isinstance(data, bytes) else bytes(data))
        frames: list[memoryview] = []
        position = self._resume(view, frames) if self._pending else 0
        end = len(view)
        while end - position >= 4:
            whole = self._whole(_SIZE.unpack_from(view, position)[0])
            if end - position < whole:
                self._want = whole
                break
            frames.append(view[position + 4 : position + whole])
            position += whole
        if position < end:
            self._pending += view[position:]
        return frames

    def _resume(self, view: memoryview, frames: list[memoryview]) -> int:
        """Continue the incomplete frame; return how many bytes of `view` were used."""
        position = 0
        while True:
            piece = view[position : position + self._want - len(self._pending)]
            self._pending += piece
            position += len(piece)
            if len(self._pending) < self._want:
                return position
            if self._want == _SIZE.size:
                self._want = self._whole(_SIZE.unpack(self._pending)[0])
            if len(self._pending) == self._want:
                frames.append(memoryview(self._pending)[4:])
                self._pending, self._want = bytearray(), _SIZE.size
                return position

    def _whole(self, size: int) -> int:
        """Return the length of a frame including its size field. Raises if that size is not allowed."""
        if size > self.max_frame_bytes:
            raise FrameTooLarge(size, self.max_frame_bytes)
        if size < 0:
            raise ProtocolError(f"a frame of {size} bytes; the limit is {self.max_frame_bytes}")
        return _SIZE.size + size


class RequestHeader:
    """The header of a request. `api_key` is a plain number, because it may be unknown."""

    __slots__ = ("api_key", "api_version", "client_id", "correlation_id")

    def __init__(self, api_key: int, api_version: int, correlation_id: int, client_id: str | None) -> None:
        self.api_key = api_key
        self.api_version = api_version
        self.correlation_id = correlation_id
        self.client_id = client_id

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RequestHeader) and self._values() == other._values()

    def __repr__(self) -> str:
        return f"RequestHeader{self._values()}"

    def _values(self) -> tuple[int, int, int, str | None]:
        return self.api_key, self.api_version, self.correlation_id, self.client_id


def decode_request_header(frame: Buffer) -> tuple[RequestHeader, memoryview]:
    """Return the header of a request, and the body after it as a view. Raises `ProtocolError`.

    For an API or version that is not in `APIS`, the body is taken to begin right after the client id.
    """
    try:
        api_key, api_version, correlation_id = _REQUEST.unpack_from(frame)
        client_id, position = read_nullable_string(frame, 8)
        api = APIS.get(api_key)
        if api is not None and api.flexible <= api_version <= api.last:
            # Hardly any request has tagged fields here.
            position = skip_tags(frame, position, [MAX_TAGGED_FIELDS]) if frame[position] else position + 1
    except (struct_error, IndexError):
        raise ProtocolError(f"a request header that ends early, in a frame of {len(frame)} bytes") from None
    return RequestHeader(api_key, api_version, correlation_id, client_id), memoryview(frame)[position:]


def encode_request(
    api_key: int, api_version: int, correlation_id: int, client_id: str | None, message: object
) -> bytes:
    """Encode a whole frame: size, header, body. Raises as `schema.encode` does."""
    header = _REQUEST.pack(api_key, api_version, correlation_id) + nullable_string(client_id)
    if request_header_version(api_key, api_version) == 2:
        header += b"\0"
    return _frame(header, message, api_version)


def decode_response_header(api_key: int, api_version: int, frame: Buffer) -> tuple[int, memoryview]:
    """Return the correlation id of a response, and the body after its header as a view. Raises `ProtocolError`."""
    try:
        (correlation_id,) = _SIZE.unpack_from(frame)
        position = 4
        if response_header_version(api_key, api_version) == 1:
            position = skip_tags(frame, position, [MAX_TAGGED_FIELDS])
    except (struct_error, IndexError):
        raise ProtocolError(f"a response header that ends early, in a frame of {len(frame)} bytes") from None
    return correlation_id, memoryview(frame)[position:]


def encode_response(api_key: int, api_version: int, correlation_id: int, message: object) -> bytes:
    """Encode a whole frame: size, header, body. An unsupported version of ApiVersions is answered in version 0.

    Raises as `schema.encode` does.
    """
    if api_key == _API_VERSIONS and api_version not in APIS[api_key]:
        api_version = 0
    return _frame(_response_header(api_key, api_version, correlation_id), message, api_version)


def encode_response_parts(
    api_key: int, api_version: int, correlation_id: int, message: object, apart_from: int
) -> list[Buffer]:
    """Encode a response in pieces: a part of at least `apart_from` bytes is a piece of its own, and is not copied.

    `records` that are not bytes but have a length are passed on unchanged.
    """
    pieces: list[Buffer] = []
    between: list[Buffer] = []
    for part in _parts(_response_header(api_key, api_version, correlation_id), message, api_version):
        if isinstance(part, bytes) and len(part) < apart_from:
            between.append(part)
            continue
        pieces += (b"".join(between), part)
        between = []
    pieces.append(b"".join(between))
    return [piece for piece in pieces if piece]


def around_body(api_key: int, api_version: int, correlation_id: int, body: bytes) -> list[Buffer]:
    """Frame a response whose body is already encoded, in two pieces."""
    header = _response_header(api_key, api_version, correlation_id)
    return [_SIZE.pack(len(header) + len(body)) + header, body]


def _response_header(api_key: int, api_version: int, correlation_id: int) -> bytes:
    header = _SIZE.pack(correlation_id)
    return header + b"\0" if response_header_version(api_key, api_version) == 1 else header


def _frame(header: bytes, message: object, version: int) -> bytes:
    return b"".join(_parts(header, message, version))


def _parts(header: bytes, message: object, version: int) -> list[Buffer]:
    parts: list[Buffer] = [b"", header]
    schema.encode_into(parts, message, version)
    parts[0] = _SIZE.pack(sum(map(len, parts)))
    return parts
