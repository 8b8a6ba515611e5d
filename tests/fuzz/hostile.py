"""The words of the fuzz: values that are legal, huge, tiny, nested and repeated, and values that a node gave before.

`Hostile` makes the fields of requests. A field is `tame` with a probability of its own: then it names what exists (a
group of the plot, a topic, the member id or the producer id that was answered last, one more or less), so that requests
come far; else it is anything that fits.

Invariant: draws depend on the generator alone, never on what was learned, so that a seed and an index give the same
request, apart from the ids in it.
"""

from __future__ import annotations

from random import Random
from typing import Any

import batches
from odd_requests import LONG, POOLS, Words

from kraftpy.protocol.consumer_protocol import Subscription, encode_subscription
from kraftpy.protocol.schema import Array, Field

TOPICS = ("odd", "odd-compacted", "odd-recompressed", "odd-large", "odd-synced", "odd-brief")
"""Topics that exist at the beginning. `odd-brief` is deleted and created again."""
BRIEF = "odd-brief"
GROUPS = {
    kind: tuple(f"odd-{kind}-{number}" for number in range(6)) for kind in ("classic", "consumer", "share", "streams")
}
TRANSACTIONAL_IDS = tuple(f"odd-transaction-{number}" for number in range(6))
FORGED = "FORGED"
"""Begins a line of the log if outside input is printed unescaped."""

LONG_NAMES = tuple(f"odd-{number}-" + "abcdefghij" * 23 for number in range(60))
STRINGS = (
    "", "x", "x" * 249, "x" * 250, LONG, "..", ".", "a b", "a/b", "żółw-🎉", "\0", "a\0b", f"\n{FORGED} line",
    "\x1b[31mred",
    "a\r\nb", "%s%n%d", "{0}", "${jndi:x}", "\u202e\ufeff", "🎉" * 1000, "-1", "0", "null", "__consumer_offsets",
    "__transaction_state", "__share_group_state", "no-such",
)  # fmt: skip
WORST = (
    "(((((){1000}){1000}){1000}){1000})", "((((a{1000}){1000}){1000}){1000})", "a{" + "9" * 5000 + "}", "x" * 1900,
    "(a?){900}a{900}",
    "(.{30}){60}",
)  # fmt: skip
"""Expressions that cost a broker most, and are therefore drawn more often."""
REGEXES = (
    *WORST, "odd.*", "odd-.*", ".*", "(a|b)*c", "[a-z]+", "^odd$", "(?i)ODD", "a{2,3}", r"\d+\w*", "",
    "a{0," + "9" * 30 + "}", "(" * 49 + "a" + ")" * 49, "(" * 2000 + ")" * 2000, "|" * 1900, "(.*){40}",
    ".*.*.*.*.*.*.*.*.*x",
    "[" + "a-z" * 5000 + "]", "[^" * 100, "(?:" * 40, "a**", "a{1,0}", "a{-1}", "\\", "[", "(", "\\p{L}+",
    "\\x{110000}",
    "\\x{" + "f" * 4000 + "}", "\\" + "7" * 4000, "(.?){1000}", "(a|a|a|a){400}", ".{1000}", "\n", "🎉*",
    "((a{900}|b{900})*)", "((((){1000}){1000}a){2})", "(()*)*", "(()+)+b", "((((((a?)?)?)?)?)?)*", "(?i)" * 1000,
    "^" * 1900,
    "\\b" * 1000, "[[:alpha:]]{500}", "()" * 1500, "(|a)*" * 300,
)  # fmt: skip
DURATIONS = (
    "by_duration:PT1H", "by_duration:P1D", "by_duration:P" + "9" * 400 + "D", "by_duration:P" + "9" * 4000 + "DT1S",
    "by_duration:P99999999999D", "by_duration:P106751991167D", "by_duration:PT" + "9" * 25 + "S", "by_duration:PT0S",
    "by_duration:PT0.000000001S", "by_duration:P", "by_duration:PT", "by_duration:-P1D", "by_duration:", "by_duration",
    "by_duration:P" + "\u0669" * 5 + "D", "by_duration:P" + "\u0669" * 400 + "D", "latest", "earliest", "LATEST",
)  # fmt: skip
NUMBERS = (
    "0", "-1", "1", "-2", "2147483647", "2147483648", "-2147483648", "9223372036854775807", "9223372036854775808",
    "9" * 40, "9" * 5000, "1e400", "1e-400", "nan", "inf", "-inf", "0x10", "1_000", "\u0661\u0662", " 7 ", "+5",
    "--5", "1.5",
)  # fmt: skip
LISTS = (
    ",".join(str(number) for number in range(3000)), "," * 3000, ",".join(f"{n}:{n}" for n in range(3000)), "*",
    "*,*", "0:1", "a:b",
    "compact", "delete", "compact,delete", "delete,delete", ",".join(["delete"] * 3000),
)  # fmt: skip
SETTING_VALUES = (
    *NUMBERS, *DURATIONS, *LISTS, "true", "false", "gzip", "zstd", "lz4", "snappy", "producer", "uncompressed",
    "CreateTime",
    "LogAppendTime", "1000", "100000", "6000", "60000", LONG, "", f"\n{FORGED}", "read_committed", "read_uncommitted",
)  # fmt: skip
GROUP_SETTINGS = (
    "share.auto.offset.reset", "share.auto.offset.reset", "share.auto.offset.reset", "share.record.lock.duration.ms",
    "share.isolation.level",
    "share.session.timeout.ms", "share.heartbeat.interval.ms", "share.delivery.count.limit",
    "share.partition.max.record.locks",
    "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms", "streams.num.standby.replicas",
    "streams.session.timeout.ms",
    "streams.initial.rebalance.delay.ms",
)  # fmt: skip
TOPIC_SETTINGS = (
    "cleanup.policy", "compression.type", "compression.zstd.level", "compression.gzip.level", "delete.retention.ms",
    "flush.messages",
    "flush.ms", "index.interval.bytes", "internal.segment.bytes", "kraftpy.flush.before.ack", "max.compaction.lag.ms",
    "max.message.bytes",
    "message.timestamp.after.max.ms", "message.timestamp.before.max.ms", "message.timestamp.type",
    "min.cleanable.dirty.ratio",
    "min.compaction.lag.ms", "min.insync.replicas", "retention.bytes", "retention.ms", "segment.bytes",
    "segment.index.bytes", "segment.jitter.ms",
    "segment.ms", "unclean.leader.election.enable", "leader.replication.throttled.replicas",
    "follower.replication.throttled.replicas",
)  # fmt: skip
SETTINGS = (*GROUP_SETTINGS, *TOPIC_SETTINGS, "no.such", "log.retention.ms", "max.connections", "", f"\n{FORGED}")

