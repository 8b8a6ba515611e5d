"""The console as a process: the command line, and the console of a node."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from kraftpy.broker.console import ConsoleProcess
from kraftpy.broker.startup import StartupError
from kraftpy.config import BrokerConfig, ConfigError
from kraftpy.config.listeners import Listener
from kraftpy.config.metrics import url_on_this_machine
from kraftpy.security.password_hashes import SALT_BYTES, hash_of
from kraftpy.testing.cluster import BrokerDied, EmbeddedBroker
from kraftpy.testing.ports import ReservedPorts
from tests.console.served import served
from tests.waiting import eventually

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
    def is_gone() -> bool:
        try:
            httpx.get(url, timeout=10)
        except httpx.TransportError:
            return True
        return False

    eventually(is_gone, url)


def test_the_command_serves_a_cluster_for_reading(kraftpy_server: EmbeddedBroker, tmp_path: Path) -> None:
    with served(kraftpy_server.bootstrap, tmp_path) as running:
        page = wait_for_page(running.url)
        assert kraftpy_server.bootstrap in page
        assert ">read-only<" in page


class MetricsWithLogin(NamedTuple):
    """The settings of a broker whose metrics ask for a login, and how they are read."""

    settings: dict[str, str]
    url: str
    login: str = "prometheus:secret"


@pytest.fixture
def metrics(ports: ReservedPorts, tmp_path: Path) -> MetricsWithLogin:
    port, users = ports.reserve(), tmp_path / "users"
    users.write_text(f"prometheus:{hash_of(b'secret', bytes(SALT_BYTES))}\n")
    settings = {"kraftpy.metrics.listener": f"127.0.0.1:{port}", "kraftpy.metrics.users.file": str(users)}
    return MetricsWithLogin(settings, f"http://127.0.0.1:{port}/metrics")


def wait_for_slowest_requests(url: str) -> None:
    def are_shown() -> bool:
        page = wait_for_page(url)
        assert "does not answer" not in page
        return "Metadata" in page

    eventually(are_shown, "the slowest requests")


def test_the_command_reads_metrics_with_a_login(
    start_broker: Callable[..., EmbeddedBroker], metrics: MetricsWithLogin, tmp_path: Path
) -> None:
    (tmp_path / "login").write_text(f"{metrics.login}\n")
    broker = start_broker(settings=metrics.settings)
    options = ["--metrics", metrics.url, "--metrics-login", str(tmp_path / "login")]
    with served(broker.bootstrap, tmp_path, None, *options) as running:
        wait_for_slowest_requests(running.url)


def test_a_console_of_a_node_reads_metrics_with_the_login_in_its_file(
    start_broker: Callable[..., EmbeddedBroker], metrics: MetricsWithLogin, ports: ReservedPorts, tmp_path: Path
) -> None:
    port, file = ports.reserve(), tmp_path / "console.properties"
    file.write_text(f"kraftpy.console.metrics.urls={metrics.url}\nkraftpy.console.metrics.login={metrics.login}\n")
    start_broker(
        settings={
            **metrics.settings,
            "kraftpy.console.listener": f"127.0.0.1:{port}",
            "kraftpy.console.config": str(file),
        }
    )
    wait_for_slowest_requests(f"http://127.0.0.1:{port}")


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("metrics.urls=127.0.0.1:9404", "expected a URL"),
        ("metrics.login=monitor", "name:password"),
        ("metrics.ssl.truststore.location=/no/such/file", "/no/such/file cannot be read"),
    ],
)
def test_what_is_wrong_with_the_metrics_in_a_file_is_said(tmp_path: Path, line: str, problem: str) -> None:
    file = tmp_path / "console.properties"
    file.write_text(f"kraftpy.console.{line}\n")
    command = [sys.executable, "-m", "kraftpy", "console", "--command-config", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=BOUND_SECONDS, check=False)
    assert done.returncode == 2
    assert "kraftpy.console.metrics." in done.stderr
    assert problem in done.stderr


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


def console_of(broker: EmbeddedBroker) -> int:
    """Return the id of the process of a node's console."""
    children = Path(f"/proc/{broker.pid}/task/{broker.pid}/children").read_text().split()
    (console,) = [
        int(child) for child in children if b"--until-input-ends" in Path(f"/proc/{child}/cmdline").read_bytes()
    ]
    return console


