"""Judges a world after an attack: findings, each with a key that is the same for the same cause.

Long steps of the nodes' event loops are read from what `loop_probe` wrote. A log is read for tracebacks, for incidents,
for what clients wrote into it, and for its size. The questions (`stuck`, `lost`, `posed`) are asked of running nodes.
"""

from __future__ import annotations

import contextlib
import json
import re
import threading
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import honest
import hostile
from broker_wire import ask, connect, fetch_request
from world import World

from kraftpy.broker.containment import UNEXPECTED
from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from kraftpy.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ReplicaState
from kraftpy.protocol.messages.heartbeat import HeartbeatRequest
from kraftpy.protocol.messages.init_producer_id import InitProducerIdRequest
from kraftpy.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from kraftpy.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from kraftpy.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kraftpy.protocol.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from kraftpy.protocol.messages.streams_group_heartbeat import StreamsGroupHeartbeatRequest
from kraftpy.protocol.record_batch import encode_batch, iter_records, split_batches

STUCK_SECONDS = 20.0
LOG_BYTES = 1_000_000
LOG_BYTES_OF_REQUEST = 20
LINE_CHARACTERS = 4000
_TRACEBACK = re.compile(r"^( *)Traceback \(most recent call last\):\n(?:\1[ \t].*\n)+\1\S.*", re.MULTILINE)
"""A traceback, indented or not."""


class Finding(NamedTuple):
    """Something that must not be. `kind` and `cause` are the same for the same cause; `detail` is for people."""

    kind: str
    cause: str
    detail: str = ""

    def __str__(self) -> str:
        detail = self.detail if len(self.detail) <= 3000 else f"{self.detail[:1500]} ... {self.detail[-1500:]}"
        return f"{self.kind}: {self.cause[:200]}" + (f"\n    {detail}" if detail else "")


# --- the logs ------------------------------------------------------------------------------------------------------


def in_log(text: str, requests: int) -> list[Finding]:
    """Return the findings in a node's log after this many requests."""
    findings: dict[tuple[str, str], Finding] = {}

    def add(kind: str, cause: str, detail: str = "") -> None:
        findings.setdefault((kind, cause), Finding(kind, cause, detail[-1500:]))

    for match in re.finditer(_TRACEBACK, text):
        block = match[0]
        lines = [line.strip() for line in block.splitlines()]
        places = re.findall(r'File ".*?(kraftpy/[^"]*)", line (\d+), in (\w+)', block)
        place = " ".join(places[-1]) if places else lines[-2].strip()
        add("traceback", f"{_shape(lines[-1])} in {place}", block)
    for line in text.splitlines():
        if f": {UNEXPECTED}: " in line:
            add("incident", _shape(line.partition(f": {UNEXPECTED}: ")[2]), line)
        if len(line) > LINE_CHARACTERS:
            add("long line", " ".join(_shape(line).split()[:2]), f"{len(line)} characters: {line[:200]!r}")
        if line.startswith(hostile.FORGED):
            add("forged line", "what comes from outside begins a line of the log", line)
    if (control := re.search(r".*[\x00-\x08\x0b-\x1f\x7f\u202e].*", text)) is not None:
        add("control characters", "what comes from outside is printed as it came", repr(control[0][:300]))
    if len(text) > LOG_BYTES + LOG_BYTES_OF_REQUEST * requests:
        shapes = Counter(_shape(line) for line in text.splitlines()).most_common(3)
        add("log flood", f"{len(text) // 1_000_000} MB", f"{len(text)} bytes after {requests} requests; {shapes}")
    return list(findings.values())


class Step(NamedTuple):
    """A callback of a node's event loop that took long, as `loop_probe` measured it."""

    cpu_ms: float
    wall_ms: float
    stacks: list[str]
    """The stacks it was seen in, the most frequent first, each with its innermost frame first."""

    @property
    def cause(self) -> str:
        """The product's innermost function that ran, the same for the same cause."""
        frames = [frame for stack in self.stacks[:1] for frame in stack.split(" < ")]
        ours = [frame for frame in frames if "(kraftpy/" in frame]
        return re.sub(r":\d+\)$", ")", (ours or frames or ["seen in no stack"])[0])

    def __str__(self) -> str:
        return f"{self.cpu_ms:.0f} ms of CPU, {self.wall_ms:.0f} ms: {'; '.join(self.stacks) or self.cause}"


