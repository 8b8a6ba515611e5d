"""Listeners with TLS: versions, certificates and refusals, and peers that keep others waiting.

A test with other settings has its own cluster.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import socket
import ssl
import struct
import subprocess
import threading
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import cast

import confluent_kafka
import kafka
import pytest
import trustme
from confluent_kafka.admin import AdminClient

from kraftpy.broker.security.tls import Handshakes, TlsLayer
from kraftpy.config import load
from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.frames import encode_request
from kraftpy.protocol.messages.api_versions import ApiVersionsRequest
from kraftpy.protocol.record_batch import encode_batch
from kraftpy.testing import EmbeddedBroker
from kraftpy.testing.ports import ReservedPorts
from kraftpy.tls import server_context
from tests.broker_wire import connect, create_topic, produce_request, read_all
from tests.security.certificates import HOST, Certificates
from tests.security.listeners import listener_settings, reason_not_to_start
from tests.security.wire import BOUND_SECONDS
from tests.waiting import eventually

ASK_VERSIONS = encode_request(ApiKey.API_VERSIONS, 0, 7, "test", ApiVersionsRequest())


class Secured:
    """A broker with one listener for each way to ask for a client's certificate, and a plain one."""

    def __init__(self, certificates: Certificates, ports: ReservedPorts, **more: str) -> None:
        protocols = {"plain": "PLAINTEXT", "none": "SSL", "requested": "SSL", "required": "SSL"}
        self.port = {name: ports.reserve() for name in protocols}
        self.settings = {
            **listener_settings(self.port, protocols),
            "inter.broker.listener.name": "PLAIN",
            "listener.name.requested.ssl.client.auth": "requested",
            "listener.name.required.ssl.client.auth": "required",
            **certificates.settings(**more),
        }
        self.broker = EmbeddedBroker(settings=self.settings)

    def address(self, name: str) -> str:
        return f"{HOST}:{self.port[name]}"


@pytest.fixture(scope="module")
def secured(certificates: Certificates) -> Iterator[Secured]:
    with ReservedPorts() as ports:
        made = Secured(certificates, ports)
        with made.broker as running:
            yield made
            assert "Traceback" not in running.log_text


def versions_over(connection: socket.socket) -> bytes:
    """Ask for ApiVersions and return the whole answer; empty if the broker closes instead."""
    connection.settimeout(BOUND_SECONDS)
    connection.sendall(ASK_VERSIONS)
    answer = b""
    while len(answer) < 4 or len(answer) < 4 + int.from_bytes(answer[:4], "big"):
        more = connection.recv(65536)
        if not more:
            return b""
        answer += more
    return answer


def connected(port: int, context: ssl.SSLContext, host: str = HOST) -> ssl.SSLSocket:
    return context.wrap_socket(socket.create_connection((HOST, port), BOUND_SECONDS), server_hostname=host)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_both_versions_of_tls_are_served(secured: Secured, certificates: Certificates, version: ssl.TLSVersion) -> None:
    context = certificates.client()
    context.minimum_version = context.maximum_version = version
    with connected(secured.port["none"], context) as connection:
        assert connection.version() == version.name.replace("_", ".")
        assert versions_over(connection)[4:8] == (7).to_bytes(4, "big")


@pytest.mark.parametrize("listener", ["plain", "none"])
@pytest.mark.parametrize("is_announced", [True, False])
def test_records_of_a_producer_that_closes_at_once_are_stored(
    secured: Secured, certificates: Certificates, listener: str, is_announced: bool
) -> None:
    """With acks=0, nothing is to come from the broker. A close_notify announces the end, or does not."""
    topic = f"left-{listener}-{is_announced}"
    batch = encode_batch([(1_700_000_000_000, None, b"value", ())])
    request = encode_request(ApiKey.PRODUCE, 9, 7, "test", produce_request(topic, batch, acks=0))
    with connect(secured.address("plain")) as plain:
        create_topic(plain, topic)
    connection = socket.create_connection((HOST, secured.port[listener]), BOUND_SECONDS)
    if listener == "none":
        tls = certificates.client().wrap_socket(connection, server_hostname=HOST)
        assert versions_over(tls), "also the tickets of TLS 1.3 are read: else closing would be a reset"
        tls.sendall(60 * request)
        if is_announced:
            with contextlib.suppress(OSError):
                tls.settimeout(0)
                tls.unwrap()
        tls.close()
    else:
        connection.sendall(60 * request)
        connection.close()
    eventually(lambda: len(read_all(secured.address("plain"), topic)) == 60, "60 records")


