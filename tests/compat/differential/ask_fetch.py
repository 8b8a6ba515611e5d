"""Questions about Fetch: offsets, epochs, limits, and incremental sessions (KIP-227)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from both import Both
from differ import Differ
from good_and_bad_batches import produced, rows
from scenario_table import add_scenario, scenario

from kraftpy.protocol.compression import Compression
from kraftpy.protocol.record_batch import encode_batch
from kraftpy.protocol.schema import ZERO_UUID

UNKNOWN_ID = b"\x11" * 16
MEGABYTE = 1 << 20
MAX_INT = 2**31 - 1

Id = Both | bytes


def part(offset: int, index: int = 0, **more: Any) -> dict[str, Any]:
    return {"partition": index, "fetch_offset": offset, "partition_max_bytes": MEGABYTE, **more}


def topic(name: str, topic_id: Id, *parts: dict[str, Any]) -> dict[str, Any]:
    return {"topic": name, "topic_id": topic_id, "partitions": list(parts)}


def fetched(*topics: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return a Fetch request that does not wait."""
    return {"max_wait_ms": 0, "min_bytes": 0, "max_bytes": MEGABYTE, "topics": list(topics), **more}


def _filled(differ: Differ, name: str) -> Both:
    """Make a topic of two partitions; the first has the offsets 4 to 14, in batches of three."""
    topic_id = differ.create(name, 2)
    for number in range(5):
        batch = encode_batch(rows(differ.now(), 3, value=b"%d" % number * 50))
        differ.ask("produce", produced(name, batch, topic_id=topic_id), 13, compare=False)
    partitions = [{"partition_index": 0, "offset": 4}]
    differ.ask("delete_records", {"topics": [{"name": name, "partitions": partitions}], "timeout_ms": 5000}, 2)
    return topic_id


@scenario
def fetch_of_zstd(differ: Differ) -> None:
    topic_id = differ.create("fe.zstd", 1)
    batch = encode_batch(rows(differ.now(), 3), compression=Compression.ZSTD)
    differ.ask("produce", produced("fe.zstd", batch, topic_id=topic_id), 13, compare=False)
    differ.each_version("fetch", fetched(topic("fe.zstd", topic_id, part(0))), "zstd")


def _fetch_positions(version: int, differ: Differ) -> None:
    topic_id = _filled(differ, "fe")

    def ask(note: str, *parts: dict[str, Any]) -> None:
        differ.ask("fetch", fetched(topic("fe", topic_id, *parts)), version, note=note)

    for offset in (0, 3, 4, 5, 6, 14, 15, 16, 10**9, -1, -2):
        ask(f"offset {offset}", part(offset))
    for epoch in (-1, 0, 1, 99, -2):
        ask(f"leader epoch {epoch}", part(4, current_leader_epoch=epoch))
        ask(f"last fetched epoch {epoch}", part(4, last_fetched_epoch=epoch))
    ask("both epochs", part(4, last_fetched_epoch=0, current_leader_epoch=0))
    ask("unknown partitions", part(0, -1), part(0, 7))
    ask("partition twice", part(4), part(5))
    ask("two partitions", part(4), part(0, 1))
    ask("no partitions")
    differ.ask("fetch", fetched(), version, note="no topics")


def _fetch_limits(version: int, differ: Differ) -> None:
    topic_id = _filled(differ, "fl")

    def ask(note: str, *parts: dict[str, Any], **more: Any) -> None:
        differ.ask("fetch", fetched(topic("fl", topic_id, *parts), **more), version, note=note)

    for limit in (0, 1, -1, 100, MAX_INT):
        ask(f"partition max bytes {limit}", part(5, partition_max_bytes=limit))
        ask(f"max bytes {limit}", part(5), max_bytes=limit)
    ask("max bytes small, two partitions", part(4), part(0, 1), max_bytes=10)
    ask("min bytes 1, wait 50", part(15), min_bytes=1, max_wait_ms=50)
    ask("min bytes huge", part(4), min_bytes=MEGABYTE, max_wait_ms=50)
    ask("min bytes -1", part(4), min_bytes=-1)
    ask("max wait -1", part(15), max_wait_ms=-1, min_bytes=1)
    for isolation in (0, 1, 2, -1):
        ask(f"isolation {isolation}", part(4), isolation_level=isolation)
    ask("rack", part(4), rack_id="r")
    ask("wrong cluster id", part(4), cluster_id="wrong")
    for replica in (-2, -3, 9, 1):
        state = {"replica_id": replica, "replica_epoch": -1}
        ask(f"replica id {replica}", part(4), replica_id=replica, replica_state=state)


