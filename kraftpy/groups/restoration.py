"""Restores groups whose records were replayed, in pieces: their volatile state, and the clocks of their members.

Nothing is served until all are restored. The effects are kept until then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from kraftpy.groups.change_queue import ChangeQueue
from kraftpy.groups.classic.group import ClassicGroup
from kraftpy.groups.classic.rebalance import Rebalance
from kraftpy.groups.config import GroupConfig
from kraftpy.groups.events import Effect
from kraftpy.groups.group import Group
from kraftpy.groups.memory import Usage
from kraftpy.groups.step import Step

MEMBERS_AT_ONCE: Final = 1_000
"""How many members or groups are restored before other coordinators are served."""


class Restoration:
    """The restoration of one coordinator's groups."""

    def __init__(
        self,
        config: GroupConfig,
        groups: Mapping[str, Group],
        usage: Usage,
        queues: Sequence[ChangeQueue[Any, Any]],
        rebalance: Rebalance,
    ) -> None:
        self._config = config
        self._groups = groups
        self._usage = usage
        self._queues = queues
        self._rebalance = rebalance
        self._pieces: Iterator[int] | None = None
        self._step: Step | None = None
        self._effects: list[Effect] = []

    def go_on(self, step: Step) -> bool:
        """Restore some members or groups; return True if there are more."""
        if self._pieces is None:
            self._pieces = self._restore_all(lambda: self._now)
        self._step = step
        done = 0
        for count in self._pieces:
            done += count
            if done >= MEMBERS_AT_ONCE:
                break
        self._step = None
        self._effects += step.effects
        return done >= MEMBERS_AT_ONCE

    def take_effects(self) -> list[Effect]:
        """Take the effects of the restoration."""
        taken, self._effects = self._effects, []
        return taken

    @property
    def _now(self) -> Step:
        assert self._step is not None
        return self._step

    def _restore_all(self, now: Callable[[], Step]) -> Iterator[int]:
        for group_id in in_order(self._groups):
            group = self._groups.get(group_id)
            if group is None:
                continue
            try:
                yield from self._restore(group, now)
            except Exception as error:  # the stored members cannot be used, and have to join again
                if isinstance(group.kind, ClassicGroup):
                    self._rebalance.dissolve(group.kind, now())
                now().survived("a group's restoration", group.group_id, error)
            self._usage.count(group)
            yield 1

    def _restore(self, group: Group, now: Callable[[], Step]) -> Iterator[int]:
        for queue in self._queues:
            if queue.of(group) is not None:
                yield from queue.restore(group, now)
                return
        classic = group.classic_or_empty()
        classic.restore()
        for member in list(classic.members.values()):
            self._rebalance.touch(classic, member, now())
            yield 1
        if len(classic.members) > self._config.group_max_size:
            reason = f"{len(classic.members)} members exceed the maximum size"
            self._rebalance.prepare(classic, now(), reason)


def in_order(groups: Mapping[str, Group]) -> list[str]:
    """Return the ids of all groups, sorted unless sorting would take long."""
    return sorted(groups) if len(groups) <= _SORTED else list(groups)


_SORTED: Final = 10_000
