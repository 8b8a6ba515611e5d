"""One call of `GroupCoordinator.step`: the time at which it happens and the effects it produces."""

from __future__ import annotations

from collections.abc import Sequence

from kraftpy.groups.appends import Appends, Purpose, group_ids
from kraftpy.groups.events import Effect, GroupResponse, Note, Reply, Survived
from kraftpy.groups.group import Group, Kind
from kraftpy.groups.records import Record
from kraftpy.types import Millis


class Step:
    """Collects effects in order. `now` drives timers; `timestamp` (the wall clock) goes into records."""

    __slots__ = ("_appends", "_groups", "effects", "now", "timestamp")

    def __init__(self, now: Millis, timestamp: Millis, appends: Appends, groups: dict[str, Group]) -> None:
        self.now = now
        self.timestamp = timestamp
        self.effects: list[Effect] = []
        self._appends = appends
        self._groups = groups

    def renew(self, later: Step) -> None:
        """Continue as part of a later step: take its time, and add to its effects."""
        self.now, self.timestamp, self.effects = later.now, later.timestamp, later.effects

    def reply(self, request_id: int, response: GroupResponse) -> None:
        """Answer a request. Every request is answered exactly once."""
        self.effects.append(Reply(request_id=request_id, response=response))

    def append(self, records: Sequence[Record], purpose: Purpose) -> None:
        """Have records written. Their meaning takes effect when they are durable."""
        for group_id in group_ids(purpose):
            self._groups[group_id].records_in_flight += 1
        self.effects.append(self._appends.add(tuple(records), purpose))

    def survived(self, kind: str, group_id: str, error: Exception) -> None:
        """Report an unexpected error that was contained: it cost one request or timer of this kind."""
        self.effects.append(Survived(kind=kind, group_id=group_id, error=error))

    def has_answered(self, request_id: int) -> bool:
        """Return True if the request was answered in this step."""
        return any(isinstance(each, Reply) and each.request_id == request_id for each in self.effects)

    def note(self, group: Group | Kind, text: str) -> None:
        """Write a line about the group to the broker's log."""
        self.effects.append(Note(group_id=group.group_id, text=text))
