"""The certificate that a node shows on connections it opens to other nodes is that of the settings now in force."""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kraftpy.broker.containment import Tasks
from kraftpy.broker.metadata.transport import Links
from kraftpy.broker.peers import Outgoing, Peers
from kraftpy.broker.security.listeners import SecureListeners
from kraftpy.broker.startup import StartupError
from kraftpy.config import BrokerConfig, ConfigError, load
from kraftpy.config.dynamic import in_force
from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.errors import KafkaError
from kraftpy.protocol.messages.heartbeat import HeartbeatRequest
from kraftpy.security.distinguished_names import subject_of
from kraftpy.types import BrokerId
from tests.security.certificates import HOST, Certificates
from tests.security.listeners import secure_listeners

HEARTBEAT = HeartbeatRequest(group_id="", generation_id=0, member_id="")
NAMES_MAY_CHANGE = {"ssl.allow.dn.changes": "true", "ssl.allow.san.changes": "true"}


class Shown:
    """A server that demands a certificate, keeps the names in those it is shown, and hangs up."""

    def __init__(self) -> None:
        self.port = 0
        self.names: list[str] = []

    @contextlib.asynccontextmanager
    async def serving(self, certificates: Certificates, host: str = HOST) -> AsyncIterator[Shown]:
        """Its own certificate is that of a host."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(certificates.trusted))
        context.load_cert_chain(certificates.issue("server", host))
        context.verify_mode = ssl.CERT_REQUIRED

        async def look(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
            self.names.append(subject_of(shown).partition(",")[0])
            writer.close()

        server = await asyncio.start_server(look, HOST, 0, ssl=context)
        async with server:
            self.port = server.sockets[0].getsockname()[1]
            yield self


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path)


def config(certificates: Certificates, name: str, **more: str) -> BrokerConfig:
    keys = certificates.issue(name, HOST, common_name=name)
    settings = certificates.settings(ssl_keystore_location=str(keys))
    lines = {
        "node.id": "1",
        "process.roles": "broker",
        "listeners": f"SSL://{HOST}:0",
        "security.inter.broker.protocol": "SSL",
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.voters": f"9@{HOST}:9",
        "listener.security.protocol.map": "SSL:SSL,CONTROLLER:SSL",
        "log.dirs": "unused",
        **settings,
        **more,
    }
    return load("".join(f"{key}={value}\n" for key, value in lines.items())).config


class Node:
    """A node's connections to other brokers and to controllers: all of them lead to one server."""

    def __init__(self, settings: BrokerConfig, server: Shown, tasks: asyncio.TaskGroup) -> None:
        self._server = server
        outgoing = Outgoing(settings)
        self.links = Links(1, is_voter=False, tasks=cast("Tasks", tasks), silence_ms=1000, secret=None)
        self.secured: SecureListeners = secure_listeners(settings, links=self.links, outgoing=outgoing)
        endpoint = SimpleNamespace(host=HOST, port=server.port)
        broker = SimpleNamespace(endpoint=lambda listener: endpoint)
        image: Any = SimpleNamespace(broker=lambda number: broker)
        proof: Any = SimpleNamespace(software_for=lambda number: ("kraftpy-broker", "1"))
        self.peers = Peers(settings, lambda: image, proof, outgoing)

    async def shown_to_brokers(self) -> str:
        """The name that the node shows on a new connection."""
        with pytest.raises(KafkaError):
            await self.peers.ask(BrokerId(2), ApiKey.HEARTBEAT, HEARTBEAT)
        return self._server.names[-1]

    async def shown_to_controllers(self) -> str:
        security = self.links.own_security()
        assert security is not None
        reader, writer = await asyncio.open_connection(HOST, self._server.port, ssl=security.tls, server_hostname=HOST)
        assert await reader.read() == b""
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
        return self._server.names[-1]

    async def change(self, settings: BrokerConfig | None = None) -> None:
        """Have settings that changed, and changed files, taken over."""
        if settings is not None:
            self.secured.configure(settings)
        await self.secured.renew()


@contextlib.asynccontextmanager
async def node_of(settings: BrokerConfig, certificates: Certificates, host: str = HOST) -> AsyncIterator[Node]:
    async with Shown().serving(certificates, host) as server, asyncio.TaskGroup() as group:
        node = Node(settings, server, group)
        yield node
        node.peers.close()


def location(settings: BrokerConfig, listener: str) -> str:
    security = settings.security_of(listener)
    assert security is not None
    assert security.tls is not None
    assert security.tls.keys is not None
    return str(security.tls.keys.location)


def changed(settings: BrokerConfig, listener: str, keys: Path) -> BrokerConfig:
    """These settings while the metadata has another key store for a listener."""
    return in_force(settings, {f"listener.name.{listener}.ssl.keystore.location": str(keys)}, {})


