"""Clocks of the members of groups that the coordinator itself assigns to: who is silent, who does not give up.

A member that is heard of has its session timeout until it has to be heard of again. One that was asked to give up
something has a timeout of its own for that. When one of them runs out it comes into the group's line, and what has
happened meanwhile decides (`why_removed`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from kraftpy.groups.deadlines import Deadlines, Key
from kraftpy.groups.group import Group
from kraftpy.groups.step import Turn
from kraftpy.types import Millis

AGAIN_MS = 1_000


class Members(Protocol):
    """What the log says of the members of one group."""

    @property
    def members(self) -> Mapping[str, object]:
        """By id."""

    def revocation_ms(self, member_id: str) -> int | None:
        """How long the member may take to give up what it was asked to; None where that is nothing."""


class MemberClocks:
    """The clocks of all members of one kind of groups."""

    def __init__(
        self,
        deadlines: Deadlines,
        *,
        session: str,
        revocation: str = "",
        held: str = "",
        of: Callable[[Group], Members | None],
        session_ms: Callable[[Group, str], int],
    ) -> None:
        """`session` and `revocation` name the deadlines, `held` what is given up; without, nobody gives up anything.

        `of` gives a group's members, None where it is of another kind; `session_ms` the session timeout of a member.
        """
        self._deadlines = deadlines
        self._session = session
        self._revocation = revocation
        self._held = held
        self._of = of
        self._session_ms = session_ms

    @property
    def kinds(self) -> tuple[str, ...]:
        """Of their deadlines."""
        return (self._session, self._revocation) if self._revocation else (self._session,)

    def touch(self, group: Group, member_id: str, turn: Turn) -> None:
        """It was heard of."""
        known = self._of(group)
        if known is not None and member_id in known.members:
            deadline = Millis(turn.now + self._session_ms(group, member_id))
            self._deadlines.set(Key(group.group_id, self._session, member_id), deadline)

    def begin_session(self, group: Group, member_id: str, session_ms: int, turn: Turn) -> None:
        """It has so long from now on."""
        self._deadlines.set(Key(group.group_id, self._session, member_id), Millis(turn.now + session_ms))

    def restore(self, group: Group, turn: Turn) -> None:
        """The group was loaded: its members' clocks begin now."""
        known = self._of(group)
        assert known is not None
        for member_id in sorted(known.members):
            self.touch(group, member_id, turn)
        self._arm_revocations(group, sorted(known.members), turn)

    def stored(self, group: Group, changed: Iterable[str], turn: Turn) -> None:
        """Of these members the log says something new, or nothing any more."""
        known = self._of(group)
        for member_id in changed:
            session = Key(group.group_id, self._session, member_id)
            if known is None or member_id not in known.members:
                self._deadlines.cancel(session)
            elif session not in self._deadlines and session not in group.waiting:
                self.touch(group, member_id, turn)
        self._arm_revocations(group, changed, turn)

    def _arm_revocations(self, group: Group, member_ids: Iterable[str], turn: Turn) -> None:
        if not self._revocation:
            return
        known = self._of(group)
        for member_id in member_ids:
            key = Key(group.group_id, self._revocation, member_id)
            revocation_ms = None if known is None else known.revocation_ms(member_id)
            if revocation_ms is None:
                self._deadlines.cancel(key)
            else:
                self._deadlines.set(key, Millis(turn.now + revocation_ms))

    def give_up(self, group: Group, turn: Turn) -> None:
        """Nothing could be stored: members that were to be removed are so a little later."""
        for key in self.all(group):
            if key not in self._deadlines:
                self._deadlines.set(key, Millis(turn.now + AGAIN_MS))

    def again(self, key: Key, turn: Turn) -> None:
        """Set the clock of `key` again, for a little later, because the event could not be decided."""
        self._deadlines.set(key, Millis(turn.now + AGAIN_MS))

    def why_removed(self, known: Members, key: Key) -> str | None:
        """Why the member whose clock has run out is removed; None where it has gone or has been heard of meanwhile."""
        if key.member_id not in known.members or key in self._deadlines:
            return None
        if key.kind != self._revocation:
            return "was silent for too long"
        if known.revocation_ms(key.member_id) is None:
            return None
        return f"did not give up its {self._held} in time"

    def expected(self, group: Group) -> set[Key]:
        """What must fall due for the group; whatever waits in its line has done so. For tests and simulations."""
        expected = self.all(group)
        if group.is_changing:  # what is due waits, or is being stored
            return {key for key in expected if key in self._deadlines}
        return set(expected)

    def all(self, group: Group) -> list[Key]:
        """Every clock that the group's members have."""
        known = self._of(group)
        if known is None:
            return []
        revoking = [member_id for member_id in known.members if known.revocation_ms(member_id) is not None]
        sessions = [Key(group.group_id, self._session, member_id) for member_id in known.members]
        return sessions + [Key(group.group_id, self._revocation, member_id) for member_id in revoking]
