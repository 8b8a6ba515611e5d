"""Where the replicas of new partitions go: spread over racks first, over brokers second, leaders evenly.

Brokers stand in one circle that alternates between racks. Leaders go round it one step per partition, starting at
`seed`; so one topic's leaders are even, and so are those of many small topics when the seed counts the partitions
that exist. Followers are taken going on round the circle, the rack with the fewest replicas of this partition first;
each lap starts them one step further, so that the partitions of a broker that dies do not all fall to the same
neighbour.

A broker that is fenced or about to stop never leads a new partition, and follows only where its rack has no other to
offer. Left out: weighing brokers by the space or traffic they have.
"""

from __future__ import annotations

from collections.abc import Sequence

from kraftpy.metadata.image import Broker
from kraftpy.types import BrokerId


class CannotPlaceError(ValueError):
    """There are too few brokers; the message says how many there are."""


def place(
    brokers: Sequence[Broker], *, partitions: int, replication_factor: int, seed: int, after: BrokerId | None = None
) -> list[tuple[BrokerId, ...]]:
    """The replicas of `partitions` new partitions, the preferred leader first; the arguments alone decide them.

    `after` leads the partition before the first of these, where a topic grows. Raises `CannotPlaceError`.
    """
    leaders = _circle([broker for broker in brokers if broker.is_active])
    if not leaders:
        raise CannotPlaceError("no broker is active")
    if replication_factor > len(brokers):
        raise CannotPlaceError(f"{len(brokers)} broker(s) are registered")
    everyone = _circle(brokers)
    places = {broker.broker_id: place for place, broker in enumerate(everyone)}
    for step, leader in enumerate(leaders):
        if leader.broker_id == after:
            seed += (step + 1 - seed) % len(leaders)
    placed = []
    alike: dict[tuple[int, int], tuple[BrokerId, ...]] = {}  # after some laps all comes round again
    for number in range(seed, seed + partitions):
        lap, step = divmod(number, len(leaders))
        turn = lap % max(1, len(everyone) - 1)
        replicas = alike.get((step, turn))
        if replicas is None:
            leader = leaders[step]
            at = places[leader.broker_id]
            others = everyone[at + 1 :] + everyone[:at]
            others = others[turn:] + others[:turn]
            replicas = (leader.broker_id, *_followers(leader, others, replication_factor - 1))
            alike[step, turn] = replicas
        placed.append(replicas)
    return placed


def _followers(leader: Broker, others: list[Broker], count: int) -> list[BrokerId]:
    """The first `count` of `others` to choose: least used rack, then active, then as they stand."""
    used = {leader.rack or "": 1}
    rest = list(others)
    chosen: list[BrokerId] = []
    for _ in range(count):
        best = min(rest, key=lambda broker: (used.get(broker.rack or "", 0), not broker.is_active))
        rest.remove(best)
        used[best.rack or ""] = used.get(best.rack or "", 0) + 1
        chosen.append(best.broker_id)
    return chosen


def _circle(brokers: Sequence[Broker]) -> list[Broker]:
    """The brokers one rack after the other: the first of each rack, then the second of each."""
    racks: dict[str, list[Broker]] = {}
    for broker in sorted(brokers, key=lambda broker: broker.broker_id):
        racks.setdefault(broker.rack or "", []).append(broker)
    ranked = [(place, rack, broker) for rack, members in racks.items() for place, broker in enumerate(members)]
    return [broker for _, _, broker in sorted(ranked, key=lambda item: item[:2])]
