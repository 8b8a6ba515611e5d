"""Answers as plain data, in which the same thing has the same name in every cluster.

No two clusters agree on ids, ports, directories and the time. An id that a scenario has come across is called after
the request whose answer had it first; a time that the scenario sent is told as its distance from the scenario's
beginning, times of delegation tokens as the same to ten minutes, and any other time of these days is "<clock>".
Everything else stays as it was said, so that the same question always gets the same plain answer: it can be kept in a
file and compared much later.
"""

from __future__ import annotations

import re
import zlib
from pathlib import Path
from typing import Any

from peer_clusters import CLUSTER_ID

from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.record_batch import iter_records, split_batches
from kraftpy.protocol.schema import ZERO_UUID, Struct, fields

ERROR_NAMES = {int(code): code.name for code in ErrorCode}

Plain = Any
"""Data that JSON can express."""

A_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|^[A-Za-z0-9_-]{22}$")
A_TIME = re.compile(r"(?<!\d)\d{13}(?!\d)")
IN_ORDER = {"replica_nodes", "replicas"}
"""Lists of numbers whose order means something; others are compared as sets."""
LEFT_OUT = {"throttle_time_ms"}
LISTED = {"ListTransactionsResponse": "transactional_id", "ListGroupsResponse": "group_id"}
"""Answers that list everything of a kind, and what their elements are called."""
IN_PIECES = {"FetchResponse": "responses"}
"""Answers that may have a topic in several pieces, between which others come; the partitions are all that counts."""
SOME_NUMBER = frozenset(["total_bytes", "usable_bytes", "finalized_features_epoch"])
"""Fields whose value depends on the disk, or on what was done before."""
OF_INTERNAL_TOPICS = frozenset(
    ["partition_size", "offset", "end_offset", "high_watermark", "last_stable_offset", "log_start_offset", "timestamp"]
)
"""The same within a topic that coordinators write to."""
CONTENTS = frozenset(["aborted_transactions", "active_producers"])
"""Lists that depend on the records of such a topic."""
TOPIC_NAMES = ("name", "topic", "topic_name")
VARYING = {"DescribeQuorumResponse": frozenset(["log_end_offset", "high_watermark", "leader_epoch", "leader_id"])}
"""The same of one kind of answer: the metadata log has other entries in each, and elections other winners."""
LIFETIMES = frozenset(
    f"{kind}{name}" for kind in ("issue_timestamp", "expiry_timestamp", "max_timestamp") for name in ("", "_ms")
)
"""Times of delegation tokens, which are told as roughly so long after the scenario's beginning."""
SECRETS = frozenset(["hmac"])
"""Random bytes, which are called after the request whose answer had them first."""
ROUGHLY_MINUTES = 10
THESE_DAYS_MS = 1_000_000_000
LONG_BYTES = 80


