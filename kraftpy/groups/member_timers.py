"""Timers for members of groups that the coordinator assigns to: sessions, and timeouts for giving up what was revoked.

A member must be heard from within its session timeout. A member asked to give something up has a separate timeout for
that. A timer that runs out goes into the group's queue, and what has happened in the meantime decides its effect
(`why_removed`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Protocol

from kraftpy.groups.deadlines import Deadlines, Key
from kraftpy.groups.group import Group
from kraftpy.groups.step import Step
from kraftpy.types import Millis

AGAIN_MS = 1_000
RESTORED_AT_ONCE = 100
"""How many members' timers are started before other requests may be served."""


class Members(Protocol):
    """The durable state of a group's members."""

    @property
    def members(self) -> Mapping[str, object]:
        """Members by id."""

    def revocation_ms(self, member_id: str) -> int | None:
        """How long the member may take to give up what was revoked; None if nothing was."""


class MemberClocks:
    """The timers of all members of one kind of group."""

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
        """`session` and `revocation` are kinds of deadlines, `held` says what is given up; without them nothing is
        revoked.

        `of` returns a group's members, or None if the group is of another kind; `session_ms` returns a member's session
        timeout.
        """
        self._deadlines = deadlines
        self._session = session
        self._revocation = revocation
        self._held = held
        self._of = of
        self._session_ms = session_ms

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of deadlines used here."""
        return (self._session, self._revocation) if self._revocation else (self._session,)

    def touch(self, group: Group, member_id: str, step: Step) -> None:
        """Restart the session of a member that was heard from."""
        known = self._of(group)
        if known is not None and member_id in known.members:
            deadline = Millis(step.now + self._session_ms(group, member_id))
            self._deadlines.set(Key(group.group_id, self._session, member_id), deadline)

    def begin_session(self, group: Group, member_id: str, session_ms: int, step: Step) -> None:
        """Start a session that ends this much later."""
        self._deadlines.set(Key(group.group_id, self._session, member_id), Millis(step.now + session_ms))

    def restore(self, group: Group, now: Callable[[], Step]) -> Iterator[int]:
        """Start the timers of the members of a group just loaded; yield their number after every few of them."""
        known = self._of(group)
        assert known is not None
        members = sorted(known.members)
        for start in range(0, len(members), RESTORED_AT_ONCE):
            some = members[start : start + RESTORED_AT_ONCE]
            for member_id in some:
                self.touch(group, member_id, now())
            self._arm_revocations(group, some, now())
            yield len(some)

    def stored(self, group: Group, changed: Iterable[str], step: Step) -> None:
        """Update the timers of members whose durable state changed or was deleted."""
        known = self._of(group)
        for member_id in changed:
            session = Key(group.group_id, self._session, member_id)
            if known is None or member_id not in known.members:
                self._deadlines.cancel(session)
            elif session not in self._deadlines and session not in group.waiting:
                self.touch(group, member_id, step)
        self._arm_revocations(group, changed, step)

    def _arm_revocations(self, group: Group, member_ids: Iterable[str], step: Step) -> None:
        if not self._revocation:
            return
        known = self._of(group)
        for member_id in member_ids:
            key = Key(group.group_id, self._revocation, member_id)
            revocation_ms = None if known is None else known.revocation_ms(member_id)
            if revocation_ms is None:
                self._deadlines.cancel(key)
            else:
                self._deadlines.set(key, Millis(step.now + revocation_ms))

    def give_up(self, group: Group, step: Step) -> None:
        """Postpone the removal of members: nothing could be stored."""
        for key in self.all(group):
            if key not in self._deadlines:
                self._deadlines.set(key, Millis(step.now + AGAIN_MS))

    def again(self, key: Key, step: Step) -> None:
        """Set the clock of `key` again for a little later, because the event could not be decided."""
        self._deadlines.set(key, Millis(step.now + AGAIN_MS))

    def why_removed(self, known: Members, key: Key) -> str | None:
        """Say why a member whose timer ran out is removed; None if it left or was heard from in the meantime."""
        if key.member_id not in known.members or key in self._deadlines:
            return None
        if key.kind != self._revocation:
            return "was silent for too long"
        if known.revocation_ms(key.member_id) is None:
            return None
        return f"did not give up its {self._held} in time"

    def expected(self, group: Group) -> set[Key]:
        """The deadlines the group must have, apart from those already in its queue. For tests and simulations."""
        expected = self.all(group)
        if group.is_changing:  # deadlines that are due are waiting or being stored
            return {key for key in expected if key in self._deadlines}
        return set(expected)

    def all(self, group: Group) -> list[Key]:
        """Every timer of the group's members."""
        known = self._of(group)
        if known is None:
            return []
        revoking = [member_id for member_id in known.members if known.revocation_ms(member_id) is not None]
        sessions = [Key(group.group_id, self._session, member_id) for member_id in known.members]
        return sessions + [Key(group.group_id, self._revocation, member_id) for member_id in revoking]
