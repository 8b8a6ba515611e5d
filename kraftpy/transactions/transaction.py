"""One transactional id: its states, and what its coordinator remembers about it.

`FOLLOWS` is the table of state transitions (rule 26); `follow` is the only way from one state to another, and asserts
the table. The durable part is a frozen `TransactionValue`, which is replaced once the log has the next one.

Read: KIP-98, KIP-360 (epochs that rise), KIP-890 (one epoch per transaction, and so one marker per epoch).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Final

from kraftpy.frozen import frozen
from kraftpy.types import TopicPartition

NO_PRODUCER_ID: Final = -1
NO_EPOCH: Final = -1
LAST_EPOCH: Final = 32766
"""The highest epoch that a producer is given: one more is reserved for fencing it."""
EPOCH_BUMPS: Final = 2
"""From this version of transactions on, every end of a transaction raises the epoch (KIP-890)."""


class State(Enum):
    """The states of a transactional id; the values are the names that clients see."""

    EMPTY = "Empty"  # a producer has the id, but has not written yet
    ONGOING = "Ongoing"  # partitions were added; the timeout runs
    PREPARE_COMMIT = "PrepareCommit"  # the commit is decided: markers are written until all partitions have one
    PREPARE_ABORT = "PrepareAbort"  # the same, for an abort
    COMPLETE_COMMIT = "CompleteCommit"  # every partition has its marker
    COMPLETE_ABORT = "CompleteAbort"
    DEAD = "Dead"  # the id was unused for too long: its tombstone is on the way to the log
    PREPARE_EPOCH_FENCE = "PrepareEpochFence"  # the producer is losing the id: the epoch rises, then comes the abort


FOLLOWS: Final[dict[State, frozenset[State]]] = {
    State.EMPTY: frozenset({State.EMPTY, State.ONGOING, State.PREPARE_ABORT, State.DEAD}),
    State.ONGOING: frozenset(
        {State.ONGOING, State.PREPARE_COMMIT, State.PREPARE_ABORT, State.PREPARE_EPOCH_FENCE},
    ),
    State.PREPARE_COMMIT: frozenset({State.COMPLETE_COMMIT}),
    State.PREPARE_ABORT: frozenset({State.COMPLETE_ABORT}),
    State.COMPLETE_COMMIT: frozenset({State.EMPTY, State.ONGOING, State.PREPARE_ABORT, State.DEAD}),
    State.COMPLETE_ABORT: frozenset({State.EMPTY, State.ONGOING, State.PREPARE_ABORT, State.DEAD}),
    State.DEAD: frozenset(),
    State.PREPARE_EPOCH_FENCE: frozenset({State.PREPARE_ABORT}),
}
"""The states that may follow each state. Aborting nothing (KIP-890) goes to PrepareAbort from one that is at rest."""

PREPARED: Final = frozenset({State.PREPARE_COMMIT, State.PREPARE_ABORT})
AT_REST: Final = frozenset({State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT})


@frozen
class TransactionValue:
    """The durable state of a transactional id. Timestamps are wall-clock milliseconds, -1 for none."""

    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: State = State.EMPTY
    partitions: frozenset[TopicPartition] = frozenset()
    updated_at: int = -1
    started_at: int = -1
    previous_producer_id: int = NO_PRODUCER_ID
    """The producer id before the last change; a retry whose answer was lost is recognized by it."""
    next_producer_id: int = NO_PRODUCER_ID
    """The producer id to use after this transaction; set when the epochs of the current one are used up."""
    client_version: int = 0
    """The version of transactions that the producer uses."""

    @property
    def is_exhausted(self) -> bool:
        """True if the producer id has no epoch left to give."""
        return self.producer_epoch >= LAST_EPOCH

    def is_overdue(self, timestamp: int) -> bool:
        """Return whether its transaction has been open for longer than its producer allowed."""
        return self.state is State.ONGOING and timestamp - self.started_at >= self.timeout_ms


def follow(value: TransactionValue, state: State, **changes: Any) -> TransactionValue:
    """Return the value in its next state. Asserts that the table allows it."""
    assert state in FOLLOWS[value.state], f"{value.state.value} is not followed by {state.value}"
    return replace(value, state=state, previous_producer_id=value.producer_id, **changes)


@dataclass(slots=True, kw_only=True)
class Transaction:
    """One transactional id: its durable state, and volatile state of the coordinator."""

    transactional_id: str
    value: TransactionValue | None = None
    """None until the first record is durable."""
    last_producer_epoch: int = NO_EPOCH
    """The epoch before the current one, if the producer itself asked for the change: its retry does not fence it."""
    is_pending: bool = False
    """True if a record is on its way to the log: until it is durable, nothing else may be decided (rule 26)."""
    unmarked: set[TopicPartition] = field(default_factory=set)
    """The partitions without a marker, while the transaction is prepared."""

    @property
    def state(self) -> State | None:
        """The state according to the log; None before the first record."""
        return None if self.value is None else self.value.state

    def validate(self) -> None:
        """Assert the invariants. For tests and simulations."""
        value = self.value
        assert value is not None or self.is_pending, self
        if value is None:
            return
        assert self.unmarked <= value.partitions, self
        assert not self.unmarked or value.state in PREPARED, self
        assert value.state is not State.EMPTY or not value.partitions, self
        assert value.state not in (State.COMPLETE_COMMIT, State.COMPLETE_ABORT) or not value.partitions, self
        assert 0 <= value.producer_epoch <= LAST_EPOCH + 1, self
        assert value.next_producer_id < 0 or value.state in PREPARED, self
