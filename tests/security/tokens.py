"""Makes JSON Web Tokens by hand, valid and invalid ones, and the JWKS documents of their keys."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from typing import Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm
from jwt.api_jws import PyJWS

ISSUER = "https://issuer.example"
AUDIENCE = "kafka"
ABSENT = object()
"""A claim that is left out."""


def encoded(part: object) -> str:
    """Encode a part of a token: bytes as they are, anything else as JSON."""
    data = part if isinstance(part, bytes) else json.dumps(part).encode()
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


class Issuer:
    """Keys of every kind, by their ids, and tokens signed by them."""

    def __init__(self) -> None:
        self.keys: dict[str, Any] = {
            "rsa": rsa.generate_private_key(public_exponent=65537, key_size=2048),
            "ec": ec.generate_private_key(ec.SECP256R1()),
            "p384": ec.generate_private_key(ec.SECP384R1()),
            "ed": ed25519.Ed25519PrivateKey.generate(),
        }

    def described(self, *key_ids: str) -> list[dict[str, Any]]:
        """The public keys as a JWKS document has them."""
        found = []
        for key_id in key_ids or self.keys:
            public = self.keys[key_id].public_key()
            kind = {rsa.RSAPublicKey: RSAAlgorithm, ec.EllipticCurvePublicKey: ECAlgorithm}
            algorithm = next((each for of, each in kind.items() if isinstance(public, of)), OKPAlgorithm)
            found.append({**algorithm.to_jwk(public, as_dict=True), "kid": key_id, "use": "sig"})  # type: ignore[attr-defined]
        return found

    def jwks(self, *key_ids: str) -> bytes:
        return json.dumps({"keys": self.described(*key_ids)}).encode()

    def public_pem(self, key_id: str) -> bytes:
        return (
            self.keys[key_id]
            .public_key()
            .public_bytes(  # type: ignore[no-any-return]
                serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
            )
        )

    def token(
        self, key_id: str = "rsa", algorithm: str = "RS256", header: dict[str, Any] | None = None, **claims: Any
    ) -> str:
        """A token; claims that are `ABSENT` are left out, and so is `kid` of the header."""
        wanted = {"alg": algorithm, "kid": key_id, **(header or {})}
        shown = {name: value for name, value in wanted.items() if value is not ABSENT}
        signed = f"{encoded(shown)}.{encoded(claims_of(**claims))}"
        return f"{signed}.{encoded(self.signature(signed.encode(), key_id, algorithm))}"

    def signature(self, signed: bytes, key_id: str, algorithm: str) -> bytes:
        found = PyJWS().get_algorithm_by_name(algorithm)
        return found.sign(signed, self.keys[key_id])


def claims_of(now: float | None = None, **claims: Any) -> dict[str, Any]:
    """Claims that are valid now, apart from those given."""
    at = time.time() if now is None else now
    usual = {"iss": ISSUER, "aud": AUDIENCE, "sub": "alice", "iat": int(at), "exp": int(at) + 600}
    return {name: value for name, value in {**usual, **claims}.items() if value is not ABSENT}


def hmac_token(secret: bytes, header: dict[str, Any], **claims: Any) -> str:
    """A token that is signed by a secret, or by a public key taken for one."""
    signed = f"{encoded({'alg': 'HS256', **header})}.{encoded(claims_of(**claims))}"
    return f"{signed}.{encoded(hmac.digest(secret, signed.encode(), hashlib.sha256))}"


def unsecured_token(algorithm: str = "none", signature: str = "", **claims: Any) -> str:
    return f"{encoded({'alg': algorithm})}.{encoded(claims_of(**claims))}.{signature}"
