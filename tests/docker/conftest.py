"""The engine, started if none runs, and the image of this source tree."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from docker_engine import IMAGE, ROOT, command, engine_answers, is_root, succeeds, wait_until

BASE = "python:3.11-slim-bookworm"


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The engine that runs; else one for as long as the tests do."""
    if engine_answers():
        yield
        return
    if not is_root():
        pytest.fail("no Docker engine answers, and only root could start one")
    log = tmp_path_factory.mktemp("engine") / "dockerd.log"
    with log.open("w") as output, subprocess.Popen(["dockerd"], stdout=output, stderr=subprocess.STDOUT) as daemon:
        try:
            wait_until(lambda: engine_answers() or daemon.poll() is not None, "dockerd answers")
            assert daemon.poll() is None, log.read_text()
            yield
        finally:
            daemon.terminate()


@pytest.fixture(scope="session")
def image(engine: None) -> str:
    """The image, built as in the README; if its base cannot be pulled, from one that is made here."""
    if not succeeds("docker", "image", "inspect", BASE) and not succeeds("docker", "pull", BASE):
        command(ROOT / "docker" / "base-image.sh", timeout=600)
    command("docker", "build", "--file", "docker/Dockerfile", "--tag", IMAGE, ".", timeout=600)
    return IMAGE


@pytest.fixture
def project(tmp_path: Path) -> str:
    """A name for containers and compose projects of one test."""
    return "kraftpy-test-" + tmp_path.name.strip("0123456789").strip("_").replace("_", "-")[-30:].strip("-")
