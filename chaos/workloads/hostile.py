"""A hostile client: sends requests that no honest client sends, while the others work and checkers judge what they saw.

It has no credentials and reaches every port. Each attack is one idea that once ended a node, held it, filled its
memory or let it acknowledge records that it did not have. An attack changes only things with names of its own
(`hostile-...`), because anybody may delete a topic if there are no ACLs; it may read, or claim to be, anything. Its
answers are not part of the history: the proof is that the other clients' answers stay correct, that no node ends, and
that none logs an incident.

Sizes are small beside those that hurt a real node: the simulation has no memory to run out of, and its time does not
pass while a node works. The fuzz in `tests/fuzz` measures both on real nodes.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any, Final

from chaos.workloads.clients import Setting
from chaos.workloads.wire import ANSWER_SECONDS, Wire
from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.compression import Compression, compress
from kraftpy.protocol.frames import encode_request
from kraftpy.protocol.messages import (
    consumer_group_heartbeat,
    create_topics,
    fetch,
    incremental_alter_configs,
    init_producer_id,
    join_group,
    list_offsets,
    list_transactions,
    metadata,
    offset_commit,
    produce,
    share_fetch,
    share_group_heartbeat,
)
from kraftpy.protocol.primitives import uvarint
from kraftpy.protocol.record_batch import encode_batch, encode_payload, split_batches

NAME: Final = "hostile"
PAUSE_SECONDS: Final = 0.5
"""The mean pause between two attacks."""
_TOPICS: Final = tuple(f"{NAME}-{number}" for number in range(3))
_CODECS: Final[tuple[dict[str, str], ...]] = ({"compression.type": "gzip"}, {"cleanup.policy": "compact"}, {})
_VICTIMS: Final = ("t0", "t1", "x0", "q0", "c0", "__consumer_offsets", "__transaction_state")
"""Topics of other clients, of which it claims to be a replica."""
_PATTERNS: Final = (
    "(((((){1000}){1000}){1000}){1000})",
    "a{" + "9" * 5000 + "}",
    "(a|b)*a" + "(a|b)" * 200,
    "(?i)" * 500 + "x",
    "[",
    "hostile-.*",
)
_VALUES: Final = (
    ("share.auto.offset.reset", "by_duration:P" + "9" * 400 + "D"),
    ("share.auto.offset.reset", "by_duration:PT1S"),
    ("share.session.timeout.ms", "9" * 25),
    ("consumer.session.timeout.ms", "-1"),
    ("share.record.lock.duration.ms", "٣٠٠٠٠"),
)
_POSING_FETCHES: Final = 12
_SIZES: Final = (0, 3, 8, 100, 100 << 20, (100 << 20) + 1, -1, -(2**31), 2**31 - 1)
_SIZE: Final = struct.Struct(">i")

Attack = Callable[["HostileClient"], Awaitable[None]]


class HostileClient:
    """Carries out attacks, one after the other, on randomly drawn nodes.

    `brokers` and `voters` are the addresses (host, port) of the listeners for clients and for nodes; `ids` are the
    brokers'.
    """

    def __init__(
        self,
        setting: Setting,
        chance: Random,
        *,
        brokers: list[tuple[str, int]],
        voters: list[tuple[str, int]],
        ids: list[int],
    ) -> None:
        self.chance = chance
        self.ids = ids
        self.count = 0
        """The number of attacks made."""
        self._setting = setting
        self._brokers = brokers
        self._voters = voters

    async def work(self, is_over: Callable[[], bool], pause: Callable[[], float]) -> None:
        """Attack until `is_over`. Nodes that cannot be reached, close the connection or do not answer are expected."""
        while not is_over():
            attack = self.chance.choice(ATTACKS)
            with contextlib.suppress(OSError, EOFError, TimeoutError):
                await attack(self)
            self.count += 1
            await asyncio.sleep(pause())

    # --- what attacks are made of ---

    async def connect(self, *, to_node: bool = False, number: int | None = None) -> Wire:
        """Connect to a broker, the given one or any, or to a node's own listener. Raises OSError."""
        host, port = self.chance.choice(self._voters if to_node else self._brokers)
        if number is not None:
            host, port = self._brokers[number]
        return await self._setting.runtime.connect(Wire, host, port)

    async def ask(self, key: ApiKey, version: int, request: Any, wire: Wire | None = None) -> Any:
        """Return the answer. Raises OSError, EOFError or TimeoutError if there is none."""
        connection = await self.connect() if wire is None else wire
        try:
            return await connection.ask(key, version, request, self.chance.choice((NAME, "a\nb\x1b[31m", None)))
        finally:
            if wire is None:
                connection.close()

    async def have_topics(self) -> dict[str, bytes]:
        """Return its own topics by name, with their ids."""
        made = [
            create_topics.CreatableTopic(
                name=name,
                num_partitions=1,
                replication_factor=-1,
                configs=[create_topics.CreatableTopicConfig(name=key, value=value) for key, value in config.items()],
            )
            for name, config in zip(_TOPICS, _CODECS, strict=True)
        ]
        await self.ask(ApiKey.CREATE_TOPICS, 7, create_topics.CreateTopicsRequest(topics=made, timeout_ms=2_000))
        return await self.topic_ids(_TOPICS)

    async def topic_ids(self, names: tuple[str, ...]) -> dict[str, bytes]:
        """Return the existing ones."""
        wanted = [metadata.MetadataRequestTopic(name=name) for name in names]
        request = metadata.MetadataRequest(topics=wanted, allow_auto_topic_creation=False)
        found = await self.ask(ApiKey.METADATA, 12, request)
        return {topic.name: topic.topic_id for topic in found.topics if topic.error_code == 0}

    async def produce(self, topic: str, batch: bytes) -> None:
        """Append to one of its own topics, with acks=all."""
        assert topic.startswith(NAME)
        data = produce.PartitionProduceData(index=0, records=batch)
        topics = [produce.TopicProduceData(name=topic, partition_data=[data])]
        await self.ask(ApiKey.PRODUCE, 9, produce.ProduceRequest(acks=-1, timeout_ms=1_000, topic_data=topics))


