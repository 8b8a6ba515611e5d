"""Questions about Produce: batches of every kind, requests, sequence numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from both import Both, together
from differ import Differ
from good_and_bad_batches import (
    CRC,
    bad_codecs,
    bad_headers,
    odd_records,
    odd_times,
    patched,
    produced,
    read_back,
    rows,
)
from scenario_table import add_scenario, scenario
from side import PATIENCE

from kraftpy.protocol.compression import Compression
from kraftpy.protocol.record_batch import encode_batch
from kraftpy.protocol.schema import ZERO_UUID

UNKNOWN_ID = b"\x11" * 16
MINUTES_10 = 600_000
SILENCE_SECONDS = 1.5
"""The patience with null records, which Kafka never answers."""

TOPICS = {
    "plain": {},
    "compacted": {"cleanup.policy": "compact"},
    "append_time": {"message.timestamp.type": "LogAppendTime"},
    "gzip": {"compression.type": "gzip"},
    "uncompressed": {"compression.type": "uncompressed"},
    "compacted_zstd": {"cleanup.policy": "compact,delete", "compression.type": "zstd"},
}
"""Settings of the topics that all batches are produced to."""

Batches = Iterator[tuple[str, bytes | None]]
KINDS: dict[str, Callable[[Differ, bytes], Batches]] = {
    "headers": lambda differ, good: bad_headers(good, differ.now()),
    "codecs": lambda differ, good: bad_codecs(good, differ.now()),
    "times": odd_times,
    "records": lambda differ, good: odd_records(good, differ.now()),
}


def produce_batches(kind: str, topic: str, differ: Differ) -> None:
    """Produce each batch to a partition of its own, so that offsets stay comparable, and read all back."""
    batches = list(KINDS[kind](differ, encode_batch(rows(differ.now(), 3))))
    name = f"{kind}.{topic}"
    topic_id = differ.create(name, len(batches), TOPICS[topic])
    for index, (note, batch) in enumerate(batches):
        for version in range(3, 14) if topic == "plain" else (7, 13):
            body = produced(name, batch, index=index, topic_id=topic_id)
            seconds = SILENCE_SECONDS if batch is None else PATIENCE
            differ.ask("produce", body, version, note=f"{topic} {note}", seconds=seconds)
    for index, (note, _) in enumerate(batches):
        read_back(differ, name, topic_id, f"{note} ", index)


for _kind in KINDS:
    for _topic in TOPICS:
        add_scenario(f"produce_{_kind}_{_topic}", partial(produce_batches, _kind, _topic))


@scenario
def produce_with_acks(differ: Differ) -> None:
    topic_id = differ.create("pa", 1)
    good = encode_batch(rows(differ.now(), 2))
    for version in range(3, 14):
        for acks in (-1, 1, 2, -2, 32767):
            body = produced("pa", good, acks, topic_id=topic_id)
            differ.ask("produce", body, version, note=f"acks {acks}", client="acks")
        body = produced("pa", good, 0, topic_id=topic_id)
        differ.ask_without_answer("produce", body, version, note="acks 0")
        for timeout in (0, -1, 2**31 - 1):
            body = produced("pa", good, timeout_ms=timeout, topic_id=topic_id)
            differ.ask("produce", body, version, note=f"timeout {timeout}")
    read_back(differ, "pa", topic_id)


@scenario
def produce_in_removed_versions(differ: Differ) -> None:
    differ.create("pv", 1)
    good = encode_batch(rows(differ.now(), 2))
    for version in (0, 1, 2):
        for acks in (-1, 1):
            differ.ask("produce", produced("pv", good, acks), version, note=f"acks {acks}", client="acks")


@scenario
def produce_to_unknown_partitions(differ: Differ) -> None:
    topic_id = differ.create("pu", 2)
    good = encode_batch(rows(differ.now(), 2))
    unknown = {"pu.missing": UNKNOWN_ID, "": ZERO_UUID, "sp ace": UNKNOWN_ID, "__consumer_offsets": UNKNOWN_ID}
    unknown["__cluster_metadata"] = UNKNOWN_ID
    for version in range(3, 14):
        for index in (1, 2, -1, 2**31 - 1):
            body = produced("pu", good, index=index, topic_id=topic_id)
            differ.ask("produce", body, version, note=f"partition {index}")
        for name, other_id in unknown.items():
            for acks in (-1, 1):
                body = produced(name, good, acks, topic_id=other_id)
                differ.ask("produce", body, version, note=f"topic {name!r} acks {acks}")


@scenario
def produce_what_topics_refuse(differ: Differ) -> None:
    small = differ.create("pr.small", 1, {"max.message.bytes": "200"})
    isr = differ.create("pr.isr", 1, {"min.insync.replicas": "2"})
    limits = {"message.timestamp.before.max.ms": "60000", "message.timestamp.after.max.ms": "60000"}
    timely = differ.create("pr.time", 1, limits)
    now = differ.now()
    early, late = differ.now(-MINUTES_10), differ.now(MINUTES_10)
    for version in range(3, 14):
        for note, name, topic_id, batch in (
            ("fits", "pr.small", small, encode_batch(rows(now, value=b"x" * 100))),
            ("too large", "pr.small", small, encode_batch(rows(now, value=b"x" * 300))),
            (
                "small when compressed",
                "pr.small",
                small,
                encode_batch(rows(now, value=b"x" * 3000), compression=Compression.ZSTD),
            ),
            ("not enough replicas", "pr.isr", isr, encode_batch(rows(now, 2))),
            ("in time", "pr.time", timely, encode_batch(rows(now))),
            ("too old", "pr.time", timely, encode_batch(rows(early))),
            ("too new", "pr.time", timely, encode_batch(rows(late))),
            ("second too old", "pr.time", timely, encode_batch([*rows(now), *rows(early)])),
        ):
            differ.ask("produce", produced(name, batch, topic_id=topic_id), version, note=note)
        body = produced("pr.isr", encode_batch(rows(now, 2)), 1, topic_id=isr)
        differ.ask("produce", body, version, note="not enough replicas, acks 1")
    for name, topic_id in (("pr.small", small), ("pr.time", timely)):
        read_back(differ, name, topic_id)


@scenario
def produce_in_odd_requests(differ: Differ) -> None:
    names = ("po", "po.twice", "po.again")
    ids = {name: differ.create(name, 12 if name == "po" else 14) for name in names}
    good = encode_batch(rows(differ.now(), 2))
    bad = patched(good, *CRC, 1, seal=False)

    def topic(name: str, *data: tuple[int, bytes]) -> dict[str, Any]:
        partitions = [{"index": index, "records": records} for index, records in data]
        return {"name": name, "topic_id": ids[name], "partition_data": partitions}

    for version in range(3, 14):
        cases: dict[str, list[dict[str, Any]]] = {
            "no topics": [],
            "no partitions": [topic("po")],
            "partition twice": [topic("po.twice", (version, good), (version, good))],
            "topic twice": [topic("po.again", (version, good)), topic("po.again", (version, good))],
            "one good, two bad": [topic("po", (0, good), (19, good), (1, bad))],
        }
        for acks in (-1, 5):
            for note, topics in cases.items():
                body = {"acks": acks, "timeout_ms": 1000, "topic_data": topics}
                differ.ask("produce", body, version, note=note if acks == -1 else f"{note}, acks {acks}")
    for name in names:
        note = "" if name == "po" else "named twice "
        read_back(differ, name, ids[name], note, 0 if name == "po" else 13)


@scenario
def produce_with_transactional_ids_of_nobody(differ: Differ) -> None:
    topic_id = differ.create("pt", 1)
    now = differ.now()
    plain = encode_batch(rows(now, 2))
    transactional = encode_batch(rows(now), producer_id=99, producer_epoch=0, base_sequence=0, is_transactional=True)
    for version in range(3, 14):
        for name in ("", "txn-of-nobody", None):
            for note, batch in (("plain", plain), ("transactional", transactional)):
                body = produced("pt", batch, transactional_id=name, topic_id=topic_id)
                differ.ask("produce", body, version, note=f"transactional id {name!r}, {note} batch")
    read_back(differ, "pt", topic_id)


def _new_producer(differ: Differ) -> Both:
    body = {"transactional_id": None, "transaction_timeout_ms": 1000, "producer_id": -1, "producer_epoch": -1}
    return differ.ask("init_producer_id", body, 5).producer_id


def _produce_in_sequence(
    differ: Differ, topic_id: Both, version: int, producer_id: Both, steps: tuple[tuple[int, int, int, str], ...]
) -> None:
    """Produce batches of (epoch, sequence, number of records)."""
    for epoch, sequence, count, note in steps:
        made = together(
            lambda producer_id, epoch=epoch, sequence=sequence, count=count: encode_batch(
                rows(differ.now(), count), producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence
            ),
            producer_id,
        )
        told = note or f"epoch {epoch} sequence {sequence} of {count}"
        differ.ask("produce", produced("id", made, topic_id=topic_id), version, note=told)


LIFE = (
    (0, 0, 2, ""),
    (0, 0, 2, "duplicate"),
    (0, 2, 1, ""),
    (0, 0, 2, "duplicate of the last but one"),
    (0, 3, 1, ""),
    (0, 4, 1, ""),
    (0, 5, 1, ""),
    (0, 6, 1, ""),
    (0, 3, 1, "duplicate within five"),
    (0, 2, 1, "duplicate sixth"),
    (0, 0, 2, "duplicate older than five"),
    (0, 1, 1, "within an old one"),
    (0, 9, 1, "gap"),
    (0, 7, 1, ""),
    (0, 6, 2, "overlaps"),
    (0, 7, 2, "begins as the last, longer"),
    (1, 8, 1, "new epoch, sequence goes on"),
    (1, 0, 1, "new epoch, 0"),
    (0, 8, 1, "old epoch"),
    (1, 1, 1, ""),
    (5, 0, 1, "epoch jumps"),
    (2, 0, 1, "old epoch 2"),
    (5, 1, 1, ""),
    (5, 2**31 - 1, 1, "far ahead"),
)
WRAP = (
    (0, 2**31 - 3, 1, "unknown producer begins high"),
    (0, 2**31 - 2, 1, "next"),
    (0, 2**31 - 1, 1, "the last there is"),
    (0, 0, 1, "wraps"),
    (0, 1, 1, "next after the wrap"),
    (0, 2**31 - 1, 1, "duplicate across the wrap"),
    (0, 2**31 - 3, 1, "first again"),
    (0, 3, 1, "gap after the wrap"),
)


def _idempotence(version: int, differ: Differ) -> None:
    topic_id = differ.create("id", 1)
    _produce_in_sequence(differ, topic_id, version, _new_producer(differ), LIFE)
    _produce_in_sequence(differ, topic_id, version, _new_producer(differ), WRAP)
    body = {"topics": [{"name": "id", "partition_indexes": [0]}]}
    differ.ask("describe_producers", body, 0, note="after")
    read_back(differ, "id", topic_id)


for _version in (3, 7, 9, 11, 13):
    add_scenario(f"idempotence_{_version}", partial(_idempotence, _version))


@scenario
def describe_producers(differ: Differ) -> None:
    differ.create("dp", 1)
    cases: dict[str, list[tuple[str, list[int]]]] = {
        "none": [],
        "no partitions": [("dp", [])],
        "known": [("dp", [0])],
        "unknown partitions": [("dp", [9, -1])],
        "unknown topic": [("no.such", [0])],
        "empty name": [("", [0])],
        "partition twice": [("dp", [0, 0])],
        "bad name": [("sp ace", [0])],
    }
    for note, topics in cases.items():
        body = {"topics": [{"name": name, "partition_indexes": indexes} for name, indexes in topics]}
        differ.ask("describe_producers", body, 0, note=note)
