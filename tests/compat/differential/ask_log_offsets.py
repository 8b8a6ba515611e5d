"""Questions about a log's offsets: ListOffsets, OffsetForLeaderEpoch, DeleteRecords."""

from __future__ import annotations

from functools import partial
from typing import Any

from both import Both
from differ import Differ
from good_and_bad_batches import MAX_TIME, patched, produced, rows
from scenario_table import add_scenario, scenario

from kraftpy.protocol.record_batch import encode_batch

SECOND = 1000


def listed(name: str, indexes: list[int], time_ms: int = -1, **more: Any) -> dict[str, Any]:
    """Return a topic in a request of ListOffsets."""
    return {"name": name, "partitions": [{"partition_index": index, "timestamp": time_ms, **more} for index in indexes]}


@scenario
def list_offsets_of_odd_times(differ: Differ) -> None:
    """Ask by time where producers left the batch's largest timestamp out, or set a wrong one."""
    topic_id = differ.create("lo.odd", 1)
    for batch in (
        patched(encode_batch(rows(differ.now(-5000), 2)), *MAX_TIME, -1),
        patched(encode_batch(rows(differ.now(-4000), 2)), *MAX_TIME, differ.now(-1000)),
        encode_batch(rows(differ.now(-3000))),
        encode_batch([*rows(differ.now(-2000)), *rows(differ.now(-2500))]),
    ):
        differ.ask("produce", produced("lo.odd", batch, topic_id=topic_id), 13, compare=False)
    marks = (-6000, -5000, -4500, -4000, -3500, -3000, -2500, -2200, -1500, -500)
    times = {f"now{mark:+}": differ.now(mark) for mark in marks}
    for name, time_ms in {"-1": -1, "-2": -2, "-3": -3, **times}.items():
        body = {"topics": [listed("lo.odd", [0], time_ms)], "timeout_ms": 1000}
        differ.ask("list_offsets", body, 11, note=f"odd timestamps, time {name}")


def _with_times(differ: Differ) -> None:
    """Make a topic whose records have times, one whose broker gives them, and an empty partition of each."""
    topic_id = differ.create("lo", 2)
    for number in range(4):
        batch = encode_batch(rows(differ.now(-10 * SECOND + number * SECOND), 2))
        differ.ask("produce", produced("lo", batch, topic_id=topic_id), 13, compare=False)
    appended = differ.create("lo.append", 2, {"message.timestamp.type": "LogAppendTime"})
    batch = encode_batch(rows(differ.now(-5 * SECOND), 2))
    differ.ask("produce", produced("lo.append", batch, topic_id=appended), 13, compare=False)
    partitions = [{"partition_index": 0, "offset": 2}]
    differ.ask("delete_records", {"topics": [{"name": "lo", "partitions": partitions}], "timeout_ms": 5000}, 2)


def _list_offsets_by_time(version: int, differ: Differ) -> None:
    _with_times(differ)
    times = {str(time_ms): time_ms for time_ms in (-1, -2, -3, -4, -5, -6, -7, -8, -100, 0, 1, 2**63 - 1, -(2**63))}
    for mark in (-10_000, -9500, -9000, -7000, -6999, 10**9):
        times[f"now{mark:+}"] = differ.now(mark)
    for name in ("lo", "lo.append"):
        for index in (0, 1):
            for told, time_ms in times.items():
                for isolation in (0, 1) if time_ms in (-1, -3, 0) else (0,):
                    body = {
                        "isolation_level": isolation,
                        "topics": [listed(name, [index], time_ms)],
                        "timeout_ms": 1000,
                    }
                    note = f"{name}-{index} time {told} isolation {isolation}"
                    differ.ask("list_offsets", body, version, note=note)


