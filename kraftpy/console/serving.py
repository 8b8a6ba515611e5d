"""Serves the console over HTTP with uvicorn, until a signal or the end of the process that started it."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Any

import uvicorn
from starlette.types import ASGIApp


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


def serve(app: ASGIApp, opened: socket.socket, ready: Callable[[], None], tls: ssl.SSLContext | None = None) -> None:
    """Serve until SIGINT or SIGTERM, over TLS if there is a context; `ready` is called once requests are answered."""
    settings: dict[str, Any] = {
        "log_level": "warning",
        "access_log": False,
        "server_header": False,
        "proxy_headers": False,  # anyone could write them
        "ssl_context_factory": None if tls is None else lambda config, default: tls,
        "timeout_graceful_shutdown": 2,
        "limit_concurrency": 200,
        "h11_max_incomplete_event_size": 65_536,
        "ws": "none",
        "lifespan": "on",
        "loop": "asyncio",
        "http": "h11",
    }
    server = _Server(uvicorn.Config(app, **settings), ready)
    with opened:
        asyncio.run(server.serve(sockets=[opened]))


class _Server(uvicorn.Server):
    """A server that says when it is ready."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        if self.started:
            self._ready()
