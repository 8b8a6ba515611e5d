"""Questions about frames: unknown APIs and versions, malformed bodies, tagged fields; random requests of each API."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import partial
from random import Random

from both import build
from differ import Differ
from of_kafka import APIS
from random_requests import make_pool, random_request
from scenario_table import add_scenario, scenario

from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.frames import encode_request
from kraftpy.protocol.schema import encode

RISKY = (
    *(ApiKey.UNREGISTER_BROKER, ApiKey.ADD_RAFT_VOTER, ApiKey.REMOVE_RAFT_VOTER, ApiKey.UPDATE_FEATURES),
    *(ApiKey.FETCH, ApiKey.SHARE_FETCH, ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP),
)
"""APIs whose requests do something for good when they are changed at random, or wait."""
NOT_SERVED = {17: 9, 29: 2, 30: 2, 31: 2, 36: 2, 38: 2, 39: 2, 40: 2, 41: 2, 48: 1, 49: 1, 50: 0, 51: 0}
"""APIs that docs/differences.toml says are missing, with their first flexible version."""
SASL_HANDSHAKE = 17
CORRELATION = 7
NOTE_SECONDS = 1.5
FIRST_OF_PRODUCE = 3
"""Kafka still advertises the versions before, and no longer decodes them."""


def header(key: int, version: int, client: bytes = b"\0\x01c", *, flexible: bool = False, tags: bytes = b"\0") -> bytes:
    return struct.pack(">hhi", key, version, CORRELATION) + client + (tags if flexible else b"")


# APIs and versions


@scenario
def unknown_apis(differ: Differ) -> None:
    for key in [*range(-2, 100), 500, 32767]:
        if key in APIS or key in NOT_SERVED:
            continue
        for version in range(-1, 4):
            note = f"key {key} version {version}"
            differ.ask_bytes(key, header(key, version) + bytes(40), note, seconds=NOTE_SECONDS)


@scenario
def unknown_versions(differ: Differ) -> None:
    for key in APIS:
        for version in range(-1, 22):
            if version not in APIS[key]:
                note = f"version {version}"
                differ.ask_bytes(key, header(key, version) + bytes(40), note, seconds=NOTE_SECONDS)


@scenario
def apis_that_are_not_served(differ: Differ) -> None:
    for key, first_flexible in NOT_SERVED.items():
        for version in range(4):
            body = b"\0\x05PLAIN" if key == SASL_HANDSHAKE else b"\x01" * 6
            frame = header(key, version, flexible=first_flexible <= version) + body
            differ.ask_bytes(key, frame, f"key {key} version {version}", seconds=NOTE_SECONDS)


# Frames


def _frames() -> Iterator[tuple[str, bytes]]:
    kind = APIS[ApiKey.API_VERSIONS].request
    told = {"client_software_name": "a", "client_software_version": "1"}
    body = encode(build(kind, told, 3, 0), 3)
    yield "empty frame", b""
    yield "one byte", b"\0"
    yield "header cut", header(18, 0)[:6]
    yield "client id cut", struct.pack(">hhih", 18, 0, CORRELATION, 50)
    yield "null client id", struct.pack(">hhih", 18, 0, CORRELATION, -1)
    yield "client id -2", struct.pack(">hhih", 18, 0, CORRELATION, -2)
    yield "client id not UTF-8", header(18, 0, b"\0\x02\xff\xfe")
    yield "empty client id", header(18, 0, b"\0\0")
    yield "bytes behind", header(18, 0) + b"xyz"
    yield "version 3, bytes behind", header(18, 3, flexible=True) + body + b"xyz"
    yield "version 3 without body", header(18, 3, flexible=True)
    for note, tags in {
        "tag": b"\x01\x05\x02ab",
        "tag cut": b"\x01\x05\x7fab",
        "tags out of order": b"\x02\x05\x01a\x04\x01b",
        "tag twice": b"\x02\x05\x01a\x05\x01b",
    }.items():
        yield f"header's {note}", header(18, 3, flexible=True, tags=tags) + body
    yield "negative correlation id", struct.pack(">hhi", 18, 0, -5) + b"\0\x01c"
    yield "long client id", header(18, 0, struct.pack(">h", 30000) + b"x" * 30000)


@scenario
def frames(differ: Differ) -> None:
    for note, frame in _frames():
        differ.ask_bytes(18, frame, note, only_outcome=True, seconds=NOTE_SECONDS)


@scenario
def sizes_of_frames(differ: Differ) -> None:
    for size in (-1, -(2**31), 2**31 - 1, 104857601, 104857600):
        outcomes = []
        for side in differ.sides:
            side.send("size", 1, struct.pack(">i", size) + bytes(10))
            frame = side.frame("size", 1, 1.0)
            outcomes.append(frame if isinstance(frame, str) else "answered")
            side.drop("size", 1)
        differ.compare_outcomes("FRAME SIZE", str(size), outcomes)


# Random requests, and what is left of them when bytes are changed


def _is_carried(error: Exception) -> bool:
    return isinstance(error, KafkaError) and error.code is ErrorCode.UNSUPPORTED_VERSION


def _random_requests(key: ApiKey, count: int, differ: Differ) -> None:
    rng = Random(f"{differ.seed} {key.name}")
    api = APIS[key]
    for version in range(max(api.first, FIRST_OF_PRODUCE if key == ApiKey.PRODUCE else 0), api.last + 1):
        pool = make_pool(differ, f"{api.name}.{version}")
        for _ in range(count):
            body = random_request(key, api.request, version, rng, pool)
            try:
                differ.ask(key.name, body, version, note="random", seconds=NOTE_SECONDS, client="random")
            except KafkaError as error:
                if not _is_carried(error):
                    raise


READERS = (
    *(ApiKey.METADATA, ApiKey.LIST_OFFSETS, ApiKey.OFFSET_FETCH, ApiKey.FIND_COORDINATOR, ApiKey.HEARTBEAT),
    *(ApiKey.LEAVE_GROUP, ApiKey.DESCRIBE_GROUPS, ApiKey.LIST_GROUPS, ApiKey.OFFSET_FOR_LEADER_EPOCH),
    *(ApiKey.DESCRIBE_CONFIGS, ApiKey.DESCRIBE_LOG_DIRS, ApiKey.ELECT_LEADERS, ApiKey.LIST_PARTITION_REASSIGNMENTS),
    *(ApiKey.DESCRIBE_QUORUM, ApiKey.DESCRIBE_CLUSTER, ApiKey.DESCRIBE_PRODUCERS, ApiKey.DESCRIBE_TRANSACTIONS),
    *(ApiKey.LIST_TRANSACTIONS, ApiKey.CONSUMER_GROUP_DESCRIBE, ApiKey.LIST_CONFIG_RESOURCES),
    *(ApiKey.DESCRIBE_TOPIC_PARTITIONS, ApiKey.SHARE_GROUP_DESCRIBE, ApiKey.STREAMS_GROUP_DESCRIBE),
    *(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, ApiKey.READ_SHARE_GROUP_STATE, ApiKey.READ_SHARE_GROUP_STATE_SUMMARY),
    *(ApiKey.FETCH, ApiKey.SYNC_GROUP),
)
WRITERS = (
    *(ApiKey.OFFSET_COMMIT, ApiKey.CREATE_TOPICS, ApiKey.DELETE_RECORDS, ApiKey.INIT_PRODUCER_ID),
    *(ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.ADD_OFFSETS_TO_TXN, ApiKey.END_TXN, ApiKey.TXN_OFFSET_COMMIT),
    *(ApiKey.ALTER_CONFIGS, ApiKey.INCREMENTAL_ALTER_CONFIGS, ApiKey.ALTER_REPLICA_LOG_DIRS),
    *(ApiKey.CREATE_PARTITIONS, ApiKey.DELETE_GROUPS, ApiKey.ALTER_PARTITION_REASSIGNMENTS, ApiKey.OFFSET_DELETE),
    *(ApiKey.CONSUMER_GROUP_HEARTBEAT, ApiKey.SHARE_GROUP_HEARTBEAT, ApiKey.SHARE_FETCH, ApiKey.SHARE_ACKNOWLEDGE),
    *(ApiKey.STREAMS_GROUP_HEARTBEAT, ApiKey.ALTER_SHARE_GROUP_OFFSETS, ApiKey.DELETE_SHARE_GROUP_OFFSETS),
    *(ApiKey.PRODUCE, ApiKey.WRITE_SHARE_GROUP_STATE, ApiKey.INITIALIZE_SHARE_GROUP_STATE),
    *(ApiKey.DELETE_SHARE_GROUP_STATE, ApiKey.DELETE_TOPICS, ApiKey.JOIN_GROUP),
)
for _key in READERS:
    add_scenario(f"random_{APIS[_key].name}", partial(_random_requests, _key, 40))
for _key in WRITERS:
    add_scenario(f"random_{APIS[_key].name}", partial(_random_requests, _key, 25))


def _whole_frames(differ: Differ, key: ApiKey, rng: Random, count: int) -> Iterator[tuple[int, list[bytes]]]:
    """Yield random requests as frames without their sizes, one for each side, with their version."""
    api = APIS[key]
    pool = make_pool(differ, api.name)
    for version in range(max(api.first, FIRST_OF_PRODUCE if key == ApiKey.PRODUCE else 0), api.last + 1):
        for _ in range(count):
            body = random_request(key, api.request, version, rng, pool)
            if key == ApiKey.PRODUCE:
                body["acks"] = 1
            try:
                requests = [build(api.request, body, version, side.index) for side in differ.sides]
                yield version, [encode_request(key, version, CORRELATION, "c", each)[4:] for each in requests]
            except KafkaError as error:
                if not _is_carried(error):
                    raise


def _malformed(key: ApiKey, differ: Differ) -> None:
    """Send bodies that are cut, longer, or have a byte changed: is the connection closed, or is it answered, alike?"""
    rng = Random(f"{differ.seed} malformed {key.name}")
    for version, whole in _whole_frames(differ, key, rng, 2):
        start, length = 11 + (version >= APIS[key].flexible), len(whole[0])
        cut = rng.randrange(start, length) if length > start else start
        at, byte = rng.randrange(start, max(length, start + 1)), rng.choice((0, 1, 0x7F, 0x80, 0xFF))
        for note, frames in {
            "cut": [each[:cut] for each in whole],
            "bytes behind": [each + b"\0" for each in whole],
            "bytes behind that are not zero": [each + b"\xff\x01" for each in whole],
            "a byte changed": [each[:at] + bytes([byte]) + each[at + 1 :] for each in whole],
        }.items():
            differ.ask_bytes(key, frames, note, version=version, only_outcome=True)


def _tagged(key: ApiKey, differ: Differ) -> None:
    """Send unknown tagged fields, in the header and behind the body: they are ignored."""
    rng = Random(f"{differ.seed} tagged {key.name}")
    for version, whole in _whole_frames(differ, key, rng, 1):
        if version < APIS[key].flexible:
            continue
        tags = b"\x02\x50\x03abc\x51\0"
        frames = [each[:11] + tags + each[12:] for each in whole]
        differ.ask_bytes(key, frames, "unknown tags in the header", version=version, only_outcome=True)
        if whole[0][-1:] == b"\0":
            frames = [each[:-1] + tags for each in whole]
            differ.ask_bytes(key, frames, "unknown tags behind the body", version=version, only_outcome=True)


for _key in (key for key in ApiKey if key in APIS and key not in RISKY):
    add_scenario(f"malformed_{APIS[_key].name}", partial(_malformed, _key))
    add_scenario(f"tagged_{APIS[_key].name}", partial(_tagged, _key))
