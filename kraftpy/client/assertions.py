"""Assertions for a token endpoint: as a grant (KIP-1139), or in place of a client's secret (KIP-1258).

RFC 7523 calls the first the grant "jwt-bearer" (section 2.1), and the second client authentication (section 2.2). An
assertion is a JSON Web Token that the client itself has signed: RS256 or ES256. Its claims are, each taking precedence
over the one before: those of the settings, those of the template, and the times, computed anew for each assertion. Keys
and templates are read each time, so that renewed ones need no restart.
"""

from __future__ import annotations

import json
import uuid
from base64 import urlsafe_b64encode
from typing import Any, Final
from urllib.parse import quote

from kraftpy.config.token_sources import Assertion
from kraftpy.endpoints import EndpointError, fetch
from kraftpy.security.json_web_tokens import MOST_TOKEN_BYTES

GRANT: Final = "urn:ietf:params:oauth:grant-type:jwt-bearer"
CLIENT_ASSERTION: Final = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
_CURVE: Final = "secp256r1"
_NUMBER_BYTES: Final = 32


class UnusableAssertion(Exception):
    """The assertion cannot be made. The message is one line, and quotes no file."""


def assertion_of(settings: Assertion, now_seconds: float) -> str:
    """Return the assertion in the file, or sign one. Blocks. Raises UnusableAssertion."""
    if settings.file is not None:
        return _read(settings.file).decode("latin-1").strip()
    header, payload = _template(settings.template_file)
    issued = int(now_seconds)
    payload = {
        **dict(settings.claims),
        **payload,
        "iat": issued,
        "exp": issued + settings.lifetime_seconds,
        "nbf": issued - settings.not_before_seconds,
        **({"jti": str(uuid.uuid4())} if settings.has_id else {}),
    }
    signed = f"{_encoded({**header, 'alg': settings.algorithm, 'typ': 'JWT'})}.{_encoded(payload)}"
    return f"{signed}.{_base64(_signature(settings, signed.encode()))}"


def _template(path: str | None) -> tuple[dict[str, Any], dict[str, Any]]:
    if path is None:
        return {}, {}
    try:
        found = json.loads(_read(path))
        header, payload = found.get("header", {}), found.get("payload", {})
    except (ValueError, AttributeError, RecursionError):
        header = payload = None
    if not isinstance(header, dict) or not isinstance(payload, dict):
        raise UnusableAssertion(f"{path} is not a template: expected an object with header and payload")
    return header, payload


def _signature(settings: Assertion, content: bytes) -> bytes:
    try:
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
        from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
    except ImportError:
        raise UnusableAssertion("an assertion needs cryptography: install kraftpy[security]") from None
    assert settings.key_file is not None
    password = None if settings.passphrase is None else settings.passphrase.encode()
    try:
        key = serialization.load_pem_private_key(_read(settings.key_file), password)
    except (ValueError, TypeError):
        raise UnusableAssertion(f"the key in {settings.key_file} cannot be used; is its passphrase right?") from None
    if settings.algorithm == "RS256" and isinstance(key, rsa.RSAPrivateKey):
        return key.sign(content, padding.PKCS1v15(), hashes.SHA256())
    if settings.algorithm == "ES256" and isinstance(key, ec.EllipticCurvePrivateKey) and key.curve.name == _CURVE:
        numbers = decode_dss_signature(key.sign(content, ec.ECDSA(hashes.SHA256())))
        return b"".join(number.to_bytes(_NUMBER_BYTES, "big") for number in numbers)
    raise UnusableAssertion(f"the key in {settings.key_file} is none of {settings.algorithm}")


def _read(path: str) -> bytes:
    try:
        return fetch(f"file://{quote(path)}", MOST_TOKEN_BYTES)
    except EndpointError as error:
        raise UnusableAssertion(str(error)) from None


def _encoded(part: dict[str, Any]) -> str:
    return _base64(json.dumps(part).encode())


def _base64(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()
