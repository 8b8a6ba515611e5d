"""Everything a seed draws besides its faults: the cluster, its settings, the topics' settings, and the workload.

Most clusters have three nodes that all vote; some have one broker or five, or dedicated controllers. Settings are
chosen to make rare things common: segments of a few records, fetches of one batch, followers that fall out of sync
soon, clocks that run fast.

Left out: retention of what the workload sends (a record deleted before it was read looks like a loss).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Final, Literal

from chaos.nemesis import Kind

Workload = Literal["log", "log by subscription", "groups"]
WORKLOADS: Final = (
    "log",
    "log by subscription",
    "groups",
    "topics",
    "compacted topic",
    "transactions",
    "queue",
    "KIP-848",
    "hostile",
    "pipelines",
    "security",
)
"""The workloads a seed may have in `Drawn.workloads`; only mutants also use "bundles"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """The ingredients of a run."""

    brokers: int = 3
    controllers: int = 0
    """Dedicated controllers; 0 means that the first three brokers vote too."""
    is_synced: bool = False
    """Sync every record before acknowledging it."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Broker settings."""
    topic_settings: Mapping[str, str] = field(default_factory=dict)
    clients: int = 3
    workload: Workload = "log"
    group_protocol: Literal["classic", "consumer"] = "classic"
    """The protocol of subscribed consumers."""
    with_topics: bool = False
    """Two more clients create, alter, describe and delete topics."""
    with_compaction: bool = False
    """One more client puts keyed records into a compacted topic."""
    with_transactions: bool = False
    """Seven more clients: transactions over several partitions, and a pipeline that processes each record once."""
    with_queue: bool = False
    """Four more clients: two that send, and two members of a share group."""
    with_bundles: bool = False
    """Three more clients send records to several partitions in one request. No seed draws it: mutants do."""
    with_pipelines: bool = False
    """Two more clients keep several batches in flight to a partition, also while some of them fail."""
    with_hostile: bool = False
    """One more client attacks the nodes with requests that no honest client sends."""
    with_security: bool = False
    """The cluster has an authorizer and a second listener with a login; an administrator changes rights, and two
    intruders try everything."""
    drifts: tuple[float, ...] = ()
    """The drift of each node's wall clock, in order: 0.01 gains a second in a hundred."""
    stalls: float = 0.0
    """The chance that a client stalls for seconds before it commits, or ends its transaction."""
    fetch_max_wait_ms: int = 500
    """The consumers' setting."""
    load: float = 1.0
    """The clients' rate of calls, as a multiple of the usual one."""
    tempo: float = 1.0
    """By what factor faults, and the pauses between them, are shorter than usual."""
    kinds: tuple[Kind, ...] = tuple(Kind)
    """The kinds of faults: all, or a few, which then meet each other more often."""
    several: float = 0.2
    """The chance of two or three faults at once."""
    phantoms: float = 0.0
    """The chance that an attempt to connect arrives twice."""

    @property
    def workloads(self) -> tuple[str, ...]:
        """Return the names of all the workloads that run, for counting."""
        others = {
            "topics": self.with_topics,
            "compacted topic": self.with_compaction,
            "transactions": self.with_transactions,
            "queue": self.with_queue,
            "bundles": self.with_bundles,
            "hostile": self.with_hostile,
            "pipelines": self.with_pipelines,
            "security": self.with_security,
            "KIP-848": self.group_protocol == "consumer" and (self.workload != "log" or self.with_transactions),
        }
        return (self.workload, *(name for name, is_there in others.items() if is_there))


_ENDS: Final = (Kind.KILL, Kind.PAUSE, Kind.PARTITION, Kind.LOSE_UNSYNCED)
"""At least one of these kinds is always included: unless something ends, there is nothing to take over."""


CONSUMER_PROTOCOL: Final = {
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.session.timeout.ms": "6000",
    "group.consumer.min.heartbeat.interval.ms": "500",
    "group.consumer.heartbeat.interval.ms": "1000",
}
"""Settings that make sessions as short as those of the classic protocol are here."""


SHARE_GROUPS: Final = {
    "group.share.min.record.lock.duration.ms": "1000",
    "group.share.record.lock.duration.ms": "5000",
    "group.share.min.session.timeout.ms": "1000",
    "group.share.session.timeout.ms": "6000",
    "group.share.min.heartbeat.interval.ms": "500",
    "group.share.heartbeat.interval.ms": "1000",
}
"""Settings that make locks and sessions of share groups end within a short run."""


_HOSTILE: Final = 0.35
"""The share of seeds with a hostile client."""