# --- attacks ----------------------------------------------------------------------------------------------------------


async def pose_as_follower(client: HostileClient) -> None:
    """Fetch as a replica from every broker, continuing where answers end: leaders would count a copy that no one
    keeps."""
    chance = client.chance
    ids = await client.topic_ids(_VICTIMS)
    epoch = chance.choice((-1, -1, -1, -1, -1, 0, 2, 10))
    replica = fetch.ReplicaState(replica_id=chance.choice(client.ids), replica_epoch=epoch)
    next_offsets = {(topic_id, partition): 0 for topic_id in ids.values() for partition in (0, 1)}
    wires: list[Wire] = []
    try:
        for number in range(len(client.ids)):
            with contextlib.suppress(OSError):
                wires.append(await client.connect(number=number))
        for _ in range(_POSING_FETCHES):
            for wire in wires:
                await _fetch_as(client, replica, wire, next_offsets)
    finally:
        for wire in wires:
            wire.close()


async def _fetch_as(
    client: HostileClient, replica: fetch.ReplicaState, wire: Wire, next_offsets: dict[tuple[bytes, int], int]
) -> None:
    topics = [
        fetch.FetchTopic(
            topic_id=topic_id,
            partitions=[
                fetch.FetchPartition(
                    partition=partition,
                    fetch_offset=next_offsets[topic_id, partition],
                    log_start_offset=0,
                    partition_max_bytes=1 << 20,
                )
                for partition in (0, 1)
            ],
        )
        for topic_id in dict.fromkeys(topic_id for topic_id, _ in next_offsets)
    ]
    request = fetch.FetchRequest(replica_state=replica, max_wait_ms=20, min_bytes=1, topics=topics)
    with contextlib.suppress(EOFError, TimeoutError):
        answer = await client.ask(ApiKey.FETCH, 16, request, wire)
        for topic in answer.responses:
            for data in topic.partitions:
                batches = split_batches(data.records or b"", allow_partial=True)
                if batches:
                    next_offsets[topic.topic_id, data.partition_index] = batches[-1][0].next_offset


