"""Verifies JSON Web Tokens with the keys of a JWKS document (RFC 7519, RFC 8725; KIP-768).

PyJWT checks signatures and nothing else. This module decides which algorithms and keys are allowed and checks every
claim, with the time as an argument. Only asymmetric algorithms are accepted (`ALGORITHMS`), and a key serves only the
algorithms of its type. Headers that name keys (`jku`, `x5u`, `jwk`, `x5c`) are ignored; a header with `crit` is
refused, and so is JSON with duplicate names.

A token must have `exp`, `iat`, the expected issuer and one of the expected audiences; Kafka demands the last two only
if they are configured. The reason for a refusal goes to the log only, and does not quote the token.

An unsecured token (`alg` none) proves nothing. `verify_unsecured` is for testing clients, and accepts no other tokens.
"""

from __future__ import annotations

import json
import math
from base64 import b64decode
from binascii import Error as NotBase64
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from kraftpy.frozen import frozen
from kraftpy.security.failures import InvalidCredentials

ALGORITHMS: Final = (
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA",
)  # fmt: skip
"""The signature algorithms that are accepted."""
MOST_TOKEN_BYTES: Final = 64 * 1024
MOST_JWKS_BYTES: Final = 1 << 20
MOST_KEY_ID_CHARACTERS: Final = 1_000
LEAST_RSA_BITS: Final = 2_048
MOST_RSA_BITS: Final = 16_384
"""Checking a signature of a longer key would take too long."""
_OF_CURVE: Final = {"P-256": "ES256", "P-384": "ES384", "P-521": "ES512"}
_NONE: Final = "none"


class JwksError(ValueError):
    """A document is not a JWKS, or has no usable key. The message does not quote the document."""


class InvalidToken(InvalidCredentials):
    """A token is not accepted. The message does not quote the token."""


class Verified(NamedTuple):
    """The name that a token proves, and how long the token is valid from now."""

    name: str
    lifetime_ms: float


@frozen
class TokenRules:
    """The demands of a listener on tokens."""

    issuer: str | None
    """The expected issuer; unsecured tokens need none if this is None."""
    audience: tuple[str, ...]
    """The accepted audiences, one of which a token must have; unsecured tokens need none if this is empty."""
    sub_claim_name: str = "sub"
    scope_claim_name: str = "scope"
    clock_skew_ms: int = 30_000


class Header(NamedTuple):
    """The signature's algorithm and key as the token claims them; neither is proved yet."""

    algorithm: str
    key_id: str | None


class Key(NamedTuple):
    """A public key, and the algorithms of the signatures that it may verify."""

    public: Any
    algorithms: tuple[str, ...]


class KeySet:
    """The keys of a JWKS document."""

    def __init__(self, keys: Mapping[str | None, Sequence[Key]]) -> None:
        self._keys = {key_id: tuple(listed) for key_id, listed in keys.items()}

    def __len__(self) -> int:
        return sum(map(len, self._keys.values()))

    def find(self, header: Header) -> Any:
        """Return the public key that a token names, or None. A token that names no key gets the only one that fits."""
        if header.key_id is not None:
            listed: Sequence[Key] = self._keys.get(header.key_id, ())
        else:
            listed = [key for keys in self._keys.values() for key in keys]
        fitting = [key.public for key in listed if header.algorithm in key.algorithms]
        if header.key_id is None and len(fitting) > 1:
            return None
        return fitting[0] if fitting else None


