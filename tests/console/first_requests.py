"""Asks a console for each page once, and prints what the first request of each had to prepare, as JSON.

    python tests/console/first_requests.py BOOTSTRAP DIRECTORY '{"/topic": {"name": "a"}, ...}'

A process of its own, because a process that has run other tests has imported and compiled already. DIRECTORY has chaos
runs to show.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import httpx
import jinja2

from kraftpy.console.access import AccessSettings
from kraftpy.console.app import ROUTES, console_app
from kraftpy.console.cluster import Cluster
from kraftpy.console.routing import Change

compiled: list[str] = []
_compile = jinja2.Environment.compile


def _noted(self: jinja2.Environment, source: Any, name: str | None = None, *more: Any, **options: Any) -> Any:
    compiled.append(str(name))
    return _compile(self, source, name, *more, **options)


jinja2.Environment.compile = _noted  # type: ignore[method-assign]


async def main(bootstrap: str, runs: Path, queries: dict[str, dict[str, str]]) -> None:
    """Print {"warm_up": {"templates"}, path: {"status", "templates", "modules"}}."""
    access = AccessSettings(allow_changes=True)
    app = console_app(Cluster({"bootstrap_servers": bootstrap}), access=access, sample_seconds=3_600, runs=runs)
    async with app.router.lifespan_context(app):
        (warming,) = (task for task in asyncio.all_tasks() if task.get_name() == "console warm-up")
        await warming
        told: dict[str, Any] = {"warm_up": {"templates": sorted({*compiled})}}
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            await client.get("/static/icon.svg")  # the client itself may import something
            for page in ROUTES:
                if isinstance(page, Change):
                    continue
                compiled.clear()
                before = set(sys.modules)
                answer = await client.get(page.path, params=queries.get(page.path))
                told[page.path] = {
                    "status": answer.status_code,
                    "templates": sorted(compiled),
                    "modules": sorted(set(sys.modules) - before),
                }
    print(json.dumps(told))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3])))
