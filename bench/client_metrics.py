"""The cost of a client's own metrics: producers and consumers with and without metrics, in turn.

    python -m bench.client_metrics [--pairs N]

Prints the processor time of the client for a record, medians and the median of the pairs' changes. Each run is a
process of its own, against one node: a producer that sends records of 100 bytes, or a consumer that reads them. Without
metrics, the methods that count do nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.brokers import ours
from kraftpy.client import Consumer, NewTopic, Producer
from kraftpy.client.blocking.facade import BlockingAdmin
from kraftpy.client.consumer.metrics import ConsumerMetrics
from kraftpy.client.metrics import ClientMetrics
from kraftpy.client.producer.metrics import ProducerMetrics

_RECORDS = 300_000
_TOPIC, _PARTITIONS = "measured", 6
_COUNTING = {
    ClientMetrics: ("opened", "ended", "sent", "answered"),
    ProducerMetrics: ("sending", "retried", "split", "given_up"),
    ConsumerMetrics: ("answered", "fetched", "behind", "polled", "rebalancing"),
}


def count_nothing() -> None:
    """Replace the methods that count."""
    for kind, names in _COUNTING.items():
        for name in names:
            setattr(kind, name, lambda *_: None)


async def produce(bootstrap: str) -> float:
    """Return the processor time of a record in us."""
    async with Producer(bootstrap_servers=bootstrap, acks=1) as producer:
        await producer.partitions_for(_TOPIC)
        began, value = time.process_time(), bytes(100)
        for _ in range(_RECORDS):
            await producer.send(_TOPIC, value)
        await producer.flush()
        return (time.process_time() - began) / _RECORDS * 1e6


async def consume(bootstrap: str) -> float:
    """Return the processor time of a record in us."""
    async with Consumer(_TOPIC, bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
        await anext(consumer)
        began, read = time.process_time(), 0
        while read < _RECORDS:
            read += sum(map(len, (await consumer.getmany(timeout_ms=1_000)).values()))
        return (time.process_time() - began) / read * 1e6


def run(load: str, bootstrap: str, *, is_measured: bool) -> float:
    command = [sys.executable, "-m", "bench.client_metrics", "--run", load, "--bootstrap", bootstrap]
    command += [] if is_measured else ["--count-nothing"]
    return float(json.loads(subprocess.check_output(command, text=True)))


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--run", choices=["produce", "consume"])
    parser.add_argument("--bootstrap", default="")
    parser.add_argument("--count-nothing", action="store_true")
    chosen = parser.parse_args()
    if chosen.run:
        if chosen.count_nothing:
            count_nothing()
        work = produce if chosen.run == "produce" else consume
        print(json.dumps(asyncio.run(work(chosen.bootstrap))))
        return 0
    with tempfile.TemporaryDirectory() as directory, ours(Path(directory)) as node:
        with BlockingAdmin(bootstrap_servers=node.bootstrap) as admin:
            admin.create_topics([NewTopic(name=_TOPIC, num_partitions=_PARTITIONS)])
        run("produce", node.bootstrap, is_measured=True)
        print("| load | without | with | change |\n|---|---|---|---|")
        for load in ("produce", "consume"):
            pairs = []
            for number in range(chosen.pairs):
                order = (False, True) if number % 2 else (True, False)
                figures = {side: run(load, node.bootstrap, is_measured=side) for side in order}
                pairs.append((figures[False], figures[True]))
            without, with_ = (statistics.median(side) for side in zip(*pairs, strict=True))
            change = statistics.median(on / off - 1 for off, on in pairs)
            print(
                f"| processor time of a record: {load} | {without:.3f} us | {with_:.3f} us | {change:+.1%} |",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
