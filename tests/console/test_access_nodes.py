"""A node's own console: it signs its users in over TLS, and stays off if other machines could reach it without.

It has its own cluster because the console is one of the node's settings.
"""

from __future__ import annotations

import ssl
import time
from pathlib import Path

import httpx

from kraftpy.testing import Cluster, EmbeddedBroker
from kraftpy.testing.ports import ReservedPorts
from tests.console.test_access_cluster import sign_in
from tests.security.certificates import HOST, Certificates
from tests.waiting import eventually

USERS = {"console": "console's", "alice": "alice's"}


def test_a_node_s_users_sign_in_at_its_console(tmp_path: Path, ports: ReservedPorts) -> None:
    certificates = Certificates(tmp_path)
    file = tmp_path / "console.properties"
    port = ports.reserve()
    settings = {"kraftpy.console.listener": f"https://{HOST}:{port}", "kraftpy.console.config": str(file)}
    own = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required "
        'username="console" password="console\'s";',
        "kraftpy.console.sign.in": "password",
        "kraftpy.console.operators": "User:alice",
        "listener.name.console.ssl.keystore.type": "PEM",
        "listener.name.console.ssl.keystore.location": str(certificates.broker),
    }
    file.write_text("".join(f"{name}={value}\n" for name, value in own.items()))
    with (
        Cluster(1, security="sasl_plaintext", users=USERS, settings=settings),
        httpx.Client(base_url=f"https://{HOST}:{port}", verify=certificates.client(), timeout=30) as browser,
    ):
        _wait_for_answer(browser)
        assert sign_in(browser, "alice", "wrong").status_code == 403
        assert sign_in(browser, "alice", "alice's").status_code == 303
        page = browser.get("/brokers")
        assert page.status_code == 200
        assert "operator" in page.text


def _wait_for_answer(browser: httpx.Client) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            browser.get("/sign-in")
        except (httpx.TransportError, ssl.SSLError):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        else:
            return


def test_a_node_s_open_console_stays_off(ports: ReservedPorts) -> None:
    port = ports.reserve()
    with EmbeddedBroker(settings={"kraftpy.console.listener": f"0.0.0.0:{port}"}) as broker:
        eventually(lambda: "stays off" in broker.log_text)
        assert "needs a sign-in" in broker.log_text
