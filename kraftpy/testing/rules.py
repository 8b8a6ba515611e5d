"""A rule: a fault that a node of a test has until the rule is withdrawn. Plain data, for the test and the node.

    drop     a request's connection is closed without an answer
    delay    a request, or its answer, takes longer
    hold     a request, or its answer, waits until the rule is withdrawn
    fail     a request is answered with an error
    cut      like hold, and what clients sent meanwhile is served afterwards even if they have gone away
    sync     an fsync takes longer, as long as the rule is in force if `seconds` is None
    eio      an fsync fails with EIO
    full     anything that needs room on the disk fails with ENOSPC

With `is_response` the rule applies to the answer: the request has taken effect. `count` limits how often a rule
applies, in all nodes together; they agree on it through the lines of a file, `hits`, one for each time. The file
outlives a node that is killed.
"""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import asdict, dataclass
from typing import Any, Literal

Sender = Literal["clients", "brokers", "all"]
"""The senders whose requests the rule applies to; other nodes use a separate listener."""

CLIENT_ID = "kraftpy-testing"
"""The client id of the cluster's own requests, which are spared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One fault of a node."""

    id: int
    kind: str
    hits: str
    """The file with a line for each time the rule applied."""
    count: int | None = None
    seconds: float | None = None
    is_response: bool = False
    api: int | None = None
    """The API's number; None for any."""
    sender: Sender = "clients"
    client_id: str | None = None
    error: int = 0
    topic: str | None = None
    """Restricts the rule to files of this topic's partitions."""

    def as_value(self) -> dict[str, Any]:
        """Return the rule as a JSON value."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """One time that a rule applied."""

    node: int
    what: str
    """The API, or the file."""
    client_id: str = ""


def claim(rule: Rule, hit: Hit) -> bool:
    """Return whether the rule still applies, this time included, and record the hit if so."""
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
    """Return the hits recorded in a file."""
    try:
        with open(path, "rb") as file:
            return [Hit(**json.loads(line)) for line in file if line.endswith(b"\n")]
    except FileNotFoundError:
        return []
