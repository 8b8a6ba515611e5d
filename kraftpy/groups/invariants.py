"""Invariants of the groups in one partition, true between any two steps of their coordinator.

Tests and simulations check all of them (`check`). The coordinator checks a single group (`is_whole`) after an
unexpected error interrupted its work on that group.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kraftpy.groups.appends import (
    Appends,
    StoreAssignment,
    StoreOffsets,
    group_ids,
    request_ids,
)
from kraftpy.groups.change_queue import ChangeQueue
from kraftpy.groups.classic.group import ClassicGroup, State
from kraftpy.groups.classic.rebalance import JOIN, SESSION, SYNC
from kraftpy.groups.deadlines import Deadlines, Key
from kraftpy.groups.deletion import Deletions
from kraftpy.groups.events import Request
from kraftpy.groups.group import Group
from kraftpy.groups.transactional_offsets import PendingOffsets


class Invariants:
    """Checks the parts of a coordinator against each other, without changing anything."""

    def __init__(
        self,
        groups: Mapping[str, Group],
        deadlines: Deadlines,
        appends: Appends,
        queue: Sequence[ChangeQueue[Any, Any]],
        deletions: Deletions,
        pending_offsets: PendingOffsets,
    ) -> None:
        self._groups = groups
        self._deadlines = deadlines
        self._appends = appends
        self._queues = queue
        self._deletions = deletions
        self._pending_offsets = pending_offsets

    def expected_deadlines(self, group: Group) -> set[Key]:
        """Return the keys for which the group must have deadlines."""
        expected: set[Key] = set().union(*(queue.expected_deadlines(group) for queue in self._queues))
        expected |= self._deletions.expected_deadlines(group)
        classic = group.classic_or_empty()
        expected |= {Key(group.group_id, SESSION, m) for m in (*classic.members, *classic.pending_members)}
        if classic.state is State.PREPARING_REBALANCE:
            expected.add(Key(group.group_id, JOIN))
        if classic.pending_sync:
            expected.add(Key(group.group_id, SYNC))
        return expected

    @staticmethod
    def expects(group: Group, key: Key) -> bool:
        """Return True if `key` is a deadline that a classic group must have."""
        classic = group.kind
        if not isinstance(classic, ClassicGroup):
            return False
        if key.kind == SESSION:
            return key.member_id in classic.members or key.member_id in classic.pending_members
        if key.kind == JOIN:
            return classic.state is State.PREPARING_REBALANCE
        return key.kind == SYNC and bool(classic.pending_sync)

    def is_whole(self, group: Group) -> bool:
        """Return True if the group is consistent and has every deadline it needs."""
        try:
            self._check_group(group)
        except Exception:
            return False
        purposes = [each for each in self._appends.purposes() if group.group_id in group_ids(each)]
        if group.records_in_flight != len(purposes):
            return False
        if group.unstable != self._pending_offsets.unstable(group, purposes):
            return False
        if group.waiting and not group.is_changing:
            return False
        is_asking = group.decision is not None or any(queue.is_asking(group) for queue in self._queues)
        if group.is_changing and not (purposes or is_asking):
            return False
        classic = group.classic_or_empty()
        is_deciding = classic.state is State.COMPLETING_REBALANCE and not classic.pending_sync
        if is_deciding and not any(isinstance(each, StoreAssignment) for each in purposes):
            return False
        if group.offsets_in_flight and not any(isinstance(each, StoreOffsets) for each in purposes):
            return False
        return all(key in self._deadlines for key in self.expected_deadlines(group))

    def is_waiting(self, request_id: int, named: Iterable[str], others: Iterable[Request]) -> bool:
        """Return True if a request that names these groups, or is one of the `others`, will be answered later."""
        groups = [group for group_id in named if (group := self._groups.get(group_id)) is not None]
        waiting = [each for group in groups for each in group.waiting if isinstance(each, Request)]
        waiting += [event for group in groups if group.decision is not None for event, _ in group.decision.answers]
        if any(each.request_id == request_id for each in (*waiting, *others)):
            return True
        members = [member for group in groups for member in group.classic_or_empty().members.values()]
        at_barriers = [each for member in members for each in (member.join, member.sync) if each is not None]
        if any(each.request_id == request_id for each in at_barriers):
            return True
        return any(request_id in request_ids(purpose) for purpose in self._appends.purposes())

    def check(self, *always: Key, may_dangle: bool = False) -> None:
        """Assert every invariant. `always` are deadlines that belong to no group.

        With `may_dangle`, deadlines may remain for things that no longer exist, as after an unexpected error: they have
        no effect.
        """
        expected = set(always)
        in_flight = [group_id for purpose in self._appends.purposes() for group_id in group_ids(purpose)]
        for group_id, group in self._groups.items():
            self._check_group(group)
            assert group.records_in_flight == in_flight.count(group_id), group
            assert group.unstable == self._pending_offsets.unstable(group, self._appends.purposes()), group
            expected |= self.expected_deadlines(group)
        assert set(in_flight) <= self._groups.keys()
        known = self._deadlines.all().keys()
        assert expected <= known if may_dangle else expected == known, (self._deadlines.all(), expected)

    @staticmethod
    def _check_group(group: Group) -> None:
        group.validate()
        assert not group.is_vacant, group
        classic = group.kind
        if isinstance(classic, ClassicGroup) and classic.state is State.STABLE and not group.records_in_flight:
            assignments = {m.member_id: m.assignment or b"" for m in classic.members.values()}
            assert classic.persisted is not None
            live = classic.to_value(assignments)
            assert live.members == classic.persisted.members, (live, classic.persisted)
            assert live.generation_id == classic.persisted.generation_id
            assert (live.leader, live.protocol) == (classic.persisted.leader, classic.persisted.protocol)