def _fetch_topics(version: int, differ: Differ) -> None:
    topic_id = _filled(differ, "ft")
    known = topic("ft", topic_id, part(15))
    unknown: tuple[tuple[str, Id], ...] = (("no.such", UNKNOWN_ID), ("", ZERO_UUID), ("sp ace", UNKNOWN_ID))
    for name, other_id in unknown:
        other = topic(name, other_id, part(0))
        differ.ask("fetch", fetched(other), version, note=f"topic {name!r}")
        body = fetched(other, known, max_wait_ms=60, min_bytes=1)
        differ.ask("fetch", body, version, note=f"topic {name!r} and a good one, waiting")
    body = fetched(topic("", ZERO_UUID, part(0), part(0, 1)), known)
    differ.ask("fetch", body, version, note="several partitions without an id")
    body = fetched(topic("ft", topic_id, part(4)), topic("ft", topic_id, part(5)))
    differ.ask("fetch", body, version, note="topic twice")


for _version in range(4, 19):
    add_scenario(f"fetch_positions_{_version}", partial(_fetch_positions, _version))
    add_scenario(f"fetch_limits_{_version}", partial(_fetch_limits, _version))
    add_scenario(f"fetch_topics_{_version}", partial(_fetch_topics, _version))


# Sessions


class _Session:
    """Asks within fetch sessions, in one version."""

    def __init__(self, differ: Differ, version: int) -> None:
        self._differ = differ
        self._version = version

    def ask(
        self,
        note: str,
        session: int | Both,
        epoch: int,
        topics: Sequence[dict[str, Any]] = (),
        forgotten: Sequence[dict[str, Any]] = (),
        version: int | None = None,
    ) -> Both:
        more = {"session_id": session, "session_epoch": epoch, "forgotten_topics_data": list(forgotten)}
        used = self._version if version is None else version
        return self._differ.ask("fetch", fetched(*topics, **more), used, note=note).session_id


def forgotten(name: str, topic_id: Id, *indexes: int) -> dict[str, Any]:
    return {"topic": name, "topic_id": topic_id, "partitions": list(indexes)}


def _three_partitions(differ: Differ) -> Both:
    topic_id = differ.create("fs", 3)
    for index in range(3):
        body = produced("fs", encode_batch(rows(differ.now(), 2)), index=index, topic_id=topic_id)
        differ.ask("produce", body, 13, compare=False)
    return topic_id


def _unknown_sessions(version: int, differ: Differ) -> None:
    topic_id = _three_partitions(differ)
    ask = _Session(differ, version).ask
    for session, epoch in (*((0, 1), (5, 1), (5, 0), (5, -1), (-1, 0), (-1, -1), (0, -2), (0, MAX_INT), (12345, -2)),):
        ask(f"unknown session {session} epoch {epoch}", session, epoch, [topic("fs", topic_id, part(0))])
        ask(f"unknown session {session} epoch {epoch}, nothing", session, epoch)
    for session, epoch in ((MAX_INT, 1), (-MAX_INT - 1, 1), (MAX_INT, 0)):
        ask(f"session out of range, {session} epoch {epoch}", session, epoch, [topic("fs", topic_id, part(0))])