async def ask_as_replica(client: HostileClient) -> None:
    """Send ListOffsets as a broker, for all topics, at odd times."""
    chance = client.chance
    partitions = [
        list_offsets.ListOffsetsPartition(
            partition_index=index, timestamp=chance.choice((-1, -2, -3, 0, 2**63 - 1, -(2**63)))
        )
        for index in (0, 1, -1, 2**31 - 1)
    ]
    topics = [list_offsets.ListOffsetsTopic(name=name, partitions=partitions) for name in (*_VICTIMS, *_TOPICS)]
    replica_id = chance.choice((-1, -2, *client.ids))
    request = list_offsets.ListOffsetsRequest(replica_id=replica_id, topics=topics)
    await client.ask(ApiKey.LIST_OFFSETS, 7, request)


async def poison(client: HostileClient) -> None:
    """Send batches that expand, lie about their contents, or are truncated; then search by time."""
    chance = client.chance
    await client.have_topics()
    now = client._setting.runtime.now_ms()
    whole = encode_batch([(now, b"k", b"v" * 30, ())] * 3)
    empty_headers = b"\0\0\0\0\2k" + b"\2v" + _varint(20_000) + b"\0\0" * 20_000
    record = _varint(len(empty_headers)) + empty_headers
    batches = (
        _batch(now, record, Compression.GZIP),
        _batch(now, record, Compression.ZSTD),
        _batch(now, compress(Compression.GZIP, b"") * 500, records_count=5),
        _batch(now, b"\x7f" * 10, Compression.LZ4),
        _batch(now, record[:-5]),
        _batch(now, record, records_count=2**31 - 1),
        encode_batch([(now, None, None, (("", None),) * 50)] * 20, compression=Compression.SNAPPY),
        encode_batch(
            [(now + index, b"%d" % (index % 7), b"", ()) for index in range(2_000)], compression=Compression.ZSTD
        ),
        whole * 2,
        whole[:-7],
        bytes(whole[:16]) + b"\0" + bytes(whole[17:]),
        chance.randbytes(80),
    )
    await client.produce(chance.choice(_TOPICS), chance.choice(batches))
    await ask_as_replica(client)


async def subscribe_by_pattern(client: HostileClient) -> None:
    """Send regular expressions that grow, in a group of its own and in ListTransactions."""
    pattern = client.chance.choice(_PATTERNS)
    request = consumer_group_heartbeat.ConsumerGroupHeartbeatRequest(
        group_id=f"{NAME}-patterns",
        member_id=client.chance.choice(("", f"{NAME}-member", "x" * 300)),
        rebalance_timeout_ms=client.chance.choice((-1, 0, 1_000, 2**31 - 1)),
        subscribed_topic_regex=pattern,
        topic_partitions=[],
    )
    await client.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, request)
    listing = list_transactions.ListTransactionsRequest(transactional_id_pattern=pattern)
    await client.ask(ApiKey.LIST_TRANSACTIONS, 2, listing)


