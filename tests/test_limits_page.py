"""docs/reference/limits.md names every setting that bounds what clients may cost: they exist, with these defaults."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kraftpy.broker.apis import MAX_REQUEST_ELEMENTS
from kraftpy.broker.handlers.security import LONGEST_NAME
from kraftpy.broker.metadata.config_changes import MAX_SETTINGS_PER_RESOURCE
from kraftpy.broker.metadata.topic_changes import MAX_TOPICS_PER_REQUEST
from kraftpy.broker.metrics.server import _ANSWER_S, _MOST_CONNECTIONS, _MOST_REQUEST_BYTES, _REQUEST_S
from kraftpy.broker.security.authorizer import MOST_LINES
from kraftpy.broker.security.jwks import MISSING_KEYS, MISSING_SECONDS, MOST_WAIT_SECONDS
from kraftpy.broker.security.tls import HANDSHAKE_SECONDS
from kraftpy.config.broker import BROKER_SETTINGS
from kraftpy.config.broker_settings import BROKER_TABLE
from kraftpy.config.security_settings import SECURITY_SETTINGS
from kraftpy.groups.patterns import MAX_CHARACTERS, MAX_MEMORY_BYTES
from kraftpy.groups.streams.topology import MOST_TASKS
from kraftpy.protocol.records import MAX_RECORD_HEADERS
from kraftpy.security.json_web_tokens import MOST_JWKS_BYTES, MOST_TOKEN_BYTES
from kraftpy.security.password_hashes import MOST_HASH_BYTES, MOST_USERS
from kraftpy.security.scram import LEAST_ITERATIONS, MOST_ITERATIONS
from kraftpy.telemetry.instances import MAX_INSTANCES, MAX_SUBSCRIPTIONS
from kraftpy.telemetry.otlp import MAX_POINTS
from kraftpy.telemetry.store import MOST_SAMPLES

PAGE = (Path(__file__).parent.parent / "docs" / "reference" / "limits.md").read_text(encoding="utf-8")
ROWS = [
    (name, cells[2].strip())
    for line in PAGE.splitlines()
    if line.startswith("|") and len(cells := line.strip("|").split("|")) == 4
    for name in re.findall(r"`([a-z.]+\.[a-z.]+)`", cells[1])
]
BOUNDS = re.compile(r"^(kraftpy\.[a-z.]*max[a-z.]*|kraftpy\.group\.regex\.cache\.bytes) ", re.MULTILINE)


@pytest.mark.parametrize(("name", "default"), ROWS)
def test_a_setting_of_the_page_has_that_default(name: str, default: str) -> None:
    assert ((BROKER_SETTINGS | SECURITY_SETTINGS)[name].default or "") == default


def test_the_fixed_limits_are_the_code_s() -> None:
    fixed = {
        "array elements of a request": f"{MAX_REQUEST_ELEMENTS:,}",
        "headers of a record": f"{MAX_RECORD_HEADERS:,}",
        "topics, and new partitions, of a request": f"{MAX_TOPICS_PER_REQUEST:,} each",
        "settings of a resource in a request": f"{MAX_SETTINGS_PER_RESOURCE:,}",
        "length of a regular expression": f"{MAX_CHARACTERS:,} characters",
        "memory of a regular expression": f"{MAX_MEMORY_BYTES // 1024} KiB",
        "lines of the audit log for one request": f"{MOST_LINES:,}",
        "tasks of a streams group": f"{MOST_TASKS:,}",
        "time for a TLS handshake": f"{HANDSHAKE_SECONDS:g} s",
        "a SCRAM credential's iterations": f"{LEAST_ITERATIONS:,} to {MOST_ITERATIONS:,}",
        "a SCRAM user's name": f"{LONGEST_NAME:,} characters",
        "size of an OAUTHBEARER token": f"{MOST_TOKEN_BYTES // 1024} KiB",
        "size of a JWKS document with the keys for tokens": f"{MOST_JWKS_BYTES >> 20} MiB",
        "wait for the key that a token names": f"{MOST_WAIT_SECONDS:g} s",
        "connections of monitors (`kraftpy.metrics.listener`)": f"{_MOST_CONNECTIONS}",
        "a request of a monitor": f"{_MOST_REQUEST_BYTES // 1024} KiB",
        "time for a monitor's request to arrive": f"{_REQUEST_S:g} s",
        "time for the answer to a monitor": f"{_ANSWER_S:g} s",
        "users of `kraftpy.metrics.users.file`": f"{MOST_USERS:,}",
        "memory to check a monitor's password": f"{MOST_HASH_BYTES >> 20} MiB",
        "data points of a push": f"{MAX_POINTS:,}",
        "values of clients shown under one name": f"{MOST_SAMPLES:,}",
        "clients that push metrics": f"{MAX_INSTANCES:,}",
        "subscriptions to metrics of clients": f"{MAX_SUBSCRIPTIONS:,}",
        "unknown keys that are remembered": f"{MISSING_KEYS}, for {MISSING_SECONDS:g} s",
    }
    for what, value in fixed.items():
        assert f"| {what} | fixed | {value} |" in PAGE


def test_no_bound_of_ours_is_missing() -> None:
    ours = set(BOUNDS.findall(BROKER_TABLE))
    assert len(ours) >= 12
    assert ours - {name for name, _ in ROWS} == set()