def long_steps(directory: Path, since: float, until: float) -> list[Step]:
    """Return the steps that nodes wrote into a directory and began within that time, longest first."""
    found = []
    for file in directory.glob("*.json"):
        for line in file.read_text().splitlines():
            with contextlib.suppress(ValueError):  # a node that was killed may have left half a line
                step = json.loads(line)
                if since <= step["began"] <= until:
                    found.append(Step(step["cpu_ms"], step["wall_ms"], step["stacks"]))
    return sorted(found, key=lambda step: -step.cpu_ms)


def _shape(line: str) -> str:
    """A line without its numbers and quoted text."""
    line = re.sub(r"^\S+ \S+ ", "", line) if re.match(r"\d{4}-\d\d-\d\d", line) else line
    line = re.sub(r"'[^']*'|\"[^\"]*\"", "'...'", line)
    return re.sub(r"(?<!:)\b\d[\d.,:]*", "N", line)[:160]


# --- what is asked afterwards --------------------------------------------------------------------------------------


def stuck(world: World) -> list[Finding]:
    """Groups and transactions that give no answer at all any more, and topics that take no records."""
    findings = []
    for kind, names in hostile.GROUPS.items():
        for name in names:
            findings += _stuck_group(world, kind, name)
    for name in hostile.TRANSACTIONAL_IDS:
        findings += _stuck_transaction(world, name)
    return findings


def _stuck_group(world: World, kind: str, name: str) -> list[Finding]:
    member = "AAAAAAAAAAAAAAAAAAAAAA"
    questions = (
        (ApiKey.HEARTBEAT, 4, HeartbeatRequest(group_id=name, generation_id=1, member_id="nobody")),
        (ApiKey.OFFSET_FETCH, 8, OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=name, topics=None)])),
        (
            ApiKey.CONSUMER_GROUP_HEARTBEAT,
            1,
            ConsumerGroupHeartbeatRequest(group_id=name, member_id=member, member_epoch=5, topic_partitions=[]),
        ),
        (ApiKey.SHARE_GROUP_HEARTBEAT, 1, ShareGroupHeartbeatRequest(group_id=name, member_id=member, member_epoch=5)),
        (
            ApiKey.STREAMS_GROUP_HEARTBEAT,
            0,
            StreamsGroupHeartbeatRequest(group_id=name, member_id=member, member_epoch=5),
        ),
    )
    findings = []
    with connect(str(world.brokers[world.homes[name]]), STUCK_SECONDS) as connection:
        for key, version, request in questions:
            try:
                ask(connection, key, version, request)
            except TimeoutError:
                findings.append(Finding("stuck", f"a {kind} group", f"{name} does not answer {key.name}"))
                break
            except (OSError, EOFError) as error:
                findings.append(Finding("stuck", f"a {kind} group, closed", f"{name}, {key.name}: {error!r}"))
                break
    return findings


def _stuck_transaction(world: World, name: str) -> list[Finding]:
    request = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=10_000)
    deadline = time.monotonic() + STUCK_SECONDS
    said = ""
    with connect(str(world.brokers[world.homes[name]]), STUCK_SECONDS) as connection:
        while time.monotonic() < deadline:
            try:
                said = ErrorCode(ask(connection, ApiKey.INIT_PRODUCER_ID, 4, request).error_code).name
            except (OSError, EOFError) as error:
                said = repr(error)
                break
            if said not in ("CONCURRENT_TRANSACTIONS", "NOT_COORDINATOR", "COORDINATOR_LOAD_IN_PROGRESS"):
                return []
            time.sleep(0.2)
    return [Finding("stuck", "a transaction", f"{name} answers {said}")]


