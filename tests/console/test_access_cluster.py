"""The console beside a real cluster with users and ACLs, over real connections, with TLS and without."""

from __future__ import annotations

import json
import os
import re
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from kraftpy.client import AclBinding, AclOperation, AclResource, BlockingAdmin, NewTopic
from kraftpy.client.blocking.facade import BlockingProducer
from kraftpy.testing import Cluster
from tests.console.served import Served, served
from tests.security.certificates import Certificates

USERS = {"console": "console's", "alice": "alice's", "vera": "vera's"}


def allowed(user: str, operation: AclOperation, resource: AclResource, name: str) -> AclBinding:
    return AclBinding(resource_type=resource, name=name, principal=f"User:{user}", operation=operation)


ACLS = (
    allowed("console", AclOperation.DESCRIBE, AclResource.TOPIC, "*"),
    allowed("console", AclOperation.DESCRIBE, AclResource.GROUP, "*"),
    allowed("console", AclOperation.DESCRIBE, AclResource.CLUSTER, "kafka-cluster"),
    allowed("vera", AclOperation.READ, AclResource.TOPIC, "seen"),
)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    settings = {"super.users": "User:alice"}
    with Cluster(1, security="sasl_ssl", users=USERS, acls=ACLS, settings=settings) as running:
        with BlockingAdmin(**running.client_options("alice")) as admin:
            for topic in ("seen", "unseen"):
                admin.create_topics([NewTopic(name=topic)])
        with BlockingProducer(**running.client_options("alice")) as producer:
            producer.send("seen", b"what vera may read")
            producer.send("unseen", b"what vera may not read")
        yield running


@pytest.fixture(scope="module")
def console(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    directory = tmp_path_factory.mktemp("console")
    certificates = Certificates(directory)
    settings = {
        **{name: text for name, text in cluster.client_properties("console").items() if name != "bootstrap.servers"},
        "kraftpy.console.sign.in": "password",
        "kraftpy.console.operators": "User:alice",
        "kraftpy.audit.log.file": str(directory / "audit.log"),
        "listener.name.console.ssl.keystore.type": "PEM",
        "listener.name.console.ssl.keystore.location": str(certificates.broker),
    }
    with served(cluster.bootstrap_servers, directory, settings, listen="https://127.0.0.1:0") as running:
        yield running


@pytest.fixture
def browser(console: Served) -> Iterator[httpx.Client]:
    context = ssl.create_default_context(cafile=str(console.log.parent / "ca.pem"))
    with httpx.Client(base_url=console.url, verify=context, timeout=30) as client:
        yield client


def token_of(page: httpx.Response) -> str:
    found = re.search(r'name="csrf_token" value="([^"]+)"', page.text)
    assert found is not None, page.text
    return found[1]


def sign_in(browser: httpx.Client, name: str, password: str) -> httpx.Response:
    form = {"name": name, "password": password, "csrf_token": token_of(browser.get("/sign-in"))}
    return browser.post("/sign-in", data=form, headers={"Origin": str(browser.base_url).rstrip("/")})


def wait_for(holds: Callable[[], bool]) -> None:
    """Wait until something holds: a line is written to the audit log once the browser has its answer."""
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def audit_of(console: Served) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (console.log.parent / "audit.log").read_text().splitlines()]


def test_the_cluster_decides_who_signs_in(browser: httpx.Client, console: Served) -> None:
    assert browser.get("/").headers["Location"] == "/sign-in"
    for name, password in (("alice", "vera's"), ("nobody", "x"), ("alice", ""), ("a,b=c", "ü")):
        assert sign_in(browser, name, password).status_code == 403, name
    answer = sign_in(browser, "alice", "alice's")
    assert answer.status_code == 303
    assert "__Host-kraftpy-console-session" in answer.headers["Set-Cookie"]
    page = browser.get("/")
    assert page.status_code == 200
    assert "alice" in page.text
    assert "Sign out" in page.text
    assert "max-age=31536000" in page.headers["Strict-Transport-Security"]
    decisions = [(line["decision"], line["principal"]) for line in audit_of(console) if line["operation"] == "SIGN_IN"]
    assert decisions[-5:] == [
        ("DENIED", "User:alice"), ("DENIED", "User:nobody"), ("DENIED", "User:alice"), ("DENIED", "User:a,b=c"),
        ("ALLOWED", "User:alice"),
    ]  # fmt: skip
    assert all(line["time"].endswith("Z") for line in audit_of(console))
    assert "alice's" not in console.log.read_text() + (console.log.parent / "audit.log").read_text()


def test_a_user_sees_what_the_acls_allow(browser: httpx.Client, cluster: Cluster) -> None:
    sign_in(browser, "vera", "vera's")
    topics = browser.get("/topics")
    assert topics.status_code == 200
    assert "unseen" not in topics.text
    assert "seen" in topics.text
    assert "what vera may read" in browser.get("/messages?topic=seen").text
    for path in ("/topic?name=unseen", "/messages?topic=unseen", "/messages/download?topic=unseen"):
        answer = browser.get(path)
        assert answer.status_code in (403, 404), path
        assert "what vera may not" not in answer.text
    deadline = time.monotonic() + 60
    with BlockingProducer(**cluster.client_options("alice")) as producer:
        while True:
            for topic in ("seen", "unseen"):
                producer.send(topic, b"x")
            overview = browser.get("/")
            assert overview.status_code == 200
            assert "unseen" not in overview.text
            if "/topic?name=seen" in overview.text:  # the busiest topics are known
                break
            assert time.monotonic() < deadline
            time.sleep(0.2)
    assert browser.get("/topics/new").status_code == 403


