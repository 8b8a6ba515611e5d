"""Quorums whose links have TLS and SASL: they form, lose nodes, and refuse strangers. Each has its own cluster."""

from __future__ import annotations

import asyncio
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kraftpy.broker.metadata.link_login import prove
from kraftpy.broker.metadata.link_messages import LOGIN_BYTES, LinkError, read_hello
from kraftpy.client import Admin, NewTopic
from kraftpy.client.security import Login
from kraftpy.config import BrokerConfig, ConfigError
from kraftpy.metadata.codec import pack
from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.frames import encode_request
from kraftpy.protocol.messages.api_versions import ApiVersionsRequest
from kraftpy.protocol.messages.describe_cluster import DescribeClusterRequest
from kraftpy.security.plain import plain_message
from kraftpy.testing import Cluster
from tests.security.certificates import HOST, Certificates
from tests.security.listeners import PLAIN_MODULE, SCRAM_MODULE
from tests.security.node_links import ask_as_a_node, port_of
from tests.security.wire import BOUND_SECONDS, Wire
from tests.waiting import eventually

pytestmark = [pytest.mark.timeout(120)]

SECRET = "correct, =horse é"
CONTROLLERS = "listener.name.controller."
CLUSTER_ID = "7mHQeQOJRqGJbGzBfx3-tw"
MAP = "PLAINTEXT:PLAINTEXT,CONTROLLER:SASL_SSL"


def settings_of(certificates: Certificates, protocol: str, **of_controllers: str) -> dict[str, str]:
    """The settings of nodes whose controller listeners have this protocol; names have underscores for dots."""
    return {
        "listener.security.protocol.map": f"PLAINTEXT:PLAINTEXT,REPLICATION:PLAINTEXT,CONTROLLER:{protocol}",
        **{CONTROLLERS + name: value for name, value in certificates.settings().items()},
        **{CONTROLLERS + name.replace("_", "."): value for name, value in of_controllers.items()},
    }


async def add_topic(cluster: Cluster, name: str) -> None:
    async with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        await admin.create_topics([NewTopic(name=name, num_partitions=3)])


# --- TLS on both ends ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def mutual(certificates: Certificates, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three nodes that show each other certificates, from files that a test may replace."""
    keys = tmp_path_factory.mktemp("keys")
    for node in (1, 2, 3):
        write(keys / f"{node}.pem", certificates.issue(f"node-{node}", HOST, common_name=f"node-{node}"))
    settings = settings_of(
        certificates,
        "SSL",
        ssl_client_auth="required",
        ssl_principal_mapping_rules="RULE:^CN=(node-[0-9]+),.*$/$1/",
    ) | {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:node-1;User:node-2;User:node-3;User:ANONYMOUS",
    }
    own = {node: {f"{CONTROLLERS}ssl.keystore.location": str(keys / f"{node}.pem")} for node in (1, 2, 3)}
    with Cluster(settings=settings, node_settings=own, keep_on_failure=True) as cluster:
        cluster.keys = keys  # type: ignore[attr-defined]
        yield cluster
        assert not any("Traceback" in cluster.logs(node) for node in cluster.nodes)


def write(path: Path, content: Path) -> None:
    aside = path.with_suffix(".new")
    aside.write_bytes(content.read_bytes())
    aside.replace(path)


def shown(cluster: Cluster, node: int, context: ssl.SSLContext) -> bytes:
    """The certificate that a controller listener shows."""
    with (
        socket.create_connection((HOST, port_of(cluster, node)), BOUND_SECONDS) as plain,
        context.wrap_socket(plain, server_hostname=HOST) as secured,
    ):
        found = secured.getpeercert(binary_form=True)
        assert found is not None
        return found


async def test_nodes_with_certificates_survive_the_loss_of_one(mutual: Cluster) -> None:
    await add_topic(mutual, "before")
    mutual.kill(1)
    await add_topic(mutual, "between")
    mutual.start(1)
    mutual.wait_in_sync()
    async with Admin(bootstrap_servers=mutual.address(1)) as admin:
        assert {"before", "between"} <= set(await admin.list_topics())


