"""The console as a process: the command line, and the console of a node."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from kraftpy.broker.console import ConsoleProcess
from kraftpy.broker.startup import StartupError
from kraftpy.config import BrokerConfig, ConfigError
from kraftpy.config.listeners import Listener
from kraftpy.testing.cluster import BrokerDied, EmbeddedBroker
from kraftpy.testing.ports import ReservedPorts
from tests.console.served import served

BOUND_SECONDS = 60.0
PLAIN = [Listener("PLAINTEXT", "127.0.0.1", 9092)]


def wait_for_page(url: str) -> str:
    """The page at a URL, once it is served."""
    deadline = time.monotonic() + BOUND_SECONDS
    while True:
        try:
            return httpx.get(url, timeout=10).raise_for_status().text
        except httpx.TransportError:
            assert time.monotonic() < deadline, url
            time.sleep(0.1)


def wait_until_gone(url: str) -> None:
    deadline = time.monotonic() + BOUND_SECONDS
    while True:
        try:
            httpx.get(url, timeout=10)
        except httpx.TransportError:
            return
        assert time.monotonic() < deadline, url
        time.sleep(0.1)


def test_the_command_serves_a_cluster_for_reading(kraftpy_server: EmbeddedBroker, tmp_path: Path) -> None:
    with served(kraftpy_server.bootstrap, tmp_path) as running:
        page = wait_for_page(running.url)
        assert kraftpy_server.bootstrap in page
        assert ">read-only<" in page


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--listen", "127.0.0.1"], "--listen"),
        (["--listen", "0.0.0.0:0"], "needs a sign-in"),
        (["-b", "nowhere"], "nowhere"),
    ],
)
def test_the_command_says_what_is_wrong(arguments: list[str], problem: str) -> None:
    command = [sys.executable, "-m", "kraftpy", "console", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=BOUND_SECONDS, check=False)
    assert done.returncode == 2
    assert problem in done.stderr
    assert "Traceback" not in done.stderr


def test_without_the_extra_one_line_says_what_to_install(tmp_path: Path) -> None:
    for name in ("starlette", "uvicorn", "jinja2"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('no such package')\n")
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
        command = [sys.executable, "-m", "kraftpy", "console"]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=BOUND_SECONDS, check=False, env=environment
        )
        assert done.returncode == 1, name
        assert "the console needs the extra console (pip install 'kraftpy[console]')" in done.stderr
        assert done.stderr.count("\n") == 1
        (tmp_path / f"{name}.py").unlink()


def test_a_node_has_its_console(start_broker: Callable[..., EmbeddedBroker], ports: ReservedPorts) -> None:
    port = ports.reserve()
    url = f"http://127.0.0.1:{port}"
    settings = {"kraftpy.console.listener": f"127.0.0.1:{port}", "kraftpy.console.allow.changes": "true"}
    broker = start_broker(settings=settings)
    page = wait_for_page(f"{url}/topics")
    assert broker.bootstrap in page
    assert "Create a topic" in page
    broker.close()
    wait_until_gone(url)


def test_the_console_ends_with_a_node_that_is_killed_and_comes_back_if_it_is(
    start_broker: Callable[..., EmbeddedBroker], ports: ReservedPorts
) -> None:
    port = ports.reserve()
    url = f"http://127.0.0.1:{port}"
    broker = start_broker(settings={"kraftpy.console.listener": f"127.0.0.1:{port}"})
    wait_for_page(url)
    children = Path(f"/proc/{broker.pid}/task/{broker.pid}/children").read_text().split()
    (console,) = [
        int(child) for child in children if b"--until-input-ends" in Path(f"/proc/{child}/cmdline").read_bytes()
    ]
    os.kill(console, signal.SIGKILL)
    wait_until_gone(url)
    wait_for_page(url)
    assert "the console has ended with status -9" in broker.log_text
    broker.kill()
    wait_until_gone(url)


def test_a_taken_port_stops_the_start() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        listener = f"127.0.0.1:{taken.getsockname()[1]}"
        config = BrokerConfig.of({"kraftpy.console.listener": listener})
        with pytest.raises(StartupError, match=re.escape(f"kraftpy.console.listener: cannot listen on {listener}")):
            ConsoleProcess(config, PLAIN).check()


def test_what_a_node_s_console_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on = {"kraftpy.console.listener": "127.0.0.1:0"}
    ConsoleProcess(BrokerConfig.of(on), PLAIN).check()
    with pytest.raises(StartupError, match="no listener has the protocol PLAINTEXT"):
        ConsoleProcess(BrokerConfig.of(on), [Listener("SSL", "h", 1)]).check()
    with pytest.raises(StartupError, match=r"kraftpy\.console\.config: .*absent"):
        ConsoleProcess(BrokerConfig.of({**on, "kraftpy.console.config": str(tmp_path / "absent")}), PLAIN).check()
    file = tmp_path / "console.properties"
    file.write_text("security.protocol=SSL\n")
    secured = BrokerConfig.of({**on, "kraftpy.console.config": str(file)})
    ConsoleProcess(secured, [*PLAIN, Listener("SSL", "::1", 1)]).check()
    with pytest.raises(StartupError, match="no listener has the protocol SSL"):
        ConsoleProcess(secured, PLAIN).check()
    controller = {"process.roles": "controller", "listeners": "CONTROLLER://127.0.0.1:9093"}
    controller["controller.quorum.voters"] = "1@127.0.0.1:9093"
    for wrong in ({"kraftpy.console.listener": "here"}, {**on, **controller}):
        with pytest.raises(ConfigError, match=r"kraftpy\.console\.listener"):
            BrokerConfig.of(wrong)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(StartupError, match=r"pip install 'kraftpy\[console\]'"):
        ConsoleProcess(BrokerConfig.of(on), PLAIN).check()


def test_a_node_does_not_start_without_what_its_console_needs(tmp_path: Path) -> None:
    settings = {"kraftpy.console.listener": "127.0.0.1:0", "kraftpy.console.config": str(tmp_path / "absent")}
    with pytest.raises(BrokerDied, match=r"kraftpy\.console\.config"), EmbeddedBroker(settings=settings):
        pass
