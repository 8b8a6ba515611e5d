"""Moves a member from its current assignment to its target, one heartbeat at a time (KIP-848, KIP-1071).

The member first has to give up everything that is not in its target, and stays at its epoch. When its heartbeat reports
that it has, it moves to the epoch of the target and gets the units that no other member holds; the rest follows as the
others give them up. No unit therefore ever has two holders, even if messages are lost or late.

An assignment is a set of partitions in consumer groups, and of tasks in streams groups. Each kind decides which units
are free (`consumer.reconciliation`, `streams.reconciliation`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Generic, Protocol, Self, TypeVar


class Assigned(Protocol):
    """The units that a member is assigned: partitions or tasks."""

    def __and__(self, other: Any, /) -> Self: ...

    def __or__(self, other: Any, /) -> Self: ...

    def __sub__(self, other: Any, /) -> Self: ...


class Phase(Enum):
    """A member's progress towards its target; each kind of group has its own names for it."""

    STABLE = auto()  # it has all of its target
    UNREVOKED = auto()  # it has yet to give something up
    UNRELEASED = auto()  # it waits for others to give something up
    UNKNOWN = auto()  # a later version stored something else


A = TypeVar("A", bound=Assigned)


@dataclass(frozen=True, slots=True)
class Current(Generic[A]):
    """A member's current assignment."""

    phase: Phase
    member_epoch: int
    assigned: A
    pending_revocation: A


def reconcile(
    current: Current[A],
    epoch: int,
    target: Callable[[], A],
    owned: A | None,
    free: Callable[[A], A],
    *,
    is_changed: bool = False,
) -> Current[A] | None:
    """Return the member's next assignment, or None if nothing changes.

    `epoch` is that of the target. `owned` is what the member reports as owned, None if it reports nothing. `free`
    returns those of the given partitions or tasks that no other member holds. `is_changed`: the target has changed for
    this member without a new epoch.
    """
    if current.phase is Phase.STABLE and current.member_epoch == epoch and not is_changed:
        return None
    if current.phase is Phase.UNREVOKED and _still_owned(owned, current.pending_revocation):
        return None
    wanted = target()
    kept, revoked = current.assigned & wanted, current.assigned - wanted
    if revoked and _still_owned(owned, revoked):
        return Current(Phase.UNREVOKED, current.member_epoch, kept, revoked)
    missing = wanted - kept
    found = free(missing)
    phase = Phase.STABLE if found == missing else Phase.UNRELEASED
    nothing = revoked - revoked
    after = Current(phase, epoch, kept | found, nothing)
    return None if after == current else after


def _still_owned(owned: A | None, given_up: A) -> bool:
    """Return True if the member may still have some of these: one that reports nothing still has all of them."""
    return owned is None or bool(owned & given_up)
