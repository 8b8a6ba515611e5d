"""Put one load on the secure listener of a broker, in a process of its own; print a line of JSON.

    python -m bench.security_load LOAD --bootstrap HOST:PORT --seconds S [--setting NAME=VALUE ...]

`latency`, `paced`, `greedy` and `reading` use confluent-kafka with the given settings. The others use sockets of the
standard library: `handshakes` and `connections` connect with TLS when `--authority` names a file of certificates,
`requests` and `mutations` do as the settings say and log in with PLAIN.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import resource
import socket
import ssl
import struct
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition

from bench.load import QUIET
from kraftpy.protocol.apis import APIS, ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.frames import decode_response_header, encode_request
from kraftpy.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from kraftpy.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from kraftpy.protocol.messages.find_coordinator import FindCoordinatorRequest
from kraftpy.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from kraftpy.protocol.messages.sasl_handshake import SaslHandshakeRequest
from kraftpy.protocol.schema import decode
from kraftpy.security.plain import plain_message

Settings = dict[str, Any]
_API_VERSIONS = struct.pack(">ihhih", 10, 18, 0, 1, -1)
_QUEUE_KB = 20_000
_PACE_S = 0.01
_ANSWER_S = 60.0
GROUPS = 900
_THROTTLE_AT = 5
"""The place of the time to wait in an answer to FindCoordinator: behind the id of the request and its tags."""
_LATE_S = 0.002
"""So much later than allowed this client asks again, so that the broker does not still hold its connection."""
_NOT_YET = (ErrorCode.THROTTLING_QUOTA_EXCEEDED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.TOPIC_ALREADY_EXISTS)
"""Answers that count for nothing: a change that is not allowed yet, or of which the broker has not heard yet."""


def _acknowledged(producer: Producer, topic: str, value: bytes) -> float:
    """Send one record and wait for its acknowledgement; return the seconds that this took."""
    errors: list[Any] = []
    started = time.perf_counter()
    producer.produce(topic, value, partition=0, on_delivery=lambda error, _: errors.append(error))
    while not errors:
        producer.poll(1)
    if errors[0] is not None:
        raise SystemExit(f"not delivered: {errors[0]}")
    return time.perf_counter() - started


def percentiles(seconds: list[float]) -> dict[str, float]:
    """Return the median and the 99th percentile, in microseconds, and the number of requests."""
    ordered = sorted(seconds)
    return {
        "p50_us": ordered[len(ordered) // 2] * 1e6,
        "p99_us": ordered[int(len(ordered) * 0.99)] * 1e6,
        "requests": len(ordered),
    }


def latency(settings: Settings, topic: str, size: int, seconds: float, pause_s: float = 0.0) -> dict[str, float]:
    """Send one record after the other, acks=1, each once the last is acknowledged; the first tenth does not count."""
    producer = Producer({"linger.ms": 0, "acks": 1, **settings})
    value = bytes(size)
    took = []
    begun = time.perf_counter()
    while (passed := time.perf_counter() - begun) < seconds:
        one = _acknowledged(producer, topic, value)
        if passed > seconds / 10:
            took.append(one)
        if pause_s:
            time.sleep(pause_s)
    return percentiles(took)


def greedy(settings: Settings, topic: str, size: int, settle_s: float, seconds: float) -> dict[str, float]:
    """Send as much as the broker takes; return the bytes a second sent to it after `settle_s`."""
    return _bytes_a_second(
        "tx_bytes",
        settle_s,
        seconds,
        lambda counted: _sending(
            Producer({"queue.buffering.max.kbytes": _QUEUE_KB, **counted, **settings}), topic, size
        ),
    )


def _sending(producer: Producer, topic: str, size: int) -> Callable[[], None]:
    value = bytes(size)

    def turn() -> None:
        try:
            for _ in range(100):
                producer.produce(topic, value)
        except BufferError:
            producer.poll(0.01)
        producer.poll(0)

    return turn


def reading(settings: Settings, topic: str, settle_s: float, seconds: float) -> dict[str, float]:
    """Read a topic again and again; return the bytes a second received after `settle_s`."""

    def begin(counted: Settings) -> Callable[[], None]:
        consumer = Consumer(
            {"group.id": "reading", "enable.auto.commit": False, "enable.partition.eof": True, **counted, **settings}
        )
        partitions = consumer.list_topics(topic, 10).topics[topic].partitions
        consumer.assign([TopicPartition(topic, number, 0) for number in partitions])

        def turn() -> None:
            for message in consumer.consume(1000, 0.1):
                if message.error() is not None:  # the end of a partition
                    consumer.seek(TopicPartition(topic, message.partition(), 0))

        return turn

    return _bytes_a_second("rx_bytes", settle_s, seconds, begin)


def _bytes_a_second(
    counter: str, settle_s: float, seconds: float, begin: Callable[[Settings], Callable[[], None]]
) -> dict[str, float]:
    """Take turns of a client for some seconds; compare the first and the last count of bytes after `settle_s`.

    librdkafka counts bytes every 100 ms, before encryption.
    """
    counts: list[tuple[float, int]] = []

    def counted(statistics: str) -> None:
        figures = json.loads(statistics)
        counts.append((figures["ts"] / 1e6, figures[counter]))

    turn = begin({"statistics.interval.ms": 100, "stats_cb": counted, **QUIET})
    end = time.perf_counter() + settle_s + seconds
    while time.perf_counter() < end:
        turn()
    after = [each for each in counts if each[0] >= counts[0][0] + settle_s]
    (begun, first), (ended, last) = after[0], after[-1]
    return {"bytes_per_s": (last - first) / (ended - begun), "seconds": ended - begun}


def _connect(address: tuple[str, int], context: ssl.SSLContext | None) -> socket.socket:
    """Connect, shake hands, and ask for the versions once, so that the connection is in use."""
    connected = socket.create_connection(address, 10)
    if context is not None:
        connected = context.wrap_socket(connected, server_hostname=address[0])
    connected.sendall(_API_VERSIONS)
    left = 4
    while left:
        arrived = len(connected.recv(left))
        if not arrived:
            raise ConnectionError("closed")
        left -= arrived
    return connected


def handshakes(
    address: tuple[str, int], context: ssl.SSLContext | None, threads: int, seconds: float
) -> dict[str, float]:
    """In each thread, open one connection after the other, ask once, and close it; count those that were answered."""
    counts = [0] * threads
    begun = time.perf_counter()

    def work(number: int) -> None:
        while time.perf_counter() - begun < seconds:
            with contextlib.suppress(OSError):  # closed, because there are too many connections for a quota
                _connect(address, context).close()
                counts[number] += 1

    workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    for each in workers:
        each.start()
    for each in workers:
        each.join()
    return {"per_s": sum(counts) / (time.perf_counter() - begun), "count": sum(counts)}


def connections(address: tuple[str, int], context: ssl.SSLContext | None, count: int) -> None:
    """Open connections, print a line, and keep them until the input ends."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    kept = []
    for _ in range(count):
        one = _connect(address, context)
        one.setblocking(False)
        try:
            while one.recv(65536):  # the rest of the answer
                pass
        except (BlockingIOError, ssl.SSLWantReadError):
            pass
        kept.append(one)
    print(json.dumps({"count": len(kept)}), flush=True)
    sys.stdin.read()


