"""Keep brokers busy from one process that costs little itself; print a line of JSON.

    python -m bench.processes_load KIND --bootstrap HOST:PORT --topic TOPIC --seconds S --pids PID,PID,...

KIND is `single` (Produce requests of one record of 200 bytes, acks=1), `batches` (of fifty) or `fetch` (16 KiB of them
an answer). One connection for each partition carries as many requests at once as `DEPTH` says. All are encoded before
the start, and their answers are of one size: the load sends bytes, counts bytes, and looks only every millisecond. It
therefore uses a small part of the processor time that the brokers use, and measures both parts.
"""

from __future__ import annotations

import argparse
import json
import socket
import sys
import time
from dataclasses import dataclass
from typing import Any

from bench.kafka_load import leaders
from bench.metrics import processor_s
from bench.pairs import Figures
from bench.wire import Wire
from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.frames import encode_request
from kraftpy.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from kraftpy.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kraftpy.protocol.record_batch import encode_batch

VALUE_BYTES, BATCH, ANSWER_BYTES = 200, 50, 16 << 10
PRODUCE_VERSION, FETCH_VERSION = 9, 11
DEPTH = {"single": 400, "batches": 32, "fetch": 32}
_LOOK_EVERY_S = 0.001
_LENGTH_BYTES = 4
_TAIL_S = 30.0


@dataclass(slots=True)
class Stream:
    """A connection to the leader of a partition, and the requests on their way."""

    socket: socket.socket
    frames: memoryview
    """As many requests as may be on their way, encoded one after the other."""
    frame_bytes: int
    answer_bytes: int
    sent: int = 0
    """Bytes."""
    received: int = 0
    """Bytes."""

    @property
    def answered(self) -> int:
        """Requests that are answered."""
        return self.received // self.answer_bytes

    def go_on(self, room: bytearray, *, sends: bool = True) -> None:
        """Receive what has come, and send as many more requests as were answered."""
        try:
            while got := self.socket.recv_into(room):
                self.received += got
                if got < len(room):
                    break
            else:
                raise SystemExit("the broker has hung up")
        except BlockingIOError:
            pass
        allowed = self.answered * self.frame_bytes + len(self.frames)
        try:
            while sends and self.sent < allowed:
                at = self.sent % len(self.frames)
                self.sent += self.socket.send(self.frames[at : at + allowed - self.sent])
        except BlockingIOError:
            pass


def produce(topic: str, partition: int, records: int) -> ProduceRequest:
    """Return a request that appends so many records."""
    batch = encode_batch([(int(time.time() * 1000), None, bytes(VALUE_BYTES), ())] * records)
    data = [TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=partition, records=batch)])]
    return ProduceRequest(acks=1, timeout_ms=30_000, topic_data=data)


def fetch(topic: str, partition: int) -> FetchRequest:
    """Return a request that reads the partition's beginning."""
    partitions = [FetchPartition(partition=partition, fetch_offset=0, partition_max_bytes=ANSWER_BYTES)]
    return FetchRequest(
        max_wait_ms=500, min_bytes=1, max_bytes=ANSWER_BYTES, topics=[FetchTopic(topic=topic, partitions=partitions)]
    )


def stream(kind: str, topic: str, partition: int, address: str) -> Stream:
    """Connect, and measure the size of an answer by a first request."""
    wire = Wire(address)
    key, version, request = _request(kind, topic, partition)
    if kind == "fetch":
        for _ in range(4):  # more than an answer
            _check(wire.ask(ApiKey.PRODUCE, PRODUCE_VERSION, produce(topic, partition, BATCH)))
    frame = encode_request(key, version, 1, "bench", request)
    answer_bytes = _LENGTH_BYTES + len(wire.exchange(frame))
    if kind == "fetch" and answer_bytes < ANSWER_BYTES // 2:
        raise SystemExit(f"a Fetch request is answered with {answer_bytes} bytes")
    wire.close()
    host, _, port = address.rpartition(":")
    connection = socket.create_connection((host, int(port)), 30)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setblocking(False)
    return Stream(connection, memoryview(frame * DEPTH[kind]), len(frame), answer_bytes)