class Names:
    """The names under which what a cluster calls differently is known."""

    def __init__(self, ports: list[int], controller_ports: list[int], directory: Path) -> None:
        self._ports = {port: f"<port of node {node}>" for node, port in enumerate(ports, 1)}
        self._ports |= {port: f"<controller's port of node {node}>" for node, port in enumerate(controller_ports, 1)}
        self._in_text = [(f":{port}", ":<port>") for port in self._ports]
        self._in_text.append((str(directory), "<dir>"))
        self.topics: dict[bytes, str] = {ZERO_UUID: "<no id>"}
        self.elders: set[str] = set()
        """Groups and transactional ids of other scenarios, which lists leave out."""
        self._symbols: dict[tuple[str, object], str] = {}
        self._producers: set[int] = set()
        self._now = 0
        self._moments: set[int] = set()
        self._request = 0
        self._varying = SOME_NUMBER
        self._is_internal = False

    def begin(self, now: int) -> None:
        """Forget the ids of other scenarios."""
        self._symbols.clear()
        self._producers.clear()
        self._moments.clear()
        self._now, self._request = now, 0

    def moment(self, offset_ms: int) -> int:
        """Return a time, which is called by its offset from now on."""
        self._moments.add(offset_ms)
        return self._now + offset_ms

    def learn(self, request: int, message: Struct) -> None:
        """Note the ids in the answer to a request."""
        self._request = request
        if type(message).__name__ in ("InitProducerIdResponse", "EndTxnResponse"):
            producer_id: int = message.producer_id  # type: ignore[attr-defined]
            if producer_id >= 0:
                self._producers.add(producer_id)
                self._symbol("producer", producer_id)
        if isinstance(member_id := getattr(message, "member_id", None), str):
            self._text(member_id)
        for topic in getattr(message, "topics", None) or ():
            topic_id, name = getattr(topic, "topic_id", None), getattr(topic, "name", None)
            if isinstance(topic_id, bytes) and topic_id != ZERO_UUID and name and not topic.error_code:
                self.topics[topic_id] = f"<id of {name}>"

    def plain(self, message: Struct, version: int) -> dict[str, Plain]:
        """Return a message as plain data."""
        self._varying = SOME_NUMBER | VARYING.get(type(message).__name__, frozenset())
        return self._struct(message, version)

    def _struct(self, message: Struct, version: int) -> dict[str, Plain]:
        kind: Any = type(message)
        name = next((name for each in TOPIC_NAMES if isinstance(name := getattr(message, each, None), str)), "")
        if not name.startswith("__"):
            return self._fields(kind, message, version)
        self._is_internal = True
        try:
            return self._fields(kind, message, version)
        finally:
            self._is_internal = False

    def _fields(self, kind: Any, message: Struct, version: int) -> dict[str, Plain]:
        told = {
            field.name: self._value(field.name, getattr(message, field.name), version)
            for field in fields(kind)
            if version in field.versions and field.name not in LEFT_OUT
        }
        if whole := IN_PIECES.get(type(message).__name__):
            told[whole] = _joined(told[whole])
        if identity := LISTED.get(type(message).__name__):
            for name, value in told.items():
                if isinstance(value, list):
                    told[name] = [
                        each for each in value if not isinstance(each, dict) or each[identity] not in self.elders
                    ]
        return told

    def _value(self, name: str, value: Any, version: int) -> Plain:
        if isinstance(value, Struct):
            return self._struct(value, version)
        if self._is_internal and name in CONTENTS:
            return f"<{name}>"
        if isinstance(value, list):
            told = [self._value(name, element, version) for element in value]
            return told if name in IN_ORDER or any(isinstance(each, dict) for each in told) else sorted(told, key=repr)
        if isinstance(value, str):
            return "<text>" if value and name == "documentation" else self._text(value)
        if isinstance(value, bool | float) or value is None:
            return value
        if name == "records":
            return "<records>" if self._is_internal else self._records(value)
        if isinstance(value, bytes | bytearray | memoryview):
            return self._bytes(name, bytes(value))
        return self._number(name, value)

    def _number(self, name: str, value: int) -> Plain:
        if name.endswith("error_code"):
            return ERROR_NAMES.get(value, value)
        if name == "session_id" and value > 0:
            return self._symbol("session", value)
        if name == "producer_id" and value in self._producers:
            return self._symbol("producer", value)
        if name == "port":
            return self._ports.get(value, value)
        if (name in self._varying and value > 0) or (self._is_internal and name in OF_INTERNAL_TOPICS and value >= 0):
            return "<number>"
        if name in LIFETIMES and abs(value - self._now) < THESE_DAYS_MS:
            return f"<in {in_minutes(value - self._now)}>"
        return value if "offset" in name else self._time(value)

    def _time(self, value: int) -> Plain:
        distance = value - self._now
        if distance in self._moments:
            return f"<now{distance:+}>" if distance else "<now>"
        return "<clock>" if abs(distance) < THESE_DAYS_MS else value

    def _text(self, text: str) -> str:
        if text == CLUSTER_ID:
            return text
        for found, name in self._in_text:
            text = text.replace(found, name)
        text = A_TIME.sub(lambda match: str(self._time(int(match[0]))), text)
        return A_UUID.sub(lambda match: self._symbol("uuid", match[0]), text)

    def _bytes(self, name: str, value: bytes) -> str:
        if name == "topic_id":
            made_up = value.hex() if len(set(value)) == 1 else ""
            return self.topics.get(value) or f"<unknown id {made_up}>"
        if name in SECRETS and value:
            return self._symbol(name, value)
        if len(value) == 16 and name.endswith("_id"):
            return "<no id>" if value == ZERO_UUID else "<some id>"
        return shortened(value)

    def _symbol(self, kind: str, value: object) -> str:
        return self._symbols.setdefault((kind, value), f"<{kind} of request {self._request}>")

    def _records(self, data: Any) -> Plain:
        if data is None:
            return None
        batches: list[Plain] = []
        try:
            for header, batch in split_batches(data, allow_partial=True):
                rows = [
                    [
                        record.offset,
                        _shown(record.key),
                        _shown(record.value),
                        [[k, _shown(v)] for k, v in record.headers],
                    ]
                    for record in iter_records(batch, header)
                ]
                batches.append(
                    {
                        "base_offset": header.base_offset,
                        "last_offset": header.last_offset,
                        "partition_leader_epoch": header.partition_leader_epoch,
                        "attributes": header.attributes,
                        "base_timestamp": self._time(header.base_timestamp),
                        "max_timestamp": self._time(header.max_timestamp),
                        "producer_id": self._number("producer_id", header.producer_id),
                        "producer_epoch": header.producer_epoch,
                        "base_sequence": header.base_sequence,
                        "records_count": header.records_count,
                        "rows": rows,
                    }
                )
        except Exception as error:
            return [*batches, {"undecodable": str(error)}]
        return batches


def _joined(topics: list[dict[str, Plain]]) -> list[dict[str, Plain]]:
    """Return each topic once, with the partitions of all its pieces."""
    whole: dict[tuple[Plain, Plain], dict[str, Plain]] = {}
    for topic in topics:
        known = whole.setdefault((topic.get("topic"), topic.get("topic_id")), {**topic, "partitions": []})
        known["partitions"] = [*known["partitions"], *topic["partitions"]]
    return list(whole.values())


def in_minutes(duration_ms: int) -> str:
    """Return a duration to the nearest ten minutes: what a scenario itself takes makes no difference."""
    return f"{round(duration_ms / 60_000 / ROUGHLY_MINUTES) * ROUGHLY_MINUTES} min"


def shortened(value: bytes) -> str:
    """Return bytes in hexadecimal, or their number and checksum."""
    return value.hex() if len(value) <= LONG_BYTES else f"<{len(value)} bytes {zlib.crc32(value):08x}>"


def _shown(value: bytes | None) -> str | None:
    return None if value is None else shortened(bytes(value))
