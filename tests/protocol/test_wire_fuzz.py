"""Garbage in: a `ProtocolError` or a message out, and never much more memory than the frame itself.

150,000 frames from one seed: valid requests of every API and version that are mutated, cut, spliced or given lengths
that lie, and plain noise behind a valid header.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from random import Random
from struct import pack
from typing import Any

import pytest
from wire_samples import every_message, sample, samples, versions_of

from kraftpy.protocol import frames
from kraftpy.protocol.apis import APIS, Api
from kraftpy.protocol.errors import ProtocolError
from kraftpy.protocol.frames import FrameDecoder
from kraftpy.protocol.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from kraftpy.protocol.messages.delete_groups import DeleteGroupsRequest
from kraftpy.protocol.primitives import MAX_ELEMENTS
from kraftpy.protocol.schema import Array, decode, encode, fields

FRAMES_BY_API = 150_000 // len(APIS)
LIMIT = 1 << 20

BYTES_PER_BYTE = 64
"""The most memory a frame may cost for each of its bytes. The dearest element is a struct of two bytes that
holds an empty list, which Python keeps in 105."""

BYTES_ALWAYS = 64 * 1024
"""And the most that any frame may cost besides: the exception, its message, the header."""

LIES = [pack(">i", n) for n in (-1, -2, -(2**31), 2**31 - 1, 2**30, 65536, 1000)]
LIES += [pack(">h", n) for n in (-1, -2, -(2**15), 2**15 - 1)]
LIES += [
    bytes.fromhex(text) for text in ("ffffffff0f", "ffffffff07", "8080808010", "ff7f", "00", "01", "80", "ffffffffffff")
]


def mutate(frame: bytes, random: Random) -> bytes:
    """A frame that is no longer what it was."""
    data = bytearray(frame)
    for _ in range(random.choice((1, 1, 1, 2, 3, 8))):
        at = random.randint(8, max(8, len(data)))
        match random.randrange(7):
            case 0:
                data[at : at + 1] = random.randbytes(1)
            case 1:
                lie = random.choice(LIES)
                data[at : at + len(lie)] = lie
            case 2:
                data[at:at] = random.choice(LIES)
            case 3:
                del data[at : at + random.randint(1, 9)]
            case 4:
                del data[at:]
            case 5:
                data[at:at] = data[random.randint(0, len(data)) :][:40]
            case _:
                data += random.randbytes(random.randint(1, 20))
    return bytes(data)


def fuzzed(api: Api, random: Random, count: int) -> Iterator[bytes]:
    versions = range(api.first, api.last + 1)
    valid = {
        version: [
            encoded
            for message in (sample(api.request, version, random) for _ in range(12))
            if len(encoded := frames.encode_request(api.key, version, 1, "fuzz", message)[4:]) < 2000
        ]
        for version in versions
    }
    for _ in range(count):
        version = random.choice(versions)
        if random.random() < 0.1 or not valid[version]:
            yield pack(">hhih", api.key, version, 1, -1) + random.randbytes(random.randint(0, 60))
        else:
            yield mutate(random.choice(valid[version]), random)


def receive(stream: bytes) -> int:
    """Process bytes as a broker does, up to the handler. Returns how many requests were accepted."""
    came = 0
    for frame in FrameDecoder(LIMIT).feed(stream):
        header, body = frames.decode_request_header(frame)
        if header.api_key in APIS and header.api_version in APIS[header.api_key]:
            decode(APIS[header.api_key].request, body, header.api_version)
            came += 1
    return came


@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.name)
def test_garbage_costs_a_protocol_error_and_little_memory(api: Api) -> None:
    random = Random(f"fuzz {api.name}")
    refused = came = 0
    for version in range(api.first, api.last + 1):
        receive(
            frames.encode_request(api.key, version, 1, None, samples(api.request, version, 1)[0])
        )  # makes the codec
    stream = [pack(">i", len(frame)) + frame for frame in fuzzed(api, random, FRAMES_BY_API)]
    tracemalloc.start()
    try:
        for framed in stream:
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            try:
                came += receive(framed)
            except ProtocolError:
                refused += 1
            peak = tracemalloc.get_traced_memory()[1]
            assert peak - before < BYTES_PER_BYTE * len(framed) + BYTES_ALWAYS, framed.hex()
    finally:
        tracemalloc.stop()
    assert refused > FRAMES_BY_API // 4
    assert refused + came <= FRAMES_BY_API


def test_noise_on_a_connection() -> None:
    random = Random("noise")
    for _ in range(5000):
        try:
            receive(random.randbytes(random.randint(0, 80)))
            receive(pack(">i", 30) + random.randbytes(30))
        except ProtocolError:
            continue


@pytest.mark.parametrize("kind", every_message(), ids=lambda kind: kind.__name__)
def test_every_way_to_cut_a_message_short_is_a_protocol_error(kind: Any) -> None:
    for version in versions_of(kind):
        data = min((encode(each, version) for each in samples(kind, version, 8)), key=lambda each: abs(len(each) - 60))
        for end in range(len(data))[:300]:
            with pytest.raises(ProtocolError):
                decode(kind, data[:end], version)
        with pytest.raises(ProtocolError):
            decode(kind, data + b"\0", version)


def smallest(kind: Any, version: int, counts: dict[str, int]) -> Any:
    """A message of empty values whose arrays have the given number of elements, or none."""
    values: dict[str, Any] = {}
    for field in fields(kind):
        if version not in field.versions or field.tag is not None:
            continue
        if isinstance(field.wire, Array):
            one = (
                smallest(field.struct, version, {})
                if field.struct
                else ""
                if hasattr(field.wire.element, "name")
                else 0
            )
            values[field.name] = [one] * counts.get(field.name, 0)
        elif field.struct:
            values[field.name] = None if version in field.nullable else smallest(field.struct, version, {})
        else:
            values[field.name] = {"?": False, "16s": bytes(16)}.get(getattr(field.wire, "code", ""), 0)
            if not hasattr(field.wire, "code"):
                values[field.name] = "" if field.wire.name == "string" else b""
    return kind(**values)


@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.name)
def test_the_most_elements_that_a_frame_can_hold_cost_a_bounded_multiple_of_it(api: Api) -> None:
    for version in range(api.first, api.last + 1):
        for field in fields(api.request):
            if version in field.versions and isinstance(field.wire, Array):
                data = encode(smallest(api.request, version, {field.name: 5_000}), version)
                tracemalloc.start()
                decode(api.request, data, version)
                peak = tracemalloc.get_traced_memory()[1]
                tracemalloc.stop()
                assert peak < BYTES_PER_BYTE * len(data) + BYTES_ALWAYS, (version, field.name, peak / len(data))


def test_the_dearest_elements_cost_a_bounded_multiple_too() -> None:
    empty = [CreatePartitionsAssignment(broker_ids=[])] * 5_000
    data = encode(CreatePartitionsRequest(topics=[CreatePartitionsTopic(name="", count=0, assignments=empty)]), 2)
    tracemalloc.start()
    decode(CreatePartitionsRequest, data, 2)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < BYTES_PER_BYTE * len(data) + BYTES_ALWAYS, peak / len(data)


def test_the_number_of_elements_has_a_limit_of_its_own() -> None:
    data = encode(DeleteGroupsRequest(groups_names=[""] * (MAX_ELEMENTS + 1)), 2)
    with pytest.raises(ProtocolError, match="more elements"):
        decode(DeleteGroupsRequest, data, 2)
