"""A request that has begun must arrive, on a listener of any protocol, before a login too."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import pytest

from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.messages.api_versions import ApiVersionsRequest
from kraftpy.testing import EmbeddedBroker
from kraftpy.testing.ports import ReservedPorts
from tests.security.certificates import HOST, Certificates
from tests.security.listeners import PLAIN_MODULE, listener_settings
from tests.security.wire import BOUND_SECONDS, Wire

RECEIVE_TIMEOUT_MS = 500
PROTOCOLS = {"plain": "PLAINTEXT", "tls": "SSL", "clear": "SASL_PLAINTEXT", "both": "SASL_SSL"}
FRAME = (100_000).to_bytes(4, "big") + int(ApiKey.API_VERSIONS).to_bytes(2, "big") + bytes(100)
"""The beginning of a request that would take several TLS records."""


@pytest.fixture(scope="module")
def ports(certificates: Certificates) -> Iterator[dict[str, int]]:
    with ReservedPorts() as reserved:
        port = {name: reserved.reserve() for name in PROTOCOLS}
        users = f'{PLAIN_MODULE} required user_alice="a";'
        settings = {
            **listener_settings(port, PROTOCOLS),
            **{f"listener.name.{name}.plain.sasl.jaas.config": users for name in ("clear", "both")},
            "inter.broker.listener.name": "PLAIN",
            "sasl.enabled.mechanisms": "PLAIN",
            "kraftpy.request.receive.timeout.ms": str(RECEIVE_TIMEOUT_MS),
            **certificates.settings(),
        }
        with EmbeddedBroker(settings=settings) as running:
            yield port
            assert "a request that is not complete after 0.5 s" in running.log_text
            assert "Traceback" not in running.log_text


@pytest.mark.parametrize("name", PROTOCOLS)
@pytest.mark.parametrize("sent", [FRAME, FRAME[:2]], ids=["of its content", "of its size"])
def test_a_request_of_which_only_a_part_arrives_ends_its_connection(
    ports: dict[str, int], certificates: Certificates, name: str, sent: bytes
) -> None:
    """And no other: a connection that has sent nothing yet is idle, and is served afterwards."""

    def connected() -> Wire:
        connection = socket.create_connection((HOST, ports[name]), BOUND_SECONDS)
        is_encrypted = PROTOCOLS[name].endswith("SSL")
        return Wire(certificates.client().wrap_socket(connection, server_hostname=HOST) if is_encrypted else connection)

    with connected() as slow, connected() as idle:
        slow.socket.sendall(sent)
        with contextlib.suppress(ConnectionError):
            assert slow.socket.recv(1) == b"", "the broker closes; within the socket's time limit"
        assert idle.ask(ApiKey.API_VERSIONS, 0, ApiVersionsRequest()).error_code == 0