def _list_offsets_oddly(version: int, differ: Differ) -> None:
    _with_times(differ)

    def ask(note: str, *topics: dict[str, Any], **more: Any) -> None:
        differ.ask("list_offsets", {"topics": list(topics), **more}, version, note=note)

    for epoch in (-1, 0, 1, 7, -2):
        ask(f"epoch {epoch}", listed("lo", [0], current_leader_epoch=epoch))
    for replica in (-2, -3, 0, 1, 9):
        ask(f"replica {replica}", listed("lo", [0]), replica_id=replica)
    for indexes in ([9], [-1], [0, 0], [0, 0, 1], []):
        ask(f"partitions {indexes}", listed("lo", indexes))
    for name in ("no.such", "", "sp ace", "__cluster_metadata"):
        ask(f"topic {name!r}", listed(name, [0]))
    for isolation in (2, -1):
        ask(f"isolation {isolation}", listed("lo", [0]), isolation_level=isolation)
    ask("no topics")
    ask("topic twice", listed("lo", [0]), listed("lo", [0]))


for _version in range(1, 12):
    add_scenario(f"list_offsets_by_time_{_version}", partial(_list_offsets_by_time, _version))
    add_scenario(f"list_offsets_oddly_{_version}", partial(_list_offsets_oddly, _version))


@scenario
def leader_epochs(differ: Differ) -> None:
    topic_id = differ.create("le", 1)
    batch = encode_batch(rows(differ.now(), 2))
    differ.ask("produce", produced("le", batch, topic_id=topic_id), 13, compare=False)
    differ.create("le.empty", 1)
    for name in ("le", "le.empty", "no.such", "", "__cluster_metadata"):
        for index in (0, 9, -1):
            for current in (-1, 0, 1, 9, -2):
                for epoch in (-1, 0, 1, 5, -2):
                    replicas = (-1, -2, 1, 9) if (name, index, current) == ("le", 0, -1) else (-2,)
                    for replica in replicas:
                        asked = {"partition": index, "current_leader_epoch": current, "leader_epoch": epoch}
                        body = {"replica_id": replica, "topics": [{"topic": name, "partitions": [asked]}]}
                        note = f"{name!r}-{index} current {current} epoch {epoch} replica {replica}"
                        differ.each_version("offset_for_leader_epoch", body, note)
    differ.each_version("offset_for_leader_epoch", {"topics": []}, "none")
    asked = {"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}
    body = {"topics": [{"topic": "le", "partitions": [asked, asked]}]}
    differ.each_version("offset_for_leader_epoch", body, "twice")


def _fill(differ: Differ, name: str, topic_id: Both) -> None:
    batch = encode_batch(rows(differ.now(), 5))
    differ.ask("produce", produced(name, batch, topic_id=topic_id), 13, compare=False)


def _delete_records(version: int, differ: Differ) -> None:
    def ask(note: str, name: str, offset: int = 0, indexes: tuple[int, ...] = (0,), timeout_ms: int = 3000) -> None:
        partitions = [{"partition_index": index, "offset": offset} for index in indexes]
        body = {"topics": [{"name": name, "partitions": partitions}], "timeout_ms": timeout_ms}
        differ.ask("delete_records", body, version, note=note)

    topic_id = differ.create("dr", 1)
    _fill(differ, "dr", topic_id)
    for offset in (0, -2, 2, 1, 2, 6, 5, -1, 2**62):
        ask(f"offset {offset}", "dr", offset)
    _fill(differ, "dr", topic_id)
    ask("all, timeout 0", "dr", -1, timeout_ms=0)
    for name, policy in (("dr.compacted", "compact"), ("dr.both", "compact,delete")):
        differ.create(name, 1, {"cleanup.policy": policy})
        ask(f"policy {policy}", name)
    unknown: tuple[tuple[str, tuple[int, ...]], ...] = (
        *(("no.such", (0,)), ("", (0,)), ("sp ace", (0,)), ("dr", (9, -1)), ("dr", ()), ("dr", (0, 0))),
        *(("__consumer_offsets", (0,)), ("__cluster_metadata", (0,))),
    )
    for name, indexes in unknown:
        ask(f"{name!r} {list(indexes)}", name, indexes=indexes)
    differ.ask("delete_records", {"topics": []}, version, note="none")


for _version in range(3):
    add_scenario(f"delete_records_{_version}", partial(_delete_records, _version))
