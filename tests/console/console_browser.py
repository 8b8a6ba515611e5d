"""A browser for the console's tests: requests to the application, without a server between."""

from __future__ import annotations

import contextlib
import html
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
from starlette.applications import Starlette

from kraftpy.console.access import AccessSettings
from kraftpy.console.app import console_app
from kraftpy.console.cluster import Cluster
from kraftpy.console.console import Console
from kraftpy.diagnosis.sampling import NO_ENDPOINTS, MetricsEndpoints


class Browser:
    """Shows pages of a console as text."""

    def __init__(self, app: Starlette, client: httpx.AsyncClient) -> None:
        self.console: Console = app.state.console
        self.client = client
        self.source = ""
        """The last page, as it was sent."""
        self.status = 0
        self.location = ""
        self.headers = httpx.Headers()
        self._token = ""

    async def get(self, path: str, **query: Any) -> str:
        """Return a page's text: what a person reads, with one space between the words. No kept answer is used."""
        self.console.cluster.changed()
        params = {name: str(value) for name, value in query.items()}
        return self._seen(await self.client.get(path, params=params or None))

    async def post(self, path: str, **fields: Any) -> str:
        """Send a form; go on to the page that it leads to."""
        if not self._token:
            found = re.search(r'name="csrf_token" value="([^"]+)"', (await self.client.get("/topics/new")).text)
            self._token = html.unescape(found[1]) if found else "none"
        data = {"csrf_token": self._token, **{name: str(value) for name, value in fields.items()}}
        response = await self.client.post(path, data=data, headers={"Origin": str(self.client.base_url).rstrip("/")})
        text = self._seen(response)
        if response.status_code == 303:
            self.location = response.headers["location"]
            return self._seen(await self.client.get(self.location))
        return text

    def _seen(self, response: httpx.Response) -> str:
        self.source, self.status, self.headers = response.text, response.status_code, response.headers
        return text_of(response.text)


def text_of(source: str) -> str:
    """Return what a person reads of a page."""
    main = re.search(r"<main.*?</main>", source, re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", main[0] if main else source)).split())


@contextlib.asynccontextmanager
async def browsing(
    bootstrap: str,
    *,
    allows_changes: bool = True,
    runs: Path | None = None,
    endpoints: MetricsEndpoints = NO_ENDPOINTS,
    **options: Any,
) -> AsyncIterator[Browser]:
    """Open a console. It takes no samples on its own: `browser.console.history.take()` does."""
    cluster = Cluster({"bootstrap_servers": bootstrap, **options})
    access = AccessSettings(allow_changes=allows_changes)
    app = console_app(cluster, access=access, sample_seconds=3_600, runs=runs, endpoints=endpoints)
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            yield Browser(app, client)
