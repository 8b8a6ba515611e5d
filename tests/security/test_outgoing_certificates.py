"""The certificate that a node shows on connections it opens to other nodes is that of the settings now in force."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kraftpy.broker.containment import Tasks
from kraftpy.broker.metadata.transport import Links
from kraftpy.broker.peers import Peers
from kraftpy.config import BrokerConfig, load
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


async def test_requests_to_other_brokers(certificates: Certificates) -> None:
    async with Shown().serving(certificates) as server:
        endpoint = SimpleNamespace(host=HOST, port=server.port)
        broker = SimpleNamespace(endpoint=lambda listener: endpoint)
        image: Any = SimpleNamespace(broker=lambda number: broker)
        proof: Any = SimpleNamespace(software_for=lambda number: ("kraftpy-broker", "1"))
        peers = Peers(config(certificates, "first"), lambda: image, proof)
        for name in ("first", "second"):
            if name == "second":
                peers.configure(config(certificates, name))
            with pytest.raises(KafkaError):
                await peers.ask(
                    BrokerId(2), ApiKey.HEARTBEAT, HeartbeatRequest(group_id="", generation_id=0, member_id="")
                )
        peers.close()
        assert server.names == ["CN=first", "CN=second"]


async def test_links_to_controllers(certificates: Certificates) -> None:
    async with Shown().serving(certificates) as server, asyncio.TaskGroup() as group:
        links = Links(1, is_voter=False, tasks=cast("Tasks", group), silence_ms=1000, secret=None)
        links.secure(config(certificates, "first"), cast("Any", None))
        for name in ("first", "second"):
            if name == "second":
                links.configure(config(certificates, name))
            security = await links.own_security()
            assert security is not None
            reader, writer = await asyncio.open_connection(HOST, server.port, ssl=security.tls, server_hostname=HOST)
            assert await reader.read() == b""
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
        assert server.names == ["CN=first", "CN=second"]
