"""Reads the subscriptions of large classic groups, apart from the coordinator.

A broker needs subscriptions only for deleting and expiring offsets, and reads them then. They may be megabytes long, so
they are read in a thread, and the request is attempted again afterwards. If the members have changed by then, their
subscriptions are read again. The result is kept for a while, since deletions come in pieces, but only for one group of
the whole node (`memory.Room`): it takes many times the memory of the subscriptions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from kraftpy.groups.classic.group import ClassicGroup
from kraftpy.groups.events import Compute, Computed, Request
from kraftpy.groups.group import Group
from kraftpy.groups.memory import Room
from kraftpy.groups.routing import refuse
from kraftpy.groups.step import Step
from kraftpy.groups.subscription import topics_of_all
from kraftpy.protocol.errors import ErrorCode


@dataclass(slots=True, kw_only=True)
class Reading:
    """The subscriptions of one group that are being read, and the requests that wait for them."""

    token: int
    encoded: tuple[bytes, ...]
    events: list[Request] = field(default_factory=list)
    is_for_expiry: bool = False


class Readings:
    """The readings of one coordinator."""

    def __init__(self, groups: Mapping[str, Group], room: Room, attempt: Callable[[Request, Step], None]) -> None:
        """`attempt` handles a request again once it can be decided."""
        self._attempt = attempt
        self.for_expiry: Callable[[str, Step], None] = lambda group_id, step: None
        """Continues the expiry of a group's offsets."""
        self._groups = groups
        self._room = room
        self._last_token = 0
        self._asked: dict[str, Reading] = {}

    def begin(self, group: Group | None, event: Request | None, step: Step) -> bool:
        """Return True if the group's subscriptions must be read first; this begins now.

        The request is attempted again afterwards; None stands for the expiry of offsets.
        """
        if group is None or not isinstance(group.kind, ClassicGroup) or not group.kind.must_be_read:
            return False
        reading = self._asked.get(group.group_id)
        if reading is None:
            self._last_token -= 1  # the tokens of decisions are positive
            encoded = group.kind.encoded_subscriptions()
            reading = Reading(token=self._last_token, encoded=encoded)
            self._asked[group.group_id] = reading
            function = partial(topics_of_all, reading.encoded)
            step.effects.append(Compute(group_id=group.group_id, token=reading.token, function=function))
        if event is None:
            reading.is_for_expiry = True
        else:
            reading.events.append(event)
        return True

    def computed(self, event: Computed, step: Step) -> bool:
        """Continue the work that waits for a reading; return False if the event is about something else."""
        reading = self._asked.get(event.group_id)
        if reading is None or reading.token != event.token:
            return False
        del self._asked[event.group_id]
        if event.error is not None:
            step.survived("reading subscriptions", event.group_id, event.error)
            for request in reading.events:
                refusal = refuse(request.message, request.api_version, ErrorCode.UNKNOWN_SERVER_ERROR)
                step.reply(request.request_id, refusal)
            return True
        group = self._groups.get(event.group_id)
        if group is not None and isinstance(group.kind, ClassicGroup):
            self._keep(group.kind, reading.encoded, event.result)
        for request in reading.events:
            self._attempt(request, step)
        if reading.is_for_expiry:
            self.for_expiry(event.group_id, step)
        return True

    def _keep(self, group: ClassicGroup, encoded: tuple[bytes, ...], topics: frozenset[str] | None) -> None:
        if isinstance(self._room.last_read, ClassicGroup):
            self._room.last_read.read = None
        group.read = encoded, topics
        self._room.last_read = group

    def waiting(self) -> list[Request]:
        """Return the requests that wait for a reading."""
        return [event for reading in self._asked.values() for event in reading.events]
