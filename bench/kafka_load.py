"""Put one load on a cluster, in a process of its own; print a line of JSON.

    python -m bench.kafka_load LOAD --bootstrap HOST:PORT --topic TOPIC --seconds S [--count N] [--acks -1]

`single` sends requests written once over one socket, each once the last is answered; `many` does so over `--count`
sockets at a time; `members` has as many members of groups (KIP-848), which send heartbeats and commit in turn. These
cost next to nothing here, so that the brokers are measured. `librdkafka`, `end-to-end`, `transactions` and `readers`
(`--count` consumers, each of which reads the whole topic) use confluent-kafka. The first tenth of the time does not
count.
"""

from __future__ import annotations

import argparse
import json
import selectors
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import psutil
from confluent_kafka import Consumer, Producer, TopicPartition

from bench.load import QUIET, consume
from bench.pairs import Figures
from bench.security_load import latency, percentiles
from bench.wire import Wire
from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.frames import encode_request
from kraftpy.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from kraftpy.protocol.messages.find_coordinator import FindCoordinatorRequest
from kraftpy.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from kraftpy.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kraftpy.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kraftpy.protocol.record_batch import encode_batch

PRODUCE_VERSION, METADATA_VERSION, COMMIT_VERSION = 9, 8, 9
_MEMBERS_A_GROUP = 10
_BOUND_S = 60.0


class Processor:
    """The processor time that the brokers use while a load is measured."""

    def __init__(self, pids: list[int]) -> None:
        self._processes = [psutil.Process(pid) for pid in pids]
        self._before = 0.0

    def start(self) -> float:
        """Begin to measure; return the time."""
        self._before = self._seconds()
        return time.perf_counter()

    def each(self, count: int) -> Figures:
        """Return the time that each of `count` requests took since the start."""
        return {"cpu_us": (self._seconds() - self._before) / max(1, count) * 1e6, "sent": count}

    def _seconds(self) -> float:
        times = [process.cpu_times() for process in self._processes]
        return sum(each.user + each.system for each in times)


def _produce(topic: str, partition: int, size: int, acks: int) -> tuple[ApiKey, int, ProduceRequest]:
    batch = encode_batch([(int(time.time() * 1000), None, bytes(size), ())])
    data = [TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=partition, records=batch)])]
    return ApiKey.PRODUCE, PRODUCE_VERSION, ProduceRequest(acks=acks, timeout_ms=30_000, topic_data=data)


def _frame(topic: str, partition: int, size: int, acks: int) -> bytes:
    key, version, request = _produce(topic, partition, size, acks)
    return encode_request(key, version, 1, "bench", request)


def leaders(bootstrap: str, topic: str) -> dict[int, str]:
    """Return the address of each partition's leader."""
    wire = Wire(bootstrap)
    request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)])
    deadline = time.monotonic() + _BOUND_S
    while time.monotonic() < deadline:
        answer = wire.ask(ApiKey.METADATA, METADATA_VERSION, request)
        addresses = {broker.node_id: f"{broker.host}:{broker.port}" for broker in answer.brokers}
        partitions = answer.topics[0].partitions
        if partitions and all(each.leader_id in addresses for each in partitions):
            return {each.partition_index: addresses[each.leader_id] for each in partitions}
        time.sleep(0.05)
    raise SystemExit(f"{topic} has no leaders")