async def test_each_listener_has_a_certificate_of_its_own(certificates: Certificates) -> None:
    """The second is that of controllers on other nodes."""
    settings = config(certificates, "first", **NAMES_MAY_CHANGE)
    new, old = certificates.issue("second", HOST, common_name="second"), location(settings, "SSL")
    for listener, expected in (("ssl", [str(new), old]), ("controller", [old, str(new)])):
        after = changed(settings, listener, new)
        assert [location(after, name) for name in ("SSL", "CONTROLLER")] == expected
        async with node_of(settings, certificates) as node:
            assert await node.shown_to_brokers() == await node.shown_to_controllers() == "CN=first"
            await node.change(after)
            assert await node.shown_to_brokers() == ("CN=second" if listener == "ssl" else "CN=first")
            assert await node.shown_to_controllers() == ("CN=first" if listener == "ssl" else "CN=second")


@pytest.mark.parametrize(("algorithm", "is_checked"), [("https", True), ("", False)])
async def test_a_node_of_another_host_name_is_called_only_if_names_are_not_checked(
    certificates: Certificates, tmp_path_factory: pytest.TempPathFactory, algorithm: str, is_checked: bool
) -> None:
    """`ssl.endpoint.identification.algorithm`; the authority is checked whatever it is."""
    settings = config(certificates, "first", **{"ssl.endpoint.identification.algorithm": algorithm})
    async with node_of(settings, certificates, "elsewhere.example") as node:
        if is_checked:
            with pytest.raises(KafkaError, match="IP address mismatch"):
                await node.peers.ask(BrokerId(2), ApiKey.HEARTBEAT, HEARTBEAT)
            with pytest.raises(ssl.SSLCertVerificationError, match="IP address mismatch"):
                await node.shown_to_controllers()
        else:
            assert await node.shown_to_brokers() == await node.shown_to_controllers() == "CN=first"
    async with node_of(settings, Certificates(tmp_path_factory.mktemp("other"))) as node:
        with pytest.raises(KafkaError, match="certificate verify failed"):
            await node.peers.ask(BrokerId(2), ApiKey.HEARTBEAT, HEARTBEAT)
        with pytest.raises(ssl.SSLCertVerificationError, match="certificate verify failed"):
            await node.shown_to_controllers()


async def test_a_file_that_is_being_replaced(certificates: Certificates, caplog: pytest.LogCaptureFixture) -> None:
    """Connections keep the certificate that they had, as listeners keep theirs."""
    settings = config(certificates, "first", **NAMES_MAY_CHANGE)
    file, second = location(settings, "SSL"), certificates.issue("second", HOST, common_name="second")
    async with node_of(settings, certificates) as node:
        os.truncate(file, 100)
        for _ in range(2):
            await node.change()
            assert await node.shown_to_brokers() == await node.shown_to_controllers() == "CN=first"
        os.replace(second, file)
        await node.change()
        assert await node.shown_to_brokers() == await node.shown_to_controllers() == "CN=second"
    assert caplog.text.count("SSL keeps its certificate") == caplog.text.count("CONTROLLER keeps its certificate") == 1


@pytest.mark.parametrize(
    ("names", "common_name", "reason"),
    [
        ([HOST], "second", "the distinguished name would change from CN=first"),
        (["elsewhere.example"], "first", "subject alternative names would be lost"),
    ],
)
async def test_a_renewed_certificate_names_the_same_node(
    certificates: Certificates, caplog: pytest.LogCaptureFixture, names: list[str], common_name: str, reason: str
) -> None:
    """Connections to other nodes keep theirs too, whether a file or a setting has changed (Kafka's SslFactory)."""
    settings = config(certificates, "first")
    other = certificates.issue("other", *names, common_name=common_name)
    async with node_of(settings, certificates) as node:
        for listener in ("ssl", "controller"):
            with pytest.raises(ConfigError):
                await node.secured.check(changed(settings, listener, other))
            await node.change(changed(settings, listener, other))
            assert await node.shown_to_brokers() == await node.shown_to_controllers() == "CN=first"
        await node.change(settings)
        os.replace(other, location(settings, "SSL"))
        await node.change()
        before = node.secured.context_for("SSL")
        assert await node.shown_to_brokers() == await node.shown_to_controllers() == "CN=first"
        renewed = certificates.issue("renewed", HOST, "b.example", common_name="first")
        os.replace(renewed, location(settings, "SSL"))
        await node.change()
        assert node.secured.context_for("SSL") is not before
        assert await node.shown_to_brokers() == await node.shown_to_controllers() == "CN=first"
    for listener in ("SSL", "CONTROLLER"):
        assert f"{listener} keeps its certificate: {reason}" in caplog.text