_PATTERNS = frozenset({"subscribed_topic_regex", "transactional_id_pattern", "source_topic_regex"})
_LEARNED = frozenset(
    {
        "member_id", "generation_id", "generation_id_or_member_epoch", "member_epoch", "producer_id",
        "producer_epoch", "session_id",
        "session_epoch", "share_session_epoch", "leader_epoch", "current_leader_epoch", "coordinator_epoch",
        "fetch_offset", "offset",
        "committed_offset", "first_offset", "last_offset", "start_offset", "state_epoch", "topology_epoch", "topic_id",
        "v3_and_below_producer_id", "v3_and_below_producer_epoch",
    }
)  # fmt: skip
_HARVESTED = {
    "member_id": ("member_id",), "generation_id": ("generation_id", "generation_id_or_member_epoch"),
    "member_epoch": ("member_epoch", "generation_id_or_member_epoch"), "producer_id": ("producer_id",
    "v3_and_below_producer_id"),
    "producer_epoch": ("producer_epoch", "v3_and_below_producer_epoch"), "session_id": ("session_id",),
    "leader_epoch": ("leader_epoch",),
    "high_watermark": ("fetch_offset", "offset", "committed_offset"), "base_offset": ("fetch_offset", "first_offset",
    "last_offset"),
    "first_offset": ("first_offset",), "last_offset": ("last_offset",), "start_offset": ("start_offset",),
}  # fmt: skip
"""A field of an answer -> the fields of later requests that mean the same."""
_EDGES = tuple(sorted({sign * 2**bits + step for bits in range(64) for step in (-1, 0, 1) for sign in (1, -1)}))
_FITTING: dict[str, tuple[int, ...]] = {
    code: tuple(number for number in _EDGES if low <= number <= high)
    for code, low, high in (
        ("b", -128, 127), ("h", -32768, 32767), ("H", 0, 65535), ("i", -(2**31), 2**31 - 1), ("q", -(2**63), 2**63 - 1)
    )
}  # fmt: skip
_BOUNDS = {"b": 8, "h": 16, "i": 32, "q": 64}
SUBSCRIPTION = encode_subscription(Subscription(topics=("odd", "odd-compacted")))