def single(bootstrap: str, topic: str, size: int, acks: int, seconds: float, cpu: Processor) -> Figures:
    """Send one request after the other."""
    wire, frame = Wire(leaders(bootstrap, topic)[0]), _frame(topic, 0, size, acks)
    _check(wire.ask(*_produce(topic, 0, size, acks)))
    took: list[float] = []
    begun = last = cpu.start()
    while last - begun < seconds:
        wire.exchange(frame)
        now = time.perf_counter()
        took.append(now - last)
        last = now
    return {**percentiles(took[len(took) // 10 :]), **cpu.each(len(took))}


def _check(answer: Any) -> None:
    code = answer.responses[0].partition_responses[0].error_code
    if code:
        raise SystemExit(f"the broker answers {code}")


def many(bootstrap: str, topic: str, size: int, acks: int, seconds: float, count: int, cpu: Processor) -> Figures:
    """Send one request after the other over each of `count` connections."""
    addresses = leaders(bootstrap, topic)
    selector = selectors.DefaultSelector()
    sent: dict[int, float] = {}
    for number in range(count):
        partition = number % len(addresses)
        host, _, port = addresses[partition].rpartition(":")
        one = socket.create_connection((host, int(port)), 30)
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        selector.register(one, selectors.EVENT_READ, _frame(topic, partition, size, acks))
    took: list[float] = []
    begun = cpu.start()
    for key in selector.get_map().values():
        sent[key.fd] = time.perf_counter()
        key.fileobj.sendall(key.data)  # type: ignore[union-attr]
    while (now := time.perf_counter()) - begun < seconds:
        for key, _ in selector.select(1):
            answer = key.fileobj.recv(65536)  # type: ignore[union-attr]
            if len(answer) < 4 or len(answer) != 4 + struct.unpack_from(">i", answer)[0]:
                raise SystemExit(f"an answer of {len(answer)} bytes")
            now = time.perf_counter()
            took.append(now - sent[key.fd])
            sent[key.fd] = now
            key.fileobj.sendall(key.data)  # type: ignore[union-attr]
    return {**percentiles(took[len(took) // 10 :]), "per_s": len(took) / seconds, **cpu.each(len(took))}


def end_to_end(bootstrap: str, topic: str, size: int, acks: int, seconds: float) -> Figures:
    """Produce one record, poll until it is consumed, then the next."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "end-to-end", "fetch.wait.max.ms": 500, **QUIET})
    consumer.assign([TopicPartition(topic, 0, consumer.get_watermark_offsets(TopicPartition(topic, 0))[1])])
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0, "acks": acks, **QUIET})
    value = bytes(size)
    took: list[float] = []
    begun = time.perf_counter()
    while (started := time.perf_counter()) - begun < seconds:
        producer.produce(topic, value, partition=0)
        while (message := consumer.poll(10)) is None or message.error():
            pass
        took.append(time.perf_counter() - started)
        producer.poll(0)
    consumer.close()
    return percentiles(took[len(took) // 10 :])


def transactions(bootstrap: str, topic: str, size: int, seconds: float, cpu: Processor) -> Figures:
    """Commit one transaction of one record after the other."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": f"t-{time.time_ns()}", **QUIET})
    producer.init_transactions(60)
    took: list[float] = []
    begun = cpu.start()
    while (started := time.perf_counter()) - begun < seconds:
        producer.begin_transaction()
        producer.produce(topic, bytes(size), partition=0)
        producer.commit_transaction(60)
        took.append(time.perf_counter() - started)
    return {**percentiles(took[len(took) // 10 :]), "per_s": len(took) / seconds, **cpu.each(len(took))}


def readers(bootstrap: str, topic: str, count: int) -> Figures:
    """Read the whole topic with `count` consumers at a time; return the rate of all of them."""
    settings = {
        "queued.min.messages": "1000000",
        "queued.max.messages.kbytes": "200000",
        "fetch.queue.backoff.ms": "10",
    }
    found: list[Figures] = []

    def read() -> None:
        found.append(consume(bootstrap, [topic], settings))

    threads = [threading.Thread(target=read) for _ in range(count)]
    begun = time.perf_counter()
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    if len(found) != count:
        raise SystemExit("a consumer failed")
    seconds, records = time.perf_counter() - begun, sum(each["records"] for each in found)
    rate = found[0]["rate"] if count == 1 else records / seconds
    return {"rate": rate, "records": records}


def members(bootstrap: str, topic: str, seconds: float, count: int, cpu: Processor) -> Figures:
    """Have `count` members send heartbeats, and commit every fifth time, one after the other."""
    wires: dict[str, Wire] = {}

    def wire(address: str) -> Wire:
        if address not in wires:
            wires[address] = Wire(address)
        return wires[address]

    def coordinator_of(group: str) -> Wire:
        deadline = time.monotonic() + _BOUND_S
        while True:
            answer = wire(bootstrap).ask(ApiKey.FIND_COORDINATOR, 3, FindCoordinatorRequest(key=group))
            if not answer.error_code:
                return wire(f"{answer.host}:{answer.port}")
            if time.monotonic() > deadline:
                raise SystemExit(f"{group} has no coordinator")
            time.sleep(0.05)

    stamp, epochs = time.time_ns(), {}
    names = [f"g-{stamp}-{number}" for number in range(count // _MEMBERS_A_GROUP)]
    groups = {name: coordinator_of(name) for name in names}
    everybody = [(group, f"{group}-{place}") for group in groups for place in range(_MEMBERS_A_GROUP)]
    for _ in range(5):  # until each has its share
        for group, member in everybody:
            answer = _beat(groups[group], group, member, epochs.get(member, 0), topic)
            epochs[member] = answer.member_epoch
    sent = 0
    begun = cpu.start()
    for group, member in _again(everybody):
        if time.perf_counter() - begun > seconds:
            break
        epochs[member] = _beat(groups[group], group, member, epochs[member], topic).member_epoch
        sent += 1
        if sent % 5 == 0:
            _commit(groups[group], group, member, epochs[member], topic)
            sent += 1
    return {"per_s": sent / seconds, **cpu.each(sent)}


def _again(everybody: list[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    while True:
        yield from everybody


def _beat(wire: Wire, group: str, member: str, epoch: int, topic: str) -> Any:
    joins = epoch == 0
    request = ConsumerGroupHeartbeatRequest(
        group_id=group,
        member_id=member,
        member_epoch=epoch,
        rebalance_timeout_ms=300_000 if joins else -1,
        subscribed_topic_names=[topic] if joins else None,
        topic_partitions=[] if joins else None,
    )
    answer = wire.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, 0, request)
    if answer.error_code:
        raise SystemExit(f"{group}: {answer.error_code} {answer.error_message}")
    return answer


def _commit(wire: Wire, group: str, member: str, epoch: int, topic: str) -> None:
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=1)
    request = OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=epoch,
        member_id=member,
        topics=[OffsetCommitRequestTopic(name=topic, partitions=[partition])],
    )
    answer = wire.ask(ApiKey.OFFSET_COMMIT, COMMIT_VERSION, request)
    code = answer.topics[0].partitions[0].error_code
    if code:
        raise SystemExit(f"{group}: the commit is answered {code}")


def main() -> None:
    """Run one load and print its figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("load")
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--size", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--count", type=int, default=1)
    parser.add_argument("--acks", type=int, default=1)
    parser.add_argument("--pids", default="", help="the brokers' processes, to measure their processor time")
    given = parser.parse_args()
    cpu = Processor([int(each) for each in given.pids.split(",") if each])
    at = given.bootstrap, given.topic
    loads: dict[str, Callable[[], Figures]] = {
        "single": lambda: single(*at, given.size, given.acks, given.seconds, cpu),
        "many": lambda: many(*at, given.size, given.acks, given.seconds, given.count, cpu),
        "librdkafka": lambda: latency(
            {"bootstrap.servers": at[0], "acks": given.acks, **QUIET}, at[1], given.size, given.seconds
        ),
        "end-to-end": lambda: end_to_end(*at, given.size, given.acks, given.seconds),
        "transactions": lambda: transactions(*at, given.size, given.seconds, cpu),
        "readers": lambda: readers(*at, given.count),
        "members": lambda: members(*at, given.seconds, given.count, cpu),
    }
    if given.load not in loads:
        sys.exit(f"{given.load} is none of {', '.join(loads)}")
    print(json.dumps(loads[given.load]()))


if __name__ == "__main__":
    main()
