"""The listener for monitors with TLS and logins: renewed files, strangers, and Prometheus's own server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shutil
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import pytest
from one_broker import running, until

from kraftpy.broker.broker import Broker
from kraftpy.broker.metrics import login, server
from kraftpy.broker.metrics.pages import Monitoring
from kraftpy.broker.startup import StartupError
from kraftpy.config import BrokerConfig, ConfigError, load
from kraftpy.config.security import metrics_tls
from kraftpy.security.password_hashes import SALT_BYTES, hash_of
from kraftpy.testing.ports import ReservedPorts
from tests.security.certificates import HOST, Certificates

USER, PASSWORD = "prometheus", "päss:word"
HASH = hash_of(PASSWORD.encode(), bytes(SALT_BYTES))
BOUND_SECONDS = 60.0


def tls(certificates: Certificates, **more: str) -> list[str]:
    return [f"listener.name.metrics.{name}={value}" for name, value in certificates.settings(**more).items()]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def users(tmp_path: Path) -> Path:
    path = tmp_path / "users"
    path.write_text(f"{USER}:{HASH}\n")
    return path


@asynccontextmanager
async def monitored(directory: Path, *settings: str, scheme: str = "https") -> AsyncIterator[tuple[Broker, str]]:
    """A broker, and the address of its listener for monitors."""
    async with running(directory / "data", f"kraftpy.metrics.listener={scheme}://{HOST}:0", *settings) as broker:
        yield broker, f"{scheme}://{HOST}:{monitoring(broker).port}"


def monitoring(broker: Broker) -> Monitoring:
    return cast("Monitoring", broker.metrics.monitor)


def get(url: str, context: ssl.SSLContext | None = None, authorization: str = "") -> tuple[int, str]:
    """Return the status and the text."""
    headers = {"authorization": authorization} if authorization else {}
    request = urllib.request.Request(url, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=30, context=context) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            challenge = error.headers["www-authenticate"] or "none"
            return error.code, f"{challenge}\n{error.read().decode()}"


async def ask(url: str, context: ssl.SSLContext | None = None, authorization: str = "") -> int:
    return (await asyncio.to_thread(get, url, context, authorization))[0]


def basic(user: str = USER, password: str = PASSWORD) -> str:
    return f"Basic {b64encode(f'{user}:{password}'.encode()).decode()}"


# --- who is answered --------------------------------------------------------------------------------------------------


async def test_pages_over_tls_and_with_a_login(certificates: Certificates, tmp_path: Path, users: Path) -> None:
    async with monitored(tmp_path, *tls(certificates), f"kraftpy.metrics.users.file={users}") as (_, url):
        context = certificates.client()
        status, page = await asyncio.to_thread(get, f"{url}/metrics", context, basic())
        assert status == 200
        assert "kafka_brokers 1" in page
        status, challenge = await asyncio.to_thread(get, f"{url}/metrics", context)
        assert challenge.startswith('Basic realm="kraftpy"')
        for path in ("/metrics", "/livez", "/readyz", "/clusterz", "/nothing"):
            assert await ask(f"{url}{path}", context) == 401
            assert await ask(f"{url}{path}", context, basic()) == (404 if path == "/nothing" else 200)
        with pytest.raises(urllib.error.URLError, match="CERTIFICATE_VERIFY_FAILED"):
            await ask(f"{url}/metrics", ssl.create_default_context(), basic())
        plain = url.replace("https:", "http:")
        with pytest.raises((urllib.error.URLError, ConnectionError)):
            await ask(f"{plain}/livez", None, basic())


@pytest.mark.parametrize(
    "authorization",
    [
        basic(password="wrong"),
        basic(user="nobody"),
        basic(user=""),
        basic(password=""),
        "Basic",
        "Basic !!!",
        "Basic " + b64encode(b"\xff\xff:x").decode(),
        "Basic " + b64encode(USER.encode()).decode(),
        "Bearer " + b64encode(f"{USER}:{PASSWORD}".encode()).decode(),
        "Basic " + "QUFB" * 2000,
    ],
)
async def test_others_are_refused(tmp_path: Path, users: Path, authorization: str) -> None:
    async with monitored(tmp_path, f"kraftpy.metrics.users.file={users}", scheme="http") as (_, url):
        assert await ask(f"{url}/livez", None, authorization) == 401
        assert await ask(f"{url}/livez", None, basic()) == 200
        assert await ask(f"{url}/livez", None, authorization) == 401, "also once the right password is remembered"


async def test_probes_need_no_login_if_health_is_open(tmp_path: Path, users: Path) -> None:
    settings = [f"kraftpy.metrics.users.file={users}", "kraftpy.metrics.open.health=true"]
    async with monitored(tmp_path, *settings, scheme="http") as (_, url):
        found = {path: await ask(f"{url}{path}") for path in ("/livez", "/readyz", "/clusterz", "/metrics", "//livez")}
        assert found == {"/livez": 200, "/readyz": 200, "/clusterz": 401, "/metrics": 401, "//livez": 401}


async def test_a_certificate_can_be_demanded_of_monitors(certificates: Certificates, tmp_path: Path) -> None:
    async with monitored(tmp_path, *tls(certificates, ssl_client_auth="required")) as (_, url):
        shown = certificates.client(certificates.issue("monitor", "monitor"))
        assert await ask(f"{url}/metrics", shown) == 200
        with pytest.raises((urllib.error.URLError, ssl.SSLError, ConnectionError)):
            await ask(f"{url}/metrics", certificates.client())


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
async def test_curl_reads_over_tls_with_a_login(certificates: Certificates, tmp_path: Path, users: Path) -> None:
    async with monitored(tmp_path, *tls(certificates), f"kraftpy.metrics.users.file={users}") as (_, url):
        command = ["curl", "-sS", "--cacert", str(certificates.trusted), "-u", f"{USER}:{PASSWORD}", f"{url}/clusterz"]
        found = await asyncio.to_thread(subprocess.check_output, command, text=True)
        assert json.loads(found)["status"] == "ok"


# --- renewed files ----------------------------------------------------------------------------------------------------


async def test_a_renewed_certificate_is_used(certificates: Certificates, tmp_path: Path) -> None:
    keys = tmp_path / "keys.pem"
    shutil.copy(certificates.broker, keys)
    settings = tls(certificates, ssl_keystore_location=str(keys))
    async with monitored(tmp_path, *settings) as (broker, url):

        def shown() -> str:
            return ssl.get_server_certificate((HOST, monitoring(broker).port))

        before = await asyncio.to_thread(shown)
        shutil.copy(certificates.issue("again", HOST), keys)
        async with asyncio.timeout(BOUND_SECONDS):
            while await asyncio.to_thread(shown) == before:  # noqa: ASYNC110 - nothing signals it
                await asyncio.sleep(0.1)
        assert await ask(f"{url}/livez", certificates.client()) == 200


async def test_changed_users_are_used_and_unusable_ones_are_not(
    tmp_path: Path, users: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with monitored(tmp_path, f"kraftpy.metrics.users.file={users}", scheme="http") as (broker, url):
        assert await ask(f"{url}/livez", None, basic()) == 200
        await asyncio.to_thread(users.write_text, f"{USER}:{hash_of(b'other', bytes(SALT_BYTES))}\n")
        await monitoring(broker).renew()
        assert await ask(f"{url}/livez", None, basic()) == 401
        assert await ask(f"{url}/livez", None, basic(password="other")) == 200
        await asyncio.to_thread(users.write_text, "nonsense")
        await monitoring(broker).renew()
        await monitoring(broker).renew()
        assert await ask(f"{url}/livez", None, basic(password="other")) == 200
        complaints = [each for each in caplog.messages if "the users stay as they were" in each]
        assert complaints == [f"monitors: the users stay as they were: {users}: line 1: expected name:hash"]


# --- strangers --------------------------------------------------------------------------------------------------------


async def test_strangers_who_guess_keep_no_monitor_away(
    tmp_path: Path, users: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The places of those whose passwords wait to be checked go to others, and a known monitor does not wait."""
    async with monitored(tmp_path, f"kraftpy.metrics.users.file={users}", scheme="http") as (broker, url):
        assert await ask(f"{url}/livez", None, basic()) == 200
        monkeypatch.setattr(login, "_PAUSE_S", 5.0)
        wrong = f"GET /livez HTTP/1.1\r\nhost: a\r\nauthorization: {basic(password='wrong')}\r\n\r\n".encode()
        guesses = []
        for _ in range(2 * server._MOST_CONNECTIONS):
            _, writer = await asyncio.open_connection(HOST, monitoring(broker).port)
            writer.write(wrong)
            guesses.append(writer)
        await until(lambda: len(monitoring(broker)._server._connections) == server._MOST_CONNECTIONS)
        assert await ask(f"{url}/metrics", None, basic()) == 200
        for writer in guesses:
            writer.transport.abort()
        monkeypatch.setattr(login, "_PAUSE_S", 0.0)


