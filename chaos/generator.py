"""Workloads as data: what a client should ask for next, drawn from a seed.

`call(process)` returns the next call, and `observe(op)` reports its outcome; a generator opens no connection and knows
no time. The same seed and the same observations give the same calls.

    LogCalls       sends and polls by assign or subscribe, or transactions of both; 1 in 64 calls is a new assignment,
                   a third of those with the keys that have records nobody polled
    FinalPolls     at the end: every process reads every key from its start up to the highest offset ever seen
    LastTransactions   and before that: each transactional client sends a record to every key in one transaction
    GroupCalls     sends, polls of one group's members, commits, and looks at what is committed
    QueueCalls     sends, and a share group that acquires and acknowledges
    TopicCalls     create, delete, alter, reassign and describe topics, and looks at brokers' images and controllers
    PipelineCalls  consume, transform, produce: each record of an input key must have one descendant in an output key

Keys are drawn exponentially from a rolling pool: a key that has had its share of writes is replaced by a new one.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from chaos.checkers.versions import polled, sends
from chaos.history import Key, Op, Type

TOPIC_PREFIX: Final = "topic-"
"""The prefix of the topics of `TopicCalls`, which deletes and recreates them. Nothing else may change them: the
history must show everything done to them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A call to make: an invocation without index, time and process."""

    f: str
    value: Any = None
    extra: Mapping[str, Any] = field(default_factory=dict)


class Calls(Protocol):
    """A workload's source of calls."""

    def call(self, process: int) -> Call | None:
        """Return the process's next call; None if it is done."""

    def observe(self, op: Op) -> None:
        """Take a completion, in the history's order."""


def key_name(number: int, partitions: int = 2, topics: str = "t") -> Key:
    """Return the name of the partition with this number: two to a topic."""
    return f"{topics}{number // partitions}-{number % partitions}"


class Idle:
    """Tracks processes that have received nothing for a while once sending has stopped: those are done."""

    MOST_EMPTY = 20

    def __init__(self) -> None:
        self.sending = True
        self._empty: dict[int, int] = {}

    def stop_sending(self) -> None:
        """Stop sending, so that the consumers read what is left."""
        self.sending = False
        self._empty = {}

    def done(self, process: int) -> bool:
        """Return True if the process may stop."""
        return not self.sending and self._empty.get(process, 0) >= self.MOST_EMPTY

    def got(self, op: Op, anything: bool) -> None:
        """Note a completion that returned something, or nothing."""
        if isinstance(op.process, int):
            self._empty[op.process] = 0 if anything else self._empty.get(op.process, 0) + 1


class KeyPool:
    """The keys in use, their values, and how many each has had."""

    def __init__(self, chance: random.Random, size: int = 10, most_writes: int = 1024, topics: str = "t") -> None:
        self._chance = chance
        self._topics = topics
        self._most_writes = most_writes
        self._active = list(range(size))
        self._next_key = size
        self._written: dict[int, int] = {}
        self._next_value: dict[Key, int] = {}

    def pick(self) -> int:
        """Return a key's number: the first is drawn half of the time, the second a quarter, and so on."""
        place = 0
        while place < len(self._active) - 1 and self._chance.random() < 0.5:
            place += 1
        return self._active[place]

    def send(self) -> list[Any]:
        """Return a send of a value that its key never had."""
        number = self.pick()
        key = key_name(number, topics=self._topics)
        value = self._next_value.get(key, 0) + 1
        self._next_value[key] = value
        self._written[number] = self._written.get(number, 0) + 1
        if self._written[number] >= self._most_writes:
            self._active[self._active.index(number)] = self._next_key
            self._next_key += 1
        return ["send", key, value]

    def names(self) -> list[Key]:
        """The keys in use."""
        return [key_name(number, topics=self._topics) for number in self._active]