def test_the_console_ends_with_a_node_that_is_killed_and_comes_back_if_it_is(
    start_broker: Callable[..., EmbeddedBroker], ports: ReservedPorts
) -> None:
    port = ports.reserve()
    url = f"http://127.0.0.1:{port}"
    broker = start_broker(settings={"kraftpy.console.listener": f"127.0.0.1:{port}"})
    wait_for_page(url)
    os.kill(console_of(broker), signal.SIGKILL)
    wait_until_gone(url)
    wait_for_page(url)
    assert "the console has ended with status -9" in broker.log_text
    broker.kill()
    wait_until_gone(url)


def test_a_node_goes_on_if_the_file_of_its_console_is_gone(
    start_broker: Callable[..., EmbeddedBroker], ports: ReservedPorts, tmp_path: Path
) -> None:
    port, file = ports.reserve(), tmp_path / "console.properties"
    file.write_text("security.protocol=PLAINTEXT\n")
    listener = f"127.0.0.1:{port}"
    broker = start_broker(settings={"kraftpy.console.listener": listener, "kraftpy.console.config": str(file)})
    wait_for_page(f"http://{listener}")
    file.unlink()
    os.kill(console_of(broker), signal.SIGKILL)
    eventually(lambda: "No such file or directory; it is started again in" in broker.log_text)
    file.write_text("security.protocol=PLAINTEXT\n")
    wait_for_page(f"http://{listener}")


def json_lines(log: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.splitlines()]


def refuse_a_change(url: str) -> None:
    """Send a form without a token, of which the audit log has a line."""
    answer = httpx.post(f"{url}/topic/delete", data={"name": "a", "typed": "a"}, headers={"Origin": url}, timeout=30)
    assert answer.status_code == 403


def wait_for_log(file: Path) -> str:
    """The lines of a log once there are any: the line of a change follows its answer."""
    eventually(lambda: file.read_text().endswith("\n"))
    return file.read_text()


def test_the_log_of_a_node_s_console_has_the_node_s_format(
    start_broker: Callable[..., EmbeddedBroker], ports: ReservedPorts
) -> None:
    url = f"http://127.0.0.1:{(port := ports.reserve())}"
    on = {"kraftpy.console.listener": f"127.0.0.1:{port}", "kraftpy.console.allow.changes": "true"}
    broker = start_broker(settings={**on, "kraftpy.log.format": "json", "node.id": "7"})
    wait_for_page(url)
    refuse_a_change(url)

    def refusals() -> list[str]:
        return [each["message"] for each in json_lines(broker.log_text) if "wrong CSRF token" in each["message"]]

    eventually(refusals)
    assert json.loads(refusals()[0])["request"] == "POST /topic/delete"
    broker.stop()
    assert {each["node"] for each in json_lines(broker.log_text)} == {7}


def test_why_a_node_s_console_does_not_start_is_a_line_of_the_node_s_log(
    start_broker: Callable[..., EmbeddedBroker], ports: ReservedPorts, tmp_path: Path
) -> None:
    file = tmp_path / "console.properties"
    file.write_text("kraftpy.console.sign.inn=password\n")
    on = {"kraftpy.console.listener": f"127.0.0.1:{ports.reserve()}", "kraftpy.console.config": str(file)}
    broker = start_broker(settings={**on, "kraftpy.log.format": "json"})
    eventually(lambda: "and stays off" in broker.log_text)
    said = [each["message"] for each in json_lines(broker.log_text) if each["logger"] == "kraftpy.broker.console"]
    assert any("kraftpy.console.sign.inn is not a setting of the console" in each for each in said), said


