"""Certificates that change while a broker runs. Each test has its own broker, whose files it changes."""

from __future__ import annotations

import base64
import os
import socket
import ssl
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from kraftpy.broker.security.certificate import Certificate
from kraftpy.client import Admin, KafkaError, ResourceType
from kraftpy.config import load
from kraftpy.config.security import Store, TlsSettings
from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.frames import encode_request
from kraftpy.protocol.messages.api_versions import ApiVersionsRequest
from kraftpy.security.distinguished_names import alternative_names_of, subject_of
from kraftpy.testing import BrokerDied, EmbeddedBroker
from kraftpy.testing.ports import ReservedPorts
from kraftpy.tls import TlsError
from tests.security.certificates import HOST, Certificates
from tests.security.wire import BOUND_SECONDS
from tests.waiting import eventually

NAMES = Path(__file__).parent / "java_names.tsv"


class Renewing:
    """A broker whose key store is a file of its own, which `put` replaces."""

    def __init__(self, directory: Path, ports: ReservedPorts, **more: str) -> None:
        self.certificates = Certificates(directory)
        self.port = ports.reserve()
        self.file = directory / "keys.pem"
        self.put(self.certificates.issue("first", HOST, "a.example", common_name="broker"))
        settings = {
            "listeners": f"SSL://{HOST}:{self.port}",
            **self.certificates.settings(ssl_keystore_location=str(self.file), **more),
        }
        self.broker = EmbeddedBroker(settings=settings)

    def put(self, keys: Path) -> None:
        """Replace the file in one step, as a tool that renews certificates should."""
        aside = self.file.with_suffix(".new")
        aside.write_bytes(keys.read_bytes())
        aside.replace(self.file)

    def shown(self) -> bytes:
        """The certificate that a client sees now."""
        with (
            socket.create_connection((HOST, self.port), BOUND_SECONDS) as plain,
            self.certificates.client().wrap_socket(plain, server_hostname=HOST) as secured,
        ):
            certificate = secured.getpeercert(binary_form=True)
            assert certificate is not None
            return certificate

    def in_file(self) -> bytes:
        return certificate_in(self.file)


END = "-----END CERTIFICATE-----\n"


def certificate_in(keys: Path) -> bytes:
    """The first certificate of a file."""
    text = keys.read_text()
    return ssl.PEM_cert_to_DER_cert(text[text.index("-----BEGIN CERTIFICATE-----") :].split("-----END")[0] + END)


@pytest.fixture
def ports() -> Iterator[ReservedPorts]:
    with ReservedPorts() as reserved:
        yield reserved


def test_a_renewed_certificate_is_shown_and_others_are_refused(tmp_path: Path, ports: ReservedPorts) -> None:
    made = Renewing(tmp_path, ports)
    issue = made.certificates.issue
    with made.broker, socket.create_connection((HOST, made.port), BOUND_SECONDS) as plain:
        first = made.shown()
        with made.certificates.client().wrap_socket(plain, server_hostname=HOST) as established:
            made.put(issue("second", HOST, "a.example", "b.example", common_name="broker"))
            eventually(lambda: made.shown() == made.in_file())
            second = made.shown()
            assert second != first
            assert "SSL has a new certificate, of" in made.broker.log_text
            refused = {
                issue(
                    "third", HOST, "a.example", "b.example", common_name="other"
                ): "the distinguished name would change",
                issue("fourth", HOST, "a.example", common_name="broker"): "subject alternative names would be lost",
                made.certificates.trusted: "expected one private key in PEM, found 0",
            }
            for keys, message in refused.items():
                made.put(keys)
                eventually(lambda message=message: message in made.broker.log_text)  # type: ignore[misc]
                assert made.shown() == second
            os.unlink(made.file)
            eventually(lambda: "No such file or directory" in made.broker.log_text)
            assert made.shown() == second
            established.sendall(encode_request(ApiKey.API_VERSIONS, 0, 7, "test", ApiVersionsRequest()))
            assert established.recv(8)[4:] == (7).to_bytes(4, "big"), "it is still served"


def test_names_may_change_if_the_settings_say_so(tmp_path: Path, ports: ReservedPorts) -> None:
    made = Renewing(tmp_path, ports, ssl_allow_dn_changes="true", ssl_allow_san_changes="true")
    with made.broker:
        made.put(made.certificates.issue("second", HOST, common_name="other"))
        eventually(lambda: made.shown() == made.in_file())
        assert "CN=other" in subject_of(made.shown())


