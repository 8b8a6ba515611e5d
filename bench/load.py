"""Put one load on one broker, in a process of its own: `python -m bench.load produce|consume|mock ...`.

Prints a line of JSON. The client is confluent-kafka (librdkafka) for every broker. `mock` keeps librdkafka's own mock
cluster alive until its standard input closes: a broker in C that answers, and keeps the last 5 MB of each partition in
memory.
"""

from __future__ import annotations

import argparse
import json
import sys
import time

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

QUIET = {"log_level": 0}
CHUNK = 1000
WARM_UP_BYTES = 20_000_000


def mock() -> None:
    """Serve librdkafka's mock cluster, and print its address."""
    producer = Producer({"test.mock.num.brokers": 1, "bootstrap.servers": "unused", **QUIET})
    broker = next(iter(producer.list_topics(timeout=10).brokers.values()))
    print(json.dumps({"bootstrap": f"{broker.host}:{broker.port}"}), flush=True)
    sys.stdin.read()


def produce(
    bootstrap: str,
    topics: list[str],
    count: int,
    size: int,
    partitions: int,
    settings: dict[str, str],
    *,
    wait: bool = False,
) -> dict[str, float]:
    """Send `count` records of `size` bytes, a thousand to each topic in turn; return the seconds it took.

    Each thousand goes to one of `partitions` partitions, in turn; with 0, librdkafka chooses the partition. With
    `wait`, 20 MB are sent first that do not count, a line is printed when everything is ready, and the measurement
    begins when a line is read.
    """
    failed = 0

    def delivered(error: KafkaError | None, message: object) -> None:
        nonlocal failed
        failed += error is not None

    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "queue.buffering.max.messages": 200_000,
            "queue.buffering.max.kbytes": 200_000,
            **QUIET,
            **settings,
        }
    )
    value = bytes(i % 251 for i in range(size))
    for topic in topics:
        producer.produce(topic, value, on_delivery=delivered)
    producer.flush(60)
    targets = [(topic, index) for index in range(partitions) for topic in topics] or [(topic, -1) for topic in topics]
    if wait:
        _send(producer, value, targets, WARM_UP_BYTES // size)
        producer.flush(60)
        print("ready", flush=True)
        sys.stdin.readline()
    started = time.perf_counter()
    _send(producer, value, targets, count)
    rest = producer.flush(120)
    seconds = time.perf_counter() - started
    if failed or rest:
        raise SystemExit(f"{failed} failed, {rest} not delivered")
    return {"seconds": seconds, "records": count, "rate": count / seconds, "mb_per_s": count * size / seconds / 1e6}


def _send(producer: Producer, value: bytes, targets: list[tuple[str, int]], count: int) -> None:
    for start in range(0, count, CHUNK):
        topic, partition = targets[start // CHUNK % len(targets)]
        for _ in range(min(CHUNK, count - start)):
            while True:
                try:
                    producer.produce(topic, value, partition=partition)
                    break
                except BufferError:
                    producer.poll(0.001)
        producer.poll(0)


def consume(bootstrap: str, topics: list[str], settings: dict[str, str]) -> dict[str, float]:
    """Read the topics from start to end; return the seconds from the assignment to the last record."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"bench-{time.time_ns()}",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            **QUIET,
            **settings,
        }
    )
    known = consumer.list_topics(timeout=10).topics
    partitions = [TopicPartition(topic, index, 0) for topic in topics for index in known[topic].partitions]
    for partition in partitions:
        partition.offset = consumer.get_watermark_offsets(partition, timeout=10)[0]
    total = sum(consumer.get_watermark_offsets(partition, timeout=10)[1] - partition.offset for partition in partitions)
    records = size = 0
    started = time.perf_counter()  # later, a broker that answers the first questions slowly would seem to be faster
    consumer.assign(partitions)
    while records < total:
        # Ask for no more than there is: a call that cannot be filled waits for its whole timeout.
        for message in consumer.consume(min(10_000, total - records), 10.0):
            error = message.error()
            if error is not None:
                raise KafkaException(error)
            records += 1
            size += len(message)
    seconds = time.perf_counter() - started
    consumer.close()
    return {"seconds": seconds, "records": records, "rate": records / seconds, "mb_per_s": size / seconds / 1e6}


def main() -> None:
    """Run one load and print its figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["mock", "produce", "consume"])
    parser.add_argument("--bootstrap", default="127.0.0.1:9092")
    parser.add_argument("--topics", default="bench")
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--size", type=int, default=200)
    parser.add_argument("--partitions", type=int, default=0, help="spread evenly over so many; 0: as librdkafka does")
    parser.add_argument("--wait", action="store_true", help="print a line when ready, then begin at a line of input")
    parser.add_argument("--setting", action="append", default=[], help="a librdkafka setting, name=value")
    arguments = parser.parse_args()
    settings = dict(setting.split("=", 1) for setting in arguments.setting)
    topics = arguments.topics.split(",")
    if arguments.what == "mock":
        mock()
    elif arguments.what == "produce":
        count, size, partitions = arguments.count, arguments.size, arguments.partitions
        figures = produce(arguments.bootstrap, topics, count, size, partitions, settings, wait=arguments.wait)
        print(json.dumps(figures))
    else:
        print(json.dumps(consume(arguments.bootstrap, topics, settings)))


if __name__ == "__main__":
    main()
