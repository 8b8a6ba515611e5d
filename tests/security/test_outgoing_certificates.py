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

from kraftpy.broker.containment import Complaints, Tasks
from kraftpy.broker.metadata.transport import Links
from kraftpy.broker.peers import Peers
from kraftpy.broker.security.listeners import SecureListeners
from kraftpy.config import BrokerConfig, ConfigError, load
from kraftpy.config.dynamic import in_force
from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.errors import KafkaError
from kraftpy.protocol.messages.heartbeat import HeartbeatRequest
from kraftpy.security.distinguished_names import subject_of
from kraftpy.types import BrokerId
from tests.security.certificates import HOST, Certificates

HEARTBEAT = HeartbeatRequest(group_id="", generation_id=0, member_id="")


class Shown:
    """A server that demands a certificate, keeps the names in those it is shown, and hangs up."""

    def __init__(self) -> None:
        self.port = 0
        self.names: list[str] = []

    @contextlib.asynccontextmanager
    async def serving(self, certificates: Certificates) -> AsyncIterator[Shown]:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(certificates.trusted))
        context.load_cert_chain(certificates.issue("server", HOST))
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


def config(certificates: Certificates, name: str) -> BrokerConfig:
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
    }
    return load("".join(f"{key}={value}\n" for key, value in lines.items())).config


async def ask_in_vain(peers: Peers) -> None:
    """Have a connection opened, on which the server hangs up."""
    with pytest.raises(KafkaError):
        await peers.ask(BrokerId(2), ApiKey.HEARTBEAT, HEARTBEAT)


@contextlib.asynccontextmanager
async def peers_of(settings: BrokerConfig, server: Shown) -> AsyncIterator[Peers]:
    endpoint = SimpleNamespace(host=HOST, port=server.port)
    broker = SimpleNamespace(endpoint=lambda listener: endpoint)
    image: Any = SimpleNamespace(broker=lambda number: broker)
    proof: Any = SimpleNamespace(software_for=lambda number: ("kraftpy-broker", "1"))
    peers = Peers(settings, lambda: image, proof)
    yield peers
    peers.close()


async def test_requests_to_other_brokers(certificates: Certificates) -> None:
    async with Shown().serving(certificates) as server, peers_of(config(certificates, "first"), server) as peers:
        await ask_in_vain(peers)
        peers.configure(config(certificates, "second"))
        await ask_in_vain(peers)
        assert server.names == ["CN=first", "CN=second"]


async def test_a_file_that_is_being_replaced(certificates: Certificates, caplog: pytest.LogCaptureFixture) -> None:
    """Brokers keep replicating, with the certificate that they had, as listeners keep theirs."""
    settings = config(certificates, "first")
    file, second = location(settings, "SSL"), certificates.issue("second", HOST, common_name="second")
    async with Shown().serving(certificates) as server, peers_of(settings, server) as peers:
        await ask_in_vain(peers)
        os.truncate(file, 100)
        await ask_in_vain(peers)
        await ask_in_vain(peers)
        os.replace(second, file)
        await ask_in_vain(peers)
        assert server.names == ["CN=first", "CN=first", "CN=first", "CN=second"]
    assert caplog.text.count("Connections to other nodes keep their keys and certificates") == 1


async def test_a_file_that_was_never_usable(certificates: Certificates) -> None:
    settings = config(certificates, "first")
    os.truncate(location(settings, "SSL"), 0)
    async with Shown().serving(certificates) as server, peers_of(settings, server) as peers:
        await ask_in_vain(peers)
        assert server.names == []


def location(settings: BrokerConfig, listener: str) -> str:
    security = settings.security_of(listener)
    assert security is not None
    assert security.tls is not None
    assert security.tls.keys is not None
    return str(security.tls.keys.location)


def changed(settings: BrokerConfig, listener: str, keys: Path) -> BrokerConfig:
    """These settings while the metadata has another key store for a listener."""
    return in_force(settings, {f"listener.name.{listener}.ssl.keystore.location": str(keys)}, {})


def test_each_listener_has_a_certificate_of_its_own(certificates: Certificates) -> None:
    """The second is that of controllers on other nodes."""
    settings, new = config(certificates, "first"), certificates.issue("second", HOST)
    old = location(settings, "SSL")
    for listener, expected in (("ssl", [str(new), old]), ("controller", [old, str(new)])):
        after = changed(settings, listener, new)
        assert [location(after, name) for name in ("SSL", "CONTROLLER")] == expected


async def test_a_changed_setting_for_controllers_is_checked(certificates: Certificates, tmp_path: Path) -> None:
    settings = config(certificates, "first")
    broker: Any = SimpleNamespace(
        config=settings,
        metadata=None,
        clock=None,
        authorizer=None,
        complaints=Complaints(),
        settings=SimpleNamespace(static=settings, then=lambda listener: None),
        links=None,
    )
    secured = SecureListeners(broker)
    await secured.check(changed(settings, "controller", certificates.issue("second", HOST)))
    empty = tmp_path / "empty.pem"
    empty.touch()
    with pytest.raises(ConfigError, match="Validation of dynamic config update of SSLFactory failed"):
        await secured.check(changed(settings, "controller", empty))


async def test_links_to_controllers(certificates: Certificates) -> None:
    async with Shown().serving(certificates) as server, asyncio.TaskGroup() as group:
        settings = config(certificates, "first")
        links = Links(1, is_voter=False, tasks=cast("Tasks", group), silence_ms=1000, secret=None)
        links.secure(settings, cast("Any", None))
        for keys in (None, certificates.issue("second", HOST, common_name="second"), certificates.trusted):
            if keys is not None:
                links.configure(changed(settings, "controller", keys))
            security = await links.own_security()
            assert security is not None
            reader, writer = await asyncio.open_connection(HOST, server.port, ssl=security.tls, server_hostname=HOST)
            assert await reader.read() == b""
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
        assert server.names == ["CN=first", "CN=second", "CN=second"], "the last file has no key"
