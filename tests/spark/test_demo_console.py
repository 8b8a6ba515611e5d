"""The console that runs beside the demo, and the picture of it."""

from __future__ import annotations

import importlib.util
import os
import shutil
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from kraftpy.demo import console
from kraftpy.demo.console import console_of, take_picture
from kraftpy.testing import EmbeddedBroker


def test_it_shows_the_cluster_until_the_block_ends(kraftpy_broker: EmbeddedBroker) -> None:
    with console_of(kraftpy_broker.bootstrap) as url:
        assert url is not None
        with urllib.request.urlopen(url, timeout=30) as page:
            assert kraftpy_broker.bootstrap in page.read().decode()
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(url, timeout=5)


def test_without_the_extra_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec

    def without(name: str, *more: Any) -> Any:
        return None if name == "uvicorn" else find(name, *more)

    monkeypatch.setattr(importlib.util, "find_spec", without)
    with console_of("127.0.0.1:1") as url:
        assert url is None


def _browser(directory: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have nothing but this script as Chromium."""
    monkeypatch.setenv("PATH", f"{directory}:/usr/bin:/bin")
    monkeypatch.setattr(console, "BROWSERS", ("a-browser",))
    program = directory / "a-browser"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)


def test_a_picture_is_taken_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = 'for each in "$@"; do case $each in --screenshot=*) echo "$*" > "${each#--screenshot=}";; esac; done'
    _browser(tmp_path, arguments, monkeypatch)
    assert take_picture("http://127.0.0.1:1/", tmp_path / "console.png")
    told = (tmp_path / "console.png").read_text()
    assert told.endswith("http://127.0.0.1:1/\n")
    assert ("--no-sandbox" in told) == (os.geteuid() == 0)


@pytest.mark.parametrize("script", ["exit 1", "exit 0"])
def test_a_browser_that_fails_costs_the_picture_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    _browser(tmp_path, script, monkeypatch)
    assert not take_picture("http://127.0.0.1:1/", tmp_path / "console.png")


def test_without_a_browser_there_is_no_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert not take_picture("http://127.0.0.1:1/", tmp_path / "console.png")