class Offsets:
    """The highest offsets that any client sent or polled."""

    def __init__(self) -> None:
        self.sent: dict[Key, int] = {}
        self.polled: dict[Key, int] = {}

    def observe(self, op: Op) -> None:
        """Record an acknowledged operation's offsets."""
        if op.type is not Type.OK:
            return
        for key, offset, _ in sends(op):
            if offset is not None:
                self.sent[key] = max(self.sent.get(key, -1), offset)
        for key, offset, _ in polled(op):
            self.polled[key] = max(self.polled.get(key, -1), offset)

    def unpolled(self) -> list[Key]:
        """Return the keys with acknowledged records beyond the highest polled offset."""
        return sorted(key for key, offset in self.sent.items() if offset > self.polled.get(key, -1))

    def highest(self) -> dict[Key, int]:
        """Return the highest offset of each key, sorted by key."""
        keys = sorted(self.sent.keys() | self.polled.keys())
        return {key: max(self.sent.get(key, -1), self.polled.get(key, -1)) for key in keys}


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions:
    """Options of the log and transaction workloads."""

    transactions: bool = False
    via: str = "assign"  # or subscribe
    keys: int = 10
    most_writes_per_key: int = 1024
    longest: int = 4
    """The most micro-operations in a transaction."""
    assignment_chance: float = 1 / 64
    crash_chance: float = 0.0
    topics: str = "t"
    """The prefix of topic names: two workloads of one history need different ones."""


class LogCalls:
    """Sends and polls."""

    def __init__(self, seed: int, options: LogOptions | None = None) -> None:
        self._chance = random.Random(seed)
        self._options = options or LogOptions()
        self._pool = KeyPool(self._chance, self._options.keys, self._options.most_writes_per_key, self._options.topics)
        self._started: set[int] = set()
        self.offsets = Offsets()

    def call(self, process: int) -> Call | None:
        """Return an assignment first, then mostly sends and polls."""
        chance = self._chance
        if process not in self._started:
            self._started.add(process)
            return Call(f=self._options.via, value=self._some_keys())
        if chance.random() < self._options.crash_chance:
            return Call(f="crash")
        if chance.random() < self._options.assignment_chance:
            return Call(f=self._options.via, value=self._some_keys())
        length = chance.randint(1, self._options.longest) if self._options.transactions else 1
        micro = [self._pool.send() if chance.random() < 0.5 else ["poll"] for _ in range(length)]
        kinds = {what[0] for what in micro}
        return Call(f=kinds.pop() if len(kinds) == 1 else "txn", value=micro)

    def observe(self, op: Op) -> None:
        """Learn from offsets which keys have unpolled records."""
        self.offsets.observe(op)

    def _some_keys(self) -> list[Key]:
        keys = [name for name in self._pool.names() if self._chance.random() < 0.5] or self._pool.names()[:1]
        if self._chance.random() < 1 / 3:
            keys += self.offsets.unpolled()
        return sorted(set(keys))


class FinalPolls:
    """Replaces every client (`old` are the existing processes) by a new one, which reads up to the highest offsets."""

    MOST_POLLS = 500

    def __init__(self, highest: Mapping[Key, int], old: Iterable[int]) -> None:
        self._highest = dict(highest)
        self._position: dict[int, dict[Key, int]] = {}
        self._polls: dict[int, int] = {}
        self._old = set(old)

    def call(self, process: int) -> Call | None:
        """Return crash; then, as a new process, assign and poll until all is seen. Start over if that takes long."""
        if process in self._old:
            return Call(f="crash")
        if process not in self._position:
            self._position[process] = {}
            return Call(f="assign", value=sorted(self._highest), extra={"seek_to_beginning": True})
        seen = self._position[process]
        if all(seen.get(key, -1) >= offset for key, offset in self._highest.items()):
            return None
        self._polls[process] = self._polls.get(process, 0) + 1
        if self._polls[process] > self.MOST_POLLS:
            self._old.add(process)
            return Call(f="crash")
        return Call(f="poll", value=[["poll"]], extra={"final": True})

    def observe(self, op: Op) -> None:
        """Note how far the process has read."""
        seen = self._position.get(op.process) if isinstance(op.process, int) else None
        if seen is not None and op.type is Type.OK:
            for key, offset, _ in polled(op):
                seen[key] = max(seen.get(key, -1), offset)


