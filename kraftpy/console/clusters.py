"""The cluster as each user sees it: those who signed in with a password ask it themselves, all others as the console.

A user's requests are sent by a client that logs in as the user, so that the cluster's ACLs and quotas hold in the
console as everywhere else. Sessions of the same user share one client, which is opened for the first page and closed
with the session, or when it is one of more than `MOST_CLUSTERS` and unused longest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any, Final

from starlette.requests import Request

from kraftpy.console.access.sessions import Session
from kraftpy.console.cluster import Cluster

MOST_CLUSTERS: Final = 64
_Login = tuple[str, str]


class Clusters:
    """The console's own cluster, and those of its users, the one that is unused longest first."""

    def __init__(self, own: Cluster) -> None:
        self.own = own
        self._asked_by: ContextVar[Cluster] = ContextVar("cluster", default=own)
        self._users: dict[_Login, Cluster] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._users)

    @property
    def current(self) -> Cluster:
        """The cluster as the user of the current request sees it."""
        return self._asked_by.get()

    async def enter(self, request: Request) -> None:
        """Let the rest of a request ask the cluster as its user."""
        self._asked_by.set(await self._of(getattr(request.state, "session", None)))

    def leave(self, session: Session) -> None:
        """Close the client of a session that has ended. Other sessions of the user open another."""
        cluster = self._users.pop(_login(session.signed_in.client_options), None)
        if cluster is not None:
            self._close(cluster)

    async def close(self) -> None:
        """Close the clients of all users."""
        for cluster in self._users.values():
            self._close(cluster)
        self._users.clear()
        await asyncio.gather(*self._closing, return_exceptions=True)

    async def _of(self, session: Session | None) -> Cluster:
        if session is None or not session.signed_in.client_options:
            return self.own
        login = _login(session.signed_in.client_options)
        cluster = self._users.pop(login, None)
        if cluster is None:
            cluster = Cluster({**_shared(self.own.options), **session.signed_in.client_options})
            await cluster.__aenter__()
            if session.is_over:
                await cluster.__aexit__(None, None, None)
                return cluster
            if login in self._users:  # another request of the user was faster
                self._close(cluster)
                cluster = self._users.pop(login)
        self._users[login] = cluster
        while len(self._users) > MOST_CLUSTERS:
            self._close(self._users.pop(next(iter(self._users))))
        return cluster

    def _close(self, cluster: Cluster) -> None:
        task = asyncio.create_task(cluster.__aexit__(None, None, None), name="close a user's client")
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


def _login(options: Mapping[str, Any]) -> _Login:
    return options.get("sasl_username", ""), options.get("sasl_password", "")


def _shared(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of the console that a user's client has, too: all but its login."""
    return {name: value for name, value in options.items() if not name.startswith(("sasl_", "security_", "ssl_"))}
