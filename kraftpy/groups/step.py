"""One call of `GroupCoordinator.step`: the time it happens at, and what follows from it."""

from __future__ import annotations

from collections.abc import Sequence

from kraftpy.groups.appends import Appends, Purpose, group_ids
from kraftpy.groups.events import Effect, GroupResponse, Note, Reply, Survived
from kraftpy.groups.group import Group
from kraftpy.groups.records import Record
from kraftpy.types import Millis


class Turn:
    """Collects effects in their order. `now` drives timers, `timestamp` (the wall clock) goes into records."""

    __slots__ = ("_appends", "_groups", "effects", "now", "timestamp")

    def __init__(self, now: Millis, timestamp: Millis, appends: Appends, groups: dict[str, Group]) -> None:
        self.now = now
        self.timestamp = timestamp
        self.effects: list[Effect] = []
        self._appends = appends
        self._groups = groups

    def reply(self, request_id: int, response: GroupResponse) -> None:
        """Answer a request, now and only now."""
        self.effects.append(Reply(request_id=request_id, response=response))

    def append(self, records: Sequence[Record], purpose: Purpose) -> None:
        """Have records written; what they mean happens when they are durable."""
        for group_id in group_ids(purpose):
            self._groups[group_id].records_in_flight += 1
        self.effects.append(self._appends.add(tuple(records), purpose))

    def survived(self, kind: str, group_id: str, error: Exception) -> None:
        """An unexpected error has cost one thing of this kind, and nothing else of the group."""
        self.effects.append(Survived(kind=kind, group_id=group_id, error=error))

    def has_answered(self, request_id: int) -> bool:
        """Whether the request was answered in this step."""
        return any(isinstance(each, Reply) and each.request_id == request_id for each in self.effects)

    def note(self, group: Group, text: str) -> None:
        """Tell whoever reads the broker's log."""
        self.effects.append(Note(group_id=group.group_id, text=text))