def test_the_command_s_log_is_json_if_asked(
    kraftpy_server: EmbeddedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KRAFTPY_LOG_FORMAT", "json")
    with served(kraftpy_server.bootstrap, tmp_path, None, "--allow-changes") as running:
        refuse_a_change(running.url)
        (line,) = json_lines(wait_for_log(running.log))
    assert (line["level"], line["logger"]) == ("INFO", "kafka.authorizer.logger")
    assert "node" not in line
    with served(kraftpy_server.bootstrap, tmp_path, None, "--allow-changes", "--log-format", "text") as running:
        refuse_a_change(running.url)
        assert re.match(r"[-\d]{10} [\d:,]{12} INFO kafka\.authorizer\.logger: {", wait_for_log(running.log))


def test_errors_of_the_web_server_are_lines_of_the_same_log() -> None:
    program = """
import logging, sys, threading, urllib.error, urllib.request
from kraftpy.broker.log_lines import log_handler
from kraftpy.console.serving import open_socket, serve

async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        for answer in ("startup", "shutdown"):
            await receive()
            await send({"type": f"lifespan.{answer}.complete"})
    else:
        raise ValueError("of the application")

def ask():
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{opened.getsockname()[1]}/")
    except urllib.error.HTTPError as error:
        print(error.code, flush=True)

logging.basicConfig(level="WARNING", handlers=[log_handler("json", 7)])
opened = open_socket("127.0.0.1", 0)
serve(app, opened, lambda: threading.Thread(target=ask).start(), until_input_ends=True)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "500\n"
    _, log = process.communicate(timeout=BOUND_SECONDS)
    (line,) = json_lines(log)
    assert (line["logger"], line["node"]) == ("uvicorn.error", 7)
    assert line["exception"].endswith("ValueError: of the application")


def test_a_node_s_console_shows_the_node_s_slowest_requests(
    start_broker: Callable[..., EmbeddedBroker], ports: ReservedPorts
) -> None:
    port, metrics = ports.reserve(), ports.reserve()
    listeners = {"kraftpy.console.listener": f"127.0.0.1:{port}", "kraftpy.metrics.listener": f"0.0.0.0:{metrics}"}
    start_broker(settings=listeners)
    wait_for_slowest_requests(f"http://127.0.0.1:{port}")
    assert f"http://127.0.0.1:{metrics}/metrics" in wait_for_page(f"http://127.0.0.1:{port}")


@pytest.mark.parametrize(
    ("listener", "users", "url"),
    [
        ("127.0.0.1:0", None, "http://127.0.0.1:9404/metrics"),
        ("0.0.0.0:9404", None, "http://127.0.0.1:9404/metrics"),
        ("[::]:9404", None, "http://[::1]:9404/metrics"),
        ("http://[::1]:9404", None, "http://[::1]:9404/metrics"),
        ("node-1.example.com:9404", None, "http://node-1.example.com:9404/metrics"),
        ("127.0.0.1:9404", "/etc/kraftpy/metrics.users", None),
        ("https://127.0.0.1:9404", None, None),
        (None, None, None),
    ],
)
def test_the_metrics_that_a_node_s_console_reads(listener: str | None, users: str | None, url: str | None) -> None:
    assert url_on_this_machine(listener, 9404, asks_for_login=users is not None) == url
    settings = {"kraftpy.console.listener": "127.0.0.1:0"}
    if listener is not None and not listener.startswith("https"):
        settings["kraftpy.metrics.listener"] = listener
    if users is not None:
        settings["kraftpy.metrics.users.file"] = users
    command = ConsoleProcess(BrokerConfig.of(settings), PLAIN, None if listener is None else 9404)._command()
    assert command[command.index("--metrics") + 1 :][:1] == [url] if url else "--metrics" not in command


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
