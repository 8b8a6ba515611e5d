"""Put one load on the secure listener of a broker, in a process of its own; print a line of JSON.

    python -m bench.security_load LOAD --bootstrap HOST:PORT --seconds S [--setting NAME=VALUE ...]

`latency`, `paced`, `greedy` and `reading` use confluent-kafka with the given settings. `handshakes` and `connections`
use sockets of the standard library; they connect with TLS when `--authority` names a file of certificates.
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
from collections.abc import Callable
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition

from bench.load import QUIET

Settings = dict[str, Any]
_API_VERSIONS = struct.pack(">ihhih", 10, 18, 0, 1, -1)
_QUEUE_KB = 20_000
_PACE_S = 0.01


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


def main() -> None:
    """Run one load and print its figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "load", choices=["latency", "paced", "greedy", "reading", "handshakes", "connections"], help="the load"
    )
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", default="bench")
    parser.add_argument("--size", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--settle", type=float, default=0.0, help="seconds before the measurement begins")
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--count", type=int, default=1000)
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
        case "handshakes":
            found = handshakes((host, int(port)), context, arguments.threads, seconds)
        case _:
            connections((host, int(port)), context, arguments.count)
            return
    print(json.dumps(found))


if __name__ == "__main__":
    main()
