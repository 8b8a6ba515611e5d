"""The cluster's console while the demo runs, as a process of its own, and a picture of it at the end.

Neither is needed: without the extra `console` there is no console, and without Chromium no picture of it. A console
that does not start does not stop the demo.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

BROWSERS: Final = ("chromium", "chromium-browser", "google-chrome")
_READY: Final = "the console is at "
_PICTURE_SECONDS: Final = 60.0
_STOP_SECONDS: Final = 10.0
_SIZE: Final = "1280,1000"


@contextmanager
def console_of(bootstrap: str) -> Iterator[str | None]:
    """Run the console of a cluster in the `with` block; its URL, or None if there is no console."""
    if any(importlib.util.find_spec(each) is None for each in ("starlette", "uvicorn")):
        yield None
        return
    command = [sys.executable, "-m", "kraftpy", "console", "-b", bootstrap, "--listen", "127.0.0.1:0"]
    process = subprocess.Popen(
        [*command, "--until-input-ends"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        said = process.stdout.readline().decode().strip()
        yield said.removeprefix(_READY) if said.startswith(_READY) else None
    finally:
        process.stdin.close()  # it also ends like this if the demo is killed
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


def take_picture(url: str, picture: Path) -> bool:
    """Write a picture of a page, as Chromium shows it; return False if there is no Chromium, or it fails."""
    browser = next((found for each in BROWSERS if (found := shutil.which(each))), None)
    if browser is None:
        return False
    with tempfile.TemporaryDirectory(prefix="kraftpy-demo-") as profile:
        command = [
            browser,
            "--headless",
            "--disable-gpu",
            "--hide-scrollbars",
            f"--user-data-dir={profile}",
            f"--window-size={_SIZE}",
            f"--screenshot={picture}",
        ]
        if os.geteuid() == 0:
            command.append("--no-sandbox")  # it refuses to run as root otherwise; it only reads our own page
        try:
            subprocess.run(
                [*command, url],
                check=True,
                timeout=_PICTURE_SECONDS,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        except (OSError, subprocess.SubprocessError):
            return False
    return picture.exists()
