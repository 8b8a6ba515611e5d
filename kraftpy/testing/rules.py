"""A rule: what a node of a test does wrong until it is told otherwise. Data, for who asks for it and for the node.

    drop     a request's connection is closed without an answer
    delay    a request, or its answer, takes longer
    hold     a request, or its answer, waits until the rule is gone
    fail     a request is answered with an error
    cut      as hold, and what clients sent meanwhile is served afterwards even if they have gone away
    sync     an fsync takes longer, for as long as there is the rule where `seconds` is None
    eio      an fsync fails with EIO
    full     whatever needs room on the disk fails with ENOSPC

Where `is_response`, it is the answer that is hit: the request has taken effect. With `count` a rule holds so many
times, in all nodes together, which agree on it by the lines of a file, `hits`, one for each time; that it outlives a
node that is killed.
"""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import asdict, dataclass
from typing import Any, Literal

Sender = Literal["clients", "brokers", "all"]
"""Whose requests: those of the other nodes come by a listener of their own."""

CLIENT_ID = "kraftpy-testing"
"""What the cluster asks its nodes is spared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What a node does wrong."""

    id: int
    kind: str
    hits: str
    """The file with a line for each time."""
    count: int | None = None
    seconds: float | None = None
    is_response: bool = False
    api: int | None = None
    """Its number; of any, if None."""
    sender: Sender = "clients"
    client_id: str | None = None
    error: int = 0
    topic: str | None = None
    """Only files of this topic's partitions."""

    def as_value(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """One time that a rule held."""

    node: int
    what: str
    """The API, or the file."""
    client_id: str = ""


def claim(rule: Rule, hit: Hit) -> bool:
    """Whether the rule still holds, for this one; it is noted then."""
    descriptor = os.open(rule.hits, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if rule.count is not None and os.pread(descriptor, 1 << 24, 0).count(b"\n") >= rule.count:
            return False
        os.write(descriptor, json.dumps(asdict(hit)).encode() + b"\n")
        return True
    finally:
        os.close(descriptor)


def read_hits(path: str) -> list[Hit]:
    """What was noted there."""
    try:
        with open(path, "rb") as file:
            return [Hit(**json.loads(line)) for line in file if line.endswith(b"\n")]
    except FileNotFoundError:
        return []