def described(connection: Wire) -> Any:
    """The answer to an administrator's DescribeCluster, which asks for controllers; None if there is none."""
    return connection.ask(ApiKey.DESCRIBE_CLUSTER, 1, DescribeClusterRequest(endpoint_type=2))


def test_an_administrator_with_a_certificate_gets_in(mutual: Cluster, certificates: Certificates) -> None:
    context = certificates.client(certificates.issue("admin", "admin", common_name="node-3"))
    for node in mutual.nodes:
        with (
            socket.create_connection((HOST, port_of(mutual, node)), BOUND_SECONDS) as plain,
            context.wrap_socket(plain, server_hostname=HOST) as secured,
        ):
            found = described(Wire(secured))
            assert found is not None
            assert {each.broker_id for each in found.brokers} == {1, 2, 3}


@pytest.mark.parametrize("who", ["other authority", "no certificate", "other name", "clear text"])
def test_a_stranger_gets_nothing(
    mutual: Cluster, certificates: Certificates, tmp_path_factory: pytest.TempPathFactory, who: str
) -> None:
    """It gets in neither as a node nor as an administrator: only names that a rule maps are accepted."""
    hello = pack({"version": 2, "node": 9, "nonce": bytes(32), "knocks": False})
    node_hello = len(hello).to_bytes(4, "big") + hello
    request = encode_request(ApiKey.DESCRIBE_CLUSTER, 1, 1, "wire", DescribeClusterRequest(endpoint_type=2))
    context = certificates.client()
    if who == "other authority":
        other = Certificates(tmp_path_factory.mktemp("other"))
        context.load_cert_chain(other.issue("stranger", HOST, common_name="node-1"))
    elif who == "other name":
        context.load_cert_chain(certificates.issue("nobody", HOST, common_name="nobody"))
    for opening in (node_hello, request):
        with socket.create_connection((HOST, port_of(mutual, 1)), BOUND_SECONDS) as plain:
            if who == "clear text":
                plain.sendall(opening)
                found = Wire(plain).read(7)
                assert found is None or found[:1] == b"\x15"  # TLS's alert, which is all that it says
                continue
            try:
                with context.wrap_socket(plain, server_hostname=HOST) as secured:
                    secured.sendall(opening)
                    assert Wire(secured).read(1) is None
            except (ssl.SSLError, ConnectionError):
                pass
    assert "Failed authentication with" in mutual.logs(1)


def test_a_node_that_does_not_belong_here_finds_no_quorum(
    mutual: Cluster, certificates: Certificates, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Brokers with another authority's certificate, that trust another one, find another host name, or lack rights."""
    other = Certificates(tmp_path_factory.mktemp("others"))
    directory = tmp_path_factory.mktemp("strangers")
    keys = certificates.issue("without", HOST, common_name="node-7")
    tls_failed = "TLS failed: "
    running = {}
    for name, changes, host, told in (
        ("untrusted", {"ssl_keystore_location": str(other.broker)}, HOST, tls_failed),
        ("distrustful", {"ssl_truststore_location": str(other.trusted)}, HOST, tls_failed),
        ("elsewhere", {}, "localhost", "Hostname mismatch"),
        ("without", {"ssl_keystore_location": str(keys)}, HOST, ""),
    ):
        properties = {
            "process.roles": "broker",
            "node.id": "9",
            "controller.quorum.bootstrap.servers": f"{host}:{port_of(mutual, 1)}",
            "controller.listener.names": "CONTROLLER",
            "listeners": f"PLAINTEXT://{HOST}:0",
            "log.dirs": str(directory / name),
            "initial.broker.registration.timeout.ms": "3000",
            **settings_of(certificates, "SSL", **changes),
        }
        file = directory / f"{name}.properties"
        file.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
        command = [sys.executable, "-m", "kraftpy", "server", str(file)]
        running[name] = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True), told
    for name, (process, told) in running.items():
        out, err = process.communicate(timeout=60)
        assert (process.returncode, out) == (2, ""), name
        assert "no leader of" in err, name
        assert told in err, name
    assert "User:node-7 may not be a node: it is not among super.users, and lacks CLUSTER_ACTION" in mutual.logs(1)


