"""The console as an ASGI application: its routes, what they share, and how failures are shown.

    app = console_app(Cluster(options), access=AccessSettings())

`access` says who may see and change what (`kraftpy.console.access`): requests are refused before a page sees them.
Every answer has its headers: a browser loads nothing from elsewhere, and runs no script but ours.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from kraftpy.client.connection import UnsupportedVersion
from kraftpy.console.access import AccessSettings, install
from kraftpy.console.access.answers import plain_page
from kraftpy.console.audited import tell_audit
from kraftpy.console.cluster import Cluster
from kraftpy.console.console import Console, console_of
from kraftpy.console.forms import Refused
from kraftpy.console.history import SAMPLE_SECONDS, History
from kraftpy.console.pages import (
    audits,
    brokers,
    chaos_runs,
    group_changes,
    groups,
    messages,
    overview,
    record_deletion,
    security,
    topic_changes,
    topics,
    transactions,
)
from kraftpy.console.routing import OPERATOR, Change, Page
from kraftpy.diagnosis.sampling import NO_ENDPOINTS, MetricsEndpoints
from kraftpy.protocol.errors import ErrorCode, KafkaError

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
    Page("/topic/records", record_deletion.preview, OPERATOR),
    Change("/topic/records/delete", record_deletion.delete),
    Page("/messages", messages.messages),
    Page("/messages/tail", messages.tail),
    Page("/messages/download", messages.download),
    Page("/messages/new", messages.new, OPERATOR),
    Change("/messages/produce", messages.produce),
    Page("/message", messages.message),
    Page("/message/raw", messages.raw),
    Page("/groups", groups.groups),
    Page("/group", groups.group),
    Page("/group/explain", groups.explain),
    Page("/group/reset", group_changes.preview, OPERATOR),
    Change("/group/reset/apply", group_changes.reset),
    Change("/group/alter", group_changes.alter),
    Change("/group/delete", group_changes.delete),
    Page("/transactions", transactions.transactions),
    Page("/transaction", transactions.transaction),
    Page("/transactions/hanging", transactions.hanging),
    Change("/transactions/abort", transactions.abort),
    Page("/users", security.users),
    Change("/users/set", security.set_user),
    Change("/users/delete", security.delete_user),
    Page("/acls", security.acls),
    Change("/acls/add", security.add_acl),
    Change("/acls/delete", security.delete_acl),
    Page("/quotas", security.quotas),
    Change("/quotas/set", security.set_quota),
    Page("/books", audits.books),
    Page("/chaos", chaos_runs.runs),
    Page("/chaos/report", chaos_runs.report),
)
"""Every page and change, with the role it needs."""
SETTLE_SECONDS: Final = 0.1
"""Wait after a change: the broker that the next page asks learns of it a moment later than the one that made it."""
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


def console_app(
    cluster: Cluster,
    *,
    access: AccessSettings | None = None,
    sample_seconds: float = SAMPLE_SECONDS,
    runs: Path | None = None,
    endpoints: MetricsEndpoints = NO_ENDPOINTS,
    **replaced: Any,
) -> Starlette:
    """Return the application. It connects to the cluster when it starts, and takes a sample every so many seconds.

    By default, everyone on this machine may look. `runs` is a directory with chaos runs to show. `endpoints` are
    asked for the times of requests. `replaced` are parts of the access control, for tests.
    """
    history = History(cluster, sample_seconds, endpoints)
    console = Console(cluster, history, runs)

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with cluster, history.running():
            warming = asyncio.create_task(console.warm_up(), name="console warm-up")
            yield
            warming.cancel()
            await guarding.close()
            await console.clusters.close()

    app = Starlette(
        routes=_routes(),
        lifespan=lifespan,
        exception_handlers={
            Refused: _refused,
            KafkaError: _kafka_error,
            HTTPException: _http_error,
            TimeoutError: _timeout,
        },
    )
    app.state.console = console
    guarding = install(app, AccessSettings() if access is None else access, **replaced)
    guarding.ended.append(console.clusters.leave)
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
        await console.clusters.enter(request)
        if page.role == OPERATOR and not console.may_change(request):
            raise Refused("this console is read-only for you: nothing was changed", 403)
        if isinstance(page, Change):
            await tell_audit(request, page.path)
        try:
            return await page.endpoint(request)
        finally:
            if isinstance(page, Change):
                await asyncio.sleep(SETTLE_SECONDS)
                console.cluster.changed()

    endpoint.role = page.role  # type: ignore[attr-defined]
    return endpoint


def _failure(request: Request, status: int, title: str, text: str) -> Response:
    if not hasattr(request.state, "user"):  # a stranger, who is not told which cluster it is
        return plain_page(status, title, text)
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


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _failure(request, error.status_code, "Not found" if error.status_code == 404 else "Not done", error.detail)