async def alter(made: Renewing, settings: dict[str, str | None], *, node: str = "1") -> None:
    """Set a listener's settings in the metadata, by their plain names."""
    options = {
        "bootstrap_servers": f"{HOST}:{made.port}",
        "security_protocol": "SSL",
        "ssl_truststore_location": str(made.certificates.trusted),
    }
    async with Admin(**options) as admin:
        changes = {f"listener.name.ssl.{name}": value for name, value in settings.items()}
        await admin.alter_configs({(ResourceType.BROKER, node): changes})


async def test_certificates_change_with_their_settings(tmp_path: Path, ports: ReservedPorts) -> None:
    made = Renewing(tmp_path, ports)
    renewed = made.certificates.issue("second", HOST, "a.example", common_name="broker")
    with made.broker:
        first = made.shown()
        await alter(made, {"ssl.keystore.location": str(renewed)})
        eventually(lambda: made.shown() != first)
        second = made.shown()
        assert second == certificate_in(renewed)
        made.broker.stop()
        made.broker.start()
        assert made.shown() == second, "what is in the metadata holds from the start"
        await alter(made, {"ssl.keystore.location": None})
        eventually(lambda: made.shown() == first)

        text = renewed.read_text()
        key, chain = (
            text[: text.index("-----BEGIN CERTIFICATE-----")],
            text[text.index("-----BEGIN CERTIFICATE-----") :],
        )
        made.file.unlink()
        with pytest.raises(KafkaError, match=r"Both ssl.keystore.key and ssl.keystore.location are set"):
            await alter(made, {"ssl.keystore.key": key, "ssl.keystore.certificate.chain": chain})
        assert made.shown() == first


async def test_certificates_that_cannot_be_used_are_refused_when_they_are_set(
    tmp_path: Path, ports: ReservedPorts
) -> None:
    made = Renewing(tmp_path, ports)
    issue = made.certificates.issue
    refused = {
        issue("other", HOST, "a.example", common_name="other"): "the distinguished name would change",
        issue("fewer", HOST, common_name="broker"): "subject alternative names would be lost",
        made.certificates.trusted: "expected one private key in PEM, found 0",
        tmp_path / "missing": "No such file or directory",
    }
    with made.broker:
        first = made.shown()
        messages = set()
        for path, why in refused.items():
            with pytest.raises(KafkaError) as error:
                await alter(made, {"ssl.keystore.location": str(path)})
            assert error.value.code == ErrorCode.INVALID_REQUEST
            messages.add(error.value.message)
            assert why in made.broker.log_text
        assert len(messages) == 1, "nobody learns from a client what files there are"
        with pytest.raises(KafkaError, match="only PEM is"):
            await alter(made, {"ssl.keystore.type": "JKS"})
        with pytest.raises(KafkaError, match="broker id must be specified"):
            await alter(made, {"ssl.keystore.location": str(made.file)}, node="")
        assert made.shown() == first


async def test_a_stored_certificate_that_is_gone_costs_no_start(tmp_path: Path, ports: ReservedPorts) -> None:
    made = Renewing(tmp_path, ports)
    renewed = made.certificates.issue("second", HOST, "a.example", common_name="broker")
    with made.broker:
        first = made.shown()
        await alter(made, {"ssl.keystore.location": str(renewed)})
        eventually(lambda: made.shown() != first)
        made.broker.stop()
        renewed.unlink()
        made.broker.start()
        assert made.shown() == first
        eventually(lambda: f"SSL keeps its certificate: ssl.keystore.location={renewed}" in made.broker.log_text)
        assert made.shown() == first


async def test_a_start_whose_own_file_cannot_be_used(tmp_path: Path, ports: ReservedPorts) -> None:
    """The certificate in the metadata serves; if there is none, the start fails, as Kafka's does."""
    made = Renewing(tmp_path, ports)
    renewed = made.certificates.issue("second", HOST, "a.example", common_name="broker")
    with made.broker:
        first = made.shown()
        await alter(made, {"ssl.keystore.location": str(renewed)})
        eventually(lambda: made.shown() != first)
        made.broker.stop()
        os.truncate(made.file, 100)
        made.broker.start()
        assert made.shown() == certificate_in(renewed)
        assert "SSL has no certificate yet: ssl.keystore.location=" in made.broker.log_text
        made.broker.stop()
        renewed.unlink()
        with pytest.raises(BrokerDied, match=r"listeners: SSL: ssl\.keystore\.location=.*No such file or directory"):
            made.broker.start()


async def test_other_settings_of_security_cannot_be_changed(tmp_path: Path, ports: ReservedPorts) -> None:
    made = Renewing(tmp_path, ports)
    with made.broker:
        options = {
            "bootstrap_servers": f"{HOST}:{made.port}",
            "security_protocol": "SSL",
            "ssl_truststore_location": str(made.certificates.trusted),
        }
        async with Admin(**options) as admin:
            with pytest.raises(
                KafkaError, match=r"only per-listener using the listener prefix: \[ssl.keystore.location\]"
            ):
                await admin.alter_configs({(ResourceType.BROKER, "1"): {"ssl.keystore.location": "/x"}})
            with pytest.raises(KafkaError, match="Cannot update these configs dynamically: "):
                await admin.alter_configs({(ResourceType.BROKER, "1"): {"ssl.client.auth": "required"}})


