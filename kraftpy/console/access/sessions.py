"""The sessions of signed-in users: kept in this process only, under random ids that browsers hold in a cookie.

A session ends at sign-out, `idle_seconds` after its last use, `most_seconds` after its begin, when the cluster no
longer accepts its password, and with the process. Refreshes that a page makes by itself are not a use.

Bounds: `MOST_SESSIONS` in all and `MOST_OF_USER` of one user; a session more ends the one that is unused longest, the
user's own first. Only a sign-in begins a session, so strangers cannot push anyone out.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from kraftpy.console.access.users import SignedIn, User

MOST_SESSIONS: Final = 1_000
MOST_OF_USER: Final = 20
ID_BYTES: Final = 32


@dataclass(slots=True, kw_only=True, eq=False)
class Session:
    """One session. Times are seconds of the clock; `repr` shows no secrets."""

    id: str = field(repr=False)
    csrf_token: str = field(repr=False)
    signed_in: SignedIn
    begun_at: float
    used_at: float
    checked_at: float
    """When the cluster last accepted the user's password."""
    is_over: bool = False

    @property
    def user(self) -> User:
        """The session's user."""
        return self.signed_in.user


class Sessions:
    """All sessions, the one that is unused longest first. `ended` is called with each session that ends."""

    def __init__(
        self,
        clock: Callable[[], float],
        *,
        idle_seconds: float,
        most_seconds: float,
        ended: Callable[[Session], None] = lambda session: None,
    ) -> None:
        self._clock = clock
        self._idle_seconds = idle_seconds
        self._most_seconds = most_seconds
        self._ended = ended
        self._sessions: dict[str, Session] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(self, signed_in: SignedIn) -> Session:
        """Begin a session under a new id."""
        self._end_old()
        user = signed_in.user
        own = [each for each in self._sessions.values() if (each.user.name, each.user.proof) == (user.name, user.proof)]
        if len(own) >= MOST_OF_USER:
            self.end(own[0])
        elif len(self._sessions) >= MOST_SESSIONS:
            self.end(next(iter(self._sessions.values())))
        now = self._clock()
        session = Session(
            id=secrets.token_urlsafe(ID_BYTES),
            csrf_token=secrets.token_urlsafe(ID_BYTES),
            signed_in=signed_in,
            begun_at=now,
            used_at=now,
            checked_at=now,
        )
        self._sessions[session.id] = session
        return session

    def find(self, session_id: str | None, *, is_use: bool = True) -> Session | None:
        """Return the session with an id, if it goes on. Unless `is_use` is false, it is used now."""
        session = None if session_id is None else self._sessions.get(session_id)
        if session is None:
            return None
        now = self._clock()
        if self._is_old(session, now):
            self.end(session)
            return None
        if is_use:
            session.used_at = now
            self._sessions[session.id] = self._sessions.pop(session.id)
        return session

    def end(self, session: Session) -> None:
        """End a session. Nothing happens if it is over."""
        if self._sessions.pop(session.id, None) is not None:
            session.is_over = True
            self._ended(session)

    def end_all(self) -> None:
        """End all sessions."""
        for session in list(self._sessions.values()):
            self.end(session)

    def _is_old(self, session: Session, now: float) -> bool:
        return now - session.used_at >= self._idle_seconds or now - session.begun_at >= self._most_seconds

    def _end_old(self) -> None:
        now = self._clock()
        for session in [each for each in self._sessions.values() if self._is_old(each, now)]:
            self.end(session)
