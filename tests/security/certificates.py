"""Certificates for tests, as PEM files, and the settings of brokers and clients that use them."""

from __future__ import annotations

import ssl
from pathlib import Path

import trustme

HOST = "127.0.0.1"


class Certificates:
    """A certificate authority and a broker's certificate, in files under one directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.ca = trustme.CA(key_type=trustme.KeyType.ECDSA)
        self.broker = self.issue("broker", HOST)
        self.trusted = directory / "ca.pem"
        self.ca.cert_pem.write_to_path(str(self.trusted))

    def issue(
        self, name: str, *identities: str, common_name: str | None = None, authority: trustme.CA | None = None
    ) -> Path:
        """Return the path of a new private key with its certificate."""
        made = (authority or self.ca).issue_cert(
            *identities,
            common_name=common_name,
            organization_name="Example",
            organization_unit_name="Tests",
            key_type=trustme.KeyType.ECDSA,
        )
        path = self.directory / f"{name}.pem"
        made.private_key_and_cert_chain_pem.write_to_path(str(path))
        return path

    def settings(self, **more: str) -> dict[str, str]:
        """Return a broker's TLS settings; `more` has underscores for dots."""
        return {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.broker),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.trusted),
            **{name.replace("_", "."): value for name, value in more.items()},
        }

    def client(self, keys: Path | None = None) -> ssl.SSLContext:
        """Return the context of a client that trusts the authority, and shows its own certificate if it has one."""
        context = ssl.create_default_context(cafile=str(self.trusted))
        if keys is not None:
            context.load_cert_chain(keys)
        return context
