"""Reads what the members of large classic groups subscribe to, apart from the coordinator.

A broker needs it only for deleting and expiring offsets, and reads it then. What members say may be megabytes long: it
is read in a thread, and what needs it is attempted again afterwards. If the members have changed by then, it is read
again. The result is kept for a while, since deletions come in pieces, but only for one group of the whole node
(`memory.Room`): it takes many times the memory of what was read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

from kraftpy.groups.classic.group import ClassicGroup
from kraftpy.groups.events import Compute, Computed, Request
from kraftpy.groups.group import Group
from kraftpy.groups.memory import Room
from kraftpy.groups.step import Step
from kraftpy.groups.subscription import topics_of_all


@dataclass(slots=True, kw_only=True)
class Reading:
    """What is being read of one group, and who waits for it."""

    group_id: str
    token: int
    encoded: tuple[bytes, ...]
    events: list[Request] = field(default_factory=list)
    is_for_expiry: bool = False


class Readings:
    """The readings of one coordinator."""

    def __init__(self, groups: Mapping[str, Group], room: Room) -> None:
        self._groups = groups
        self._room = room
        self._last_token = 0
        self._asked: dict[str, Reading] = {}

    def begin(self, group: Group | None, event: Request | None, step: Step) -> bool:
        """Return True if what the members subscribe to must be read first, which begins now.

        The request is in `computed` afterwards; None stands for the expiry of offsets.
        """
        if group is None or not isinstance(group.kind, ClassicGroup) or not group.kind.must_be_read:
            return False
        reading = self._asked.get(group.group_id)
        if reading is None:
            self._last_token -= 1  # the tokens of decisions are positive
            encoded = group.kind.encoded_subscriptions()
            reading = Reading(group_id=group.group_id, token=self._last_token, encoded=encoded)
            self._asked[group.group_id] = reading
            function = partial(topics_of_all, reading.encoded)
            step.effects.append(Compute(group_id=group.group_id, token=reading.token, function=function))
        if event is None:
            reading.is_for_expiry = True
        else:
            reading.events.append(event)
        return True

    def computed(self, event: Computed) -> Reading | None:
        """Take over the result of a reading, and return the reading; None if the event is about something else."""
        reading = self._asked.get(event.group_id)
        if reading is None or reading.token != event.token:
            return None
        del self._asked[event.group_id]
        group = self._groups.get(event.group_id)
        if event.error is None and group is not None and isinstance(group.kind, ClassicGroup):
            if isinstance(self._room.last_read, ClassicGroup):
                self._room.last_read.read = None
            group.kind.read = reading.encoded, event.result
            self._room.last_read = group.kind
        return reading

    def waiting(self) -> list[Request]:
        """Return the requests that wait for a reading."""
        return [event for reading in self._asked.values() for event in reading.events]
