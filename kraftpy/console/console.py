"""What all pages share: the cluster, its history, the templates, and whether a change is allowed."""

from __future__ import annotations

from typing import Any, Final

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from kraftpy import __version__
from kraftpy.console.cluster import Cluster
from kraftpy.console.history import History
from kraftpy.console.rendering import environment
from kraftpy.console.routing import OPERATOR

MENU: Final = (
    ("/", "Overview"),
    ("/topics", "Topics"),
)
"""The pages that every page links to."""
_MOST_MESSAGE: Final = 300


class Console:
    """What all pages share: the cluster, its history, the templates, and whether changes are allowed."""

    def __init__(self, cluster: Cluster, history: History, *, allows_changes: bool) -> None:
        self.cluster = cluster
        self.history = history
        self.allows_changes = allows_changes
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
            done=request.query_params.get("done", "")[:_MOST_MESSAGE],
            **values,
        )
        return HTMLResponse(text, status)


def console_of(request: Request) -> Console:
    """Return the console that answers a request."""
    console: Console = request.app.state.console
    return console
