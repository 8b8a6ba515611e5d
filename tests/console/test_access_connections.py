"""The console's connections: slow ones end, and a renewed certificate is shown."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from kraftpy.broker.security.certificate import Certificate
from kraftpy.config.security import Store, TlsSettings
from kraftpy.console import connections, serving
from kraftpy.security.mapping_rules import parse_ssl_rules
from tests.security.certificates import HOST, Certificates


async def slow(request: Request) -> PlainTextResponse:
    await asyncio.sleep(0.5)
    return PlainTextResponse("done")


@contextmanager
def serving_app(certificate: Certificate | None = None) -> Iterator[int]:
    """Serve in a thread; gives the port."""
    opened = serving.open_socket(HOST, 0)
    port: int = opened.getsockname()[1]
    is_ready = threading.Event()
    servers: list[serving._Server] = []

    class Kept(serving._Server):
        def __init__(self, *arguments: object) -> None:
            super().__init__(*arguments)  # type: ignore[arg-type]
            servers.append(self)

    usual, serving._Server = serving._Server, Kept  # type: ignore[misc]
    try:
        app = Starlette(routes=[Route("/", slow)])
        thread = threading.Thread(target=serving.serve, args=(app, opened, is_ready.set, certificate))
        thread.start()
        assert is_ready.wait(30)
        yield port
        servers[0].should_exit = True
        thread.join(30)
    finally:
        serving._Server = usual  # type: ignore[misc]


async def test_a_request_that_does_not_arrive_ends_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "REQUEST_SECONDS", 0.3)
    with serving_app() as port:
        for sent in (b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: x\r\n"):
            reader, writer = await asyncio.open_connection(HOST, port)
            writer.write(sent)
            async with asyncio.timeout(20):
                with suppress(ConnectionResetError):
                    assert await reader.read() == b""
            writer.close()
        reader, writer = await asyncio.open_connection(HOST, port)
        for number in range(3):  # an answer may take longer, and the next request may follow later
            writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            async with asyncio.timeout(20):
                assert (await reader.readuntil(b"done")).startswith(b"HTTP/1.1 200"), number
            await asyncio.sleep(0.4)
        writer.write(b"GET / HT")
        async with asyncio.timeout(20):
            with suppress(ConnectionResetError):
                assert await reader.read() == b""
        writer.close()


async def test_a_renewed_certificate_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "LOOK_SECONDS", 0.05)
    certificates = Certificates(tmp_path)
    tls = TlsSettings(keys=Store(location=str(certificates.broker)), principal_rules=parse_ssl_rules("DEFAULT"))
    shown: list[bytes] = []

    async def look(port: int) -> bytes:
        context = certificates.client()
        _, writer = await asyncio.open_connection(HOST, port, ssl=context, server_hostname=HOST)
        peer = writer.get_extra_info("ssl_object")
        assert isinstance(peer, ssl.SSLObject)
        found = peer.getpeercert(binary_form=True)
        writer.close()
        assert found is not None
        return found

    with serving_app(Certificate("the console", tls)) as port:
        shown.append(await look(port))
        assert await look(port) == shown[0]
        certificates.issue("broker", HOST)
        async with asyncio.timeout(30):
            while (now := await look(port)) == shown[0]:  # noqa: ASYNC110 - a file has no event
                await asyncio.sleep(0.05)
        shown.append(now)
        certificates.broker.write_text("no certificate")
        await asyncio.sleep(0.3)
        assert await look(port) == shown[1]