async def set_odd_values(client: HostileClient) -> None:
    """Give a group of its own settings that cannot be used, and then a member that needs them."""
    name, value = client.chance.choice(_VALUES)
    group = f"{NAME}-share"
    config = incremental_alter_configs.AlterableConfig(name=name, config_operation=0, value=value)
    resource = incremental_alter_configs.AlterConfigsResource(resource_type=32, resource_name=group, configs=[config])
    request = incremental_alter_configs.IncrementalAlterConfigsRequest(resources=[resource])
    await client.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, request)
    ids = await client.have_topics()
    joining = share_group_heartbeat.ShareGroupHeartbeatRequest(
        group_id=group, member_id="AAAAAAAAAAAAAAAAAAAAAA", subscribed_topic_names=list(_TOPICS)
    )
    await client.ask(ApiKey.SHARE_GROUP_HEARTBEAT, 1, joining)
    topics = [
        share_fetch.FetchTopic(topic_id=topic_id, partitions=[share_fetch.FetchPartition(partition_index=0)])
        for topic_id in ids.values()
    ]
    fetching = share_fetch.ShareFetchRequest(
        group_id=group,
        member_id="AAAAAAAAAAAAAAAAAAAAAA",
        share_session_epoch=client.chance.choice((0, 0, -1, 7, 2**31 - 1)),
        max_wait_ms=client.chance.choice((0, 100, 2**31 - 1)),
        min_bytes=client.chance.choice((0, 1, 2**31 - 1)),
        max_records=client.chance.choice((0, 1, 500, 2**31 - 1, -1)),
        batch_size=client.chance.choice((0, 1, 2**31 - 1, -1)),
        topics=topics,
    )
    await client.ask(ApiKey.SHARE_FETCH, 1, fetching)


async def crowd_groups(client: HostileClient) -> None:
    """Join members that never return, with a lot of metadata, and commit for partitions that do not exist."""
    chance = client.chance
    group = f"{NAME}-{chance.randrange(30)}"
    protocol = join_group.JoinGroupRequestProtocol(name="x", metadata=chance.randbytes(chance.choice((0, 10, 20_000))))
    joining = join_group.JoinGroupRequest(
        group_id=group,
        session_timeout_ms=chance.choice((6_000, 0, 2**31 - 1)),
        rebalance_timeout_ms=chance.choice((0, 100, 2**31 - 1)),
        member_id=chance.choice(("", "nobody")),
        protocol_type=chance.choice(("consumer", "", "a\nb")),
        protocols=[protocol] * chance.choice((0, 1, 3)),
    )
    await client.ask(ApiKey.JOIN_GROUP, chance.choice((2, 5, 9)), joining)
    partition = offset_commit.OffsetCommitRequestPartition(
        partition_index=chance.choice((0, -1, 2**31 - 1)),
        committed_offset=chance.choice((0, -1, 2**63 - 1)),
        committed_metadata=chance.choice(("", "m" * 5_000, None)),
    )
    topic = offset_commit.OffsetCommitRequestTopic(
        name=chance.choice((*_VICTIMS, *_TOPICS)), partitions=[partition] * 3
    )
    await client.ask(
        ApiKey.OFFSET_COMMIT, 8, offset_commit.OffsetCommitRequest(group_id=group, member_id="", topics=[topic])
    )


async def take_producer_ids(client: HostileClient) -> None:
    """Make up producer ids and epochs, and send batches under them to its own topics."""
    chance = client.chance
    request = init_producer_id.InitProducerIdRequest(
        transactional_id=chance.choice((None, f"{NAME}-{chance.randrange(20)}", "")),
        transaction_timeout_ms=chance.choice((1, 1_000, -1, 2**31 - 1)),
        producer_id=chance.choice((-1, 0, 1, 1_000, 2**63 - 1)),
        producer_epoch=chance.choice((-1, 0, 5, 32_767)),
    )
    await client.ask(ApiKey.INIT_PRODUCER_ID, 4, request)
    await client.have_topics()
    batch = encode_batch(
        [(client._setting.runtime.now_ms(), b"k", b"v", ())],
        producer_id=chance.choice((0, 1, 2, 1_000, 2**62)),
        producer_epoch=chance.choice((0, 1, 32_767)),
        base_sequence=chance.choice((0, 1, 2**31 - 1)),
        is_transactional=chance.random() < 0.3,
    )
    await client.produce(chance.choice(_TOPICS), batch)


