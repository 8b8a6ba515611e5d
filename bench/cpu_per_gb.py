"""The processor time that a broker spends on each gigabyte that consumers fetch, by path.

Two paths lead from the page cache to a socket: the records are copied into memory, checked and written, or they are
checked and sent with sendfile (`kraftpy.fetch.zero.copy.min.bytes`). Both are measured with and without the check of
every batch (`kraftpy.fetch.check.crcs`), for several sizes of responses, with one consumer and with ten of the same
topic. Each path has a broker of its own. They are measured in turn, and the minimum of the rounds counts, because other
processes on the machine can only add to it. The consumers are sockets that discard the data, so that the client is not
measured.

Run: python -m bench.cpu_per_gb [--rounds N] [--megabytes N] [--directory DIR]
"""

from __future__ import annotations

import argparse
import contextlib
import socket
import struct
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from random import Random

from bench.brokers import Running, ours
from kraftpy.protocol.apis import APIS, ApiKey
from kraftpy.protocol.frames import decode_response_header, encode_request
from kraftpy.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from kraftpy.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from kraftpy.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kraftpy.protocol.record_batch import encode_batch
from kraftpy.protocol.schema import decode

TOPIC = "fetched"
LOG_BYTES = 256 << 20
BATCH_BYTES = 16 << 10
ANSWER_BYTES = (48 << 10, 256 << 10, 1 << 20, 48 << 20)
CONSUMERS = (1, 10)
NEVER = str(2**31 - 1)
WAYS: Mapping[str, Mapping[str, str]] = {
    "copied": {"kraftpy.fetch.zero.copy.min.bytes": NEVER},
    "sendfile": {"kraftpy.fetch.zero.copy.min.bytes": "0"},
    "copied, unchecked": {"kraftpy.fetch.zero.copy.min.bytes": NEVER, "kraftpy.fetch.check.crcs": "false"},
    "sendfile, unchecked": {"kraftpy.fetch.zero.copy.min.bytes": "0", "kraftpy.fetch.check.crcs": "false"},
}
_VERSION = 11


class Peer:
    """A socket that sends requests and reads frames."""

    def __init__(self, bootstrap: str) -> None:
        host, _, port = bootstrap.rpartition(":")
        self._socket = socket.create_connection((host, int(port)))
        self._buffer = memoryview(bytearray(1 << 20))

    def ask(self, key: ApiKey, version: int, request: object) -> bytes:
        """Send a request and return the frame of its response."""
        self._socket.sendall(encode_request(key, version, 1, "bench", request))
        size = self._size()
        frame = bytearray(size)
        view = memoryview(frame)
        while view:
            view = view[self._socket.recv_into(view) :]
        return bytes(frame)

    def _size(self) -> int:
        found = b""
        while len(found) < 4:
            found += self._socket.recv(4 - len(found))
        return int(struct.unpack(">i", found)[0])

    def fetch(self, offset: int, answer_bytes: int) -> int:
        """Fetch records, discard them, and return their size in bytes."""
        partition = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=answer_bytes)
        topics = [FetchTopic(topic=TOPIC, partitions=[partition])]
        request = FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=answer_bytes, topics=topics)
        self._socket.sendall(encode_request(ApiKey.FETCH, _VERSION, 1, "bench", request))
        size = left = self._size()
        while left:
            left -= self._socket.recv_into(self._buffer[: min(left, len(self._buffer))])
        return size

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


def fill(bootstrap: str, log_bytes: int) -> tuple[int, int]:
    """Write a topic of one partition, in batches of one record; return the size and number of batches."""
    peer = Peer(bootstrap)
    topic = CreatableTopic(name=TOPIC, num_partitions=1, replication_factor=1, assignments=[], configs=[])
    peer.ask(ApiKey.CREATE_TOPICS, 5, CreateTopicsRequest(topics=[topic], timeout_ms=10_000))
    batch = encode_batch([(time.time_ns() // 1_000_000, None, Random(1).randbytes(BATCH_BYTES - 100), ())])
    count = log_bytes // len(batch)
    for _ in range(count):
        data = PartitionProduceData(index=0, records=batch)
        request = ProduceRequest(
            acks=-1, timeout_ms=10_000, topic_data=[TopicProduceData(name=TOPIC, partition_data=[data])]
        )
        answered = peer.ask(ApiKey.PRODUCE, 8, request)
        _, body = decode_response_header(ApiKey.PRODUCE, 8, answered)
        found = decode(APIS[ApiKey.PRODUCE].response, body, 8)
        if found.responses[0].partition_responses[0].error_code:
            raise RuntimeError("the topic cannot be written")
    peer.close()
    return len(batch), count


def consume(bootstrap: str, batch: tuple[int, int], answer_bytes: int, total_bytes: int) -> int:
    """Fetch at least `total_bytes`, starting over at the topic's end; return the number of bytes."""
    batch_bytes, count = batch
    peer = Peer(bootstrap)
    offset = done = 0
    while done < total_bytes:
        size = peer.fetch(offset, answer_bytes)
        if size < batch_bytes:
            raise RuntimeError(f"an answer of {size} bytes")
        done += size
        offset += size // batch_bytes
        if offset >= count:
            offset = 0
    peer.close()
    return done


def measure(broker: Running, batch: tuple[int, int], answer_bytes: int, consumers: int, total_bytes: int) -> float:
    """Return the broker's processor seconds per GB while `consumers` consumers fetch concurrently."""
    done: list[int] = []
    threads = [
        threading.Thread(
            target=lambda: done.append(consume(broker.bootstrap, batch, answer_bytes, total_bytes // consumers))
        )
        for _ in range(consumers)
    ]
    before = broker.cpu_seconds()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if len(done) < consumers:
        raise RuntimeError("a consumer failed")
    return (broker.cpu_seconds() - before) / sum(done) * 1e9


def run(directory: Path, rounds: int = 3, total_bytes: int = 1 << 30) -> dict[tuple[int, int], dict[str, float]]:
    """Return CPU seconds per GB, by (bytes of an answer, consumers) and path."""
    figures: dict[tuple[int, int], dict[str, float]] = {}
    with contextlib.ExitStack() as stack:
        brokers = {name: stack.enter_context(ours(directory, settings)) for name, settings in WAYS.items()}
        batches = {name: fill(broker.bootstrap, LOG_BYTES) for name, broker in brokers.items()}
        for answer_bytes in ANSWER_BYTES:
            for consumers in CONSUMERS:
                cells = figures[answer_bytes, consumers] = dict.fromkeys(WAYS, float("inf"))
                for _ in range(rounds):
                    for name, broker in brokers.items():
                        found = measure(broker, batches[name], answer_bytes, consumers, total_bytes)
                        cells[name] = min(cells[name], found)
    return figures


def text(size: int) -> str:
    """Format a size for people."""
    return f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB"


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--megabytes", type=int, default=1024, help="how much is fetched for each figure")
    parser.add_argument("--directory", type=Path, default=Path(tempfile.gettempdir()), help="where the data go")
    arguments = parser.parse_args()
    figures = run(arguments.directory, arguments.rounds, arguments.megabytes << 20)
    print(f"{'CPU seconds a GB':<24}" + "".join(f"{name:>22}" for name in WAYS))
    for (answer_bytes, consumers), cells in figures.items():
        print(
            f"{text(answer_bytes):>8}, {consumers:>2} consumers  " + "".join(f"{cells[name]:>22.3f}" for name in WAYS)
        )


if __name__ == "__main__":
    main()