async def test_renewed_certificates_are_used_without_a_restart(mutual: Cluster, certificates: Certificates) -> None:
    """By the listener, and by a node that connects. The trusted authority is the same; the keys are new."""
    keys: Path = mutual.keys  # type: ignore[attr-defined]
    context = certificates.client(certificates.issue("looker", "looker", common_name="node-8"))
    before = shown(mutual, 2, context)
    for node in (1, 2, 3):
        renewed = certificates.issue(f"renewed-{node}", HOST, common_name=f"node-{node}")
        write(keys / f"{node}.pem", renewed)
    eventually(lambda: all(shown(mutual, node, context) != before for node in (2,)))
    mutual.kill(3)
    mutual.start(3)
    mutual.wait_in_sync()
    await add_topic(mutual, "renewed")


# --- SASL ---------------------------------------------------------------------------------------------


def login_of(module: str, name: str = "node", *, users: str = "") -> str:
    password = SECRET.replace("\\", "\\\\").replace('"', '\\"')
    return f'{module} required username="{name}" password="{password}"{users};'


def plain_settings(certificates: Certificates) -> dict[str, str]:
    return settings_of(
        certificates,
        "SASL_SSL",
        sasl_enabled_mechanisms="PLAIN",
        plain_sasl_jaas_config=login_of(PLAIN_MODULE, users=f' user_node="{SECRET}" user_admin="{SECRET}"'),
    )