class Asking:
    """A connection with TLS that has logged in with PLAIN, and takes answers as they come, throttled or not."""

    def __init__(self, settings: Settings) -> None:
        host, _, port = settings["bootstrap.servers"].partition(":")
        context = ssl.create_default_context(cafile=settings["ssl.ca.location"])
        plain = socket.create_connection((host, int(port)), 10)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        plain.settimeout(_ANSWER_S)
        self._socket = context.wrap_socket(plain, server_hostname=host)
        self.ask(ApiKey.SASL_HANDSHAKE, 1, SaslHandshakeRequest(mechanism="PLAIN"))
        proof = plain_message(settings["sasl.username"], settings["sasl.password"])
        shown = self.ask(ApiKey.SASL_AUTHENTICATE, 1, SaslAuthenticateRequest(auth_bytes=proof))
        if shown.error_code:
            raise SystemExit(f"not logged in: {shown.error_message}")

    def send(self, frame: bytes) -> None:
        """Send a request."""
        self._socket.sendall(frame)

    def receive(self) -> bytes:
        """Return the next answer."""
        return self._exactly(struct.unpack(">i", self._exactly(4))[0])

    def timed(self, frame: bytes) -> tuple[float, bytes]:
        """Send a request; return the seconds until its answer, and the answer."""
        begun = time.perf_counter()
        self.send(frame)
        answer = self.receive()
        return time.perf_counter() - begun, answer

    def ask(self, key: ApiKey, version: int, request: Any) -> Any:
        """Send a request, and return the answer to it."""
        self.send(encode_request(key, version, 0, "bench", request))
        return decode(APIS[key].response, decode_response_header(key, version, self.receive())[1], version)

    def _exactly(self, count: int) -> bytes:
        data = bytearray(count)
        left = memoryview(data)
        while left:
            arrived = self._socket.recv_into(left)
            if not arrived:
                raise ConnectionError("closed")
            left = left[arrived:]
        return bytes(data)


