"""An auditor's view of the perfect Kafka: every node's watermarks and bytes."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any

from chaos.history import Key
from chaos.reference.cluster import Fate, Log

NODES = (1, 2, 3)
BATCH = 20
"""The size of a batch in records, unless a leader epoch ends earlier."""


def leader(log: Log) -> int:
    """Return the leader; nodes take turns."""
    return NODES[log.leader_epoch % len(NODES)]


def watermarks(key: Key, log: Log, node: int) -> dict[str, Any]:
    """Return the watermarks; every replica has everything at once."""
    end = len(log.records)
    return {
        "node": node,
        "key": key,
        "leader": node == leader(log),
        "leader_epoch": log.leader_epoch,
        "log_start": 0,
        "last_stable": log.last_stable_offset(),
        "high_watermark": end,
        "log_end": end,
    }


def replica(key: Key, log: Log, node: int) -> dict[str, Any]:
    """Return the whole log of one node."""
    end = len(log.records)
    records = [
        [offset, record.value]
        for offset, record in enumerate(log.records)
        if record.value is not None and (record.transaction is None or record.transaction.fate is Fate.COMMITTED)
    ]
    return {
        "node": node,
        "key": key,
        "log_start": 0,
        "high_watermark": end,
        "log_end": end,
        "epochs": _epochs(log),
        "batches": list(_batches(log)),
        "records": records,
    }


def _epochs(log: Log) -> list[list[int]]:
    """Return the epochs; one in which nothing was appended gives way to the next, as in the epoch cache."""
    kept: list[list[int]] = []
    for epoch, start in log.epochs:
        while kept and kept[-1][1] >= start:
            kept.pop()
        kept.append([epoch, start])
    return kept


def _batches(log: Log) -> Iterator[list[Any]]:
    base = 0
    while base < len(log.records):
        epoch = log.records[base].leader_epoch
        last = base
        while last + 1 < len(log.records) and last - base < BATCH - 1 and log.records[last + 1].leader_epoch == epoch:
            last += 1
        content = repr([record.value for record in log.records[base : last + 1]])
        yield [base, last, epoch, f"{zlib.crc32(content.encode()):08x}"]
        base = last + 1