@pytest.fixture(scope="module")
def by_scram(certificates: Certificates, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three brokers and controllers that log in to each other by SCRAM, also between brokers."""
    directory = tmp_path_factory.mktemp("scram")
    secret = directory / "secret"
    secret.write_text(f"{SECRET}\n", encoding="utf-8")
    for node in (1, 2, 3):
        (directory / f"node-{node}").mkdir()
        properties = directory / f"node-{node}" / "format.properties"
        properties.write_text(
            f"node.id={node}\nprocess.roles=broker,controller\nlog.dirs={directory}/node-{node}/data\n"
            f"listeners=PLAINTEXT://{HOST}:9092,CONTROLLER://{HOST}:9093\ncontroller.listener.names=CONTROLLER\n"
        )
        scram = [
            part
            for name in ("node", "admin")
            for part in ("--add-scram", f"SCRAM-SHA-512=[name={name},password-file={secret}]")
        ]
        command = [sys.executable, "-m", "kraftpy", "format", str(properties), "--cluster-id", CLUSTER_ID, *scram]
        run = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert run.returncode == 0, run.stderr
        bootstrap = directory / f"node-{node}" / "data" / "metadata" / "bootstrap"
        assert bootstrap.stat().st_mode & 0o077 == 0
        assert SECRET.encode() not in bootstrap.read_bytes()
    settings = settings_of(
        certificates,
        "SASL_SSL",
        sasl_enabled_mechanisms="SCRAM-SHA-512",
        **{"scram-sha-512_sasl_jaas_config": login_of(SCRAM_MODULE)},
    )
    settings |= {
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,REPLICATION:SASL_PLAINTEXT,CONTROLLER:SASL_SSL",
        "listener.name.replication.sasl.enabled.mechanisms": "SCRAM-SHA-512",
        "listener.name.replication.scram-sha-512.sasl.jaas.config": login_of(SCRAM_MODULE),
    }
    with Cluster(settings=settings, directory=directory, keep_on_failure=True) as cluster:
        yield cluster
        for node in cluster.nodes:
            assert "Traceback" not in cluster.logs(node)
            assert SECRET not in cluster.logs(node)


async def test_nodes_with_scram_survive_a_loss_and_a_restart_of_all(by_scram: Cluster) -> None:
    """After a restart, no node has up-to-date metadata before all have logged in."""
    await add_topic(by_scram, "before")
    by_scram.kill(2)
    await add_topic(by_scram, "between")
    by_scram.start(2)
    by_scram.wait_in_sync()
    for node in by_scram.nodes:
        by_scram.kill(node)
    for node in by_scram.nodes:
        by_scram.start(node, wait=False)
    by_scram.wait_ready()
    async with Admin(bootstrap_servers=by_scram.address(1)) as admin:
        assert {"before", "between"} <= set(await admin.list_topics())
        assert set(await admin.describe_scram_users()) == {"admin", "node"}


async def test_a_changed_password_holds_from_then_on(by_scram: Cluster, certificates: Certificates) -> None:
    """The password that `format` wrote is no longer accepted."""
    async with Admin(bootstrap_servers=by_scram.bootstrap_servers) as admin:
        await admin.set_scram_password("admin", "another one")
    by_scram.kill(3)
    by_scram.start(3)
    async with asyncio.timeout(BOUND_SECONDS):
        while True:
            refused = await knock(by_scram, certificates, "SCRAM-SHA-512", "admin", SECRET)
            accepted = await knock(by_scram, certificates, "SCRAM-SHA-512", "admin", "another one")
            if accepted is None:
                break
            await asyncio.sleep(0.05)
    assert refused is not None
    assert "invalid credentials" in refused


async def knock(cluster: Cluster, certificates: Certificates, mechanism: str, name: str, password: str) -> str | None:
    """Log in as a node does, at node 3; return the reason of a refusal, or None after its hello."""
    try:
        async with ask_as_a_node(cluster, 3, certificates.client()) as ask:
            await prove(Login(mechanism=mechanism, username=name, password=password), HOST, ask)
            assert read_hello(await ask(pack({"version": 2, "node": 9, "nonce": bytes(32), "knocks": False}))) == 2
    except LinkError as error:
        return str(error)
    return None


@pytest.fixture(scope="module")
def by_plain(certificates: Certificates) -> Iterator[Cluster]:
    """A broker, and three controllers apart, with PLAIN over TLS."""
    with Cluster(brokers=1, controllers=3, settings=plain_settings(certificates), keep_on_failure=True) as cluster:
        yield cluster


def connected(cluster: Cluster, certificates: Certificates, node: int) -> Wire:
    """A connection to a node's controller listener, by TLS."""
    plain = socket.create_connection((HOST, port_of(cluster, node)), BOUND_SECONDS)
    return Wire(certificates.client().wrap_socket(plain, server_hostname=HOST))


def logged_in(connection: Wire, password: str) -> bool:
    """Log in as an administrator, by Kafka's requests; return whether that worked."""
    found = connection.handshake("PLAIN")
    assert (found.error_code, found.mechanisms) == (ErrorCode.NONE, ["PLAIN"])
    return bool(connection.token(plain_message("admin", password)).error_code == ErrorCode.NONE)


async def test_a_broker_and_controllers_apart_survive_a_loss(by_plain: Cluster) -> None:
    await add_topic(by_plain, "apart")
    by_plain.kill(2)
    async with asyncio.timeout(BOUND_SECONDS):
        await add_topic(by_plain, "without-one")
    by_plain.start(2)


def test_an_administrator_logs_in_first(by_plain: Cluster, certificates: Certificates) -> None:
    with connected(by_plain, certificates, 2) as connection:
        assert logged_in(connection, SECRET)
        found = described(connection)
        assert {each.broker_id for each in found.brokers} == {2, 3, 4}
    with connected(by_plain, certificates, 2) as connection:
        assert not logged_in(connection, "wrong")
        assert connection.read(1) is None
    with connected(by_plain, certificates, 2) as connection:
        assert described(connection) is None
    assert "Failed authentication with" in by_plain.logs(2)


async def test_a_node_that_cannot_log_in_is_told_why_and_gets_nothing(
    by_plain: Cluster, certificates: Certificates
) -> None:
    assert await knock(by_plain, certificates, "PLAIN", "admin", SECRET) is None
    refused = await knock(by_plain, certificates, "PLAIN", "admin", "wrong")
    assert refused is not None
    assert "Invalid username or password" in refused
    refused = await knock(by_plain, certificates, "SCRAM-SHA-512", "admin", SECRET)
    assert refused is not None
    assert "is not among PLAIN" in refused


def test_nothing_but_a_login_is_taken_at_first(by_plain: Cluster, certificates: Certificates) -> None:
    hello = pack({"version": 2, "node": 9, "nonce": bytes(32), "knocks": False})
    token = pack({"mechanism": "PLAIN", "token": plain_message("admin", SECRET)})
    kafka = encode_request(ApiKey.API_VERSIONS, 0, 1, "wire", ApiVersionsRequest())

    def framed(*frames: bytes) -> bytes:
        return b"".join(len(each).to_bytes(4, "big") + each for each in frames)

    for name, sent in {
        "a hello": framed(hello),
        "no mechanism": framed(pack({"token": b"x"})),
        "no map": framed(pack([1])),
        "too long": framed(bytes([0x80]) * (LOGIN_BYTES + 1))[:1_000],
        "a second login": framed(token, token),
    }.items():
        with connected(by_plain, certificates, 3) as connection:
            connection.socket.sendall(sent)
            answers = 0
            while (size := connection.read(4)) is not None:
                assert connection.read(int.from_bytes(size, "big")) is not None
                answers += 1
            assert answers == (1 if name == "a second login" else 0), name
    with connected(by_plain, certificates, 3) as connection:  # a client's request after a node's login
        connection.send_frame(token)
        assert connection.receive() is not None
        connection.socket.sendall(kafka)
        assert connection.read(1) is None


# --- settings -----------------------------------------------------------------------------------------


def test_mistakes_in_settings_are_named(certificates: Certificates) -> None:
    quorum = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@{HOST}:9093,2@{HOST}:9095",
        "controller.listener.names": "CONTROLLER",
        "listeners": f"PLAINTEXT://{HOST}:9092,CONTROLLER://{HOST}:9093",
    }
    right = {**quorum, **plain_settings(certificates), "listener.security.protocol.map": MAP}
    assert BrokerConfig.of(right).controller_mechanism == "PLAIN"
    for changes, message in (
        ({"sasl.mechanism.controller.protocol": "SCRAM-SHA-512"}, "is not a mechanism of CONTROLLER"),
        (
            {f"{CONTROLLERS}plain.sasl.jaas.config": f'{PLAIN_MODULE} required user_a="b";'},
            "lacks the username and password with which this node logs in to others",
        ),
        ({f"{CONTROLLERS}ssl.keystore.location": ""}, "CONTROLLER is SASL_SSL, but has neither"),
        (
            {
                "listeners": f"SSL://{HOST}:9092,CONTROLLER://{HOST}:9093",
                "listener.security.protocol.map": "SSL:SSL",
            },
            "an explicit security mapping for each controller listener is required",
        ),
    ):
        given = {name: text for name, text in (right | changes).items() if text}
        with pytest.raises(ConfigError, match=message):
            BrokerConfig.of(given)


def test_links_to_other_machines_need_a_proof() -> None:
    """Nodes need a secret, or a listener on which every client proves its name."""
    quorum = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": "1@kafka1:9093,2@kafka2:9093",
        "controller.listener.names": "CONTROLLER",
        "listeners": "PLAINTEXT://127.0.0.1:9092,CONTROLLER://:9093",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:SSL",
        f"{CONTROLLERS}ssl.keystore.type": "PEM",
        f"{CONTROLLERS}ssl.keystore.location": "keys.pem",
    }
    for client_auth, is_proved in (("none", False), ("requested", False), ("required", True)):
        config = BrokerConfig.of(quorum | {f"{CONTROLLERS}ssl.client.auth": client_auth})
        (security,) = config.secured
        assert security.proves_clients is is_proved
