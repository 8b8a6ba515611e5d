"""Periodically expires offsets that are no longer needed and groups that have become empty of everything (KIP-211).

One pass over all groups is made in pieces of about `OFFSETS_AT_ONCE` offsets, each at its own tick, so that other
requests are served in between. A pass covers the groups that exist when it begins. Many expired offsets of a group are
deleted in pieces as well (`offsets.pieces`); one that was committed again in the meantime stays.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from kraftpy.groups import offsets
from kraftpy.groups.classic.group import ClassicGroup
from kraftpy.groups.classic.reading import Readings
from kraftpy.groups.config import GroupConfig
from kraftpy.groups.deadlines import Deadlines, Key
from kraftpy.groups.deletion import Deletions
from kraftpy.groups.group import Group
from kraftpy.groups.restoration import in_order
from kraftpy.groups.share.group import ShareGroup
from kraftpy.groups.step import Step
from kraftpy.types import Millis, TopicPartition

EXPIRY_KEY: Final = Key("", "expiry")
OFFSETS_AT_ONCE: Final = 10_000
_SOON_MS: Final = 1


class Expiry:
    """The expiry passes of one coordinator."""

    def __init__(
        self,
        config: GroupConfig,
        groups: dict[str, Group],
        deadlines: Deadlines,
        deletions: Deletions,
        readings: Readings,
    ) -> None:
        self._config = config
        self._readings = readings
        self._groups = groups
        self._deadlines = deadlines
        self._deletions = deletions
        self._left: list[str] = []
        """The groups remaining in this pass, in reverse order."""
        self._expired: deque[tuple[str, list[TopicPartition]]] = deque()
        """Offsets that remain to be deleted before the pass continues, by group."""
        self._deleted = 0
        """How many tombstones this piece of the pass needs."""

    def arm(self, step: Step) -> None:
        """Schedule the next pass."""
        self._deadlines.set(EXPIRY_KEY, Millis(step.now + max(self._config.offsets_retention_check_interval_ms, 1)))

    def look(self, step: Step) -> None:
        """Delete expired offsets and groups with nothing left. Groups with records in flight wait for the next pass."""
        if self._expired:
            self._delete_piece(step)
        else:
            self._look_on(step)
        if self._expired or self._left:
            self._deadlines.set(EXPIRY_KEY, Millis(step.now + _SOON_MS))
        else:
            self.arm(step)

    def _look_on(self, step: Step) -> None:
        if not self._left:
            self._left = in_order(self._groups)[::-1]
        looked_at = self._deleted = 0
        while (
            self._left
            and not self._expired
            and looked_at < OFFSETS_AT_ONCE
            and self._deleted < offsets.TOMBSTONES_AT_ONCE
        ):
            group = self._groups.get(self._left.pop())
            if group is not None:
                looked_at += 1 + len(group.offsets)
                self._look_at(group, step)

    def _delete_piece(self, step: Step) -> None:
        """Delete a piece of the offsets that were found to have expired, if they still have."""
        group_id, piece = self._expired.popleft()
        group = self._groups.get(group_id)
        if group is None or group.is_dead or group.is_changing or self._readings.begin(group, None, step):
            return
        idle = [each for each in piece if each not in group.offsets_in_flight]
        due = offsets.expired(group, self._config, step.timestamp, idle)
        if due:
            offsets.expire(group, due, step)

    def look_again(self, group_id: str, step: Step) -> None:
        """Look at a group whose members' subscriptions have been read."""
        group = self._groups.get(group_id)
        if group is not None:
            self._look_at(group, step)
        if self._expired:
            self._deadlines.set(EXPIRY_KEY, Millis(step.now + _SOON_MS))

    def _look_at(self, group: Group, step: Step) -> None:
        if group.records_in_flight or isinstance(group.kind, ShareGroup):  # a share group is kept until it is deleted
            return
        if group.offsets and self._readings.begin(group, None, step):
            return
        partitions = offsets.expired(group, self._config, step.timestamp)
        has_pending = isinstance(group.kind, ClassicGroup) and bool(group.kind.pending_members)
        ends = group.is_empty and not has_pending and not group.is_changing
        if ends and len(partitions) == len(group.offsets) and not group.unstable:
            self._deletions.bury([group], step)
            self._deleted += 1 + len(partitions)
        elif partitions:
            step.note(group, f"{len(partitions)} offsets have expired")
            first, *others = offsets.pieces(group, partitions)
            offsets.expire(group, first, step)
            self._expired.extend((group.group_id, piece) for piece in others)
            self._deleted += len(partitions)