async def announce(client: HostileClient) -> None:
    """Send frame sizes without frames, halves of frames, and meaningless bytes."""
    chance = client.chance
    wires = [await client.connect(to_node=chance.random() < 0.4) for _ in range(chance.choice((1, 5, 20)))]
    for wire in wires:
        size = _SIZE.pack(chance.choice(_SIZES))
        wire.write(size + chance.randbytes(chance.choice((0, 1, 8, 40))))
    await asyncio.sleep(chance.choice((0.0, 0.2, 4.0)))
    for wire in wires:
        wire.close()


async def mean_nothing(client: HostileClient) -> None:
    """Send a whole frame of an API, in a version that may not exist, with a random body."""
    chance = client.chance
    header = struct.pack(">hhih", chance.choice((*range(95), -1, 32_767)), chance.choice((0, 1, 5, 12, -1, 99)), 1, -1)
    frame = header + chance.randbytes(chance.choice((0, 1, 7, 60)))
    wire = await client.connect()
    wire.write(_SIZE.pack(len(frame)) + frame)
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            await wire.frames.get()
    finally:
        wire.close()


async def knock(client: HostileClient) -> None:
    """Claim to be a node, of this cluster or of another, at the nodes' listener, without proof."""
    import msgpack

    chance = client.chance
    hello = {
        "version": chance.choice((1, 2, 3, 99, "1")),
        "node": chance.choice((*client.ids, 99, -1, 2**40)),
        "nonce": chance.randbytes(chance.choice((32, 0, 8))),
        "cluster": chance.choice((None, "another\ncluster\x1b[2J", "x" * 2_000)),
        "knocks": chance.random() < 0.3,
    }
    if chance.random() < 0.3:
        del hello[chance.choice(sorted(hello))]
    wire = await client.connect(to_node=True)
    for part in (msgpack.packb(hello), chance.randbytes(32), msgpack.packb([1, "raft", {}]), chance.randbytes(50)):
        wire.write(_SIZE.pack(len(part)) + part)
    await asyncio.sleep(0.1)
    wire.close()


async def crowd(client: HostileClient) -> None:
    """Open many connections that request everything and read nothing."""
    chance = client.chance
    wires = [await client.connect() for _ in range(chance.choice((3, 12)))]
    request = encode_request(ApiKey.METADATA, 12, 1, NAME, metadata.MetadataRequest(topics=None))
    for wire in wires:
        assert wire.transport is not None
        wire.transport.pause_reading()
        wire.write(request * 6)
    await asyncio.sleep(chance.choice((0.1, 1.0)))
    for wire in wires:
        wire.close()


async def make_topics(client: HostileClient) -> None:
    """Name many topics in one request, most of them invalid."""
    chance = client.chance
    names = ["", "..", "a b", "x" * 250, *(f"{NAME}-many-{chance.randrange(40)}" for _ in range(10))]
    topics = [
        create_topics.CreatableTopic(
            name=name,
            num_partitions=chance.choice((1, 0, -5, 2**31 - 1)),
            replication_factor=chance.choice((1, -1, 99)),
        )
        for name in names
    ]
    timeout_ms = chance.choice((0, 1_000, -1))
    await client.ask(ApiKey.CREATE_TOPICS, 7, create_topics.CreateTopicsRequest(topics=topics, timeout_ms=timeout_ms))


ATTACKS: Final[tuple[Attack, ...]] = (
    pose_as_follower,
    pose_as_follower,
    ask_as_replica,
    poison,
    subscribe_by_pattern,
    set_odd_values,
    crowd_groups,
    take_producer_ids,
    announce,
    mean_nothing,
    knock,
    crowd,
    make_topics,
)


def _batch(now: int, payload: bytes, codec: Compression = Compression.NONE, *, records_count: int = 1) -> bytes:
    return encode_payload(
        payload, records_count=records_count, base_timestamp=now, max_timestamp=now, compression=codec
    )


def _varint(value: int) -> bytes:
    """Encode in zigzag, as lengths in records are."""
    return uvarint((value << 1) ^ (value >> 63))
