"""A small certificate authority, for clusters and tests without one: issues keys and certificates in PEM.

Keys are on the curve P-256. Certificates are valid for servers and clients alike, because a node is both. Needs the
package cryptography, which the extra `security` installs.

Left out: revocation, and intermediate certificates.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

AUTHORITY_DAYS: Final = 3650
CERTIFICATE_DAYS: Final = 825
_EARLY: Final = datetime.timedelta(hours=1)
"""How far back the validity of a new certificate begins, for machines whose clocks are slow."""


class NoCryptography(Exception):
    """The package cryptography is not installed. The message says how to install it."""

    def __init__(self) -> None:
        super().__init__("cryptography is not installed: pip install 'kraftpy[security]'")


@dataclass(frozen=True, slots=True, kw_only=True)
class Issued:
    """A private key with its certificate, as PEM."""

    key: str = field(repr=False)
    certificate: str

    @property
    def store(self) -> str:
        """The content of a key store: the key, followed by the certificate."""
        return self.key + self.certificate


class Authority:
    """An authority with a new key. Raises NoCryptography."""

    def __init__(self, name: str, *, organization: str = "kraftpy") -> None:
        try:
            from cryptography.hazmat.primitives.asymmetric import ec
        except ModuleNotFoundError:
            raise NoCryptography from None
        self._organization = organization
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _subject(name, organization)
        self._certificate = self._sign(self._name, self._key, (), AUTHORITY_DAYS, is_authority=True)
        self.own = _issued(self._key, self._certificate)
        """The authority's own key and certificate; nodes and clients trust the certificate."""

    def issue(self, name: str, hosts: Sequence[str] = (), *, days: int = CERTIFICATE_DAYS) -> Issued:
        """Issue a certificate with this common name, for these host names and addresses."""
        from cryptography.hazmat.primitives.asymmetric import ec

        key = ec.generate_private_key(ec.SECP256R1())
        subject = _subject(name, self._organization)
        return _issued(key, self._sign(subject, key, hosts, days, is_authority=False))

    def _sign(
        self, subject: x509.Name, key: EllipticCurvePrivateKey, hosts: Sequence[str], days: int, *, is_authority: bool
    ) -> x509.Certificate:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes
        from cryptography.x509.oid import ExtendedKeyUsageOID

        now = datetime.datetime.now(datetime.UTC)
        usage = {
            "digital_signature": not is_authority,
            "key_cert_sign": is_authority,
            "crl_sign": is_authority,
            **dict.fromkeys(("content_commitment", "key_encipherment", "data_encipherment", "key_agreement"), False),
            "encipher_only": False,
            "decipher_only": False,
        }
        length = 0 if is_authority else None
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _EARLY)
            .not_valid_after(now + datetime.timedelta(days=days))
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=length), critical=True)
            .add_extension(x509.KeyUsage(**usage), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )
        if not is_authority:
            both = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
            builder = builder.add_extension(x509.ExtendedKeyUsage(both), critical=False)
        if hosts:
            names = [_alternative(host) for host in hosts]
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return builder.sign(self._key, hashes.SHA256())


def _subject(name: str, organization: str) -> x509.Name:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization),
            x509.NameAttribute(NameOID.COMMON_NAME, name),
        ]
    )


def _alternative(host: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _issued(key: EllipticCurvePrivateKey, certificate: x509.Certificate) -> Issued:
    from cryptography.hazmat.primitives import serialization

    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return Issued(key=private.decode(), certificate=certificate.public_bytes(serialization.Encoding.PEM).decode())