def _known_sessions(version: int, differ: Differ) -> None:
    topic_id = _three_partitions(differ)
    ask = _Session(differ, version).ask

    def of(*parts: dict[str, Any]) -> list[dict[str, Any]]:
        return [topic("fs", topic_id, *parts)]

    def forget(*indexes: int) -> list[dict[str, Any]]:
        return [forgotten("fs", topic_id, *indexes)]

    other = topic("no.such", UNKNOWN_ID, part(0))
    session = ask("new", 0, 0, of(part(0), part(0, 1)))
    ask("next, nothing new", session, 1)
    ask("same epoch again", session, 1)
    ask("epoch too high", session, 5)
    ask("moved on", session, 2, of(part(2), part(2, 1)))
    ask("adds", session, 3, of(part(0, 2)))
    ask("nothing", session, 4)
    ask("forgets", session, 5, [], forget(0, 1))
    ask("forgets unknown", session, 6, [], [*forget(7), forgotten("no.such", UNKNOWN_ID, 0)])
    ask("adds unknown", session, 7, [*of(part(0, 9)), other])
    ask("again with unknown", session, 8)
    ask("adds and forgets the same", session, 9, of(part(0, 1)), forget(1))
    ask("out of range", session, 10, of(part(999)))
    ask("still out of range", session, 11)
    ask("closes", session, -1, of(part(2)))
    ask("after it was closed", session, 12)


def _new_sessions(version: int, differ: Differ) -> None:
    topic_id = _three_partitions(differ)
    ask = _Session(differ, version).ask
    one, two = [topic("fs", topic_id, part(0))], [topic("fs", topic_id, part(0, 1))]
    session = ask("new, empty", 0, 0)
    ask("empty, next", session, 1)
    session = ask("new, to forget all", 0, 0, one)
    ask("forget all", session, 1, [], [forgotten("fs", topic_id, 0)])
    ask("after forget all", session, 2)
    ask("full again", session, 0, two)
    ask("old id after full", session, 3)
    ask("full with forgotten topics", 0, 0, one, [forgotten("fs", topic_id, 0)])


def _sessions_of_deleted_topics(version: int, differ: Differ) -> None:
    old = differ.create("fs.gone", 1)
    ask = _Session(differ, version).ask
    before = [topic("fs.gone", old, part(0))]
    session = ask("before it is deleted", 0, 0, before)
    body = {"topics": [{"name": "fs.gone", "topic_id": ZERO_UUID}], "timeout_ms": 5000}
    differ.ask("delete_topics", body, 6, compare=False)
    differ.wait_until_gone("fs.gone")
    ask("after it was deleted", session, 1)
    ask("after it was deleted, again", session, 2)
    differ.create("fs.gone", 1)
    ask("after it was made anew", session, 3)
    ask("old id, no session", 0, -1, before)
    batch = encode_batch(rows(differ.now()))
    differ.ask("produce", produced("fs.gone", batch, topic_id=old), 13, note="to the old id")


for _version in (7, 9, 11, 12, 13, 15, 16, 17, 18):
    add_scenario(f"fetch_sessions_unknown_{_version}", partial(_unknown_sessions, _version))
    add_scenario(f"fetch_sessions_known_{_version}", partial(_known_sessions, _version))
    add_scenario(f"fetch_sessions_new_{_version}", partial(_new_sessions, _version))
for _version in (12, 13, 18):
    add_scenario(f"fetch_sessions_deleted_{_version}", partial(_sessions_of_deleted_topics, _version))


@scenario
def fetch_sessions_by_name_and_id(differ: Differ) -> None:
    topic_id = _three_partitions(differ)
    ask = _Session(differ, 12).ask
    one, two = [topic("fs", topic_id, part(0))], [topic("fs", topic_id, part(0, 1))]
    session = ask("by name", 0, 0, one)
    ask("then ids, nothing", session, 1, version=13)
    ask("then ids", session, 1, two, version=13)
    session = ask("by id", 0, 0, one, version=13)
    ask("then by name", session, 1, two)
