"""The arithmetic of `kraftpy topic reassign`: plans where partitions should go, without a broker.

A plan moves as little as possible: a replica on one of the chosen brokers stays there, as long as no broker then has
more than its share, and no host has two replicas of a partition while another has none. Racks are kept apart as far as
there are enough of them. The preferred leader changes only if it would lead more than its share. Plans are read and
written in the form of Kafka's own tool.

Invariants: replicas of a partition are on different brokers, all of them among those chosen, and on as many hosts as
possible; the same input gives the same plan; planning again on the outcome changes nothing.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from kraftpy.types import TopicPartition

Replicas = tuple[int, ...]


class _Place(NamedTuple):
    """Where a broker is."""

    host: str
    rack: str | None


Places = Mapping[int, _Place]


def spread(
    current: Mapping[TopicPartition, Sequence[int]],
    brokers: Mapping[int, str | None],
    replication_factor: int | None = None,
    hosts: Mapping[int, str] | None = None,
) -> dict[TopicPartition, Replicas]:
    """Plan new replicas for every partition, on `brokers` (id -> rack) only. By default, their number stays the same.

    `hosts` are the brokers' hosts; by default, each is on its own. Raises ValueError if there are too few brokers.
    """
    places = {broker: _Place(str(broker) if hosts is None else hosts[broker], rack) for broker, rack in brokers.items()}
    wanted = {name: replication_factor or len(replicas) for name, replicas in current.items()}
    most = max(wanted.values(), default=0)
    if most > len(brokers):
        raise ValueError(f"{most} replicas need {most} brokers, but there are only {len(brokers)}")
    placed = {name: [broker for broker in current[name] if broker in brokers] for name in sorted(current)}
    loads = Counter(dict.fromkeys(brokers, 0))
    for name, replicas in placed.items():
        del replicas[wanted[name] :]
        _leave_shared_hosts(replicas, places)
        loads.update(replicas)
    for name, replicas in placed.items():
        while len(replicas) < wanted[name]:
            chosen = _best(replicas, places, loads)
            replicas.append(chosen)
            loads[chosen] += 1
    _level(placed, places, loads)
    _lead(placed, brokers)
    return {name: tuple(replicas) for name, replicas in placed.items()}


def changes(
    current: Mapping[TopicPartition, Sequence[int]], planned: Mapping[TopicPartition, Sequence[int]]
) -> dict[TopicPartition, Replicas]:
    """Return those parts of a plan that differ from the current state."""
    return {
        name: tuple(replicas)
        for name, replicas in sorted(planned.items())
        if tuple(replicas) != tuple(current.get(name, ()))
    }


def _leave_shared_hosts(replicas: list[int], places: Places) -> None:
    """Give up replicas that share a host with an earlier one, as far as there are hosts without any."""
    hosts = Counter(places[broker].host for broker in replicas)
    free = len({place.host for place in places.values()}) - len(hosts)
    for broker in reversed(replicas[:]):
        host = places[broker].host
        if free > 0 and hosts[host] > 1:
            replicas.remove(broker)
            hosts[host] -= 1
            free -= 1


def _best(replicas: Sequence[int], places: Places, loads: Counter[int]) -> int:
    """Choose a broker for the next replica: on the least used host and rack, then the least loaded, the lowest id."""
    hosts = Counter(places[broker].host for broker in replicas)
    racks = Counter(places[broker].rack for broker in replicas if places[broker].rack is not None)
    return min(
        (broker for broker in places if broker not in replicas),
        key=lambda broker: (hosts[places[broker].host], racks[places[broker].rack], loads[broker], broker),
    )


def _crowding(replicas: Iterable[int], places: Places) -> tuple[int, int]:
    """Count the replicas that share a host with another, and those that share a rack."""
    found = [places[broker] for broker in replicas]
    hosts = Counter(place.host for place in found)
    racks = Counter(place.rack for place in found if place.rack is not None)
    return len(found) - len(hosts), sum(racks.values()) - len(racks)


def _level(placed: dict[TopicPartition, list[int]], places: Places, loads: Counter[int]) -> None:
    """Move replicas from the most to the least loaded broker, as long as that evens out and crowds no host or rack."""
    while True:
        order = sorted(places, key=lambda broker: (loads[broker], broker))
        moved = any(
            loads[heavy] - loads[light] >= 2 and _move_one(placed, places, loads, heavy, light)
            for heavy in reversed(order)
            for light in order
        )
        if not moved:
            return


def _move_one(
    placed: dict[TopicPartition, list[int]],
    places: Places,
    loads: Counter[int],
    heavy: int,
    light: int,
) -> bool:
    for replicas in placed.values():
        if heavy in replicas and light not in replicas:
            moved = [light if broker == heavy else broker for broker in replicas]
            if _no_worse(_crowding(moved, places), _crowding(replicas, places)):
                replicas[:] = moved
                loads[heavy] -= 1
                loads[light] += 1
                return True
    return False


def _no_worse(after: tuple[int, int], before: tuple[int, int]) -> bool:
    return after[0] <= before[0] and after[1] <= before[1]


def _lead(placed: dict[TopicPartition, list[int]], brokers: Mapping[int, str | None]) -> None:
    """Reorder replicas so that no broker is preferred leader of many more partitions than another replica's."""
    leads = Counter(dict.fromkeys(brokers, 0))
    leads.update(replicas[0] for replicas in placed.values() if replicas)
    is_changing = True
    while is_changing:
        is_changing = False
        for replicas in placed.values():
            if not replicas:
                continue
            first = replicas[0]
            other = min(replicas, key=lambda broker: (leads[broker], broker))
            if leads[first] - leads[other] >= 2:
                replicas.remove(other)
                replicas.insert(0, other)
                leads[first] -= 1
                leads[other] += 1
                is_changing = True


