"""Frames and headers: torn streams, sizes that are refused, and the header versions of KIP-482 and KIP-511."""

from __future__ import annotations

from random import Random
from struct import pack
from typing import Any

import pytest
from wire_samples import samples, versions_of

from kraftpy.protocol import frames
from kraftpy.protocol.apis import APIS, ApiKey
from kraftpy.protocol.errors import ErrorCode, ProtocolError
from kraftpy.protocol.frames import FrameDecoder, RequestHeader
from kraftpy.protocol.messages.api_versions import ApiVersion, ApiVersionsResponse
from kraftpy.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from kraftpy.protocol.schema import decode


def framed(*payloads: bytes) -> bytes:
    return b"".join(pack(">i", len(payload)) + payload for payload in payloads)


PAYLOADS = [b"", b"a", b"four", b"", b"x" * 1000, b"tail"]


def test_a_whole_stream_gives_its_frames() -> None:
    assert FrameDecoder(1000).feed(framed(*PAYLOADS)) == PAYLOADS


@pytest.mark.parametrize("piece", [1, 2, 3, 4, 5, 7, 999, 1003])
def test_a_torn_stream_gives_the_same_frames(piece: int) -> None:
    stream, decoder = framed(*PAYLOADS), FrameDecoder(1000)
    found = [frame for start in range(0, len(stream), piece) for frame in decoder.feed(stream[start : start + piece])]
    assert found == PAYLOADS
    assert decoder.buffered_bytes == 0


def test_a_stream_torn_anywhere_gives_the_same_frames() -> None:
    random = Random(7)
    for _ in range(300):
        payloads = [random.randbytes(random.choice((0, 1, 3, 4, 5, 60))) for _ in range(random.randint(1, 5))]
        stream, decoder, found, position = framed(*payloads), FrameDecoder(60), [], 0
        while position < len(stream):
            size = random.randint(0, 9)
            found += decoder.feed(random.choice((bytes, bytearray, memoryview))(stream[position : position + size]))
            position += size
        assert found == payloads


def test_a_frame_survives_the_reuse_of_the_buffer_it_came_in() -> None:
    buffer = bytearray(framed(b"first"))
    (frame,) = FrameDecoder(100).feed(buffer)
    buffer[:] = b"\xff" * len(buffer)
    assert frame == b"first"


@pytest.mark.parametrize("size", [-1, -(2**31), 101, 2**31 - 1])
@pytest.mark.parametrize("torn", [False, True])
def test_a_size_that_is_not_allowed_is_refused_with_its_fourth_byte(size: int, torn: bool) -> None:
    decoder = FrameDecoder(100)
    prefix = pack(">i", size)
    if torn:
        assert decoder.feed(prefix[:3]) == []
        prefix = prefix[3:]
    with pytest.raises(ProtocolError):
        decoder.feed(prefix)


def test_a_size_alone_takes_no_memory() -> None:
    decoder = FrameDecoder(2**30)
    assert decoder.feed(pack(">i", 2**30)) == []
    assert decoder.buffered_bytes == 4


def test_the_limit_may_change_between_frames() -> None:
    decoder = FrameDecoder(4)
    assert decoder.feed(framed(b"four")) == [b"four"]
    decoder.max_frame_bytes = 5
    assert decoder.feed(framed(b"fiver")) == [b"fiver"]


@pytest.mark.parametrize("client_id", [None, "", "rdkafka", "żółw"])
def test_requests_open_with_header_1_or_when_flexible_2(client_id: str | None) -> None:
    message = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
    for version in versions_of(HeartbeatRequest):
        whole = frames.encode_request(ApiKey.HEARTBEAT, version, 77, client_id, message)
        (frame,) = FrameDecoder(1000).feed(whole)
        header, body = frames.decode_request_header(frame)
        assert header == RequestHeader(ApiKey.HEARTBEAT, version, 77, client_id)
        assert decode(HeartbeatRequest, body, version) == message
        assert len(frame) - len(body) == 10 + len((client_id or "").encode()) + (version >= 4)


def test_responses_open_with_header_0_or_when_flexible_1() -> None:
    for version in versions_of(HeartbeatResponse):
        whole = frames.encode_response(ApiKey.HEARTBEAT, version, 77, HeartbeatResponse(error_code=27))
        (frame,) = FrameDecoder(1000).feed(whole)
        correlation_id, body = frames.decode_response_header(ApiKey.HEARTBEAT, version, frame)
        assert correlation_id == 77
        assert decode(HeartbeatResponse, body, version).error_code == ErrorCode.REBALANCE_IN_PROGRESS
        assert len(frame) - len(body) == 4 + (version >= 4)


