"""The console as a user starts it: `kraftpy console` in a process of its own."""

from __future__ import annotations

import os
import re
import selectors
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

START_SECONDS = 60.0


@dataclass(frozen=True)
class Served:
    """A running console: its URL, and the file with what it logs."""

    url: str
    log: Path


@contextmanager
def served(
    bootstrap: str,
    directory: Path,
    settings: Mapping[str, str] | None = None,
    *arguments: str,
    listen: str = "127.0.0.1:0",
) -> Iterator[Served]:
    """Run a console with a file of settings until the block ends."""
    command = [sys.executable, "-m", "kraftpy", "console", "-b", bootstrap, "--listen", listen, *arguments]
    if settings is not None:
        file = directory / "console.properties"
        file.touch(mode=0o600)
        file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        command += ["--command-config", str(file)]
    log = directory / "console.log"
    with log.open("w") as errors:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"}
        )
    try:
        yield Served(_url(process, log), log)
    finally:
        process.terminate()
        try:
            process.wait(30)
        finally:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()
    assert process.returncode in (0, -15), log.read_text()


def _url(process: subprocess.Popen[str], log: Path) -> str:
    """Return the URL that the console prints once it answers."""
    assert process.stdout is not None
    deadline = time.monotonic() + START_SECONDS
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while selector.select(max(0.0, deadline - time.monotonic())):
            line = process.stdout.readline()
            if found := re.search(r"the console is at (https?://\S+)/", line):
                return found[1]
            if not line:
                break
    raise AssertionError(f"the console did not start: {log.read_text()}")
