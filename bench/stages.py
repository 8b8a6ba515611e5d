"""Where the time of one small request goes, stage by stage: a produce of 200 bytes (acks=1), and a fetch of it.

    python -m bench.stages [--requests N] [--output FILE]

Writes bench/STAGES.md. One client sends a request, waits for its answer and sends the next. The first node is as it is,
and tells its processor time for a request. In a second node, the functions of each stage are wrapped in timers, which
count a stage without those that it calls; the median of all requests is shown, less what a timer costs. The rest is
what the node spends outside of these functions: the kernel's part of receiving, and the event loop.

A node with compiled modules calls its functions past the timers, so this needs the interpreted ones.
"""

from __future__ import annotations

import argparse
import functools
import json
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import psutil

from bench import machine
from bench.brokers import bootstrap_of, server_command
from bench.wire import Wire
from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.frames import encode_request
from kraftpy.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from kraftpy.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from kraftpy.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kraftpy.protocol.record_batch import encode_batch

RESULTS: Final = Path(__file__).with_name("STAGES.md")
TOPIC: Final = "measured"
VALUE_BYTES: Final = 200
PRODUCE_VERSION, FETCH_VERSION = 9, 12
_WARM: Final = 2000

STAGES: Final = {
    "Connection.buffer_updated": (
        "kraftpy.broker.connection",
        "cut what arrived into frames, run the connection's task",
    ),
    "decode_request_header": ("kraftpy.broker.apis", "decode the header"),
    "decode": ("kraftpy.broker.apis", "decode the request"),
    "produce": ("kraftpy.broker.handlers.produce", "handle Produce"),
    "fetch": ("kraftpy.broker.handlers.fetch", "handle Fetch"),
    "PartitionLog.append": ("kraftpy.log.partition_log", "log: check, stamp and index the batch"),
    "PartitionLog.read_or_slice": ("kraftpy.log.partition_log", "log: find and check the batch"),
    "OsFile.write": ("kraftpy.broker.runtime", "file: pwrite"),
    "OsFile.read": ("kraftpy.broker.runtime", "file: pread"),
    "encode_response": ("kraftpy.broker.apis", "encode the answer to Produce"),
    "_encode_fetch": ("kraftpy.broker.apis", "encode the answer to Fetch"),
    "ResponseWriter._write": ("kraftpy.broker.response_writer", "socket: send"),
    "ResponseWriter._write_pieces": ("kraftpy.broker.response_writer", "socket: send"),
}
"""Functions, each with its module and the stage that it is."""


# --- the node with timers ---------------------------------------------------------------------------------------------


class Timers:
    """The seconds that each call of a stage took, without the stages that it called."""

    def __init__(self) -> None:
        self.taken: dict[str, list[float]] = {}
        self._inner = [0.0]
        self.cost = 0.0
        self.cost = self._cost()

    def around(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        taken, inner, clock = self.taken.setdefault(name, []), self._inner, time.perf_counter

        @functools.wraps(function)
        def timed(*arguments: Any, **options: Any) -> Any:
            inner.append(0.0)
            began = clock()
            try:
                return function(*arguments, **options)
            finally:
                took = clock() - began
                taken.append(took - inner.pop())
                inner[-1] += took + self.cost

        return timed

    def around_coroutine(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Time a handler's steps; one that waits is counted for each step."""

        @functools.wraps(function)
        async def timed(*arguments: Any) -> Any:
            return await _Steps(self, name, function(*arguments))

        self.taken.setdefault(name, [])
        return timed

    def forget(self) -> None:
        """Drop what was measured so far."""
        for taken in self.taken.values():
            taken.clear()

    def step(self, name: str, work: Callable[[], Any]) -> Any:
        return self.around(name, work)()

    def _cost(self) -> float:
        """Return what a timer costs its caller."""
        nothing = self.around("nothing", lambda: None)
        costs = []
        for _ in range(20_000):
            began = time.perf_counter()
            nothing()
            costs.append(time.perf_counter() - began - self.taken["nothing"][-1])
        del self.taken["nothing"]
        return statistics.median(costs)


class _Steps:
    """Runs a coroutine, and times each of its steps."""

    def __init__(self, timers: Timers, name: str, coroutine: Any) -> None:
        self._timers, self._name, self._coroutine = timers, name, coroutine

    def __await__(self) -> Generator[Any, Any, Any]:
        while True:
            try:
                waited = self._timers.step(self._name, lambda: self._coroutine.send(None))
            except StopIteration as end:
                return end.value
            yield waited


def node(arguments: list[str]) -> int:
    """Be the node with timers: run `kraftpy server`, and print the medians of the stages at its end, as JSON."""
    import importlib
    import inspect

    timers = Timers()
    for name, (module, _) in STAGES.items():
        holder: Any = importlib.import_module(module)
        *outer, last = name.split(".")
        for each in outer:
            holder = getattr(holder, each)
        function = getattr(holder, last)
        wrap = timers.around_coroutine if inspect.iscoroutinefunction(function) else timers.around
        setattr(holder, last, wrap(name, function))
    signal.signal(signal.SIGUSR2, lambda *_: timers.forget())
    from kraftpy.cli import cli

    try:
        cli(arguments, prog_name="kraftpy")
    finally:
        medians = {name: statistics.median(taken) for name, taken in timers.taken.items() if taken}
        counts = {name: len(taken) for name, taken in timers.taken.items()}
        print(json.dumps({"medians": medians, "counts": counts}), flush=True)
    return 0


# --- measuring --------------------------------------------------------------------------------------------------------


def frames() -> dict[str, bytes]:
    """Return the frames of both requests."""
    batch = encode_batch([(int(time.time() * 1000), None, bytes(VALUE_BYTES), [])])
    data = TopicProduceData(name=TOPIC, partition_data=[PartitionProduceData(index=0, records=bytes(batch))])
    asked = FetchTopic(
        topic=TOPIC, partitions=[FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=VALUE_BYTES)]
    )
    fetch = FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=VALUE_BYTES, topics=[asked])
    return {
        "produce": encode_request(
            ApiKey.PRODUCE, PRODUCE_VERSION, 1, "bench", ProduceRequest(acks=1, timeout_ms=1000, topic_data=[data])
        ),
        "fetch": encode_request(ApiKey.FETCH, FETCH_VERSION, 1, "bench", fetch),
    }