class Plot:
    """The names shared by the requests of one plot, and the values learned in it."""

    def __init__(self, chance: Random) -> None:
        kind = chance.choice(sorted(GROUPS))
        self.group = chance.choice(GROUPS[kind])
        self.transactional_id = chance.choice(TRANSACTIONAL_IDS)
        self.topic = chance.choice(TOPICS)
        self.learned: dict[str, Any] = {}
        self.sequence = 0

    def harvest(self, answer: Any, depth: int = 0) -> None:
        """Note values of an answer that later requests may refer to."""
        if depth > 5:
            return
        for name in answer.__slots__:
            value = getattr(answer, name)
            if isinstance(value, list):
                for each in value[:2]:
                    if hasattr(each, "__slots__"):
                        self.harvest(each, depth + 1)
            elif hasattr(value, "__slots__"):
                self.harvest(value, depth + 1)
            elif name in _HARVESTED and value not in (None, "", -1):
                for meant in _HARVESTED[name]:
                    self.learned[meant] = value


class Hostile(Words):
    """Values for one request of a plot. `is_deep` makes arrays of thousands, `has_heavy` records that cost much."""

    def __init__(self, plot: Plot, topic_ids: dict[str, bytes], tame: float, *, is_deep: bool, has_heavy: bool) -> None:
        super().__init__()
        self.plot = plot
        self.ids = topic_ids
        self.tame = tame
        self.is_deep = is_deep
        self.has_heavy = has_heavy
        self.is_deleting = False

    def count(self, kind: Any, field: Field, chance: Random, depth: int) -> int:
        if self.is_deep and chance.random() < 0.3:
            self.is_deep = False  # at most one such array in a request
            return chance.choice((1000, 5000, 20_000)) if isinstance(field.wire, Array) and field.wire.element else 2000
        if chance.random() < self.tame:
            return 1
        return super().count(kind, field, chance, depth)

    def topic_id(self, chance: Random) -> bytes:
        roll, other = chance.random(), super().topic_id(chance)
        if roll < self.tame:
            name = BRIEF if self.is_deleting else self.plot.topic
            return self.ids.get(name, other)
        return other

    def records(self, chance: Random) -> bytes:
        roll, is_transactional, drift = chance.random(), chance.random() < 0.5, chance.choice((0, 0, 0, 0, 1, -1, 5))
        learned = self.plot.learned
        producer = (-1, -1, -1)
        if chance.random() < 0.7 and "producer_id" in learned:
            epoch = max(-1, min(learned.get("producer_epoch", 0) + chance.choice((0, 0, 0, 0, 1, -1)), 32767))
            producer = (learned["producer_id"], epoch, max(-1, self.plot.sequence + drift))
        if self.has_heavy:
            return batches.heavy(chance)
        if roll < max(0.4, self.tame - 0.2):
            made = batches.legal(chance, producer, transactional=is_transactional and producer[0] >= 0)
            self.plot.sequence += int.from_bytes(made[57:61], "big") if producer[0] >= 0 else 0
            return made
        return batches.small(chance)

    def data(self, kind: Any, name: str, chance: Random) -> bytes:
        if chance.random() < self.tame and name in ("metadata", "assignment"):
            return SUBSCRIPTION
        size = chance.choice((0, 1, 30, 300, 4000)) if not self.is_deep else chance.choice((300, 60_000, 900_000))
        return chance.randbytes(size) if size < 4000 else bytes(size)

    def number(self, kind: Any, name: str, code: str, chance: Random) -> int | float:
        roll, step, pick = chance.random(), chance.choice((0, 0, 0, 0, 1, 1, -1)), chance.random()
        if code == "d":
            return chance.choice((0.0, 1.0, -1.0, 1e308, float("nan"), float("inf")))
        edges = _FITTING[code]
        if name == "voter_id":  # that of an existing voter would remove it, and rightly
            return (0, 99, -1, edges[0], edges[-1])[int(pick * 5)]
        if roll < self.tame:
            if name == "resource_type":
                return (2, 32, 32, 4)[int(pick * 4)]
            if name in _LEARNED and name in self.plot.learned:
                value = int(self.plot.learned[name]) + step
                half = 1 << (_BOUNDS[code] - 1)
                return max(-half, min(value, half - 1))
            if name in POOLS:
                pool = POOLS[name]
                return pool[int(pick * min(3, len(pool)))]
            return _usual(name, pick)
        if roll < self.tame + 0.3 * (1 - self.tame) and name in POOLS:
            return POOLS[name][int(pick * len(POOLS[name]))]
        if name in ("replication_factor", "num_partitions", "count", "partition_count"):
            return (-1, 0, 1, 2, 3, edges[0], edges[-1])[int(pick * 7)]
        if name in ("max_wait_ms", "timeout_ms", "rebalance_timeout_ms", "transaction_timeout_ms"):
            return (0, 1, -1, 20, 200, edges[0], edges[-1])[int(pick * 7)]
        return edges[int(pick * len(edges))]

    def text(self, kind: Any, name: str, chance: Random) -> str:
        roll, pick = chance.random(), chance.random()
        pool = self._tame_text(kind, name) if roll < self.tame else self._wild_text(kind, name)
        return str(pool[int(pick * len(pool))])

    def _tame_text(self, kind: Any, name: str) -> tuple[str, ...]:
        plot = self.plot
        if name in _PATTERNS:
            return REGEXES[len(WORST) : len(WORST) + 9]
        if name in ("member_id", "instance_id", "group_instance_id") and "id" in name:
            return (
                (str(plot.learned.get("member_id", "")),) if name == "member_id" else ("odd-instance", "odd-instance-2")
            )
        if "transactional" in name:
            return (plot.transactional_id,)
        if "group" in name:
            return (plot.group,)
        if name in ("key", "coordinator_keys"):
            return (plot.group, plot.transactional_id)
        if name in POOLS:
            return tuple(map(str, POOLS[name][:2]))
        if name == "value":
            return SETTING_VALUES
        if name == "resource_name":
            return (plot.group, plot.topic, "1")
        if name == "configuration_keys" or (name == "name" and "Config" in kind.__name__):
            return SETTINGS
        if name == "name" and kind.__name__ == "JoinGroupRequestProtocol":
            return ("range", "roundrobin")
        if name == "server_assignor":
            return ("uniform", "range")
        if name == "feature":
            return ("group.version", "transaction.version", "share.version", "streams.version", "no.such")
        if "topic" in name or name == "name":
            return (BRIEF,) if self.is_deleting else (plot.topic, plot.topic, *TOPICS)
        return ("odd", "x", "range", "uniform")

    def _wild_text(self, kind: Any, name: str) -> tuple[str, ...]:
        if name in _PATTERNS:
            return REGEXES
        if name == "value":
            return SETTING_VALUES
        if name == "configuration_keys" or (name == "name" and "Config" in kind.__name__):
            return (*SETTINGS, *STRINGS)
        if name == "resource_name":
            return (*STRINGS, *TOPICS, *(each[0] for each in GROUPS.values()), "1", "2")
        if self.is_deleting:
            return (BRIEF, *(each for each in STRINGS if not each.startswith("__")))
        if "topic" in name or name == "name":
            return (*STRINGS, *LONG_NAMES[:5], *TOPICS)
        return STRINGS


def _usual(name: str, pick: float) -> int:
    """Return a number that makes sense for a field of that name."""
    if name.endswith("_ms"):
        return (0, 20, 100, 1000)[int(pick * 4)]
    if "epoch" in name:
        return (0, 0, -1, 1)[int(pick * 4)]
    if "bytes" in name:
        return (1 << 20, 1000, 1)[int(pick * 3)]
    if name in ("max_records", "batch_size"):
        return (10, 1, 500)[int(pick * 3)]
    return (0, 0, 1)[int(pick * 3)]