@pytest.mark.parametrize("version", [0, 3, 4])
def test_an_api_versions_response_never_has_tagged_fields_in_its_header(version: int) -> None:
    whole = frames.encode_response(ApiKey.API_VERSIONS, version, 5, ApiVersionsResponse())
    correlation_id, body = frames.decode_response_header(ApiKey.API_VERSIONS, version, whole[4:])
    assert correlation_id == 5
    assert decode(ApiVersionsResponse, body, version) == ApiVersionsResponse()


@pytest.mark.parametrize("version", [6, 99, -1, 32767])
def test_an_unknown_version_of_api_versions_is_answered_in_version_0(version: int) -> None:
    known = [ApiVersion(api_key=18, min_version=0, max_version=5)]
    answer = ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=known)
    whole = frames.encode_response(ApiKey.API_VERSIONS, version, 5, answer)
    assert whole == framed(bytes.fromhex("00000005 0023 00000001 0012 0000 0005"))


@pytest.mark.parametrize(("api_key", "version"), [(18, 99), (18, -1), (999, 0), (-1, 3), (3, 14), (0, 14)])
def test_what_is_not_spoken_is_read_as_far_as_its_client_id(api_key: int, version: int) -> None:
    header, body = frames.decode_request_header(pack(">hhih", api_key, version, 9, 2) + b"id" + b"\xff\xff\xff")
    assert header == RequestHeader(api_key, version, 9, "id")
    assert body == b"\xff\xff\xff"


def test_unknown_tagged_fields_of_a_header_are_skipped() -> None:
    tags = bytes.fromhex("02 00 03 616263 05 00")
    header, body = frames.decode_request_header(pack(">hhih", 18, 3, 9, -1) + tags + b"rest")
    assert header.client_id is None
    assert body == b"rest"


@pytest.mark.parametrize(
    "tail",
    [
        b"",
        b"\x00",
        b"\x00\x05abc",
        b"\x80\x00",
        b"\xff\xff" + bytes.fromhex("ffffffff0f"),
        b"\xff\xff" + bytes.fromhex("ffffffffff01"),
        b"\xff\xff" + bytes.fromhex("02 01 00 00"),
        b"\xff\xff" + bytes.fromhex("01 00 7f"),
        b"\xff\xff" + bytes.fromhex("e907") + bytes.fromhex("0000") * 1001,
    ],
    ids=lambda tail: tail[:8].hex(),
)
def test_a_malformed_request_header_is_a_protocol_error(tail: bytes) -> None:
    with pytest.raises(ProtocolError):
        frames.decode_request_header(pack(">hhi", 18, 3, 9) + tail)


@pytest.mark.parametrize(
    ("tail", "client_id", "body"),
    [
        ("fffe", None, ""),
        ("8000", None, ""),
        ("0001 ff", "\ufffd", ""),
        ("ffff 02 01 00 00 00 07", None, "07"),
        ("ffff 02 01 00 01 00 07", None, "07"),
    ],
)
def test_a_request_header_is_read_as_leniently_as_by_kafka(tail: str, client_id: str | None, body: str) -> None:
    """Any negative length is null, bytes that are not UTF-8 are replaced, tagged fields come in any order."""
    version = 3 if tail.startswith("ffff") else 0
    header, rest = frames.decode_request_header(pack(">hhi", 18, version, 7) + bytes.fromhex(tail))
    assert (header.client_id, bytes(rest)) == (client_id, bytes.fromhex(body))


@pytest.mark.parametrize("frame", [b"", b"\x00\x12", pack(">hhi", 18, 3, 9)[:7]])
def test_a_header_that_ends_early_is_a_protocol_error(frame: bytes) -> None:
    with pytest.raises(ProtocolError):
        frames.decode_request_header(frame)


@pytest.mark.parametrize("frame", [b"", b"\x00\x00\x00", b"\x00\x00\x00\x01", b"\x00\x00\x00\x01\x01"])
def test_a_malformed_response_header_is_a_protocol_error(frame: bytes) -> None:
    with pytest.raises(ProtocolError):
        frames.decode_response_header(ApiKey.HEARTBEAT, 4, frame)


@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.name)
def test_every_request_and_response_survives_its_frame(api: Any) -> None:
    for version in range(api.first, api.last + 1):
        for request, response in zip(samples(api.request, version, 2), samples(api.response, version, 2), strict=True):
            (frame,) = FrameDecoder(2**20).feed(frames.encode_request(api.key, version, -5, "c", request))
            header, body = frames.decode_request_header(frame)
            assert header == RequestHeader(api.key, version, -5, "c")
            assert decode(api.request, body, version) == request
            (frame,) = FrameDecoder(2**20).feed(frames.encode_response(api.key, version, -5, response))
            correlation_id, body = frames.decode_response_header(api.key, version, frame)
            assert correlation_id == -5
            assert decode(api.response, body, version) == response