def test_a_certificate_is_asked_for_as_the_listener_says(secured: Secured, certificates: Certificates) -> None:
    alice = certificates.client(certificates.issue("alice", "alice@example.org", common_name="alice"))
    for name, context in [
        (name, context) for name in ("none", "requested") for context in (certificates.client(), alice)
    ]:
        with connected(secured.port[name], context) as connection:
            assert versions_over(connection), name
    with connected(secured.port["required"], alice) as connection:
        assert versions_over(connection)
    assert refused(secured.port["required"], certificates.client())


def test_a_certificate_of_another_authority_is_refused(secured: Secured, certificates: Certificates) -> None:
    """Also if one is only requested: a client that shows one must prove that it is its own."""
    mallory = certificates.issue("mallory", "m@example.org", authority=trustme.CA())
    for name in ("requested", "required"):
        assert refused(secured.port[name], certificates.client(mallory)), name


def refused(port: int, context: ssl.SSLContext) -> str:
    """Return the alert that ends the connection; with TLS 1.3, it is seen at the first read. Empty if there is none."""
    try:
        with connected(port, context) as connection:
            answer = versions_over(connection)
            return "" if answer else "closed"
    except ssl.SSLError as error:
        return str(error.reason) if "ALERT" in str(error.reason) else ""


def test_bytes_that_are_no_tls_are_refused_at_once(secured: Secured) -> None:
    for sent in (ASK_VERSIONS, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", os.urandom(20_000)):
        with socket.create_connection((HOST, secured.port["none"]), BOUND_SECONDS) as connection:
            connection.sendall(sent)
            received = b""
            with contextlib.suppress(ConnectionResetError):
                while more := connection.recv(4096):
                    received += more
            assert len(received) < 100  # an alert at most


def test_tls_on_a_plain_listener_is_refused(secured: Secured, certificates: Certificates) -> None:
    with pytest.raises((ssl.SSLError, ConnectionResetError)):
        connected(secured.port["plain"], certificates.client())


def test_a_handshake_in_single_bytes_is_served(secured: Secured, certificates: Certificates) -> None:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = certificates.client().wrap_bio(incoming, outgoing, server_hostname=HOST)
    with socket.create_connection((HOST, secured.port["none"]), BOUND_SECONDS) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while True:
            try:
                client.do_handshake()
            except ssl.SSLWantReadError:
                for byte in outgoing.read():
                    connection.sendall(bytes([byte]))
                incoming.write(connection.recv(4096))
            else:
                break
        client.write(ASK_VERSIONS)
        for byte in outgoing.read():
            connection.sendall(bytes([byte]))
        while True:
            incoming.write(connection.recv(4096))
            with contextlib.suppress(ssl.SSLWantReadError):
                assert client.read(8)[4:] == (7).to_bytes(4, "big")
                break


@pytest.mark.parametrize(("version", "sent"), [("-tls1_2", "R"), ("-tls1_3", "K")])
def test_a_renegotiation_is_refused_and_new_keys_are_not(secured: Secured, version: str, sent: str) -> None:
    """TLS 1.3 has no renegotiation; there the client changes its keys, asks for new ones, and is served."""
    command = ["openssl", "s_client", "-connect", f"{HOST}:{secured.port['none']}", version]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as client:
        assert client.stdin is not None
        assert client.stdout is not None
        client.stdin.write(f"{sent}\n".encode())
        client.stdin.flush()
        if sent == "R":
            assert b"no renegotiation" in read_until_closed(client.stdout.fileno())
            return
        output = b""
        while b"KEYUPDATE" not in output:
            more = os.read(client.stdout.fileno(), 65536)
            assert more, output
            output += more
        client.stdin.write(ASK_VERSIONS)
        client.stdin.flush()
        while (7).to_bytes(4, "big") not in output:
            more = os.read(client.stdout.fileno(), 65536)
            assert more, output
            output += more
        client.kill()


def read_until_closed(descriptor: int) -> bytes:
    output = b""
    while more := os.read(descriptor, 65536):
        output += more
    return output


def test_records_of_many_sizes_arrive_unchanged(secured: Secured, certificates: Certificates) -> None:
    """Other clients write to one listener and read from the others, including the plain one."""
    values = [os.urandom(size) for size in (0, 1, 100, 16_383, 16_384, 16_385, 300_000, 900_000)] * 3
    trust = {"security.protocol": "SSL", "ssl.ca.location": str(certificates.trusted)}
    producer = confluent_kafka.Producer({"bootstrap.servers": secured.address("none"), **trust})
    for value in values:
        producer.produce("sizes", value, partition=0)
    assert producer.flush(BOUND_SECONDS) == 0
    options = {"security_protocol": "SSL", "ssl_cafile": str(certificates.trusted)}
    for name, settings in (("requested", options), ("plain", {})):
        consumer = kafka.KafkaConsumer(
            bootstrap_servers=secured.address(name),
            auto_offset_reset="earliest",
            fetch_max_bytes=10_000_000,
            **settings,
        )
        consumer.assign([kafka.TopicPartition("sizes", 0)])
        found: list[bytes] = []
        deadline = time.monotonic() + BOUND_SECONDS
        while len(found) < len(values):
            assert time.monotonic() < deadline
            found += [record.value for batch in consumer.poll(100).values() for record in batch]
        consumer.close()
        assert found == values


def test_a_peer_that_does_not_read_does_not_hold_others(secured: Secured, certificates: Certificates) -> None:
    """Hundreds of unread answers wait at the slow peer's own connection, and are all there when it reads."""
    count = 3_000
    with connected(secured.port["none"], certificates.client()) as slow:
        sending = threading.Thread(target=slow.sendall, args=(ASK_VERSIONS * count,))
        sending.start()
        for _ in range(20):
            with connected(secured.port["none"], certificates.client()) as other:
                assert versions_over(other)
        length = len(versions_over_plain(secured))
        left = length * count
        while left:
            more = slow.recv(65536)
            assert more
            left -= len(more)
        sending.join(BOUND_SECONDS)


def versions_over_plain(secured: Secured) -> bytes:
    with socket.create_connection((HOST, secured.port["plain"]), BOUND_SECONDS) as connection:
        return versions_over(connection)


def test_silent_peers_and_half_handshakes_keep_nobody_out(secured: Secured, certificates: Certificates) -> None:
    hello = client_hello(certificates)
    silent = [socket.create_connection((HOST, secured.port["none"]), BOUND_SECONDS) for _ in range(200)]
    try:
        for number, each in enumerate(silent):
            each.sendall(hello[: number % len(hello)])
        with ThreadPoolExecutor(8) as clients:
            asked = [clients.submit(asked_quietly, secured.port["none"], certificates) for _ in range(40)]
            assert all(each.result(BOUND_SECONDS) for each in asked)
    finally:
        for each in silent:
            each.close()


def client_hello(certificates: Certificates) -> bytes:
    outgoing = ssl.MemoryBIO()
    client = certificates.client().wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=HOST)
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


