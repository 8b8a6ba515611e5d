"""The console's page of chaos runs: reports from a directory, shown in a sandbox."""

from __future__ import annotations

import os
from pathlib import Path

from kraftpy.console.pages.chaos_runs import SANDBOX
from kraftpy.testing.cluster import EmbeddedBroker
from tests.console.console_browser import browsing

EVIL = "<script>alert(1)</script>"


def _report(directory: Path, name: str, title: str, state: str, verdict: str) -> None:
    (directory / name).mkdir()
    (directory / name / "report.html").write_text(
        f'<title>{title}</title><p><span class="verdict {state}">{verdict}</span>{EVIL}'
    )


async def test_reports_are_listed_and_shown_in_a_sandbox(kraftpy_server: EmbeddedBroker, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    runs.mkdir()
    _report(runs, "nodes-seed-1", "A run &amp; its faults", "good", "nothing wrong")
    _report(runs, "nodes-seed-2", "&lt;script&gt;alert(1)", "bad", "anomalies")
    _report(tmp_path, "elsewhere", "secret", "good", "secret")
    os.symlink(tmp_path / "elsewhere", runs / "linked")
    (runs / "empty").mkdir()
    async with browsing(kraftpy_server.bootstrap, runs=runs) as browser:
        text = await browser.get("/chaos")
        assert "nodes-seed-1 A run & its faults nothing wrong" in text
        assert "nodes-seed-2 <script>alert(1) anomalies" in text
        assert "<script>alert" not in browser.source
        assert "1–2 of 2 runs" in text  # noqa: RUF001
        assert ">Chaos runs</a>" in browser.source
        await browser.get("/chaos/report", run="nodes-seed-1")
        assert EVIL in browser.source
        assert browser.headers["content-security-policy"] == SANDBOX
        assert browser.headers["x-frame-options"] == "DENY"
        for name in ("linked", "empty", "../elsewhere", "..", "", "/etc"):
            await browser.get("/chaos/report", run=name)
            assert browser.status in (400, 404), name
            assert browser.headers["content-security-policy"] != SANDBOX


async def test_without_a_directory_there_is_no_such_page(kraftpy_server: EmbeddedBroker) -> None:
    async with browsing(kraftpy_server.bootstrap) as browser:
        assert "--chaos-runs" in await browser.get("/chaos")
        assert browser.status == 404
        assert ">Chaos runs</a>" not in browser.source
