"""Places the replicas of new partitions: spread over racks first, then over brokers, with leaders evenly distributed.

Brokers form one circle that alternates between racks. Leaders advance one step per partition, starting at `seed`, so
that one topic's leaders are evenly spread, and so are those of many small topics if the seed is the number of existing
partitions. Followers come from the brokers after the leader, starting with the rack that has the fewest replicas of the
partition. Each lap starts the followers one step further, so that the partitions of a failed broker do not all move to
the same neighbour.

A broker that is fenced or shutting down never leads a new partition, and follows only if its rack has no other broker.
A broker whose log directories are all cordoned gets no replica (KIP-1066).
Left out: weighting brokers by disk space or traffic.
"""

from __future__ import annotations

from collections.abc import Sequence

from kraftpy.metadata.image import Broker
from kraftpy.types import BrokerId


class CannotPlaceError(ValueError):
    """There are too few brokers; the message says how many."""


def place(
    brokers: Sequence[Broker], *, partitions: int, replication_factor: int, seed: int, after: BrokerId | None = None
) -> list[tuple[BrokerId, ...]]:
    """Return the replicas of `partitions` new partitions, each with its preferred leader first; deterministic.

    If a topic grows, `after` is the preferred leader of its last partition. Raises `CannotPlaceError`.
    """
    brokers = [broker for broker in brokers if not broker.is_cordoned]
    leaders = _alternating_racks([broker for broker in brokers if broker.is_active])
    if not leaders:
        raise CannotPlaceError("All brokers are currently fenced, or have all their log directories cordoned.")
    if replication_factor > len(brokers):
        raise CannotPlaceError(
            f"The target replication factor of {replication_factor} cannot be reached because only {len(brokers)} "
            "broker(s) are registered or some brokers have all their log directories cordoned."
        )
    everyone = _alternating_racks(brokers)
    places = {broker.broker_id: place for place, broker in enumerate(everyone)}
    for step, leader in enumerate(leaders):
        if leader.broker_id == after:
            seed += (step + 1 - seed) % len(leaders)
    placed = []
    alike: dict[tuple[int, int], tuple[BrokerId, ...]] = {}  # the pattern repeats after some laps
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
    """Choose `count` of `others`: by least used rack, then active brokers, then the given order."""
    used = {leader.rack or "": 1}
    rest = list(others)
    chosen: list[BrokerId] = []
    for _ in range(count):
        best = min(rest, key=lambda broker: (used.get(broker.rack or "", 0), not broker.is_active))
        rest.remove(best)
        used[best.rack or ""] = used.get(best.rack or "", 0) + 1
        chosen.append(best.broker_id)
    return chosen


def _alternating_racks(brokers: Sequence[Broker]) -> list[Broker]:
    """Return the brokers in an order that alternates between racks: the first of each, then the second of each, ..."""
    racks: dict[str, list[Broker]] = {}
    for broker in sorted(brokers, key=lambda broker: broker.broker_id):
        racks.setdefault(broker.rack or "", []).append(broker)
    ranked = [(place, rack, broker) for rack, members in racks.items() for place, broker in enumerate(members)]
    return [broker for _, _, broker in sorted(ranked, key=lambda item: item[:2])]