def test_settings_that_cannot_be_used_are_logged_once_and_tried_again_when_their_files_change(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = Certificates(tmp_path)
    text = "".join(f"{name}={value}\n" for name, value in made.settings().items())
    (listener,) = load(f"listeners=SSL://{HOST}:0\nlog.dirs=/nowhere\n{text}").config.secured
    assert listener.tls is not None
    certificate = Certificate("SSL", listener.tls)
    missing = replace(listener.tls, keys=Store(location=str(tmp_path / "later.pem")))
    for _ in range(5):
        certificate.change(missing)
    assert [record.getMessage() for record in caplog.records].count(
        f"SSL keeps its certificate: ssl.keystore.location={tmp_path}/later.pem: No such file or directory"
    ) == 1
    assert certificate.tls is listener.tls
    (tmp_path / "later.pem").write_bytes(made.issue("later", HOST).read_bytes())
    certificate.change(missing)
    assert certificate.tls is missing


def between_brokers(made: Certificates, **settings: str) -> TlsSettings:
    """The settings of a listener between brokers."""
    text = "".join(f"{name}={value}\n" for name, value in made.settings(**settings).items())
    (listener,) = load(f"listeners=SSL://{HOST}:0\nlog.dirs=/nowhere\n{text}").config.secured
    assert listener.tls is not None
    return listener.tls


@pytest.mark.parametrize("client_auth", ["none", "requested", "required"])
def test_a_broker_accepts_itself_or_does_not_start(tmp_path: Path, client_auth: str) -> None:
    """Its own trust store has to cover its key store, whoever else is trusted: other brokers have the same."""
    made = Certificates(tmp_path)
    itself = partial(Certificate, "SSL", is_called=True, is_between_brokers=True)
    fine = between_brokers(made, ssl_client_auth=client_auth)
    certificate = itself(fine)
    second = trustme.CA(key_type=trustme.KeyType.ECDSA)
    other = made.issue("other", HOST, authority=second)
    strange = replace(fine, keys=Store(location=str(other)))
    message = "^a client with the listener's key store and trust store cannot connect to a server with the same: "
    with pytest.raises(TlsError, match=f"{message}unable to get local issuer certificate"):
        itself(strange)
    Certificate("SSL", strange, is_called=True)
    Certificate("SSL", strange, is_between_brokers=True)  # of a node without others, which calls none
    certificate.change(replace(strange, may_change_name=True))
    assert certificate.tls is fine


def only_for_servers(made: Certificates) -> bytes:
    """A key, and a certificate of the authority's whose purpose is to be a server."""
    key = ec.generate_private_key(ec.SECP256R1())
    authority = x509.load_pem_x509_certificate(made.ca.cert_pem.bytes())
    signer = serialization.load_pem_private_key(made.ca.private_key_pem.bytes(), None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "broker")]))
        .issuer_name(authority.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(authority.not_valid_before_utc)
        .not_valid_after(authority.not_valid_after_utc)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(signer, hashes.SHA256())
    )
    pem, pkcs8, clear = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    return key.private_bytes(pem, pkcs8, clear) + certificate.public_bytes(pem)


def test_a_broker_accepts_the_purpose_of_its_own_certificate(tmp_path: Path) -> None:
    """A certificate for servers only is none for a broker whose listener demands one of clients."""
    made = Certificates(tmp_path)
    made.broker.write_bytes(only_for_servers(made))
    Certificate("SSL", between_brokers(made), is_called=True, is_between_brokers=True)
    demanding = between_brokers(made, ssl_client_auth="required")
    with pytest.raises(TlsError, match=r"cannot connect to a server with the same: .*purpose"):
        Certificate("SSL", demanding, is_called=True, is_between_brokers=True)


def test_alternative_names_are_found() -> None:
    leaf = trustme.CA().issue_cert("a.example", "127.0.0.1", "c@d.example", common_name="n")
    certificate = ssl.PEM_cert_to_DER_cert(leaf.cert_chain_pems[0].bytes().decode())
    assert {name[0] & 0x1F: name[2:] for name in alternative_names_of(certificate)} == {
        1: b"c@d.example",
        2: b"a.example",
        7: bytes((127, 0, 0, 1)),
    }
    plain = base64.b64decode(NAMES.read_text().splitlines()[0].split("\t")[1])
    assert alternative_names_of(plain) == frozenset()