def render_plan(planned: Mapping[TopicPartition, Sequence[int]]) -> str:
    """Format a plan as Kafka's tool reads it."""
    parts = [
        {"topic": name.topic, "partition": name.partition, "replicas": list(replicas)}
        for name, replicas in sorted(planned.items())
    ]
    return json.dumps({"version": 1, "partitions": parts})


def parse_plan(text: str) -> dict[TopicPartition, Replicas]:
    """Parse a plan in the form of Kafka's tool: `{"version": 1, "partitions": [{"topic", "partition", "replicas"}]}`.

    Raises ValueError. Log directories other than "any" are refused: `kraftpy topic move-replica` moves between them.
    """
    try:
        plan = json.loads(text)
    except ValueError as error:
        raise ValueError(f"not JSON: {error}") from None
    if not isinstance(plan, dict) or plan.get("version", 1) != 1 or not isinstance(plan.get("partitions"), list):
        raise ValueError('not a plan: expected {"version": 1, "partitions": [...]}')
    planned: dict[TopicPartition, Replicas] = {}
    for part in plan["partitions"]:
        name, replicas = _parse_part(part)
        if name in planned:
            raise ValueError(f"{name} occurs twice")
        planned[name] = replicas
    if not planned:
        raise ValueError("the plan moves nothing")
    return planned


def _parse_part(part: Any) -> tuple[TopicPartition, Replicas]:
    if not isinstance(part, dict):
        raise ValueError(f"{json.dumps(part)} is not a partition")
    topic, number, replicas = part.get("topic"), part.get("partition"), part.get("replicas")
    if not isinstance(topic, str) or not isinstance(number, int) or not _is_number(number):
        raise ValueError(f"{json.dumps(part)} does not name a partition")
    name = TopicPartition(topic, number)
    if not isinstance(replicas, list) or not replicas or not all(map(_is_number, replicas)):
        raise ValueError(f"{name} has no list of replicas")
    if len(set(replicas)) != len(replicas):
        raise ValueError(f"{name} has a broker twice in its replicas")
    if any(directory != "any" for directory in part.get("log_dirs") or ()):
        raise ValueError(
            f"{name} names a log directory: a plan moves replicas between brokers; use `kraftpy topic move-replica` "
            "to move them between directories"
        )
    return name, tuple(replicas)


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