def _request(kind: str, topic: str, partition: int) -> tuple[ApiKey, int, object]:
    if kind == "fetch":
        return ApiKey.FETCH, FETCH_VERSION, fetch(topic, partition)
    return ApiKey.PRODUCE, PRODUCE_VERSION, produce(topic, partition, BATCH if kind == "batches" else 1)


def _end_offset(topic: str, partition: int, address: str) -> int:
    """Append a record, and return its offset."""
    wire = Wire(address)
    answer = wire.ask(ApiKey.PRODUCE, PRODUCE_VERSION, produce(topic, partition, 1))
    _check(answer)
    offset: int = answer.responses[0].partition_responses[0].base_offset
    wire.close()
    return offset


def _check(answer: Any) -> None:
    if code := answer.responses[0].partition_responses[0].error_code:
        raise SystemExit(f"the broker answers {code}")


def run(kind: str, bootstrap: str, topic: str, seconds: float, pids: list[int]) -> Figures:
    """Keep the brokers busy; return requests a second, and the processor time of a request, theirs and ours."""
    addresses = leaders(bootstrap, topic)
    streams = [stream(kind, topic, partition, address) for partition, address in addresses.items()]
    before = [_end_offset(topic, partition, address) for partition, address in addresses.items()]
    room = bytearray(1 << 20)
    begun, count, own, theirs = 0.0, 0, 0.0, 0.0
    warm_until = time.perf_counter() + seconds / 10
    while not begun or time.perf_counter() - begun < seconds:
        for each in streams:
            each.go_on(room)
        if not begun and time.perf_counter() > warm_until:
            begun, count = time.perf_counter(), sum(each.answered for each in streams)
            own, theirs = time.process_time(), sum(map(processor_s, pids))
        time.sleep(_LOOK_EVERY_S)
    took = time.perf_counter() - begun
    count = sum(each.answered for each in streams) - count
    own, theirs = time.process_time() - own, sum(map(processor_s, pids)) - theirs
    _finish(streams, room)
    if kind != "fetch":
        records = BATCH if kind == "batches" else 1
        after = [_end_offset(topic, partition, address) for partition, address in addresses.items()]
        appended = sum(after) - sum(before) - len(addresses)
        if appended != records * sum(each.answered for each in streams):
            raise SystemExit(f"{appended} records were appended for {sum(each.answered for each in streams)} answers")
    return {
        "per_s": count / took,
        "node_us": theirs / count * 1e6,
        "load_us": own / count * 1e6,
        "node_share": theirs / took,
        "load_share": own / took,
    }


def _finish(streams: list[Stream], room: bytearray) -> None:
    """Wait until every request that was begun is sent whole and answered."""
    deadline = time.monotonic() + _TAIL_S
    for each in streams:
        rest = -each.sent % each.frame_bytes
        each.socket.settimeout(_TAIL_S)
        at = each.sent % len(each.frames)
        each.socket.sendall(each.frames[at : at + rest])
        each.sent += rest
        each.socket.setblocking(False)
    while any(each.answered < each.sent // each.frame_bytes for each in streams):
        for each in streams:
            each.go_on(room, sends=False)
        if time.monotonic() > deadline:
            raise SystemExit("not every request was answered")
        time.sleep(_LOOK_EVERY_S)
    if any(each.received % each.answer_bytes for each in streams):
        raise SystemExit("an answer is of another size: the broker has refused a request")


def main() -> None:
    """Run one load and print its figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=sorted(DEPTH))
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--pids", required=True)
    given = parser.parse_args()
    figures = run(
        given.kind, given.bootstrap, given.topic, given.seconds, [int(each) for each in given.pids.split(",")]
    )
    print(json.dumps(figures))


if __name__ == "__main__":
    sys.exit(main())
