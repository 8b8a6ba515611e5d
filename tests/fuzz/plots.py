"""The sequence of a fuzz: what is sent at an index of a seed.

`PLOT` indexes in a row are one plot: requests of a family of APIs about the same group, topic and transaction, one
after the other on one connection, each made of what the answers before it said; or any requests, sent without waiting;
or bytes that are no requests. Families are driven in any order: SyncGroup after LeaveGroup, EndTxn before
InitProducerId.

Invariant: which API and which values is a function of seed and index, ids that a node gave out apart.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

import batches
import hostile
from hostile import Hostile, Plot
from odd_requests import odd

from kraftpy.broker.handlers.table import served
from kraftpy.protocol.apis import APIS, ApiKey
from kraftpy.protocol.frames import encode_request
from kraftpy.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from kraftpy.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from kraftpy.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData

PLOT = 8
"""Requests of one plot."""
HEAVY_SHARE = 0.01
"""The share of produced batches that are made to cost much."""
DEEP_SHARE = 0.004
"""The share of requests with arrays of thousands."""
MANY_NAMES = 500
"""Distinct topics that one request of the rarest kind asks for."""

_K = ApiKey
FAMILIES: dict[str, tuple[ApiKey, ...]] = {
    "classic": (
        _K.JOIN_GROUP, _K.JOIN_GROUP, _K.SYNC_GROUP, _K.HEARTBEAT, _K.LEAVE_GROUP, _K.OFFSET_COMMIT, _K.OFFSET_FETCH,
        _K.DESCRIBE_GROUPS, _K.DELETE_GROUPS, _K.OFFSET_DELETE, _K.TXN_OFFSET_COMMIT, _K.LIST_GROUPS,
    ),
    "consumer": (
        _K.CONSUMER_GROUP_HEARTBEAT, _K.CONSUMER_GROUP_HEARTBEAT, _K.CONSUMER_GROUP_HEARTBEAT,
        _K.CONSUMER_GROUP_DESCRIBE,
        _K.OFFSET_COMMIT, _K.OFFSET_FETCH, _K.JOIN_GROUP, _K.HEARTBEAT, _K.DELETE_GROUPS, _K.INCREMENTAL_ALTER_CONFIGS,
    ),
    "share": (
        _K.SHARE_GROUP_HEARTBEAT, _K.SHARE_GROUP_HEARTBEAT, _K.SHARE_FETCH, _K.SHARE_FETCH, _K.SHARE_ACKNOWLEDGE,
        _K.SHARE_GROUP_DESCRIBE, _K.INCREMENTAL_ALTER_CONFIGS, _K.ALTER_SHARE_GROUP_OFFSETS,
        _K.DELETE_SHARE_GROUP_OFFSETS,
        _K.DESCRIBE_SHARE_GROUP_OFFSETS, _K.PRODUCE, _K.DELETE_GROUPS,
    ),
    "share state": (
        _K.INITIALIZE_SHARE_GROUP_STATE, _K.READ_SHARE_GROUP_STATE, _K.WRITE_SHARE_GROUP_STATE,
        _K.DELETE_SHARE_GROUP_STATE,
        _K.READ_SHARE_GROUP_STATE_SUMMARY, _K.SHARE_FETCH,
    ),
    "streams": (
        _K.STREAMS_GROUP_HEARTBEAT, _K.STREAMS_GROUP_HEARTBEAT, _K.STREAMS_GROUP_HEARTBEAT, _K.STREAMS_GROUP_DESCRIBE,
        _K.OFFSET_COMMIT, _K.DELETE_GROUPS, _K.CONSUMER_GROUP_HEARTBEAT, _K.INCREMENTAL_ALTER_CONFIGS,
    ),
    "transaction": (
        _K.INIT_PRODUCER_ID, _K.INIT_PRODUCER_ID, _K.ADD_PARTITIONS_TO_TXN, _K.PRODUCE, _K.PRODUCE,
        _K.ADD_OFFSETS_TO_TXN,
        _K.TXN_OFFSET_COMMIT, _K.END_TXN, _K.END_TXN, _K.WRITE_TXN_MARKERS, _K.DESCRIBE_TRANSACTIONS,
        _K.LIST_TRANSACTIONS,
        _K.DESCRIBE_PRODUCERS,
    ),
    "records": (
        _K.PRODUCE, _K.PRODUCE, _K.PRODUCE, _K.LIST_OFFSETS, _K.LIST_OFFSETS, _K.FETCH, _K.FETCH, _K.DELETE_RECORDS,
        _K.OFFSET_FOR_LEADER_EPOCH,
    ),
    "replica": (_K.FETCH, _K.FETCH, _K.FETCH, _K.OFFSET_FOR_LEADER_EPOCH, _K.LIST_OFFSETS, _K.WRITE_TXN_MARKERS),
    "topics": (
        _K.CREATE_TOPICS, _K.DELETE_TOPICS, _K.CREATE_PARTITIONS, _K.METADATA, _K.DESCRIBE_TOPIC_PARTITIONS, _K.PRODUCE,
        _K.DESCRIBE_CONFIGS, _K.INCREMENTAL_ALTER_CONFIGS, _K.ALTER_CONFIGS, _K.ELECT_LEADERS,
        _K.ALTER_PARTITION_REASSIGNMENTS, _K.ALTER_REPLICA_LOG_DIRS,
    ),
}  # fmt: skip
_WEIGHTS = {
    "any": 40, "classic": 6, "consumer": 6, "share": 7, "share state": 2, "streams": 4, "transaction": 9,
    "records": 10, "replica": 3,
    "topics": 4, "frames": 3, "unread": 0.5, "link": 5, "crowd": 0.25, "many names": 0.1,
}  # fmt: skip
_KINDS, _SHARES = list(_WEIGHTS), list(_WEIGHTS.values())
_EVERY = [(key, version) for key in served() for version in range(APIS[key].first, APIS[key].last + 1)]
_CLIENT_IDS = ("odd", "odd", "", None, "żółw-🎉", "x" * 32_767, f"\n{hostile.FORGED}", "\x1b[2J\0\r", "%s%s%n")


class Ask(NamedTuple):
    """A request on the wire, with the type of its answer."""

    index: int
    key: ApiKey
    version: int
    frame: bytes
    is_answered: bool

    def __str__(self) -> str:
        return f"{self.index} {self.key.name} v{self.version} ({len(self.frame)} bytes)"


def kind_of(seed: int, number: int) -> tuple[str, Random]:
    """Return the kind of a plot, and the generator for values shared by all of it."""
    chance = Random(f"{seed}/plot {number}")
    return chance.choices(_KINDS, _SHARES)[0], chance


def request(seed: int, index: int, kind: str, plot: Plot, topic_ids: dict[str, bytes]) -> Ask:
    """Return the request at this index."""
    chance = Random(f"{seed}/{index}")
    if kind == "many names":
        return _many_names(index, chance)
    if kind == "any":
        key, version = chance.choice(_EVERY)
        tame = 0.6
    else:
        key = chance.choice(FAMILIES[kind])
        version = chance.randint(APIS[key].first, APIS[key].last)
        tame = 0.85
    if key == ApiKey.PRODUCE and version < 3:
        version = 9 if chance.random() < 0.8 else version
    is_deep, has_heavy = chance.random() < DEEP_SHARE, chance.random() < HEAVY_SHARE
    words = Hostile(plot, topic_ids, tame, is_deep=is_deep, has_heavy=has_heavy)
    words.is_deleting = key == ApiKey.DELETE_TOPICS
    if has_heavy and key == ApiKey.PRODUCE:
        made: Any = _produced(batches.heavy(chance), plot.topic)
        version = max(3, min(version, 12))
    else:
        made = odd(APIS[key].request, version, chance, words)
        _steer(kind, key, version, made, plot, chance)
    client_id = chance.choice(_CLIENT_IDS)
    frame = encode_request(key, version, index & 0x7FFFFFFF, client_id, made)
    is_answered = not (isinstance(made, ProduceRequest) and made.acks == 0)
    return Ask(index, key, version, frame, is_answered)


def _produced(records: bytes, topic: str) -> ProduceRequest:
    data = PartitionProduceData(index=0, records=bytearray(records))
    return ProduceRequest(acks=1, timeout_ms=1000, topic_data=[TopicProduceData(name=topic, partition_data=[data])])


def _steer(kind: str, key: ApiKey, version: int, made: Any, plot: Plot, chance: Random) -> None:
    """Set fields that cannot be guessed from their names alone, so that plots come far."""
    if kind == "replica" and key == ApiKey.FETCH:
        if version < 15:
            made.replica_id = chance.choice((1, 2, 3, 0, 99, -1))
        else:
            made.replica_state.replica_id = chance.choice((1, 2, 3, 0, 99, -1))
            made.replica_state.replica_epoch = chance.choice((-1, -1, 0, 1, 10, 2**63 - 1))
        for topic in made.topics:
            for part in topic.partitions:
                part.fetch_offset = chance.choice((0, 1, plot.learned.get("fetch_offset", 5), 10**6, 2**63 - 1))
    elif kind in ("share", "consumer", "streams") and key == ApiKey.INCREMENTAL_ALTER_CONFIGS:
        for resource in made.resources:
            resource.resource_type, resource.resource_name = 32, plot.group
            for config in resource.configs:
                config.config_operation = chance.choice((0, 0, 0, 1))
                if chance.random() < 0.5:
                    config.name, config.value = "share.auto.offset.reset", chance.choice(hostile.DURATIONS)
        made.validate_only = False
    elif kind == "share" and key == ApiKey.SHARE_GROUP_HEARTBEAT and chance.random() < 0.8:
        made.member_epoch = chance.choice((0, 0, plot.learned.get("member_epoch", 0)))
        made.member_id = (
            "odd-member-" + plot.group[-1] if not plot.learned.get("member_id") else plot.learned["member_id"]
        )
        made.subscribed_topic_names = [plot.topic]
    elif kind == "share" and key == ApiKey.SHARE_FETCH and chance.random() < 0.7:
        made.share_session_epoch = chance.choice((0, 0, 1, -1))
        made.member_id = plot.learned.get("member_id", "odd-member-" + plot.group[-1])
        made.max_wait_ms, made.max_records, made.max_bytes = 20, 10, 1 << 20
        for topic in made.topics:
            for part in topic.partitions:
                if made.share_session_epoch == 0:
                    part.acknowledgement_batches = []
    elif kind == "consumer" and key == ApiKey.CONSUMER_GROUP_HEARTBEAT and chance.random() < 0.8:
        made.member_epoch = chance.choice((0, 0, plot.learned.get("member_epoch", 0), -1))
        made.rebalance_timeout_ms = 1000
        made.subscribed_topic_names = (
            [plot.topic] if made.subscribed_topic_names is None else made.subscribed_topic_names
        )
        made.topic_partitions = []
        if version >= 1:
            made.subscribed_topic_regex = chance.choice((None, None, *hostile.WORST, *hostile.WORST, *hostile.REGEXES))
            made.member_id = made.member_id or "odd-member"
    elif key == ApiKey.PRODUCE and kind == "transaction" and version >= 3:
        made.transactional_id = chance.choice((plot.transactional_id, plot.transactional_id, None))


def _many_names(index: int, chance: Random) -> Ask:
    names = [f"odd-many-{index}-{number}" for number in range(MANY_NAMES)]
    if chance.random() < 0.5:
        key, version = ApiKey.METADATA, 9
        made: Any = MetadataRequest(topics=[MetadataRequestTopic(name=name) for name in names])
    else:
        key, version = ApiKey.CREATE_TOPICS, 7
        topics = [CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in names]
        made = CreateTopicsRequest(topics=topics, timeout_ms=1000)
    return Ask(index, key, version, encode_request(key, version, index & 0x7FFFFFFF, "odd", made), True)


# --- bytes that are no requests ------------------------------------------------------------------------------------


def _announced(size: int, sent: bytes) -> bytes:
    return struct.pack(">i", size) + sent


FRAMES: tuple[Callable[[Random], bytes], ...] = (
    lambda chance: _announced(100_000_000, b"\0"),
    lambda chance: _announced(104_857_600, bytes(chance.choice((1, 1000, 1 << 20, 5 << 20)))),
    lambda chance: _announced(chance.choice((-1, -(2**31), 2**31 - 1, 104_857_601, 0, 1, 7)), b"\0\0"),
    lambda chance: struct.pack(">i", 20)[: chance.choice((1, 2, 3))],
    lambda chance: chance.randbytes(chance.choice((1, 5, 100, 3000))),
    lambda chance: b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    lambda chance: b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03" + bytes(100),
    lambda chance: _announced(
        10, struct.pack(">hhih", chance.choice((0, 3, 18, 999, -1)), chance.randint(-5, 60), 7, -1)
    ),
    lambda chance: _announced(12, struct.pack(">hhih", 3, 12, 7, -1) + b"\xff\xff"),
    lambda chance: _announced(14, struct.pack(">hhih", 3, 9, 7, 32767) + b"abcd"),
    lambda chance: _mutilated(chance),
    lambda chance: _mutilated(chance),
    lambda chance: _mutilated(chance),
)


def _mutilated(chance: Random) -> bytes:
    """Return a request with bytes changed, removed or inserted; its size mostly matches what is left."""
    key, version = chance.choice(_EVERY)
    words = Hostile(Plot(chance), {}, 0.7, is_deep=False, has_heavy=False)
    whole = bytearray(encode_request(key, version, 5, "odd", odd(APIS[key].request, version, chance, words)))
    for _ in range(chance.choice((1, 1, 2, 8))):
        at = chance.randrange(4, len(whole))
        match chance.randrange(4):
            case 0:
                whole[at] = chance.choice((0, 1, 127, 128, 255, chance.randrange(256)))
            case 1:
                whole[at:at] = chance.choice((b"\xff\xff\xff\xff\x0f", b"\0", b"\x7f\xff\xff\xff", b"\xff\xff"))
            case 2:
                del whole[at : at + chance.choice((1, 2, 8))]
            case _:
                whole[at : at + 4] = chance.choice((b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\x80\0\0\0"))
        if len(whole) < 6:
            break
    size = len(whole) - 4 if chance.random() < 0.9 else chance.choice((len(whole), 10**6))
    whole[:4] = struct.pack(">i", size)
    return bytes(whole)


def frame(seed: int, index: int) -> bytes:
    """Return the bytes sent instead of a request at this index."""
    chance = Random(f"{seed}/{index}")
    return chance.choice(FRAMES)(chance)