async def test_nodes_that_have_changed_accept_those_that_have_not(
    certificates: Certificates, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """A key of an authority that the others do not trust yet is refused, and so is a trust store without theirs."""
    (tmp_path / "other").mkdir()
    other = Certificates(tmp_path / "other")
    settings = config(certificates, "first", **{"ssl.client.auth": "required"})
    file, before = location(settings, "SSL"), certificates.trusted.read_bytes()
    async with node_of(settings, certificates) as node:
        os.replace(other.issue("first", HOST, common_name="first"), file)
        await node.change()
        assert caplog.text.count("SSL keeps its certificate: nodes with the new certificate and those with the") == 1
        os.replace(certificates.issue("renewed", HOST, common_name="first"), file)
        await node.change()
        context = node.secured.context_for("SSL")
        certificates.trusted.write_bytes(other.trusted.read_bytes())
        await node.change()
        assert node.secured.context_for("SSL") is context
        certificates.trusted.write_bytes(before + other.trusted.read_bytes())
        await node.change()
        os.replace(other.issue("again", HOST, common_name="first"), file)
        await node.change()
        assert node.secured.context_for("SSL") is not context, "step by step, the authority may change"
    assert caplog.text.count("SSL keeps its certificate") == 2


async def test_a_changed_setting_for_controllers_is_checked(certificates: Certificates, tmp_path: Path) -> None:
    settings = config(certificates, "first")
    async with node_of(settings, certificates) as node:
        right = certificates.issue("second", HOST, common_name="first")
        await node.secured.check(changed(settings, "controller", right))
        empty = tmp_path / "empty.pem"
        empty.touch()
        with pytest.raises(ConfigError, match="Validation of dynamic config update of SSLFactory failed"):
            await node.secured.check(changed(settings, "controller", empty))


async def test_stores_are_neither_added_nor_removed(
    certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    """A broker that shows controllers no certificate does not begin to, as in Kafka; nor the other way round."""
    for name in ("ssl.keystore.location", "ssl.keystore.type", "ssl.truststore.location", "ssl.truststore.type"):
        assert name in certificates.settings()
    common = {
        "listeners": f"PLAINTEXT://{HOST}:0",
        "security.inter.broker.protocol": "PLAINTEXT",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:SSL",
    }
    whole = config(certificates, "first", **common)
    text = whole.given.items()

    def without(store: str) -> BrokerConfig:
        return load("".join(f"{k}={v.text}\n" for k, v in text if not k.startswith(f"ssl.{store}"))).config

    for before, after, reason in (
        (without("keystore"), whole, "an SSL keystore cannot be added"),
        (whole, without("keystore"), "an SSL keystore cannot be removed"),
        (without("truststore"), whole, "an SSL truststore cannot be added"),
    ):
        caplog.clear()
        secured = secure_listeners(before)
        context = secured.context_for("CONTROLLER")
        secured.configure(after)
        await secured.renew()
        assert secured.context_for("CONTROLLER") is context
        assert f"CONTROLLER keeps its certificate: {reason}" in caplog.text


async def test_a_start_without_a_usable_file(certificates: Certificates) -> None:
    """The certificate in the metadata serves, but not for controllers, to which a node connects before it has any."""
    settings = config(certificates, "first")
    os.truncate(location(settings, "SSL"), 0)
    with pytest.raises(StartupError, match="listeners: CONTROLLER is SSL: "):
        secure_listeners(settings)
    alone = config(
        certificates,
        "first",
        **{"listener.security.protocol.map": "SSL:SSL,CONTROLLER:PLAINTEXT"},
    )
    new = certificates.issue("second", HOST, common_name="second")
    os.truncate(location(alone, "SSL"), 0)
    async with node_of(alone, certificates) as node:
        with pytest.raises(KafkaError, match="expected at least one certificate in PEM"):
            await node.peers.ask(BrokerId(2), ApiKey.HEARTBEAT, HEARTBEAT)
        with pytest.raises(StartupError, match=r"listeners: SSL: ssl\.keystore\.location=.*expected at least one"):
            await node.secured.begin()
        node.secured.configure(changed(alone, "ssl", new))
        await node.secured.begin()
        assert await node.shown_to_brokers() == "CN=second"
        await node.change(alone)
        assert await node.shown_to_brokers() == "CN=second", "the unusable file does not replace it"


async def test_a_broker_that_others_could_not_call_does_not_start(certificates: Certificates, tmp_path: Path) -> None:
    """Its trust store does not cover its own key store, nor would those of other brokers (Kafka's SslFactory)."""
    (tmp_path / "other").mkdir()
    strange = Certificates(tmp_path / "other").issue("strange", HOST, common_name="first")
    only_brokers = {"listener.security.protocol.map": "SSL:SSL,CONTROLLER:PLAINTEXT"}
    settings = config(certificates, "first", **{"ssl.keystore.location": str(strange), **only_brokers})
    secured = secure_listeners(settings)
    reason = (
        "listeners: SSL: a client with the listener's key store and trust store cannot connect to a server with the"
    )
    with pytest.raises(StartupError, match=reason):
        await secured.begin()
    for_controllers = {"listener.security.protocol.map": "SSL:PLAINTEXT,CONTROLLER:SSL"}
    secure_listeners(config(certificates, "first", **{"ssl.keystore.location": str(strange), **for_controllers}))
