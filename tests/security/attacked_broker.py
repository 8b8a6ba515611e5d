"""A broker whose log tells everything (DEBUG), with every mechanism and every kind of secret, for tests of attacks."""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import serialization

from kraftpy.testing import EmbeddedBroker
from kraftpy.testing.ports import ReservedPorts
from tests.security.certificates import HOST, Certificates
from tests.security.identity_provider import IdentityProvider
from tests.security.listeners import PLAIN_MODULE, SCRAM_MODULE, listener_settings
from tests.security.tokens import AUDIENCE, ISSUER, Issuer

ADMIN_PASSWORD, USER_PASSWORD = "plain-secret-of-admin", "plain-secret-of-alice"
KEY_PASSWORD, NEXT_KEY_PASSWORD = "password-of-the-first-key", "password-of-the-next-key"
TOKEN_KEY, QUORUM_SECRET = "secret-of-delegation-tokens", "secret-of-the-quorum-of-nodes"
CLIENT_SECRET, NODE_PASSWORD = "secret-of-the-oauth-client", "scram-password-of-the-node"


def encrypted(keys: Path, password: str) -> Path:
    """Encrypt the private key of a PEM file; return the new file."""
    made = keys.with_name(f"{keys.stem}-encrypted.pem")
    text = keys.read_text()
    key = serialization.load_pem_private_key(text.encode(), None).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(password.encode()),
    )
    made.write_text(key.decode() + text[text.index("-----BEGIN CERTIFICATE-----") :])
    return made


class AttackedBroker:
    """The broker, with an authorizer: `admin` is a super user, `alice` has no rights."""

    def __init__(self, directory: Path, ports: ReservedPorts) -> None:
        self.directory = directory
        self.certificates = certificates = Certificates(directory)
        self.provider = IdentityProvider(Issuer())
        self.provider.shown_keys = ("rsa",)
        self.audit = directory / "audit.log"
        protocols = {"secure": "SASL_SSL", "clear": "SASL_PLAINTEXT"}
        self.port = {name: ports.reserve() for name in protocols}
        keys, endpoint = f"{self.provider.url}/keys", f"{self.provider.url}/token"
        tls = certificates.settings(ssl_keystore_location=str(encrypted(certificates.broker, KEY_PASSWORD)))
        self.settings = {
            **listener_settings(self.port, protocols),
            **{f"listener.name.secure.{name}": value for name, value in tls.items()},
            "listener.name.secure.ssl.key.password": KEY_PASSWORD,
            "inter.broker.listener.name": "CLEAR",
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:admin",
            "kraftpy.audit.log.file": str(self.audit),
            "delegation.token.secret.key": TOKEN_KEY,
            "kraftpy.quorum.secret": QUORUM_SECRET,
            "sasl.oauthbearer.jwks.endpoint.url": keys,
            "sasl.oauthbearer.expected.issuer": ISSUER,
            "sasl.oauthbearer.expected.audience": AUDIENCE,
            "sasl.oauthbearer.token.endpoint.url": endpoint,
            "sasl.oauthbearer.client.credentials.client.id": "robot",
            "sasl.oauthbearer.client.credentials.client.secret": CLIENT_SECRET,
            "org.apache.kafka.sasl.oauthbearer.allowed.urls": f"{keys},{endpoint}",
            "connection.failed.authentication.delay.ms": "0",
        }
        users = f'user_admin="{ADMIN_PASSWORD}" user_alice="{USER_PASSWORD}"'
        for name in protocols:
            prefix = f"listener.name.{name}."
            self.settings[f"{prefix}plain.sasl.jaas.config"] = f"{PLAIN_MODULE} required {users};"
            self.settings[f"{prefix}scram-sha-512.sasl.jaas.config"] = (
                f'{SCRAM_MODULE} required username="node" password="{NODE_PASSWORD}";'
            )
        self.broker = EmbeddedBroker(directory / "data", settings=self.settings)

    def options(self, name: str = "secure", user: str = "admin", **more: Any) -> dict[str, Any]:
        """The options of our client."""
        passwords = {"admin": ADMIN_PASSWORD, "alice": USER_PASSWORD}
        return {
            "bootstrap_servers": f"{HOST}:{self.port[name]}",
            "security_protocol": "SASL_SSL" if name == "secure" else "SASL_PLAINTEXT",
            "ssl_truststore_location": str(self.certificates.trusted),
            "sasl_mechanism": "PLAIN",
            "sasl_username": user,
            "sasl_password": passwords.get(user, ""),
            **more,
        }

    def lines(self) -> list[str]:
        """The lines of the log."""
        return self.broker.log_text.split("\n")[:-1]

    def files(self) -> Iterator[Path]:
        """Every file and directory that the broker has made."""
        for parent, names, files in os.walk(self.directory / "data" / "logs"):
            yield Path(parent)
            yield from (Path(parent) / name for name in names + files)


def forms(secret: bytes) -> list[bytes]:
    """The forms in which a secret might be shown."""
    return [
        secret,
        base64.b64encode(secret),
        base64.urlsafe_b64encode(secret).rstrip(b"="),
        secret.hex().encode(),
        repr(secret)[2:-1].encode(),
    ]
