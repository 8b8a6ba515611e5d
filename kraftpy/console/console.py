"""The state that all pages share: the cluster, its history, and the templates."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from kraftpy import __version__
from kraftpy.console.access import User
from kraftpy.console.access.answers import compile_templates
from kraftpy.console.cluster import Cluster, or_none
from kraftpy.console.clusters import Clusters
from kraftpy.console.history import History
from kraftpy.console.reading import MOST_DOWNLOADS, MOST_READS, Reader
from kraftpy.console.rendering import environment

MENU: Final = (
    ("/", "Overview"),
    ("/brokers", "Brokers"),
    ("/topics", "Topics"),
    ("/messages", "Messages"),
    ("/groups", "Groups"),
    ("/transactions", "Transactions"),
    ("/users", "Users"),
    ("/acls", "ACLs"),
    ("/quotas", "Quotas"),
    ("/books", "Audit books"),
)
"""The pages that every page links to."""
CHAOS: Final = ("/chaos", "Chaos runs")
"""The page that is there if there are chaos runs to show."""
DONE: Final = {
    "altered": "The settings were changed.",
    "created": "The topic was created.",
    "deleted": "The topic was deleted.",
    "records deleted": "The records were deleted.",
    "group deleted": "The group was deleted.",
    "reset": "The offsets were reset.",
    "aborted": "The transaction was aborted in the partition.",
    "user set": "The password was set.",
    "user deleted": "The user's credentials were deleted.",
    "acl added": "The ACL was added.",
    "acl deleted": "The ACL was deleted.",
    "quota set": "The quota was set.",
    "quota removed": "The quota was removed.",
    "produced": "The message was produced.",
    "partitions": "The partitions were added.",
}
"""The text a page shows after a change, by the word in its query: a link cannot make up another."""


class Console:
    """The state that all pages share: the cluster, its history, and the templates."""

    def __init__(self, cluster: Cluster, history: History, chaos_runs: Path | None = None) -> None:
        self.chaos_runs = chaos_runs
        """The directory with chaos runs; None if there is none to show."""
        self.clusters = Clusters(cluster)
        self.history = history
        self._reads = asyncio.Semaphore(MOST_READS)
        self._downloads = asyncio.Semaphore(MOST_DOWNLOADS)
        self.templates = environment()

    @property
    def cluster(self) -> Cluster:
        """The cluster as the user of the current request may see and change it."""
        return self.clusters.current

    @property
    def reader(self) -> Reader:
        """A reader of records that acts as the user of the current request."""
        return Reader(self.cluster.options, self._reads)

    @property
    def downloader(self) -> Reader:
        """A reader of records for downloads, which take as long as a browser takes: pages do not wait for them."""
        return Reader(self.cluster.options, self._downloads)

    async def warm_up(self) -> None:
        """Prepare what the first pages need: all templates, connections to the brokers, and the answers they show."""
        own = self.clusters.own
        asked = (
            own.description(), own.topics(), own.log_dirs(), own.quorum(), own.groups(), own.features(),
            own.reassignments(),
        )  # fmt: skip
        await asyncio.gather(asyncio.to_thread(self._compile), *map(or_none, asked))

    def _compile(self) -> None:
        """Compile all templates, those of the overview first. Otherwise each is compiled when it is first used."""
        for name in dict.fromkeys(("overview.html", "layout.html", "macros.html", *self.templates.list_templates())):
            self.templates.get_template(name)
        compile_templates()

    def may_change(self, request: Request) -> bool:
        """Return whether this request's user may change the cluster."""
        user: User = request.state.user
        return user.may_change

    def render(self, request: Request, template: str, status: int = 200, **values: Any) -> Response:
        """Return a page made of a template."""
        text = self.templates.get_template(template).render(
            request=request,
            path=request.url.path,
            params=dict(request.query_params),
            menu=MENU if self.chaos_runs is None else (*MENU, CHAOS),
            user=request.state.user,
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
