"""The console's connections: requests that arrive in time, and a certificate that is renewed with its file.

A connection whose request has not arrived within `REQUEST_SECONDS`, counted from its first byte, is closed; bodies have
a bound of their own (`access.guard`). Between two requests, uvicorn waits for `IDLE_SECONDS`.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import Any, Final

from uvicorn.protocols.http.h11_impl import H11Protocol

from kraftpy.broker.security.certificate import Certificate

REQUEST_SECONDS: Final = 15.0
IDLE_SECONDS: Final = 20
LOOK_SECONDS: Final = 5.0
"""How often the files of the certificate are looked at."""


class TimedProtocol(H11Protocol):
    """Uvicorn's connection, with a bound on the time in which a request's head arrives."""

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Begin to wait for a request."""
        super().connection_made(transport)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no longer."""
        self._stop()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take what has arrived; wait for the rest of a request's head if it lacks some."""
        super().data_received(data)
        self._watch()

    def _watch(self) -> None:
        if not self._is_waiting():
            self._stop()
        elif self._timer is None:
            self._timer = self.loop.call_later(REQUEST_SECONDS, self._late)

    def _is_waiting(self) -> bool:
        """Return whether no request is being answered."""
        cycle: Any = self.cycle  # None before the first request
        return cycle is None or bool(cycle.response_complete)

    def _late(self) -> None:
        self._timer = None
        if self._is_waiting():
            self.transport.abort()

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def context_of(certificate: Certificate) -> ssl.SSLContext:
    """Return the context for a server: each handshake shows the certificate as it is then."""
    context = certificate.server

    def choose(connection: ssl.SSLObject, name: str | None, base: ssl.SSLContext) -> None:
        if certificate.server is not base:
            connection.context = certificate.server

    context.sni_callback = choose
    return context


async def keep_renewing(certificate: Certificate) -> None:
    """Look at the certificate's files until cancelled."""
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        await asyncio.to_thread(certificate.renew)