def lost(world: World, file: Path) -> list[Finding]:
    """Report acknowledged records of the honest client that are missing, or differ from what it wrote."""
    acknowledged = [tuple(map(int, line.split())) for line in file.read_text().splitlines()]
    records: dict[int, bytes] = {}
    leader = _leader(world, honest.TOPIC)
    with connect(leader) as connection:
        offset = 0
        while True:
            request = fetch_request(honest.TOPIC, offset)
            part = ask(connection, ApiKey.FETCH, 12, request).responses[0].partitions[0]
            if part.error_code != ErrorCode.NONE:
                return [Finding("lost", "the honest topic cannot be read", ErrorCode(part.error_code).name)]
            if not part.records:
                break
            for header, batch in split_batches(part.records):
                for each in iter_records(batch):
                    records[each.offset] = bytes(each.value or b"")
                offset = header.next_offset
    missing = [pair for pair in acknowledged if records.get(pair[0]) != honest.value_of(pair[1])]
    if not missing:
        return []
    detail = f"{len(missing)} of {len(acknowledged)}, first {missing[0]}; {len(records)} were read"
    return [Finding("lost", "records that were acknowledged", detail)]


def _leader(world: World, topic: str) -> str:
    deadline = time.monotonic() + STUCK_SECONDS
    while time.monotonic() < deadline:
        for broker in world.brokers:
            with connect(str(broker)) as connection:
                request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)])
                found = ask(connection, ApiKey.METADATA, 9, request)
            parts = found.topics[0].partitions
            if parts and parts[0].leader_id in world.cluster.brokers:
                return world.cluster.address(parts[0].leader_id)
        time.sleep(0.1)
    raise AssertionError(f"{topic} has no leader")


def posed(world: World) -> list[Finding]:
    """Report a leader that a client posing as a follower makes believe that the follower has records it lacks."""
    topic = "odd"
    leader = _leader(world, topic)
    with connect(leader) as connection:
        found = ask(connection, ApiKey.METADATA, 9, MetadataRequest(topics=[MetadataRequestTopic(name=topic)]))
        partition = found.topics[0].partitions[0]
        followers = [node for node in partition.isr_nodes if node != partition.leader_id]
        if not followers:
            return []
        frozen = followers[-1]
        stopping = threading.Event()
        address = str(world.for_brokers[world.cluster.brokers.index(partition.leader_id)])
        posing = threading.Thread(target=_pose, args=(address, world.topic_ids[topic], frozen, stopping), daemon=True)
        data = PartitionProduceData(index=0, records=bytearray(encode_batch([(0, b"k", b"v", ())])))
        wanted = [TopicProduceData(name=topic, partition_data=[data])]
        request = ProduceRequest(acks=-1, timeout_ms=3000, topic_data=wanted)
        fault = world.cluster.pause(frozen)
        posing.start()
        try:
            answered = ask(connection, ApiKey.PRODUCE, 9, request).responses[0].partition_responses[0]
            found = ask(connection, ApiKey.METADATA, 9, MetadataRequest(topics=[MetadataRequestTopic(name=topic)]))
        finally:
            stopping.set()
            fault.heal()
            posing.join()
    if answered.error_code == ErrorCode.NONE and frozen in found.topics[0].partitions[0].isr_nodes:
        return [Finding("posing", "acks=all is answered for a replica in sync that is frozen", f"node {frozen}")]
    return []


def _pose(leader: str, topic_id: bytes, replica: int, stopping: threading.Event) -> None:
    """Fetch as that replica, without its epoch, from every offset there may be."""
    with connect(leader, 5.0) as connection:
        offset = 0
        while not stopping.is_set():
            wanted = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
            request = FetchRequest(
                replica_state=ReplicaState(replica_id=replica, replica_epoch=-1),
                max_wait_ms=0,
                min_bytes=0,
                topics=[FetchTopic(topic_id=topic_id, partitions=[wanted])],
            )
            try:
                part = ask(connection, ApiKey.FETCH, 17, request).responses[0].partitions[0]
            except (OSError, EOFError, IndexError):
                return
            offset = max(offset, part.high_watermark)
            if part.records:
                try:
                    offset = split_batches(part.records, allow_partial=True)[-1][0].next_offset
                except Exception:
                    return
            stopping.wait(0.02)