def requests(settings: Settings, other: Sequence[str], settle_s: float, seconds: float) -> dict[str, float]:
    """Ask the same question again as soon as the time to wait is over that the last answer tells.

    Return the share of the time in which the broker works on it, after `settle_s`: from the question to its answer,
    less the round trip of an empty question of another user half-way to the next. The question is work for a broker,
    and hardly any for this client: the coordinators of many groups.
    """
    asking = Asking(settings)
    idle = Asking({**settings, "sasl.username": other[0], "sasl.password": other[1]})
    question = FindCoordinatorRequest(key_type=0, coordinator_keys=[f"g{number}" for number in range(GROUPS)])
    until = time.perf_counter() + _ANSWER_S
    while any(each.error_code for each in asking.ask(ApiKey.FIND_COORDINATOR, 4, question).coordinators):
        if time.perf_counter() > until:
            raise SystemExit("the groups have no coordinators")
        time.sleep(0.1)
    frame, empty = (
        encode_request(ApiKey.FIND_COORDINATOR, 4, 0, "bench", each)
        for each in (question, FindCoordinatorRequest(key_type=0, coordinator_keys=[]))
    )
    begun = due = time.perf_counter()
    counted_from, worked_s, count = 0.0, 0.0, 0
    while due - begun < settle_s + seconds:
        time.sleep(max(0.0, due - time.perf_counter()))
        asked = time.perf_counter()
        took, answer = asking.timed(frame)
        wait_s = struct.unpack_from(">i", answer, _THROTTLE_AT)[0] / 1000
        due = time.perf_counter() + (wait_s + _LATE_S if wait_s else 0)
        time.sleep(wait_s / 2)
        took -= idle.timed(empty)[0]
        if asked - begun >= settle_s:
            counted_from, worked_s, count = counted_from or asked, worked_s + took, count + 1
    time.sleep(max(0.0, due - time.perf_counter()))
    passed = time.perf_counter() - counted_from
    return {"busy": worked_s / passed, "count": count, "seconds": passed}


def mutations(settings: Settings, topic: str, settle_s: float, seconds: float) -> dict[str, float]:
    """Create a topic of one partition and delete it, again and again, in strict versions; count what was done."""
    asking = Asking(settings)
    created = CreateTopicsRequest(topics=[CreatableTopic(name=topic, num_partitions=1, replication_factor=1)])
    deleted = DeleteTopicsRequest(topics=[DeleteTopicState(name=topic, topic_id=bytes(16))])
    exists, count = False, 0
    begun = time.perf_counter()
    while (now := time.perf_counter() - begun) < settle_s + seconds:
        if exists:
            code = asking.ask(ApiKey.DELETE_TOPICS, 6, deleted).responses[0].error_code
        else:
            code = asking.ask(ApiKey.CREATE_TOPICS, 7, created).topics[0].error_code
        if code == ErrorCode.NONE:
            exists = not exists
            count += now >= settle_s
        elif code not in _NOT_YET:
            raise SystemExit(f"{'not deleted' if exists else 'not created'}: {ErrorCode(code).name}")
    return {"per_s": count / seconds, "count": count, "seconds": seconds}


def main() -> None:
    """Run one load and print its figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "load",
        choices=["latency", "paced", "greedy", "reading", "handshakes", "connections", "requests", "mutations"],
        help="the load",
    )
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", default="bench")
    parser.add_argument("--size", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--settle", type=float, default=0.0, help="seconds before the measurement begins")
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--other", help="the name and password of another user, with a colon between them")
    parser.add_argument("--authority", help="a file of certificates to trust: connect with TLS")
    parser.add_argument("--setting", action="append", default=[], help="a librdkafka setting, name=value")
    arguments = parser.parse_args()
    settings: Settings = {
        "bootstrap.servers": arguments.bootstrap,
        **QUIET,
        **dict(setting.split("=", 1) for setting in arguments.setting),
    }
    host, _, port = arguments.bootstrap.partition(":")
    context = None if arguments.authority is None else ssl.create_default_context(cafile=arguments.authority)
    topic, seconds = arguments.topic, arguments.seconds
    match arguments.load:
        case "latency":
            found = latency(settings, topic, arguments.size, seconds)
        case "paced":
            found = latency(settings, topic, arguments.size, seconds, _PACE_S)
        case "greedy":
            found = greedy(settings, topic, arguments.size, arguments.settle, seconds)
        case "reading":
            found = reading(settings, topic, arguments.settle, seconds)
        case "requests":
            found = requests(settings, arguments.other.split(":"), arguments.settle, seconds)
        case "mutations":
            found = mutations(settings, topic, arguments.settle, seconds)
        case "handshakes":
            found = handshakes((host, int(port)), context, arguments.threads, seconds)
        case _:
            connections((host, int(port)), context, arguments.count)
            return
    print(json.dumps(found))


if __name__ == "__main__":
    main()