def test_a_handshake_has_a_deadline(secured: Secured, certificates: Certificates) -> None:
    with socket.create_connection((HOST, secured.port["none"]), BOUND_SECONDS) as connection:
        connection.settimeout(2 * BOUND_SECONDS)
        connection.sendall(client_hello(certificates)[:20])
        assert connection.recv(1) == b""
    assert "the TLS handshake is not complete after 10 s" in secured.broker.log_text


def test_connections_in_their_handshake_count(certificates: Certificates) -> None:
    with ReservedPorts() as ports:
        made = Secured(certificates, ports, max_connections_per_ip="3")
        with made.broker, contextlib.ExitStack() as open_ones:
            held = [
                open_ones.enter_context(socket.create_connection((HOST, made.port["none"]), BOUND_SECONDS))
                for _ in range(3)
            ]
            eventually(lambda: closes(made.port["none"]))
            held.pop().close()
            eventually(lambda: bool(asked_quietly(made.port["none"], certificates)))


def closes(port: int) -> bool:
    with socket.create_connection((HOST, port), BOUND_SECONDS) as connection:
        connection.settimeout(0.2)
        try:
            return connection.recv(1) == b""
        except ConnectionResetError:
            return True
        except TimeoutError:
            return False


def asked_quietly(port: int, certificates: Certificates) -> bytes:
    with contextlib.suppress(OSError), connected(port, certificates.client()) as connection:
        return versions_over(connection)
    return b""


