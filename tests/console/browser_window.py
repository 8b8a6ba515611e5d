"""A window of a browser on the console, and what went wrong in it: for the tests in a browser."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

from playwright.sync_api import Page, expect

BUILD = Path(__file__).parents[2] / "build"
AXE = Path(os.environ.get("KRAFTPY_AXE", BUILD / "axe-core.min.js"))
SHOTS = BUILD / "console"
OFFENCES = """window.offences = [];
addEventListener('securitypolicyviolation', e => offences.push(e.violatedDirective + ' ' + e.blockedURI))"""


@dataclass
class Watched:
    """A browser's window, and what went wrong in it."""

    page: Page
    url: str
    foreign: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    posted: set[str] = field(default_factory=set)

    def watch(self) -> None:
        self.page.on("request", self._requested)
        self.page.on("console", lambda message: self.said.append(message.text) if message.type == "error" else None)
        self.page.on("pageerror", lambda error: self.said.append(str(error)))

    def _requested(self, request: Any) -> None:
        if not request.url.startswith(f"{self.url}/"):
            self.foreign.append(request.url)
        if request.method == "POST":
            self.posted.add(urlsplit(request.url).path)

    def open(self, path: str, query: Mapping[str, str] | None = None, status: int = 200) -> None:
        address = f"{self.url}{path}" + (f"?{urlencode(query)}" if query else "")
        answer = self.page.goto(address)
        assert answer is not None
        assert answer.status == status, (address, answer.status, self.page.inner_text("main"))

    def check(self) -> None:
        """Check that nothing was blocked, reported, or asked elsewhere since the last check."""
        said = [each for each in self.said if "Failed to load resource" not in each]  # its status is a page's own
        assert (self.page.evaluate("offences"), said, self.foreign) == ([], [], [])

    def check_accessible(self) -> None:
        """Check the page by axe-core, and that it is not wider than the window."""
        self.page.evaluate(AXE.read_text())
        found = self.page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        bad = [
            (each["id"], each["help"], [node["html"][:200] for node in each["nodes"]])
            for each in found["violations"]
            if each["impact"] in ("serious", "critical")
        ]
        assert bad == []
        width = self.page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
        assert width[0] <= width[1], f"the page is wider than the window: {width}"

    def shoot(self, name: str, *, full: bool = True) -> None:
        SHOTS.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=SHOTS / f"{name}.png", full_page=full)

    def sign_in(self, name: str, password: str) -> None:
        self.page.goto(f"{self.url}/sign-in")
        self.page.get_by_label("Name").fill(name)
        self.page.get_by_label("Password").fill(password)
        self.page.get_by_role("button", name="Sign in").click()

    def done(self) -> None:
        """Check that a change was made: the page says so."""
        expect(self.page.locator(".done")).to_be_visible()
        self.check()
