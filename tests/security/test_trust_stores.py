"""Certificates that a peer may show, given those in the trust store: as Java's clients and brokers decide."""

from __future__ import annotations

import datetime
import ssl
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from kraftpy.config.security import Store, TlsSettings
from kraftpy.endpoints import fetch
from kraftpy.security.mapping_rules import parse_ssl_rules
from kraftpy.tls import client_context, server_context
from tests.security.certificates import HOST
from tests.security.identity_provider import IdentityProvider
from tests.security.tokens import Issuer

_NAMES = [x509.DNSName("localhost"), x509.IPAddress(ip_address(HOST))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Signed:
    """A key with its certificate."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @property
    def pem(self) -> str:
        return self.certificate.public_bytes(serialization.Encoding.PEM).decode()

    @property
    def key_pem(self) -> str:
        kind = serialization.PrivateFormat.PKCS8
        return self.key.private_bytes(serialization.Encoding.PEM, kind, serialization.NoEncryption()).decode()


def signed(name: str, authority: Signed | None = None, *, days: int = 30, is_authority: bool = False) -> Signed:
    """Return a new key with a certificate, signed by its own key if there is no authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(authority.certificate.subject if authority else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.SubjectAlternativeName(_NAMES), critical=False)
    )
    if is_authority:
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    return Signed(key=key, certificate=builder.sign(authority.key if authority else key, hashes.SHA256()))


def settings(own: Signed, trusted: list[Signed], *more: Signed) -> TlsSettings:
    chain = "".join(each.pem for each in (own, *more))
    return TlsSettings(
        keys=Store(key=own.key_pem, certificates=chain),
        trusted=Store(certificates="".join(each.pem for each in trusted)),
        client_auth="required",
        principal_rules=parse_ssl_rules("DEFAULT"),
    )


def shake_hands(client: TlsSettings, server: TlsSettings) -> None:
    """Let both ends verify each other. Raises ssl.SSLError if one refuses the other's certificate."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    here = client_context(client).wrap_bio(to_client, to_server, server_hostname="localhost")
    there = server_context(server).wrap_bio(to_server, to_client, server_side=True)
    for _ in range(4):
        for end in (here, there):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue


def test_certificates_that_sign_themselves_may_share_one_name() -> None:
    """Brokers whose certificates were made by one script: each trusts all of them."""
    nodes = [signed("broker", days=days) for days in (10, 30, 20)]
    for client in nodes:
        for server in nodes:
            shake_hands(settings(client, nodes), settings(server, nodes))


def test_an_intermediate_authority_is_trusted_without_its_root() -> None:
    root = signed("root", is_authority=True)
    department = signed("department", root, is_authority=True)
    node = signed("node", department)
    shake_hands(settings(node, [department]), settings(node, [department]))
    shake_hands(settings(node, [department], department), settings(node, [department], department))


def test_the_certificate_of_one_peer_is_trusted_alone() -> None:
    root = signed("root", is_authority=True)
    node, other = signed("node", root), signed("node", root)
    shake_hands(settings(node, [node]), settings(node, [node]))
    with pytest.raises(ssl.SSLError, match="CERTIFICATE_VERIFY_FAILED"):
        shake_hands(settings(node, [node]), settings(other, [node]))


def test_another_certificate_of_the_same_name_is_refused() -> None:
    known, mimic = signed("broker"), signed("broker")
    with pytest.raises(ssl.SSLError, match="CERTIFICATE_VERIFY_FAILED"):
        shake_hands(settings(known, [known]), settings(mimic, [known]))


def test_a_peer_cannot_issue_certificates_because_it_is_trusted_itself() -> None:
    node = signed("node")
    issued = signed("other", node)
    with pytest.raises(ssl.SSLError, match="CERTIFICATE_VERIFY_FAILED"):
        shake_hands(settings(node, [node]), settings(issued, [node], node))


def test_an_identity_provider_is_trusted_by_an_intermediate_authority(tmp_path: Path) -> None:
    department = signed("department", signed("root", is_authority=True), is_authority=True)
    server = signed("provider", department)
    keys, trusted = tmp_path / "keys.pem", tmp_path / "trusted.pem"
    keys.write_text(server.key_pem + server.pem)
    trusted.write_text(department.pem)
    with IdentityProvider(Issuer(), keys) as provider:
        assert b"keys" in fetch(f"{provider.url}/keys", 100_000, trusted=str(trusted))