def test_versions_and_suites_are_as_set(certificates: Certificates) -> None:
    with ReservedPorts() as ports:
        suites = "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256"
        made = Secured(certificates, ports, ssl_cipher_suites=suites)
        with made.broker:
            with connected(made.port["none"], certificates.client()) as connection:
                assert connection.version() == "TLSv1.2"  # none of the suites is one of TLS 1.3
                assert connection.cipher()[0] == "ECDHE-ECDSA-AES256-GCM-SHA384"  # type: ignore[index]
            other = certificates.client()
            other.set_ciphers("ECDHE-ECDSA-AES128-GCM-SHA256")
            other.maximum_version = ssl.TLSVersion.TLSv1_2
            assert "HANDSHAKE_FAILURE" in refused(made.port["none"], other)
    with ReservedPorts() as ports:
        made = Secured(certificates, ports, ssl_enabled_protocols="TLSv1.3")
        with made.broker:
            old = certificates.client()
            old.maximum_version = ssl.TLSVersion.TLSv1_2
            assert "PROTOCOL_VERSION" in refused(made.port["none"], old)


def test_keys_may_be_in_the_settings(certificates: Certificates) -> None:
    pem = certificates.broker.read_text()
    end = pem.index("-----BEGIN CERTIFICATE-----")
    inline = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.key": pem[:end],
        "ssl.keystore.certificate.chain": pem[end:],
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": certificates.trusted.read_text(),
    }
    with ReservedPorts() as ports:
        port = ports.reserve()
        with EmbeddedBroker(settings={"listeners": f"SSL://{HOST}:{port}", **inline}) as running:
            with connected(port, certificates.client()) as connection:
                assert versions_over(connection)
            trust = {"security.protocol": "SSL", "ssl.ca.location": str(certificates.trusted)}
            admin = AdminClient({"bootstrap.servers": f"{HOST}:{port}", **trust})
            assert list(admin.list_topics(timeout=BOUND_SECONDS).brokers) == [1]
            assert "PRIVATE" not in running.log_text


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ssl_keystore_location": "/nowhere.pem"}, "ssl.keystore.location=/nowhere.pem: No such file or directory"),
        ({"ssl_keystore_type": "JKS"}, "only PEM is; convert it with"),
        (
            {"ssl_keystore_type": "PKCS12"},
            "ssl.keystore.type=PKCS12 is not supported: only PEM is; "
            "convert it with 'openssl pkcs12 -in FILE -out FILE.pem'",
        ),
        (
            {"ssl_truststore_type": "pkcs12", "ssl_truststore_password": "x"},
            "ssl.truststore.type=PKCS12 is not supported: only PEM is; convert it with 'openssl pkcs12 -in",
        ),
        ({"ssl_keystore_password": "x"}, "a password cannot be specified with PEM format"),
        ({"ssl_cipher_suites": "TLS_NONE_WITH_NONE"}, "TLS_NONE_WITH_NONE is not known"),
        ({"ssl_cipher_suites": "TLS_AES_128_GCM_SHA256"}, "cannot be chosen individually"),
        ({"ssl_enabled_protocols": "SSLv3"}, "ssl.enabled.protocols=SSLv3 is not allowed"),
        ({"ssl_truststore_location": "{broker_key}"}, "expected at least one certificate"),
        ({"ssl_keystore_location": "{ca}"}, "expected one private key in PEM, found 0"),
    ],
)
def test_what_cannot_be_used_ends_the_start(
    certificates: Certificates, tmp_path: Path, changes: dict[str, str], message: str
) -> None:
    key = tmp_path / "key.pem"
    pem = certificates.broker.read_text()
    key.write_text(pem[: pem.index("-----BEGIN CERTIFICATE-----")])
    known = {"{broker_key}": str(key), "{ca}": str(certificates.trusted)}
    with ReservedPorts() as ports:
        made = Secured(certificates, ports, **{name: known.get(value, value) for name, value in changes.items()})
        reason = reason_not_to_start(made.settings)
    assert message in reason
    assert "Traceback" not in reason


