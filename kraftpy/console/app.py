"""The console as an ASGI application: its routes, what they share, and how failures are shown.

    app = console_app(Cluster(options), allows_changes=True)

`access`, if given, is installed last: it signs people in, and may refuse a request before a page sees it. Every answer
carries the headers of `HEADERS`: a browser loads nothing from elsewhere, and runs no script but ours.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kraftpy.client.connection import UnsupportedVersion
from kraftpy.console.cluster import Cluster
from kraftpy.console.console import Console, console_of
from kraftpy.console.forms import Refused
from kraftpy.console.history import SAMPLE_SECONDS, History
from kraftpy.console.pages import brokers, messages, overview, topic_changes, topics
from kraftpy.console.routing import OPERATOR, Change, Page
from kraftpy.protocol.errors import ErrorCode, KafkaError

HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; object-src 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}
ROUTES: Final[tuple[Page | Change, ...]] = (
    Page("/", overview.overview),
    Page("/brokers", brokers.brokers),
    Page("/broker", brokers.broker),
    Change("/broker/alter", brokers.alter),
    Page("/topics", topics.topics),
    Page("/topic", topics.topic),
    Page("/topics/new", topic_changes.new, OPERATOR),
    Change("/topics/create", topic_changes.create),
    Change("/topic/alter", topic_changes.alter),
    Change("/topic/partitions", topic_changes.add_partitions),
    Change("/topic/delete", topic_changes.delete),
    Page("/messages", messages.messages),
    Page("/messages/tail", messages.tail),
    Page("/messages/download", messages.download),
    Page("/messages/new", messages.new, OPERATOR),
    Change("/messages/produce", messages.produce),
    Page("/message", messages.message),
    Page("/message/raw", messages.raw),
)
"""Every page and change, with the role it needs."""
_STATIC: Final = Path(__file__).parent / "static"
_STATUS: Final = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: 404,
    ErrorCode.GROUP_ID_NOT_FOUND: 404,
    ErrorCode.RESOURCE_NOT_FOUND: 404,
    ErrorCode.TRANSACTIONAL_ID_NOT_FOUND: 404,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: 403,
    ErrorCode.GROUP_AUTHORIZATION_FAILED: 403,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: 403,
    ErrorCode.NETWORK_EXCEPTION: 503,
    ErrorCode.REQUEST_TIMED_OUT: 503,
    ErrorCode.LEADER_NOT_AVAILABLE: 503,
    ErrorCode.COORDINATOR_NOT_AVAILABLE: 503,
}
"""Statuses of the cluster's refusals; all others are the request's fault: 400."""

Install = Callable[[Starlette], None]


def console_app(
    cluster: Cluster,
    *,
    allows_changes: bool = False,
    access: Install | None = None,
    sample_seconds: float = SAMPLE_SECONDS,
) -> Starlette:
    """Return the application. It connects to the cluster when it starts, and takes a sample every so many seconds."""
    history = History(cluster, sample_seconds)
    console = Console(cluster, history, allows_changes=allows_changes)

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with cluster, history.running():
            yield

    app = Starlette(
        routes=_routes(),
        lifespan=lifespan,
        middleware=[Middleware(_WithHeaders)],
        exception_handlers={
            Refused: _refused,
            KafkaError: _kafka_error,
            HTTPException: _http_error,
            TimeoutError: _timeout,
            Exception: _bug,
        },
    )
    app.state.console = console
    if access is not None:
        access(app)
    return app


def _routes() -> list[BaseRoute]:
    routes: list[BaseRoute] = [
        Route(each.path, _guarded(each), methods=[each.method], name=each.path) for each in ROUTES
    ]
    return [*routes, Mount("/static", StaticFiles(directory=_STATIC))]


def _guarded(page: Page | Change) -> Callable[[Request], Any]:
    """Return an endpoint that lets operators alone change something, and forgets answers once something changed."""

    async def endpoint(request: Request) -> Response:
        console = console_of(request)
        if page.role == OPERATOR and not console.may_change(request):
            raise Refused("this console is read-only for you: nothing was changed", 403)
        try:
            return await page.endpoint(request)
        finally:
            if isinstance(page, Change):
                console.cluster.changed()

    endpoint.role = page.role  # type: ignore[attr-defined]
    return endpoint


def _failure(request: Request, status: int, title: str, text: str) -> Response:
    return console_of(request).render(request, "failure.html", status, title=title, text=text)


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refused)
    return _failure(request, error.status, "Not done", str(error))


async def _kafka_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, KafkaError)
    if isinstance(error, UnsupportedVersion):
        return _failure(request, 501, "The cluster cannot do this", str(error))
    status = _STATUS.get(error.code, 400)
    title = "The cluster does not answer" if status == 503 else "The cluster refused"
    return _failure(request, status, title, str(error))


async def _timeout(request: Request, error: Exception) -> Response:
    return _failure(request, 503, "The cluster does not answer", "no answer came in time")


async def _bug(request: Request, error: Exception) -> Response:
    return _failure(request, 500, "The console failed", "what happened is in the console's log")


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _failure(request, error.status_code, "Not found" if error.status_code == 404 else "Not done", error.detail)


class _WithHeaders:
    """Adds the headers to every answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers: list[tuple[bytes, bytes]] = list(message.get("headers", []))
                present = {name.lower() for name, _ in headers}
                headers += [
                    (name.lower().encode(), value.encode())
                    for name, value in HEADERS.items()
                    if name.lower().encode() not in present
                ]
                message["headers"] = headers
            await send(message)

        await self._app(scope, receive, send_with)