def test_a_change_is_the_user_s_own(browser: httpx.Client, console: Served, cluster: Cluster) -> None:
    sign_in(browser, "alice", "alice's")
    token = token_of(browser.get("/topics/new"))
    form = {"csrf_token": token, "name": "made", "partitions": "2", "replicas": "1", "settings": ""}
    answer = browser.post("/topics/create", data=form, headers={"Origin": console.url})
    assert answer.status_code == 303, answer.text
    with BlockingAdmin(**cluster.client_options("alice")) as admin:
        assert "made" in [each.name for each in admin.describe_topics()]
    wait_for(lambda: audit_of(console)[-1]["operation"] == "CREATE")
    line = audit_of(console)[-1]
    assert (line["operation"], line["resource"], line["principal"]) == ("CREATE", "made", "User:alice")
    for origin in ("https://evil.example", console.url.replace("https", "http")):
        headers = {"Origin": origin, "Sec-Fetch-Site": "cross-site"}
        assert browser.post("/topics/create", data={**form, "name": "evil"}, headers=headers).status_code == 403
    assert browser.post("/topics/create", data={**form, "csrf_token": "x"}).status_code == 403


def test_a_user_who_is_an_operator_of_the_console_only_is_refused_by_the_cluster(
    cluster: Cluster, tmp_path: Path
) -> None:
    settings = {
        **{name: text for name, text in cluster.client_properties("alice").items() if name != "bootstrap.servers"},
        "kraftpy.console.sign.in": "password",
        "kraftpy.console.operators": "User:vera",
    }
    with (
        served(cluster.bootstrap_servers, tmp_path, settings) as console,
        httpx.Client(base_url=console.url, timeout=30) as browser,
    ):
        sign_in(browser, "vera", "vera's")
        token = token_of(browser.get("/topics/new"))
        form = {"csrf_token": token, "name": "made-by-vera", "partitions": "1", "replicas": "1", "settings": ""}
        answer = browser.post("/topics/create", data=form, headers={"Origin": console.url})
        assert answer.status_code in (400, 403)
        assert "uthoriz" in answer.text
        line = '"operation": "CREATE", "resource_type": "TOPIC", "resource": "made-by-vera"'
        wait_for(lambda: line in console.log.read_text())


@pytest.mark.parametrize(
    ("arguments", "settings", "problem"),
    [
        (["--listen", "0.0.0.0:0"], {}, "needs a sign-in"),
        (["--listen", "0.0.0.0:0", "--allow-changes"], {}, "needs a sign-in"),
        (["--listen", "https://127.0.0.1:0"], {}, "neither listener.name.console.ssl.keystore.location nor .key"),
        (["--listen", "127.0.0.1"], {}, "expected host:port"),
        ([], {"kraftpy.console.sign.in": "password"}, "SASL_PLAINTEXT or SASL_SSL"),
        ([], {"kraftpy.console.sign.in": "magic"}, "kraftpy.console.sign.in"),
        ([], {"kraftpy.console.sign.in": "oidc"}, "kraftpy.console.oidc.issuer is not set"),
        ([], {"kraftpy.console.operator": "User:alice"}, "did you mean kraftpy.console.operators?"),
        ([], {"kraftpy.console.operators": "alice"}, "principalType:principalName"),
        (
            [],
            {
                "kraftpy.console.sign.in": "oidc", "kraftpy.console.oidc.issuer": "http://id.example",
                "kraftpy.console.oidc.client.id": "x", "kraftpy.console.oidc.viewers": "*",
            },
            "https",
        ),
        ([], {"kraftpy.audit.log.file": "/no/such/folder/audit.log"}, "kraftpy.audit.log.file"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_said_at_the_start(
    arguments: list[str], settings: dict[str, str], problem: str, tmp_path: Path
) -> None:
    file = tmp_path / "console.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    command = [sys.executable, "-m", "kraftpy", "console", "--command-config", str(file), "-b", "127.0.0.1:9"]
    done = subprocess.run(
        [*command, *(arguments or ["--listen", "127.0.0.1:0"])], capture_output=True, text=True, timeout=60,
        env={**os.environ, "COLUMNS": "500"},
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert problem in done.stderr


def test_a_secret_comes_from_elsewhere_and_is_not_shown(tmp_path: Path) -> None:
    file = tmp_path / "console.properties"
    file.write_text(
        "kraftpy.console.sign.in=oidc\nkraftpy.console.oidc.issuer=http://127.0.0.1:9\nkraftpy.console.oidc.client.id=c\n"
        "kraftpy.console.oidc.client.secret=${env:NO_SUCH_VARIABLE}\nkraftpy.console.oidc.viewers=*\n"
    )
    command = [sys.executable, "-m", "kraftpy", "console", "--command-config", str(file), "--listen", "127.0.0.1:0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "${env:NO_SUCH_VARIABLE} is not set" in done.stderr