class LastTransactions:
    """Gives each process a successor (`old` are the existing ones) that retries a transaction with a send to every key
    until one is acknowledged. By then any transaction left open under its transactional id has ended, and its records
    precede these."""

    FIRST_VALUE = 1_000_000_000
    """Higher than any workload's values."""

    def __init__(self, keys: Iterable[Key], old: Iterable[int]) -> None:
        self._keys = list(keys)
        self._old = set(old)
        self._done: set[int] = set()
        self._value = self.FIRST_VALUE

    def call(self, process: int) -> Call | None:
        """Return crash; then, as a new process, a send to all keys."""
        if process in self._old:
            return Call(f="crash")
        if process in self._done or not self._keys:
            return None
        self._value += 1
        return Call(f="send", value=[["send", key, self._value] for key in self._keys], extra={"last": True})

    def observe(self, op: Op) -> None:
        """Note which processes are done."""
        if op.f == "send" and op.type is Type.OK and isinstance(op.process, int):
            self._done.add(op.process)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOptions:
    """Options of the groups workload."""

    group: str = "g"
    keys: int = 6
    members: int = 3
    """A process whose number modulo `clients` is below this is a member; the others send and look."""
    clients: int = 5
    crash_chance: float = 0.0
    topics: str = "t"


class GroupCalls(Idle):
    """Members poll and commit, others send and look at what is committed."""

    def __init__(self, seed: int, options: GroupOptions | None = None) -> None:
        super().__init__()
        self._chance = random.Random(seed)
        self.options = options or GroupOptions()
        self.group = self.options.group
        self.keys = [key_name(number, topics=self.options.topics) for number in range(self.options.keys)]
        self._pool = KeyPool(self._chance, self.options.keys, 1 << 62, self.options.topics)
        self._started: set[int] = set()
        self._to_commit: dict[int, dict[Key, int]] = {}

    def is_member(self, process: int) -> bool:
        """Return True if the process polls for the group."""
        return process % self.options.clients < self.options.members

    def call(self, process: int) -> Call | None:
        """Return the next call for the process's role."""
        chance, group = self._chance, self.options.group
        if not self.is_member(process):
            if not self.sending:
                return None
            if chance.random() < 0.2:
                return Call(f="committed", value={"group": group, "keys": [chance.choice(self.keys)]})
            return Call(f="send", value=[self._pool.send()])
        if process not in self._started:
            self._started.add(process)
            return Call(f="subscribe", value=self.keys, extra={"group": group})
        if chance.random() < self.options.crash_chance:
            return Call(f="crash")
        offsets = self._to_commit.pop(process, None)
        if offsets:
            return Call(f="commit", value={"group": group, "offsets": offsets})
        if self.done(process):
            return None
        return Call(f="poll", value=[["poll"]], extra={"group": group})

    def observe(self, op: Op) -> None:
        """Remember polled offsets, to be committed next."""
        if op.f == "poll" and op.type is Type.OK and isinstance(op.process, int):
            self.got(op, any(True for _ in polled(op)))
            for key, offset, _ in polled(op):
                self._to_commit.setdefault(op.process, {})[key] = offset + 1


