"""Reads what the load tools of the paper's bench print: how many messages, in how many seconds, and as time went on.

Each tool reports from time to time how fast it was since its last report; these are the points of the figures. The mean
over a run is the tool's own. If a tool tells no exact time for its end, the run ends with its last full report.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

_KAFKA_INTERVAL = re.compile(r"^(\d+) records sent, ([\d.]+) records/sec \(.* ms max latency\.$", re.MULTILINE)
_KAFKA_WHOLE = re.compile(r"^(\d+) records sent, ([\d.]+) records/sec \(.* ms 99\.9th\.$", re.MULTILINE)
_KAFKA_BATCH = re.compile(r"^producer-metrics:records-per-request-avg:.*: ([\d.]+)$", re.MULTILINE)
_KAFKA_CONSUMED = re.compile(
    r"^consumer-fetch-manager-metrics:records-consumed-total:\{client-id=[^,}]*\}\s*: ([\d.]+)$"
)
_KAFKA_TIME = "%Y-%m-%d %H:%M:%S:%f"
_RABBITMQ_WHOLE = re.compile(r"(?:sending|receiving) rate avg: (\d+) msg/s")


@dataclass(frozen=True, slots=True)
class Report:
    """Messages since the last report, and the seconds that they took."""

    messages: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A tool's run: all that it sent or received, the time for that, and its reports."""

    messages: int
    seconds: float
    reports: tuple[Report, ...]
    batch: float = 1.0
    """Messages of a request, as the tool measured them."""

    @property
    def rate(self) -> float:
        """Messages a second."""
        return self.messages / self.seconds


def kafka_producer(output: str) -> Run:
    """Read the output of Kafka's ProducerPerformance with `--print-metrics`. Raises ValueError without a summary."""
    whole = _KAFKA_WHOLE.search(output)
    batch = _KAFKA_BATCH.search(output)
    if whole is None or batch is None:
        raise ValueError(f"ProducerPerformance ended without its summary: {output[-2000:]}")
    intervals = [(int(count), float(rate)) for count, rate in _KAFKA_INTERVAL.findall(output)]
    reports = tuple(Report(count, count / rate) for count, rate in intervals if rate)
    messages = int(whole[1])
    return Run(messages=messages, seconds=messages / float(whole[2]), reports=reports, batch=float(batch[1]))


def kafka_consumer(output: str, messages: int) -> Run:
    """Read the output of Kafka's ConsumerPerformance with `--show-detailed-stats` and `--print-metrics`.

    The time in which the consumer joins its group does not count. Raises ValueError if it did not receive them all.
    """
    reports: list[Report] = []
    received = total = 0
    for line in output.splitlines():
        consumed = _KAFKA_CONSUMED.match(line)
        if consumed is not None:
            total = int(float(consumed[1]))
        fields = line.split(", ")
        if len(fields) == 10 and _is_time(fields[0]):
            so_far, fetching_ms = int(fields[4]), int(fields[7])
            reports.append(Report(so_far - received, fetching_ms / 1e3))
            received = so_far
    if total < messages:
        raise ValueError(f"{total} of {messages} messages were consumed: {output[-2000:]}")
    return _as_reported(reports)


def _is_time(field: str) -> bool:
    try:
        datetime.strptime(field, _KAFKA_TIME)
    except ValueError:
        return False
    return True


def rabbitmq(output: str, table: str, column: str, messages: int) -> Run:
    """Read the output of RabbitMQ's PerfTest and its file of results.

    `column` is "published" or "received". PerfTest writes no report at its end, and its mean is that of all messages.
    Raises ValueError unless it stopped because it had sent or received them all.
    """
    means = [int(mean) for mean in _RABBITMQ_WHOLE.findall(output)]
    if "reached message limit" not in output or not any(means):
        raise ValueError(f"PerfTest did not reach the last message: {output[-2000:]}")
    reports: list[Report] = []
    before = 0.0
    for row in csv.DictReader(table.splitlines()):
        at = float(row["time (s)"])
        rate = float(row[f"{column} (msg/s)"] or 0)
        reports.append(Report(round(rate * (at - before)), at - before))
        before = at
    return Run(messages=messages, seconds=messages / max(means), reports=tuple(reports))


def artemis(results: str, messages: int) -> Run:
    """Read the file that `artemis perf ... --json` writes.

    The tool looks once a second if it is done, so its last report is not one of a full second and does not count.
    Raises ValueError if it did not send or receive them all.
    """
    *intervals, summary = json.loads(results)
    producing = "totalCompleted" in summary
    total = summary["totalCompleted" if producing else "totalReceived"]
    if summary["result"] != "success" or total < messages:
        raise ValueError(f"artemis perf ended with {summary}")
    reports: list[Report] = []
    before = None
    for each in intervals:
        count = each["sendTime" if producing else "transferTime"]["count"]
        rate = each["completed" if producing else "received"]
        if before is not None:
            reports.append(Report(count, (each["time"] - before) / 1e3))
        elif rate:  # the time of its beginning is not told
            reports.append(Report(count, count / rate))
        before = each["time"]
    return _as_reported(reports)


def _as_reported(reports: Sequence[Report]) -> Run:
    seconds = sum(each.seconds for each in reports)
    if not seconds:
        raise ValueError("the run was over before the tool's first report: use more messages")
    return Run(messages=sum(each.messages for each in reports), seconds=seconds, reports=tuple(reports))


def points(reports: Iterable[Report], size: int, least_messages: int) -> list[tuple[float, float]]:
    """Return the megabytes so far and the messages a second, for each report or several that have enough messages."""
    found: list[tuple[float, float]] = []
    so_far = messages = 0
    seconds = 0.0
    for each in reports:
        messages += each.messages
        seconds += each.seconds
        if messages >= least_messages and seconds:
            so_far += messages
            found.append((so_far * size / 1e6, messages / seconds))
            messages, seconds = 0, 0.0
    return found
