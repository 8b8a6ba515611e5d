"""Reports of chaos runs: the directories with a `report.html`, and each report as its run has written it.

A report has styles in its page, so it is shown in a sandbox: it runs nothing, loads nothing and submits nothing.
"""

from __future__ import annotations

import asyncio
import html
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from kraftpy.console.console import console_of
from kraftpy.console.forms import Refused, text_of
from kraftpy.console.paging import page_of

REPORT: Final = "report.html"
MOST_RUNS: Final = 1_000
MOST_REPORT_BYTES: Final = 32 << 20
SANDBOX: Final = "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'none'"
_HEAD_BYTES: Final = 16_384
_TITLE: Final = re.compile(r"<title>([^<]*)</title>")
_VERDICT: Final = re.compile(r'<span class="verdict (\w+)">([^<]*)</span>')
_STATES: Final = {"good": "ok", "bad": "bad", "open": "warn"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run: the directory's name, and what the head of its report says."""

    name: str
    title: str
    verdict: str
    state: str
    """ok, warn or bad, as the pages show it; "" if there was nothing to judge."""
    written_ms: float
    size: int


async def runs(request: Request) -> Response:
    """List the runs, the newest first."""
    directory = _directory(request)
    try:
        found = await asyncio.to_thread(runs_in, directory)
    except OSError as error:
        raise Refused(f"{directory}: {error.strerror or error}", 404) from None
    page = page_of(found, dict(request.query_params))
    return console_of(request).render(
        request, "chaos_runs.html", title="Chaos runs", directory=str(directory), page=page
    )


async def report(request: Request) -> Response:
    """Show a run's report."""
    directory = _directory(request)
    name = text_of(request.query_params, "run")
    if name not in {run.name for run in await asyncio.to_thread(runs_in, directory)}:
        raise Refused(f"there is no report of a run {name!r}", 404)
    path = directory / name / REPORT
    if path.stat().st_size > MOST_REPORT_BYTES:
        raise Refused(f"the report has more than {MOST_REPORT_BYTES >> 20} MiB", 413)
    text = await asyncio.to_thread(path.read_text, encoding="utf-8", errors="replace")
    return HTMLResponse(text, headers={"Content-Security-Policy": SANDBOX})


def runs_in(directory: Path) -> list[Run]:
    """Return the runs in a directory, the newest first. Raises OSError."""
    found = []
    for place in sorted(directory.iterdir())[:MOST_RUNS]:
        path = place / REPORT
        if place.is_symlink() or path.is_symlink() or not path.is_file():
            continue
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES).decode(errors="replace")
        title, verdict = _TITLE.search(head), _VERDICT.search(head)
        about = path.stat()
        found.append(
            Run(
                name=place.name,
                title=html.unescape(title[1]).strip() if title else place.name,
                verdict=html.unescape(verdict[2]).strip() if verdict else "",
                state=_STATES.get(verdict[1], "") if verdict else "",
                written_ms=about.st_mtime * 1000,
                size=about.st_size,
            )
        )
    found.sort(key=lambda run: -run.written_ms)
    return found


def _directory(request: Request) -> Path:
    directory = console_of(request).chaos_runs
    if directory is None:
        raise Refused("this console was not told where the reports of chaos runs are: --chaos-runs", 404)
    return directory
