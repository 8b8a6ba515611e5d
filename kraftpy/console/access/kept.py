"""The state of a console's access control: sessions, attempts to sign in, and the ways to prove a name."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from typing import Final

from starlette.requests import Request

from kraftpy.console.access.attempts import Attempts
from kraftpy.console.access.audit import Audit
from kraftpy.console.access.cookies import Cookies
from kraftpy.console.access.origins import Origins
from kraftpy.console.access.passwords import ClusterPasswords, PasswordCheck, Unavailable, WrongPassword
from kraftpy.console.access.provider import Provider
from kraftpy.console.access.sessions import Session, Sessions
from kraftpy.console.access.settings import AccessSettings
from kraftpy.console.access.users import Proof

logger = logging.getLogger(__name__)

CHECK_SECONDS: Final = 300.0
"""How long a session goes on before its password is tried again: a user who is removed is out after that."""


class Access:
    """The state of one console's access control. `clock` gives seconds; `ended` is called with ended sessions."""

    def __init__(
        self,
        settings: AccessSettings,
        *,
        clock: Callable[[], float] = time.monotonic,
        passwords: PasswordCheck | None = None,
        provider: Provider | None = None,
    ) -> None:
        self.settings = settings
        self.clock = clock
        self.ended: list[Callable[[Session], None]] = []
        """Called with each session that has ended."""
        self.sessions = Sessions(
            clock,
            idle_seconds=settings.idle_seconds,
            most_seconds=settings.most_seconds,
            ended=lambda session: [each(session) for each in self.ended].clear(),
        )
        self.attempts = Attempts(clock)
        self.audit = Audit(clock)
        self.cookies = Cookies(is_secure=settings.is_secure, port=settings.port)
        self.origins = Origins(settings)
        self.passwords: PasswordCheck | None = passwords
        if passwords is None and settings.has_passwords:
            self.passwords = ClusterPasswords(settings.client_options, settings.mechanism)
        self.provider: Provider | None = provider
        if provider is None and settings.oidc is not None:
            self.provider = Provider(settings.oidc, clock)
        self._checks: set[asyncio.Task[None]] = set()

    def session_of(self, request: Request, *, is_use: bool = True) -> Session | None:
        """Return the session of a request, and try its password again if it is time."""
        session = self.sessions.find(request.cookies.get(self.cookies.session), is_use=is_use)
        if session is None or session.user.proof is not Proof.PASSWORD:
            return session
        now = self.clock()
        if now - session.checked_at >= CHECK_SECONDS:
            session.checked_at = now
            check = asyncio.create_task(self._check(session), name="password of a console's session")
            self._checks.add(check)
            check.add_done_callback(self._checks.discard)
        return session

    async def close(self) -> None:
        """End all sessions."""
        for check in list(self._checks):
            check.cancel()
        await asyncio.gather(*self._checks, return_exceptions=True)
        self.sessions.end_all()

    async def _check(self, session: Session) -> None:
        """End a session whose password the cluster no longer accepts; it goes on while the cluster cannot be asked."""
        assert self.passwords is not None
        options = session.signed_in.client_options
        with contextlib.suppress(Unavailable):
            try:
                await self.passwords.check(options["sasl_username"], options["sasl_password"])
            except WrongPassword:
                logger.warning("a session of %r has ended: the cluster refuses its password", session.user.name)
                self.sessions.end(session)
