"""The state of a perfect Kafka: logs with transactions and markers, groups with generations and offsets.

A transaction's records take offsets when they are sent and are seen when its markers stand; nothing at or after the
first record of an open transaction is handed out. Leader epochs grow; every replica has the same bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from chaos.history import Key, Value


class Fate(Enum):
    """The outcome of a transaction."""

    OPEN = "open"
    COMMITTED = "committed"
    ABORTED = "aborted"


@dataclass(slots=True)
class Transaction:
    """The keys it wrote to, and its outcome."""

    keys: dict[Key, None] = field(default_factory=dict)
    fate: Fate = Fate.OPEN


@dataclass(frozen=True, slots=True)
class Record:
    """A record, or a marker (no value)."""

    value: Value | None
    transaction: Transaction | None
    leader_epoch: int


@dataclass(slots=True)
class Log:
    """One partition."""

    records: list[Record] = field(default_factory=list)
    open: dict[int, Transaction] = field(default_factory=dict)
    """Open transactions by the offset of their first record, in order."""
    leader_epoch: int = 1
    epochs: list[tuple[int, int]] = field(default_factory=lambda: [(1, 0)])
    """Leader epoch and the offset it begins at."""

    def append(self, value: Value | None, transaction: Transaction | None) -> int:
        """Append a record and return its offset."""
        offset = len(self.records)
        self.records.append(Record(value, transaction, self.leader_epoch))
        return offset

    def last_stable_offset(self) -> int:
        """Return the offset below which every transaction is decided."""
        return next(iter(self.open), len(self.records))

    def read(self, position: int, most: int) -> tuple[list[tuple[int, Value]], int]:
        """Return up to `most` committed records from the position on, and the next position."""
        found: list[tuple[int, Value]] = []
        end = self.last_stable_offset()
        while position < end and len(found) < most:
            record = self.records[position]
            aborted = record.transaction is not None and record.transaction.fate is Fate.ABORTED
            if record.value is not None and not aborted:
                found.append((position, record.value))
            position += 1
        return found, position

    def new_leader(self) -> None:
        """Begin the next epoch at the log's end."""
        self.leader_epoch += 1
        self.epochs.append((self.leader_epoch, len(self.records)))


@dataclass(slots=True)
class Group:
    """Members in the order of joining, and committed offsets."""

    generation: int = 0
    members: dict[str, list[Key]] = field(default_factory=dict)
    """The keys that each member subscribed to."""
    assigned: dict[str, list[Key]] = field(default_factory=dict)
    committed: dict[Key, int] = field(default_factory=dict)

    def join(self, member: str, keys: list[Key]) -> None:
        """Add a member, or change its subscription."""
        if self.members.get(member) != keys:
            self.members[member] = keys
            self._rebalance()

    def leave(self, member: str) -> None:
        """Remove a member."""
        if self.members.pop(member, None) is not None:
            self._rebalance()

    def _rebalance(self) -> None:
        self.generation += 1
        self.assigned = {member: [] for member in self.members}
        keys = sorted({key for wanted in self.members.values() for key in wanted})
        for turn, key in enumerate(keys):
            takers = [member for member, wanted in self.members.items() if key in wanted]
            self.assigned[takers[turn % len(takers)]].append(key)


class Cluster:
    """Logs by key and groups by name."""

    def __init__(self) -> None:
        self.logs: dict[Key, Log] = {}
        self.groups: dict[str, Group] = {}

    def log(self, key: Key) -> Log:
        """Return the log of a key, which is created when first requested."""
        return self.logs.setdefault(key, Log())

    def group(self, name: str) -> Group:
        """Return the group of a name, likewise."""
        return self.groups.setdefault(name, Group())

    def send(self, key: Key, value: Value, transaction: Transaction | None) -> int:
        """Append a record and return its offset."""
        log = self.log(key)
        offset = log.append(value, transaction)
        if transaction is not None and key not in transaction.keys:
            transaction.keys[key] = None
            log.open[offset] = transaction
        return offset

    def end(self, transaction: Transaction, fate: Fate) -> None:
        """Commit or abort, with a marker in each partition."""
        transaction.fate = fate
        for key in transaction.keys:
            log = self.log(key)
            log.append(None, transaction)
            log.open = {offset: other for offset, other in log.open.items() if other is not transaction}