@contextmanager
def node_with_topic(under: Path, program: list[str]) -> Iterator[tuple[subprocess.Popen[str], Wire]]:
    """Run a node with a topic that has one record; yield its process and a connection to it."""
    with tempfile.TemporaryDirectory(dir=under) as directory:
        process = subprocess.Popen(
            server_command(Path(directory), program=program), stdout=subprocess.PIPE, text=True, bufsize=1
        )
        try:
            assert process.stdout is not None
            wire = Wire(bootstrap_of(process.stdout.readline()))
            topic = CreatableTopic(name=TOPIC, num_partitions=1, replication_factor=1)
            wire.ask(ApiKey.CREATE_TOPICS, 5, CreateTopicsRequest(topics=[topic], timeout_ms=30_000))
            wire.exchange(frames()["produce"])
            yield process, wire
            wire.close()
        finally:
            process.kill()
            process.communicate()


def whole(under: Path, what: str, requests: int) -> float:
    """Return the processor time of one request in a node without timers, in seconds."""
    with node_with_topic(under, [sys.executable, "-m", "kraftpy"]) as (process, wire):
        frame, used = frames()[what], psutil.Process(process.pid)
        for _ in range(_WARM):
            wire.exchange(frame)
        before = used.cpu_times()
        for _ in range(requests):
            wire.exchange(frame)
        after = used.cpu_times()
        return float(after.user + after.system - before.user - before.system) / requests


def stages(under: Path, what: str, requests: int) -> dict[str, float]:
    """Return the seconds of each stage of a request."""
    with node_with_topic(under, [sys.executable, "-m", "bench.stages", "--node"]) as (process, wire):
        frame = frames()[what]
        for _ in range(_WARM):
            wire.exchange(frame)
        process.send_signal(signal.SIGUSR2)
        for _ in range(requests):
            wire.exchange(frame)
        process.terminate()
        assert process.stdout is not None
        told = json.loads(process.stdout.read().splitlines()[-1])
    seconds: dict[str, float] = {}
    for name, median in told["medians"].items():
        if told["counts"][name] > requests // 2:
            stage = STAGES[name][1]
            seconds[stage] = seconds.get(stage, 0.0) + median
    return seconds


def table(under: Path, requests: int) -> list[str]:
    lines = []
    for what in ("produce", "fetch"):
        total, found = whole(under, what, requests), stages(under, what, requests)
        rest = total - sum(found.values())
        rows = [*found.items(), ("the rest: the kernel's receiving, the event loop", rest)]
        lines += ["", f"## {what.capitalize()}", "", f"| stage | us, of {total * 1e6:.0f} | share |", "|---|--:|--:|"]
        lines += [f"| {stage} | {each * 1e6:.1f} | {each / total:.0%} |" for stage, each in rows]
    return lines


def main() -> int:
    if sys.argv[1:2] == ["--node"]:
        return node(sys.argv[2:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--directory", type=Path, default=Path(tempfile.gettempdir()), help="where the data go")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    page = [
        "# Where the time of a request goes",
        "",
        "Written by `python -m bench.stages`, which says how; do not edit.",
        "",
    ]
    page += [f"- {line}" for line in machine.describe(options.directory)]
    page.append(f"- load average {machine.load_average():.1f} before")
    page += table(options.directory, options.requests)
    print("\n".join(page))
    options.output.write_text("\n".join([*page, ""]), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
