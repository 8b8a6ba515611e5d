"""Serves the console over HTTP with uvicorn, until a signal or the end of the process that started it."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from typing import Any, Final

import uvicorn
from starlette.types import ASGIApp

from kraftpy.broker.security.certificate import Certificate
from kraftpy.console.connections import IDLE_SECONDS, TimedProtocol, context_of, keep_renewing

_INPUT: Final = 0
"""The descriptor of standard input."""


def open_socket(host: str, port: int) -> socket.socket:
    """Return a socket that listens; port 0 picks any free one. Raises OSError."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    opened = socket.socket(family, kind, protocol)
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind(address)
    except OSError:
        opened.close()
        raise
    return opened


def serve(
    app: ASGIApp,
    opened: socket.socket,
    ready: Callable[[], None],
    certificate: Certificate | None = None,
    *,
    until_input_ends: bool = False,
) -> None:
    """Serve until SIGINT or SIGTERM, over TLS if there is a certificate; `ready` is called once requests are answered.

    With `until_input_ends`, also the end of standard input ends it: it is a pipe from the process that started this.
    """
    settings: dict[str, Any] = {
        "log_level": "warning",
        "log_config": None,  # its lines go where all others go
        "access_log": False,
        "server_header": False,
        "proxy_headers": False,  # anyone could write them
        "ssl_context_factory": None if certificate is None else lambda config, default: context_of(certificate),
        "timeout_graceful_shutdown": 2,
        "limit_concurrency": 200,
        "h11_max_incomplete_event_size": 65_536,
        "ws": "none",
        "lifespan": "on",
        "loop": "asyncio",
        "http": TimedProtocol,
        "timeout_keep_alive": IDLE_SECONDS,
    }
    server = _Server(uvicorn.Config(app, **settings), ready, certificate, until_input_ends)
    with opened:
        asyncio.run(server.serve(sockets=[opened]))


class _Server(uvicorn.Server):
    """A server that says when it is ready."""

    def __init__(
        self,
        config: uvicorn.Config,
        ready: Callable[[], None],
        certificate: Certificate | None,
        until_input_ends: bool,
    ) -> None:
        super().__init__(config)
        self._ready = ready
        self._certificate = certificate
        self._renewing: asyncio.Task[None] | None = None
        self._until_input_ends = until_input_ends

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        if self._until_input_ends:
            asyncio.get_running_loop().add_reader(_INPUT, self._read_input)
        await super().startup(sockets=sockets)
        if self.started:
            if self._certificate is not None:
                self._renewing = asyncio.create_task(keep_renewing(self._certificate), name="certificate")
            self._ready()

    def _read_input(self) -> None:
        """Throw away what comes; end with it."""
        if not os.read(_INPUT, 1_024):
            asyncio.get_running_loop().remove_reader(_INPUT)
            self.should_exit = True
