"""Places the replicas of new partitions: spread over hosts first, then over racks, with leaders evenly distributed.

Brokers form one circle that alternates between racks, and between the hosts of a rack. Leaders advance one step per
partition, starting at `seed`, so that one topic's leaders are evenly spread, and so are those of many small topics if
the seed is the number of existing partitions. Followers come from the brokers after the leader, starting with the host,
then the rack, that has the fewest replicas of the partition. Each lap starts the followers one step further, so that
the partitions of a failed broker do not all move to the same neighbour.

A broker that shares its host with others names it (`Broker.host`); one that names none counts as a host of its own. No
host has two replicas of a partition while another has none. If there are fewer hosts than replicas, they share them
evenly: on a single host, replicas still survive the end of one of its processes.

A broker that is fenced or shutting down never leads a new partition, and follows only if its host, or its rack, has no
other broker. A broker whose log directories are all cordoned gets no replica (KIP-1066).
Left out: weighting brokers by disk space or traffic.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

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
    leaders = _circle(broker for broker in brokers if broker.is_active)
    if not leaders:
        raise CannotPlaceError("All brokers are currently fenced, or have all their log directories cordoned.")
    if replication_factor > len(brokers):
        raise CannotPlaceError(
            f"The target replication factor of {replication_factor} cannot be reached because only {len(brokers)} "
            "broker(s) are registered or some brokers have all their log directories cordoned."
        )
    everyone = _circle(brokers)
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
    """Choose `count` of `others`: by least used host, least used rack, active brokers, then the given order."""
    hosts, racks = Counter([_host(leader)]), Counter([_rack(leader)])
    rest = list(others)
    chosen: list[BrokerId] = []
    for _ in range(count):
        best = min(rest, key=lambda each: (hosts[_host(each)], racks[_rack(each)], not each.is_active))
        rest.remove(best)
        hosts[_host(best)] += 1
        racks[_rack(best)] += 1
        chosen.append(best.broker_id)
    return chosen


def _circle(brokers: Iterable[Broker]) -> list[Broker]:
    """Return the brokers in an order that alternates between racks, and within a rack between hosts."""
    hosts: Counter[tuple[str, str | BrokerId]] = Counter()
    ranked = []
    for broker in sorted(brokers, key=lambda broker: broker.broker_id):
        place = _rack(broker), _host(broker)
        ranked.append((hosts[place], broker))
        hosts[place] += 1
    racks: Counter[str] = Counter()
    alternating = []
    for _, broker in sorted(ranked, key=lambda item: item[0]):
        alternating.append((racks[_rack(broker)], _rack(broker), broker))
        racks[_rack(broker)] += 1
    return [broker for _, _, broker in sorted(alternating, key=lambda item: item[:2])]


def _rack(broker: Broker) -> str:
    return broker.rack or ""


def _host(broker: Broker) -> str | BrokerId:
    """Return the broker's host: its name, or the broker's id if it is alone there."""
    return broker.broker_id if broker.host is None else broker.host