class QueueCalls(Idle):
    """Half of the processes send; the others acquire and acknowledge what they acquired."""

    def __init__(
        self, seed: int, group: str = "q", keys: int = 4, *, topics: str = "t", crash_chance: float = 0.0
    ) -> None:
        super().__init__()
        self._chance = random.Random(seed)
        self._pool = KeyPool(self._chance, keys, 1 << 62, topics)
        self._crash_chance = crash_chance
        self._held: dict[int, list[list[Any]]] = {}
        self.group = group
        self.keys = self._pool.names()

    def call(self, process: int) -> Call | None:
        """Return the next call for the process's role."""
        chance = self._chance
        if process % 2 == 0:
            return Call(f="send", value=[self._pool.send()]) if self.sending else None
        if self._crash_chance and chance.random() < self._crash_chance:
            return Call(f="crash")
        held = self._held.pop(process, None)
        if held:
            kinds = ["accept"] * 8 + (["release"] if self.sending else ["accept"])
            records = [[key, offset, chance.choice(kinds)] for key, offset, *_ in held]
            return Call(f="acknowledge", value={"group": self.group, "records": records})
        if self.done(process):
            return None
        return Call(f="acquire", value={"group": self.group})

    def hurries(self, process: int) -> bool:
        """Return True if the process continues at once: sending has stopped, and its last request returned
        something."""
        return not self.sending and self._empty.get(process) == 0

    def observe(self, op: Op) -> None:
        """Remember acquired records, to be acknowledged next."""
        if op.f == "acquire" and op.type is Type.OK and isinstance(op.process, int):
            self.got(op, bool(op.value["records"]))
            self._held[op.process] = op.value["records"]


class TopicCalls:
    """Topics are created, changed and deleted."""

    _CALLS = (
        *(
            "create-topic",
            "create-topic",
            "delete-topic",
            "alter-topic",
            "reassign",
            "describe-topic",
            "describe-topic",
        ),
        *("image", "controller"),
    )

    def __init__(self, seed: int, topics: int = 5, nodes: tuple[int, ...] = (1, 2, 3)) -> None:
        self._chance = random.Random(seed)
        self._topics = [f"{TOPIC_PREFIX}{number}" for number in range(topics)]
        self._nodes = nodes
        self._setting = 0

    def call(self, process: int) -> Call | None:
        """Return one call about one topic, or a look at one node."""
        chance = self._chance
        topic = chance.choice(self._topics)
        f = chance.choice(self._CALLS)
        match f:
            case "create-topic":
                return Call(f=f, value={"topic": topic, "partitions": chance.randint(1, 3)})
            case "alter-topic":
                self._setting += 1
                return Call(f=f, value={"topic": topic, "config": {"retention.ms": str(self._setting)}})
            case "reassign":
                replicas = chance.sample(self._nodes, k=min(2, len(self._nodes)))
                return Call(f=f, value={"topic": topic, "replicas": replicas})
            case "image" | "controller":
                return Call(f=f, value={"node": chance.choice(self._nodes)})
            case _:
                return Call(f=f, value={"topic": topic})

    def observe(self, op: Op) -> None:
        """Do nothing."""


class PipelineCalls(Idle):
    """Even processes send to the inputs; odd ones move records from inputs to the output, in transactions."""

    def __init__(self, seed: int, group: str = "pipeline", inputs: int = 3) -> None:
        super().__init__()
        self._chance = random.Random(seed)
        self.group = group
        self.inputs = [f"in-{number}" for number in range(inputs)]
        self.output = "out-0"
        self._next: dict[Key, int] = {}
        self._started: set[int] = set()

    def call(self, process: int) -> Call | None:
        """Return a call by role. The caller that carries a `process` call out fills in its polls and sends."""
        if process % 2 == 0:
            if not self.sending:
                return None
            key = self._chance.choice(self.inputs)
            self._next[key] = self._next.get(key, 0) + 1
            return Call(f="send", value=[["send", key, self._next[key]]])
        if process not in self._started:
            self._started.add(process)
            return Call(f="subscribe", value=self.inputs, extra={"group": self.group})
        if self.done(process):
            return None
        return Call(f="process", value=[["poll"]], extra={"group": self.group, "output": self.output})

    def observe(self, op: Op) -> None:
        """Note if there is still something to process."""
        if op.f == "process":
            self.got(op, any(True for _ in polled(op)))