_PIPELINES: Final = 0.35
"""The share of seeds with clients that pipeline."""


_SECURITY: Final = 0.12
"""The share of seeds with rights that change."""
_SECURITY_SALT: Final = 1_000
"""A salt with which no seed draws them that was known, or had caught a mutant, before this workload existed."""


def _kinds(chance: Random) -> tuple[Kind, ...]:
    others = chance.sample([kind for kind in Kind if kind is not Kind.SEVERAL], k=chance.randint(1, 5))
    return tuple(dict.fromkeys([chance.choice(_ENDS), *others]))


def draw(seed: int) -> Drawn:
    """Draw a run; the same seed always gives the same one."""
    chance = Random(f"drawn {seed}")
    brokers = chance.choices([3, 1, 5], [75, 10, 15])[0]
    controllers = chance.choices([0, 3 if brokers > 1 else 1], [80, 20])[0]
    is_synced = chance.random() < (0.3 if brokers > 1 else 0.7)
    settings: dict[str, str] = {}
    if is_synced:
        settings["kraftpy.flush.before.ack"] = "true"
    settings["replica.lag.time.max.ms"] = chance.choice(["30000", "30000", "10000", "3000"])
    settings["replica.fetch.max.bytes"] = chance.choice(["1048576", "1048576", "500", "100"])
    settings["replica.fetch.wait.max.ms"] = chance.choice(["500", "500", "100"])
    settings["fetch.max.bytes"] = chance.choice(["57671680", "57671680", "1024"])
    settings["offsets.topic.num.partitions"] = chance.choice(["1", "4"])
    if chance.random() < 0.5:
        settings["log.roll.ms"] = chance.choice(["3000", "10000"])
    settings["log.cleaner.backoff.ms"] = "1000"
    settings["log.cleaner.min.cleanable.ratio"] = chance.choice(["0.5", "0.1"])
    topic_settings: dict[str, str] = {}
    if chance.random() < 0.6:
        topic_settings["internal.segment.bytes"] = chance.choice(["200", "1000", "10000"])
    if chance.random() < 0.2:
        topic_settings["segment.ms"] = chance.choice(["1000", "10000"])
    if chance.random() < 0.2:
        topic_settings["flush.messages"] = chance.choice(["1", "10"])
    nodes = brokers + controllers
    drifts = tuple(chance.choice([0.0, 0.0, 0.001, -0.001, 0.02, -0.02]) for _ in range(nodes))
    workload = chance.choices(["log", "log by subscription", "groups"], [45, 20, 35])[0]
    more = Random(f"drawn later {seed}")  # drawn last, so that the rest of an older seed stays what it was
    most_bytes = more.choice([None, None, "3000", "300"])
    if most_bytes is not None:
        settings["metadata.log.max.record.bytes.between.snapshots"] = most_bytes
    protocol = more.choice(["classic", "classic", "consumer"])
    settings.update(CONSUMER_PROTOCOL if protocol == "consumer" else {})
    with_transactions, with_queue = more.random() < 0.25, more.random() < 0.2
    settings.update(SHARE_GROUPS if with_queue else {})
    latest = Random(f"drawn last {seed}")
    stalls = latest.choice([0.0, 0.0, 0.01, 0.04])
    fetch_max_wait_ms = latest.choice([500, 2_000, 2_000])
    return Drawn(
        brokers=brokers,
        controllers=controllers,
        is_synced=is_synced,
        settings=settings,
        topic_settings=topic_settings,
        clients=chance.choice([2, 3, 5]),
        workload=workload,  # type: ignore[arg-type]
        with_topics=chance.random() < 0.4,
        with_compaction=chance.random() < 0.3,
        drifts=drifts,
        load=more.choice([0.25, 0.5, 1.0, 2.0]),
        group_protocol=protocol,  # type: ignore[arg-type]
        with_transactions=with_transactions,
        with_queue=with_queue,
        with_hostile=Random(f"drawn hostile {seed}").random() < _HOSTILE,
        with_pipelines=Random(f"drawn pipelines {seed}").random() < _PIPELINES,
        with_security=Random(f"drawn security {_SECURITY_SALT} {seed}").random() < _SECURITY,
        fetch_max_wait_ms=fetch_max_wait_ms,
        stalls=stalls if workload == "groups" or with_transactions else 0.0,
        phantoms=chance.choice([0.0, 0.02, 0.2]),
        tempo=chance.choice([1.0, 2.0, 4.0]),
        kinds=_kinds(chance) if chance.random() < 0.7 else tuple(Kind),
        several=chance.choice([0.2, 0.6]),
    )
