"""Expires offsets that nobody needs any more, and groups of which nothing is left, from time to time (KIP-211).

A look at all groups is made in pieces of about `OFFSETS_AT_ONCE` offsets, each at a tick of its own, so that others are
served in between. A look covers the groups that exist when it begins.
"""

from __future__ import annotations

from typing import Final

from kraftpy.groups import offsets
from kraftpy.groups.config import GroupConfig
from kraftpy.groups.deadlines import Deadlines, Key
from kraftpy.groups.deletion import Deletions
from kraftpy.groups.group import Group
from kraftpy.groups.step import Turn
from kraftpy.types import Millis

EXPIRY_KEY: Final = Key("", "expiry")
OFFSETS_AT_ONCE: Final = 10_000
_SOON_MS: Final = 1


class Expiry:
    """The looks at the groups of one coordinator."""

    def __init__(
        self, config: GroupConfig, groups: dict[str, Group], deadlines: Deadlines, deletions: Deletions
    ) -> None:
        self._config = config
        self._groups = groups
        self._deadlines = deadlines
        self._deletions = deletions
        self._left: list[str] = []
        """The groups that this look has yet to come to, the last first."""

    def arm(self, turn: Turn) -> None:
        """Have the next look when it is time."""
        self._deadlines.set(EXPIRY_KEY, Millis(turn.now + max(self._config.offsets_retention_check_interval_ms, 1)))

    def look(self, turn: Turn) -> None:
        """Delete offsets nobody needs, and groups with nothing left. Groups with records in flight have time."""
        if not self._left:
            self._left = sorted(self._groups, reverse=True)
        looked_at = 0
        while self._left and looked_at < OFFSETS_AT_ONCE:
            group = self._groups.get(self._left.pop())
            if group is not None:
                looked_at += 1 + len(group.offsets)
                self._look_at(group, turn)
        if self._left:
            self._deadlines.set(EXPIRY_KEY, Millis(turn.now + _SOON_MS))
        else:
            self.arm(turn)

    def _look_at(self, group: Group, turn: Turn) -> None:
        if group.records_in_flight or group.share is not None:  # a share group is kept until it is deleted
            return
        partitions = offsets.expired(group, self._config, turn.timestamp)
        ends = group.is_empty and not group.pending_members
        if ends and len(partitions) == len(group.offsets) and not group.unstable:
            self._deletions.bury([group], turn)
        elif partitions:
            offsets.expire(group, partitions, turn)
