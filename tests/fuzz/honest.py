"""The honest client of a fuzz: a separate process that a broker under attack must keep serving.

    python tests/fuzz/honest.py 127.0.0.1:9092 /tmp/acknowledged

Every `PAUSE_SECONDS` it produces a record, fetches, asks for metadata and for API versions, and sends the heartbeat of
a group's member, each on a connection of its own with one request in flight. It appends the offset and number of each
acknowledged record to the file. Twice a second it prints, as JSON, how long its oldest request has waited; after a line
on its standard input it prints how long requests took and which errors it had, and ends.

Like any client it retries: on a new connection, and after the errors of a cluster that changes its leaders. So a
request is late if no attempt was answered; other errors are counted, by operation and error.
"""

from __future__ import annotations

import json
import socket
import struct
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from broker_wire import ask, connect

from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages.api_versions import ApiVersionsRequest
from kraftpy.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from kraftpy.protocol.messages.find_coordinator import FindCoordinatorRequest
from kraftpy.protocol.messages.heartbeat import HeartbeatRequest
from kraftpy.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from kraftpy.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from kraftpy.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kraftpy.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from kraftpy.protocol.record_batch import encode_batch

TOPIC = "honest"
GROUP = "honest-group"
PAUSE_SECONDS = 0.02
ATTEMPT_SECONDS = 30.0
SESSION_MS = 60_000
PASSING = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.OFFSET_NOT_AVAILABLE,
    }
)
"""Errors that a client meets in a healthy cluster whose leaders change, and retries."""


class TryAgain(Exception):
    """The answer calls for another attempt, perhaps at another broker."""


class Refused(Exception):
    """The answer is an error that a client has no reason to expect."""


def value_of(number: int) -> bytes:
    """Return the value of the record with that number."""
    return b"%d:" % number + bytes((number * 31 + each) % 251 for each in range(60))


def check(what: str, code: int) -> None:
    """Raise for an error code."""
    if code in PASSING:
        raise TryAgain(f"{what}: {ErrorCode(code).name}")
    if code != ErrorCode.NONE:
        raise Refused(f"{what}: {ErrorCode(code).name}")


class Operation:
    """Repeats one kind of request in a thread of its own."""

    def __init__(self, name: str, brokers: list[str]) -> None:
        self.name = name
        self.brokers = brokers
        self.times: list[float] = []
        self.errors: Counter[str] = Counter()
        self.retries: Counter[str] = Counter()
        self.since: float | None = None
        """When the open request was first tried."""
        self.connection: socket.socket | None = None
        self.address = brokers[0]
        self.attempts = 0

    def attempt(self) -> None:
        """Make one request and take its answer."""
        raise AssertionError("not told what to do")

    def sought(self) -> str:
        """Return where to connect: each broker in turn, unless the operation knows better."""
        return self.brokers[self.attempts % len(self.brokers)]

    def connected(self) -> socket.socket:
        """Return the connection, opening it if necessary."""
        if self.connection is None:
            self.address = self.sought()
            self.connection = connect(self.address, ATTEMPT_SECONDS)
            self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return self.connection

    def disconnect(self) -> None:
        """Begin the next attempt with a new connection."""
        if self.connection is not None:
            self.connection.close()
            self.connection = None

    def once(self, stopping: threading.Event) -> None:
        """Complete a request, in as many attempts as it takes."""
        self.since = started = time.monotonic()
        while not stopping.is_set():
            self.attempts += 1
            try:
                self.attempt()
            except (OSError, EOFError, struct.error) as error:
                self.retries[f"{type(error).__name__}: {error}"[:80]] += 1
            except TryAgain as error:
                self.retries[str(error)] += 1
            except Refused as error:
                self.errors[str(error)] += 1
            else:
                self.times.append(time.monotonic() - started)
                self.since = None
                return
            self.disconnect()
            stopping.wait(0.1)

    def run(self, stopping: threading.Event) -> None:
        """Run until asked to stop."""
        try:
            while not stopping.is_set():
                self.once(stopping)
                stopping.wait(PAUSE_SECONDS)
        except Exception as error:
            self.errors[f"the honest client itself failed: {type(error).__name__}: {error}"] += 1
        finally:
            self.disconnect()


class ToLeader(Operation):
    """Sends requests to the partition's leader."""

    def sought(self) -> str:
        with connect(self.brokers[self.attempts % len(self.brokers)], ATTEMPT_SECONDS) as connection:
            found = ask(connection, ApiKey.METADATA, 9, MetadataRequest(topics=[MetadataRequestTopic(name=TOPIC)]))
        check("metadata for the leader", found.topics[0].error_code)
        leader = found.topics[0].partitions[0].leader_id
        for broker in found.brokers:
            if broker.node_id == leader:
                return f"{broker.host}:{broker.port}"
        raise TryAgain("no leader")


class Produces(ToLeader):
    """Produces a record at a time, and writes down each acknowledged one."""

    def __init__(self, brokers: list[str], file: Path, acks: int) -> None:
        super().__init__("produce", brokers)
        self.number = 0
        self.acks = acks
        self.file = file.open("a")

    def attempt(self) -> None:
        connection = self.connected()
        self.number += 1
        batch = encode_batch([(int(time.time() * 1000), None, value_of(self.number), ())])
        data = PartitionProduceData(index=0, records=bytearray(batch))
        topic = TopicProduceData(name=TOPIC, partition_data=[data])
        request = ProduceRequest(acks=self.acks, timeout_ms=20_000, topic_data=[topic])
        part = ask(connection, ApiKey.PRODUCE, 9, request).responses[0].partition_responses[0]
        check("produce", part.error_code)
        self.file.write(f"{part.base_offset} {self.number}\n")
        self.file.flush()