async def test_connections_without_a_handshake_count_and_end(
    certificates: Certificates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with monitored(tmp_path, *tls(certificates)) as (broker, url):
        idle = [await asyncio.open_connection(HOST, monitoring(broker).port) for _ in range(server._MOST_CONNECTIONS)]
        await until(lambda: len(monitoring(broker)._server._connections) == server._MOST_CONNECTIONS)
        assert await ask(f"{url}/livez", certificates.client()) == 200
        for _, writer in idle:
            writer.close()
        monkeypatch.setattr(server, "_REQUEST_S", 0.05)
        reader, writer = await asyncio.open_connection(HOST, monitoring(broker).port)
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
        writer.close()


async def test_bytes_that_are_not_tls_cost_one_line(
    certificates: Certificates, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with monitored(tmp_path, *tls(certificates)) as (broker, url):
        for _ in range(3):
            reader, writer = await asyncio.open_connection(HOST, monitoring(broker).port)
            writer.write(b"GET /metrics HTTP/1.1\r\nhost: a\r\n\r\n")
            with contextlib.suppress(ConnectionError):
                assert not (await reader.read()).startswith(b"HTTP")
            writer.close()
        lines = [each for each in caplog.messages if each.startswith(f"monitor {HOST}: TLS handshake failed")]
        assert len(lines) == 1
        assert await ask(f"{url}/livez", certificates.client()) == 200


# --- settings ---------------------------------------------------------------------------------------------------------


def test_a_listener_with_tls_needs_a_certificate_and_a_name_of_its_own() -> None:
    with pytest.raises(ConfigError, match=r"https, but neither listener\.name\.metrics\.ssl\.keystore\.location nor"):
        BrokerConfig.of({"kraftpy.metrics.listener": "https://127.0.0.1:0"})
    with pytest.raises(ConfigError, match="a listener for clients is named METRICS"):
        BrokerConfig.of(
            {
                "kraftpy.metrics.listener": "https://127.0.0.1:0",
                "listeners": "METRICS://127.0.0.1:0",
                "listener.security.protocol.map": "METRICS:PLAINTEXT",
                "inter.broker.listener.name": "METRICS",
            }
        )


def test_settings_of_the_listener_come_before_the_plain_ones(certificates: Certificates) -> None:
    settings = {
        "kraftpy.metrics.listener": "https://127.0.0.1:0",
        **certificates.settings(ssl_client_auth="required"),
        "listener.name.metrics.ssl.enabled.protocols": "TLSv1.3",
    }
    found = metrics_tls(BrokerConfig.of(settings))
    assert found is not None
    assert (found.client_auth, found.versions) == ("required", ("TLSv1.3",))
    found = metrics_tls(BrokerConfig.of({**settings, "kraftpy.metrics.users.file": "users"}))
    assert found is not None
    assert found.client_auth == "none"
    assert metrics_tls(BrokerConfig.of({**settings, "kraftpy.metrics.listener": "http://127.0.0.1:0"})) is None


def test_warnings_and_notes_say_what_the_settings_let_others_see(certificates: Certificates) -> None:
    def told(listener: str, *more: str) -> tuple[str, list[str]]:
        loaded = load("", {}, [f"kraftpy.metrics.listener={listener}://0.0.0.0:9404", *more])
        return " ".join(each for each in loaded.warnings if "metrics" in each), loaded.notes

    users, keys = "kraftpy.metrics.users.file=users", tls(certificates)
    assert "may read the names of topics" in told("http")[0]
    assert "may read the passwords of monitors" in told("http", users)[0]
    assert "may read the names of topics" in told("https", *keys)[0]
    assert told("https", users, *keys) == ("", [])
    assert told("https", *tls(certificates, ssl_client_auth="required")) == ("", [])
    assert any("METRICS is not a listener with TLS" in each for each in told("http", *keys)[1])
    assert told("http", "kraftpy.metrics.open.health=true")[1] == [
        "kraftpy.metrics.open.health is ignored: kraftpy.metrics.users.file is not set, so that no login is asked for"
    ]
    assert load("", {}, [users]).notes == ["kraftpy.metrics.users.file is ignored: kraftpy.metrics.listener is not set"]


@pytest.mark.parametrize("what", ["users", "keys"])
async def test_a_file_that_cannot_be_used_is_a_failed_start(
    certificates: Certificates, tmp_path: Path, what: str
) -> None:
    path = tmp_path / "file"
    if what == "users":
        path.write_text("prometheus:secret\n")
        settings, why = [f"kraftpy.metrics.users.file={path}"], f"kraftpy.metrics.users.file: {path}: line 1: expected"
    else:
        settings = tls(certificates, ssl_keystore_location=str(path))
        why = "kraftpy.metrics.listener: ssl.keystore.location="
    with pytest.raises(BaseExceptionGroup) as failed:
        async with monitored(tmp_path, *settings, scheme="http" if what == "users" else "https"):
            pass
    assert failed.group_contains(StartupError, match=re.escape(why))


# --- commands ---------------------------------------------------------------------------------------------------------


def kraftpy(*arguments: str, given: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("KAFKA_", "KRAFTPY_"))}
    command = [sys.executable, "-m", *arguments]
    return subprocess.run(
        command, env={**kept, **environment}, input=given, capture_output=True, text=True, check=False, timeout=60
    )


async def test_a_hash_that_the_command_prints_lets_its_user_in(tmp_path: Path) -> None:
    made = await asyncio.to_thread(kraftpy, "kraftpy", "user", "hash", "grafana", given="s e c r e t\n")
    assert (made.returncode, made.stderr) == (0, "")
    users = tmp_path / "users"
    users.write_text(made.stdout)
    async with monitored(tmp_path, f"kraftpy.metrics.users.file={users}", scheme="http") as (_, url):
        assert await ask(f"{url}/livez", None, basic("grafana", "s e c r e t")) == 200
    refused = await asyncio.to_thread(kraftpy, "kraftpy", "user", "hash", "a:b", given="secret\n")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "may have no colon" in refused.stderr


@pytest.mark.parametrize("has_open_health", [True, False])
async def test_the_image_s_health_check_needs_no_password(
    certificates: Certificates, tmp_path: Path, users: Path, has_open_health: bool
) -> None:
    with ReservedPorts() as ports:
        port = ports.reserve()
        settings = {
            "kraftpy.metrics.users.file": str(users),
            "kraftpy.metrics.open.health": str(has_open_health).lower(),
            "listeners": f"PLAINTEXT://{HOST}:{port}",
            **dict(each.split("=", 1) for each in tls(certificates, ssl_client_auth="required")),
        }
        async with monitored(tmp_path, *(f"{name}={value}" for name, value in settings.items())) as (broker, url):
            settings["kraftpy.metrics.listener"] = url
            environment = {f"KAFKA_{name.replace('.', '_').upper()}": value for name, value in settings.items()}
            found = await asyncio.to_thread(kraftpy, "kraftpy.cli.container", "healthy", **environment)
            assert (found.returncode, found.stderr) == (0, "")
            monitoring(broker).stopping()
            found = await asyncio.to_thread(kraftpy, "kraftpy.cli.container", "healthy", **environment)
            # Without a password, it is a listener for clients that is asked, which still answers.
            assert found.returncode == int(has_open_health), found.stderr


async def test_top_reads_over_tls_with_a_login(certificates: Certificates, tmp_path: Path, users: Path) -> None:
    shown = tmp_path / "login"
    shown.write_text(f"{USER}:{PASSWORD}\n")
    async with monitored(tmp_path, *tls(certificates), f"kraftpy.metrics.users.file={users}") as (broker, url):
        listener = broker.advertised[0]
        command = [
            "kraftpy",
            "top",
            "--bootstrap-server",
            f"{listener.host}:{listener.port}",
            "--once",
            "--interval",
            "0.2",
        ]
        command += ["--metrics", f"{url}/metrics", "--metrics-trust", str(certificates.trusted)]
        found = await asyncio.to_thread(kraftpy, *command, "--metrics-login", str(shown))
        assert found.returncode == 0, found.stderr
        rows = [json.loads(line) for line in found.stdout.splitlines()]
        assert {row["endpoint"] for row in rows if row["kind"] == "request"} == {f"{url}/metrics"}
        found = await asyncio.to_thread(kraftpy, *command)
        assert "answered with status 401" in found.stdout


# --- Prometheus -------------------------------------------------------------------------------------------------------


CONFIGURATION = """
global: {{scrape_interval: 1s}}
scrape_configs:
  - job_name: kraftpy
    scheme: https
    tls_config: {{ca_file: {ca}, min_version: TLS12}}
    basic_auth: {{username: {user}, password_file: {password}}}
    static_configs: [{{targets: ["{target}"]}}]
"""


async def test_prometheus_scrapes_over_tls_with_a_login(
    certificates: Certificates, tmp_path: Path, users: Path
) -> None:
    if shutil.which("prometheus") is None:
        pytest.skip("there is no prometheus (Debian's package prometheus)")
    password = tmp_path / "password"
    password.write_text(PASSWORD)
    settings = [*tls(certificates), f"kraftpy.metrics.users.file={users}"]
    async with monitored(tmp_path, *settings) as (_, url):
        target = url.removeprefix("https://")
        text = CONFIGURATION.format(ca=certificates.trusted, user=USER, password=password, target=target)
        assert await asyncio.to_thread(scraped_by_prometheus, tmp_path, text) == ("1", "1")


def scraped_by_prometheus(directory: Path, configuration: str) -> tuple[str, str]:
    """Run Prometheus until it has scraped; return its values of `up` and `kafka_brokers`."""
    file, log = directory / "prometheus.yaml", directory / "prometheus.log"
    file.write_text(configuration)
    with ReservedPorts() as ports, log.open("wb") as output:
        address = f"{HOST}:{ports.reserve()}"
        command = ["prometheus", f"--config.file={file}", f"--storage.tsdb.path={directory / 'tsdb'}"]
        command += [f"--web.listen-address={address}", "--log.level=warn"]
        prometheus = subprocess.Popen(command, stdout=output, stderr=output)
        try:
            return queried(address, "up"), queried(address, "kafka_brokers")
        finally:
            prometheus.kill()
            prometheus.wait()
            print(log.read_text())


def queried(address: str, expression: str) -> str:
    """Ask Prometheus until it has a value that is not 0; return it."""
    url = f"http://{address}/api/v1/query?{urllib.parse.urlencode({'query': expression})}"
    deadline = time.monotonic() + BOUND_SECONDS
    while True:
        with contextlib.suppress(OSError):
            found = json.loads(get(url)[1])["data"]["result"]
            if found and found[0]["value"][1] != "0":
                return str(found[0]["value"][1])
        assert time.monotonic() < deadline, "Prometheus has no such value"
        time.sleep(0.2)
