"""One transactional id: the states it goes through, and what its coordinator remembers of it.

`FOLLOWS` is the table of what may follow what (rule 26); `follow` is the only way from one state to another and asserts
it. What is durable is a `TransactionValue`, a frozen thing: it is replaced when the log has the next one.

Read: KIP-98, KIP-360 (epochs that rise), KIP-890 (an epoch for each transaction, and so a marker for each epoch).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Final

from kraftpy.types import TopicPartition

NO_PRODUCER_ID: Final = -1
NO_EPOCH: Final = -1
LAST_EPOCH: Final = 32766
"""The last epoch that a producer is given: one more is left to fence it with."""
EPOCH_BUMPS: Final = 2
"""From this version of transactions on the epoch rises with every end of one (KIP-890)."""


class State(Enum):
    """Where a transactional id is in its life; the values are the names clients see."""

    EMPTY = "Empty"  # a producer has the id, and has not written yet
    ONGOING = "Ongoing"  # partitions were added; the timeout runs
    PREPARE_COMMIT = "PrepareCommit"  # it is decided: markers are written until all partitions have one
    PREPARE_ABORT = "PrepareAbort"  # the same, the other way
    COMPLETE_COMMIT = "CompleteCommit"  # every partition has its marker
    COMPLETE_ABORT = "CompleteAbort"
    DEAD = "Dead"  # nobody used the id for long: its tombstone is on the way to the log
    PREPARE_EPOCH_FENCE = "PrepareEpochFence"  # its producer loses it: the epoch rises, and then it is aborted


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
"""What may follow each state. An abort of nothing (KIP-890) leads from where nothing is open to PrepareAbort."""

PREPARED: Final = frozenset({State.PREPARE_COMMIT, State.PREPARE_ABORT})
AT_REST: Final = frozenset({State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT})


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionValue:
    """What the log says of a transactional id. Timestamps in milliseconds of the wall clock, -1 for none."""

    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: State = State.EMPTY
    partitions: frozenset[TopicPartition] = frozenset()
    updated_at: int = -1
    started_at: int = -1
    previous_producer_id: int = NO_PRODUCER_ID
    """The one before the last change, by which a retry is known whose answer was lost."""
    next_producer_id: int = NO_PRODUCER_ID
    """Once this transaction is complete: its producer's epochs are used up."""
    client_version: int = 0
    """The version of transactions that the producer speaks."""

    @property
    def is_exhausted(self) -> bool:
        """The producer id has no further epoch to give."""
        return self.producer_epoch >= LAST_EPOCH

    def is_overdue(self, timestamp: int) -> bool:
        """Whether its transaction is open for longer than its producer allowed."""
        return self.state is State.ONGOING and timestamp - self.started_at >= self.timeout_ms

    @property
    def raises_epoch(self) -> bool:
        """The epoch rises with every end."""
        return self.client_version >= EPOCH_BUMPS


def follow(value: TransactionValue, state: State, **changes: Any) -> TransactionValue:
    """What comes next. Asserts that it may."""
    assert state in FOLLOWS[value.state], f"{value.state.value} is not followed by {state.value}"
    return replace(value, state=state, previous_producer_id=value.producer_id, **changes)


@dataclass(slots=True, kw_only=True)
class Transaction:
    """One transactional id: what the log says, and what is only known here."""

    transactional_id: str
    value: TransactionValue | None = None
    """None until its first record is durable."""
    last_producer_epoch: int = NO_EPOCH
    """The epoch before the current one, where the producer itself asked for that: its retry is not a fence."""
    is_pending: bool = False
    """A record is on its way to the log: nothing else may be decided until it is there (rule 26)."""
    unmarked: set[TopicPartition] = field(default_factory=set)
    """While it is prepared: the partitions that have no marker yet."""

    @property
    def state(self) -> State | None:
        """As the log says."""
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