class Fetches(ToLeader):
    """Fetches from the beginning, and then each new record."""

    offset = 0

    def attempt(self) -> None:
        wanted = FetchPartition(partition=0, fetch_offset=self.offset, partition_max_bytes=1 << 16)
        topic = FetchTopic(topic=TOPIC, partitions=[wanted])
        request = FetchRequest(max_wait_ms=0, min_bytes=0, topics=[topic])
        part = ask(self.connected(), ApiKey.FETCH, 12, request).responses[0].partitions[0]
        check("fetch", part.error_code)
        self.offset = max(self.offset, part.high_watermark - 20)


class AsksForMetadata(Operation):
    """Asks for the metadata of the client's own topic."""

    def attempt(self) -> None:
        request = MetadataRequest(topics=[MetadataRequestTopic(name=TOPIC)], allow_auto_topic_creation=False)
        check("metadata", ask(self.connected(), ApiKey.METADATA, 9, request).topics[0].error_code)


class AsksForVersions(Operation):
    """The cheapest request to a broker: measures the latency of its event loop."""

    def attempt(self) -> None:
        request = ApiVersionsRequest(client_software_name="honest", client_software_version="1")
        check("versions", ask(self.connected(), ApiKey.API_VERSIONS, 3, request).error_code)


class IsMember(Operation):
    """The only member of a group: joins when it has to, and sends heartbeats."""

    member_id = ""
    generation_id = -1

    def sought(self) -> str:
        request = FindCoordinatorRequest(key_type=0, coordinator_keys=[GROUP])
        with connect(self.brokers[self.attempts % len(self.brokers)], ATTEMPT_SECONDS) as connection:
            found = ask(connection, ApiKey.FIND_COORDINATOR, 4, request).coordinators[0]
        check("find coordinator", found.error_code)
        return f"{found.host}:{found.port}"

    def attempt(self) -> None:
        connection = self.connected()
        if self.generation_id < 0:
            self._join(connection)
        request = HeartbeatRequest(group_id=GROUP, generation_id=self.generation_id, member_id=self.member_id)
        code = ask(connection, ApiKey.HEARTBEAT, 4, request).error_code
        if code != ErrorCode.NONE:
            self.generation_id = -1
            if code == ErrorCode.UNKNOWN_MEMBER_ID:
                self.member_id = ""
        check("heartbeat", code)

    def _join(self, connection: socket.socket) -> None:
        request = JoinGroupRequest(
            group_id=GROUP,
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=SESSION_MS,
            member_id=self.member_id,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=b"honest")],
        )
        joined = ask(connection, ApiKey.JOIN_GROUP, 7, request)
        if joined.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = joined.member_id
            raise TryAgain("join: with the member id it was given")
        if joined.error_code == ErrorCode.UNKNOWN_MEMBER_ID:
            self.member_id = ""
        check("join", joined.error_code)
        self.member_id, generation_id = joined.member_id, joined.generation_id
        assignment = SyncGroupRequestAssignment(member_id=self.member_id, assignment=b"all of it")
        synced = ask(
            connection,
            ApiKey.SYNC_GROUP,
            5,
            SyncGroupRequest(
                group_id=GROUP,
                generation_id=generation_id,
                member_id=self.member_id,
                protocol_type="consumer",
                protocol_name="range",
                assignments=[assignment],
            ),
        )
        check("sync", synced.error_code)
        self.generation_id = generation_id


def percentile(times: list[float], share: float) -> float:
    """Convert to milliseconds."""
    ordered = sorted(times)
    return round(1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))], 1) if ordered else 0.0


def main() -> None:
    brokers, file = sys.argv[1].split(","), Path(sys.argv[2])
    operations = [
        Produces(brokers, file, acks=1 if len(brokers) == 1 else -1),
        Fetches("fetch", brokers),
        AsksForMetadata("metadata", brokers),
        AsksForVersions("versions", brokers),
        IsMember("heartbeat", brokers),
    ]
    stopping = threading.Event()
    told: Callable[[], Any] = sys.stdin.readline
    waiting = threading.Thread(target=lambda: (told(), stopping.set()), daemon=True)
    threads = [threading.Thread(target=each.run, args=(stopping,), daemon=True) for each in operations]
    for thread in (waiting, *threads):
        thread.start()
    while not stopping.wait(0.5):
        now = time.monotonic()
        waits = [(now - since, each.name) for each in operations if (since := each.since) is not None]
        oldest, name = max(waits, default=(0.0, ""))
        print(json.dumps({"oldest": round(oldest, 2), "name": name}), flush=True)
    for each in operations:
        if each.connection is not None:
            each.connection.close()
    print(
        json.dumps(
            {
                "operations": {
                    each.name: {
                        "count": len(each.times),
                        "p50": percentile(each.times, 0.5),
                        "p99": percentile(each.times, 0.99),
                        "max": percentile(each.times, 1.0),
                        "errors": dict(each.errors),
                        "retries": dict(each.retries),
                    }
                    for each in operations
                }
            }
        ),
        flush=True,
    )


if __name__ == "__main__":
    main()