def parse_jwks(document: bytes) -> KeySet:
    """Parse a JWKS document (RFC 7517). Keys of an unknown kind, or not for signatures, are left out.

    Raises JwksError.
    """
    if len(document) > MOST_JWKS_BYTES:
        raise JwksError(f"it has more than {MOST_JWKS_BYTES} bytes")
    try:
        listed = _json(document)["keys"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise JwksError("it is not JSON with a list of keys") from None
    if not isinstance(listed, list):
        raise JwksError("it is not JSON with a list of keys")
    keys: dict[str | None, list[Key]] = {}
    for each in listed:
        key = _key(each)
        if key is not None:
            key_id = each.get("kid")
            keys.setdefault(key_id if isinstance(key_id, str) else None, []).append(key)
    if not keys:
        raise JwksError("it has no key for signatures that is RSA of 2048 bits or more, EC or Ed25519")
    return KeySet(keys)


def _key(described: Any) -> Key | None:
    """Return a key that can verify tokens, or None."""
    if not isinstance(described, dict) or described.get("use", "sig") != "sig":
        return None
    operations = described.get("key_ops")
    if operations is not None and (not isinstance(operations, list) or "verify" not in operations):
        return None
    from jwt import InvalidKeyError
    from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

    made: Any
    algorithms: tuple[str, ...]
    try:
        match described.get("kty"), described.get("crv"):
            case "RSA", _:
                made = RSAAlgorithm.from_jwk(described)
                algorithms = ALGORITHMS[:6] if LEAST_RSA_BITS <= made.key_size <= MOST_RSA_BITS else ()
            case "EC", "P-256" | "P-384" | "P-521":
                made, algorithms = ECAlgorithm.from_jwk(described), (_OF_CURVE[described["crv"]],)
            case "OKP", "Ed25519":
                made, algorithms = OKPAlgorithm.from_jwk(described), ("EdDSA",)
            case _:
                return None
    except (InvalidKeyError, ValueError, TypeError, KeyError, OverflowError):
        return None
    if "alg" in described:
        algorithms = tuple(each for each in algorithms if each == described["alg"])
    return Key(made.public_key() if "d" in described else made, algorithms) if algorithms else None


def read_header(token: str) -> Header:
    """Return the algorithm and the key that a token names. Raises InvalidToken."""
    if len(token) > MOST_TOKEN_BYTES:
        raise InvalidToken(f"a token of {len(token)} bytes")
    if token.count(".") != 2:
        raise InvalidToken("a token that does not have three parts")
    header = _part(token.partition(".")[0], "header")
    if "crit" in header:
        raise InvalidToken("a token with a header that is critical (crit)")
    algorithm, key_id = header.get("alg"), header.get("kid")
    if not isinstance(algorithm, str):
        raise InvalidToken("a token without an algorithm")
    if key_id is not None and (not isinstance(key_id, str) or len(key_id) > MOST_KEY_ID_CHARACTERS):
        raise InvalidToken("a token whose key id is not a text, or too long")
    return Header(algorithm, key_id)


def verify(token: str, keys: KeySet, rules: TokenRules, now_ms: int) -> Verified:
    """Check a token's signature and claims; return the name that it proves. Raises InvalidToken."""
    header = read_header(token)
    if header.algorithm not in ALGORITHMS:
        raise InvalidToken("a token whose algorithm is not allowed")
    key = keys.find(header)
    if key is None:
        raise InvalidToken("a token that is signed by an unknown key")
    if rules.issuer is None or not rules.audience:
        raise InvalidToken("no issuer or no audience is expected")
    from jwt import InvalidTokenError
    from jwt.api_jws import PyJWS

    try:
        PyJWS(algorithms=[header.algorithm]).decode_complete(token, key, algorithms=[header.algorithm])
    except (InvalidTokenError, ValueError, TypeError):
        raise InvalidToken("a token with a wrong signature") from None
    return _check_claims(token, rules, now_ms)


def verify_unsecured(token: str, rules: TokenRules, now_ms: int) -> Verified:
    """Return the name that an unsecured token claims. Raises InvalidToken for any other token."""
    if read_header(token).algorithm != _NONE or not token.endswith("."):
        raise InvalidToken("a token that is not unsecured, on a listener that accepts only unsecured ones")
    return _check_claims(token, rules, now_ms)


def claims_of(token: str) -> dict[str, Any]:
    """Return the claims of a token that was verified. Raises InvalidToken if it has none."""
    return _part(token.split(".")[1], "claims")


def expiry_ms_of(token: str) -> float | None:
    """Return the expiry time that a token names, or None. The token is the caller's own, and is not checked."""
    try:
        return _time_ms(_part(token.split(".")[1], "claims").get("exp"))
    except (InvalidToken, IndexError):
        return None


def _check_claims(token: str, rules: TokenRules, now_ms: int) -> Verified:
    claims = claims_of(token)
    end_ms, begin_ms = _time_ms(claims.get("exp")), _time_ms(claims.get("iat"))
    if end_ms is None:
        raise InvalidToken("a token without an end (exp)")
    if begin_ms is None:
        raise InvalidToken("a token without a beginning (iat)")
    if end_ms < begin_ms:
        raise InvalidToken("a token that ends before it begins")
    if end_ms + rules.clock_skew_ms <= now_ms:
        raise InvalidToken("a token that has expired")
    if "nbf" in claims:
        valid_from_ms = _time_ms(claims["nbf"])
        if valid_from_ms is None or valid_from_ms - rules.clock_skew_ms > now_ms:
            raise InvalidToken("a token that is not valid yet (nbf)")
    issuer, audience = claims.get("iss"), claims.get("aud")
    if rules.issuer is not None and (not isinstance(issuer, str) or issuer != rules.issuer):
        raise InvalidToken("a token of another issuer (iss)")
    audiences = audience if isinstance(audience, list) else [audience]
    if rules.audience and not (all(isinstance(each, str) for each in audiences) and {*audiences} & {*rules.audience}):
        raise InvalidToken("a token for another audience (aud)")
    _check_scope(claims.get(rules.scope_claim_name))
    name = claims.get(rules.sub_claim_name)
    if not isinstance(name, str) or not name.strip():
        raise InvalidToken(f"a token without a name ({rules.sub_claim_name})")
    return Verified(name.strip(), end_ms - now_ms)


def _check_scope(scope: Any) -> None:
    """Check that a scope, if there is one, is a list of words or a text of words. Raises InvalidToken."""
    if scope is None:
        return
    words = scope.split() if isinstance(scope, str) else scope
    if not isinstance(words, list) or not all(isinstance(each, str) and each.strip() for each in words):
        raise InvalidToken("a token whose scope is not a list of words")
    if len({each.strip() for each in words}) != len(words):
        raise InvalidToken("a token whose scope has a word twice")


def _time_ms(value: Any) -> float | None:
    """Return the time that a claim names; None unless it is a number of seconds, 0 or more."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        found = value * 1000.0
    except OverflowError:
        return None
    return found if math.isfinite(found) and found >= 0 else None


def _part(text: str, what: str) -> dict[str, Any]:
    """Decode a part of a token, which must be a JSON object. Raises InvalidToken."""
    try:
        decoded = _json(b64decode(text.encode("ascii") + b"=" * (-len(text) % 4), b"-_", validate=True))
    except (NotBase64, ValueError, RecursionError):
        decoded = None
    if not isinstance(decoded, dict):
        raise InvalidToken(f"a token whose {what} is not JSON")
    return decoded


def _json(document: bytes) -> Any:
    """Decode JSON. Raises ValueError, also for duplicate names and for numbers that JSON does not have."""
    return json.loads(document.decode(), object_pairs_hook=_once, parse_constant=_no_constant)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a duplicate name")
    return found


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a number")