def test_peers_that_vanish_in_the_middle_keep_nobody_out(secured: Secured, certificates: Certificates) -> None:
    """After a reset, the socket is closed before its handshake is taken up."""
    hello = client_hello(certificates)
    for number in range(100):
        with socket.create_connection((HOST, secured.port["none"]), BOUND_SECONDS) as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.sendall(hello if number % 2 else b"no TLS at all")
    with connected(secured.port["none"], certificates.client()) as connection:
        assert versions_over(connection)


async def test_a_step_that_fails_costs_its_own_connection() -> None:
    """If the queue of handshakes stopped, no client could connect any more."""
    handshakes = Handshakes()
    done: list[int] = []

    class Failing:
        def step(self) -> None:
            raise RuntimeError("a bug")

    class Good:
        def step(self) -> None:
            done.append(1)

    met: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: met.append(context["exception"]))
    for layer in (Failing(), Good(), Failing(), Good()):
        handshakes.enter(layer)  # type: ignore[arg-type]
    async with asyncio.timeout(BOUND_SECONDS):
        while len(done) < 2:  # noqa: ASYNC110 - turns are taken by the loop
            await asyncio.sleep(0)
    assert [str(error) for error in met] == ["a bug", "a bug"]


class Echo:
    """A connection behind a layer that sends back what it gets; `lost` has an entry for each that has ended."""

    def __init__(self, lost: list[bool]) -> None:
        self._lost = lost
        self._buffer = memoryview(bytearray(100))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport.write(b"to nobody")
        self._transport.close()
        assert self._transport.get_extra_info("ssl_object") is None
        assert self._transport.get_extra_info("sslcontext") is None
        self._lost.append(True)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._transport.write(self._buffer[:nbytes])

    def eof_received(self) -> None: ...

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...


@pytest.fixture
def without_collection() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("without_collection")
async def test_the_memory_of_a_handshake_goes_with_its_connection(certificates: Certificates) -> None:
    """OpenSSL's is large, and a stranger who comes again and again must not leave it to the garbage collector."""
    (listener,) = load(f"listeners=SSL://{HOST}:0\nlog.dirs=/nowhere\n{lines(certificates)}").config.secured
    assert listener.tls is not None
    context, turns, buffer = server_context(listener.tls), Handshakes(), memoryview(bytearray(1 << 18))
    kept: list[weakref.ref[object]] = []
    lost: list[bool] = []

    def accepted() -> TlsLayer:
        echo = Echo(lost)

        def failed(reason: str, echo: Echo = echo) -> None:
            assert reason

        layer = TlsLayer(echo, context, turns, buffer, authenticate=lambda _: None, failed=failed)
        kept.extend(map(weakref.ref, (layer, layer.ssl_object, echo)))
        return layer

    server = await asyncio.get_running_loop().create_server(accepted, HOST, 0)
    async with server, asyncio.timeout(BOUND_SECONDS):
        port = server.sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection(HOST, port, ssl=certificates.client(), server_hostname=HOST)
        writer.write(b"hello")
        assert await reader.read(5) == b"hello"
        writer.transport.abort()
        for sent in (b"no TLS at all", client_hello(certificates), client_hello(certificates)[:50]):
            _, writer = await asyncio.open_connection(HOST, port)
            writer.write(sent)
            await writer.drain()
            await asyncio.sleep(0)
            writer.transport.abort()
        while len(lost) < 4:  # noqa: ASYNC110 - the loop tells them
            await asyncio.sleep(0.01)
        await asyncio.sleep(0)
    assert len(kept) == 12
    assert [each() for each in kept if each() is not None] == []


def lines(certificates: Certificates) -> str:
    return "".join(f"{name}={value}\n" for name, value in certificates.settings().items())
