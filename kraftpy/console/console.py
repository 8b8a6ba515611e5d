"""What all pages share: the cluster, its history, the templates, and whether a change is allowed."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import quote, urlencode

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from kraftpy import __version__
from kraftpy.console.cluster import Cluster
from kraftpy.console.history import History
from kraftpy.console.reading import Reader
from kraftpy.console.rendering import environment
from kraftpy.console.routing import OPERATOR

MENU: Final = (
    ("/", "Overview"),
    ("/brokers", "Brokers"),
    ("/topics", "Topics"),
    ("/messages", "Messages"),
)
"""The pages that every page links to."""
DONE: Final = {
    "altered": "The settings were changed.",
    "created": "The topic was created.",
    "deleted": "The topic was deleted.",
    "produced": "The message was produced.",
    "partitions": "The partitions were added.",
}
"""What a page says after a change, by the word in its query: nothing that a link could make up."""


class Console:
    """What all pages share: the cluster, its history, the templates, and whether changes are allowed."""

    def __init__(self, cluster: Cluster, history: History, *, allows_changes: bool) -> None:
        self.cluster = cluster
        self.history = history
        self.allows_changes = allows_changes
        self.reader = Reader(cluster.options)
        self.templates = environment()

    def may_change(self, request: Request) -> bool:
        """Return whether this request's user may change the cluster."""
        user = getattr(request.state, "user", None)
        return self.allows_changes if user is None else user.role == OPERATOR

    def render(self, request: Request, template: str, status: int = 200, **values: Any) -> Response:
        """Return a page made of a template."""
        text = self.templates.get_template(template).render(
            request=request,
            path=request.url.path,
            params=dict(request.query_params),
            menu=MENU,
            user=getattr(request.state, "user", None),
            may_change=self.may_change(request),
            version=__version__,
            servers=self.cluster.servers,
            live_seconds=self.history.seconds,
            done=DONE.get(request.query_params.get("done", ""), ""),
            **values,
        )
        return HTMLResponse(text, status)


def after_change(path: str, done: str, **query: str) -> Response:
    """Return the answer to a change: the browser goes on to a page, which says what was done."""
    assert done in DONE, done
    return RedirectResponse(f"{path}?{urlencode({**query, 'done': done}, quote_via=quote)}", 303)


def console_of(request: Request) -> Console:
    """Return the console that answers a request."""
    console: Console = request.app.state.console
    return console
