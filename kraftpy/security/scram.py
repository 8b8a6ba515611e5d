"""SASL's mechanisms SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677; KIP-84): both ends, without I/O or randomness.

Channel binding is not offered, and names are not prepared (SASLprep): a name is its UTF-8 bytes, as in Kafka. Nonces
are arguments, and so is the salted password, because deriving it takes milliseconds (`salted_password`).

The server compares everything in constant time, including the whole nonce (CVE-2024-56128). An unknown name gets a
challenge too, with a salt made from a secret of the server, and fails at the end like a wrong password, after as many
hashes; Kafka reveals which names exist. The challenge looks like that of a password set with our defaults: a salt of
another length, or more iterations, still reveal that a name exists. The client refuses a number of iterations that
would take it seconds, and a server that does not prove that it knows the credential.

A client may log in with a delegation token (KIP-48), by the extension `tokenauth=true`: its name is then the token's
id. An unknown id gets a challenge too, like an unknown name.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from collections.abc import Callable
from dataclasses import field
from typing import Final, NamedTuple

from kraftpy.frozen import frozen
from kraftpy.security.failures import AuthenticationFailed, InvalidCredentials

LEAST_ITERATIONS: Final = 4096
MOST_ITERATIONS: Final = 16_384
"""The most iterations of a stored credential, as in Kafka."""
MOST_CLIENT_ITERATIONS: Final = 1_000_000
"""The most iterations that a client computes for a server: about a second."""
SALT_BYTES: Final = 32
"""The number of random bytes in a new salt."""
MOST_MESSAGE_BYTES: Final = 16 * 1024
"""The longest message: room for the longest name twice, with every character escaped, and as much again."""
NONCE_BYTES: Final = 18
"""The number of random bytes in a nonce. RFC 5802 demands no particular number; Kafka's nonces have as many bits."""
_PRINTABLE: Final = re.compile(r"[\x21-\x2b\x2d-\x7e]+\Z")
_NAME: Final = re.compile(r"(?:[^\x00=,]|=2C|=3D)+\Z")
_FIRST: Final = re.compile(r"n,(?:a=([^,]*))?,(?:m=[^,]*,)?n=([^,]*),r=([^,]*)((?:,[A-Za-z]+=[^,]*)*)\Z", re.DOTALL)
_FINAL: Final = re.compile(r"c=([^,]*),r=([^,]*)((?:,[A-Za-z]+=[^,]*)*),p=([^,]*)\Z", re.DOTALL)
_CHALLENGE: Final = re.compile(r"(?:m=[^,]*,)?r=([^,]*),s=([^,]*),i=([0-9]{1,9})(?:,[A-Za-z]+=[^,]*)*\Z", re.DOTALL)
TOKEN_AUTH: Final = "tokenauth"
"""The extension by which a client logs in with a delegation token; also the name of the login module's option."""
_BINDING: Final = "biws"
"""The part of its first message that a client without channel binding repeats: base64 of `n,,`."""


class Mechanism(NamedTuple):
    """A mechanism: its name, its hash, and its number in Kafka's credential APIs (KIP-554)."""

    name: str
    hash: str
    code: int


MECHANISMS: Final = {
    each.name: each for each in (Mechanism("SCRAM-SHA-256", "sha256", 1), Mechanism("SCRAM-SHA-512", "sha512", 2))
}


@frozen
class ScramCredential:
    """A password as the server stores it: the password cannot be computed from it. `repr` shows no secrets."""

    salt: bytes = field(repr=False)
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)
    iterations: int


def salted_password(mechanism: Mechanism, password: str, salt: bytes, iterations: int) -> bytes:
    """Derive a salted password. Takes milliseconds: 7 for 4,096 iterations of SHA-256."""
    return hashlib.pbkdf2_hmac(mechanism.hash, password.encode(), salt, iterations)


def credential_of(mechanism: Mechanism, salted: bytes, salt: bytes, iterations: int) -> ScramCredential:
    """Return the credential of a salted password."""
    stored_key = hashlib.new(mechanism.hash, _hmac(mechanism, salted, b"Client Key")).digest()
    server_key = _hmac(mechanism, salted, b"Server Key")
    return ScramCredential(salt=salt, stored_key=stored_key, server_key=server_key, iterations=iterations)


def fake_credential(mechanism: Mechanism, name: str, secret: bytes) -> ScramCredential:
    """Return a credential for an unknown name: no password fits it, and the same name always gets the same one."""
    made = hmac.digest(secret, f"{mechanism.name} {name}".encode("utf-8", "surrogatepass"), "sha512")
    key = hmac.digest(made, b"key", mechanism.hash)
    return ScramCredential(salt=made[:SALT_BYTES], stored_key=key, server_key=key, iterations=LEAST_ITERATIONS)


def token_id_of(message: bytes) -> str | None:
    """Return the id of the delegation token that a client's first message names, or None."""
    try:
        match = _FIRST.match(_text(message))
    except InvalidCredentials:
        return None
    return _unescape(match[2]) if match is not None and _has_token(match[4]) else None


def _has_token(extensions: str) -> bool:
    values = [each.partition("=")[2] for each in extensions.split(",") if each.startswith(f"{TOKEN_AUTH}=")]
    return bool(values) and values[-1].lower() == "true"


class ScramServer:
    """The server's end of one exchange: `first`, then `final`."""

    def __init__(
        self,
        mechanism: Mechanism,
        look_up: Callable[[str], ScramCredential | None],
        secret: bytes,
        nonce: str,
        look_up_token: Callable[[str], ScramCredential | None] | None = None,
    ) -> None:
        """`look_up` returns the credential of a name; `nonce` is printable, random, and new for each exchange.

        `look_up_token` returns the credential of a delegation token's id; None if tokens are not enabled.
        """
        self._mechanism = mechanism
        self._look_up = look_up
        self._look_up_token = look_up_token
        self._secret = secret
        self._nonce = nonce
        self._client_nonce = ""
        self._known = False
        self._credential: ScramCredential
        self._messages = ""
        self.name = ""
        """The name that the client claims; proved once `final` has returned."""
        self.is_by_token = False
        """True if the name is the id of a delegation token."""

    def first(self, message: bytes) -> bytes:
        """Answer the client's first message. Raises AuthenticationFailed."""
        match = _FIRST.match(_text(message))
        if match is None:
            raise InvalidCredentials("Invalid SASL/SCRAM client first message format")
        identity, saslname, client_nonce, extensions = match[1] or "", match[2], match[3], match[4]
        if not _NAME.match(saslname) or not _PRINTABLE.match(client_nonce):
            raise InvalidCredentials("Invalid SASL/SCRAM client first message format")
        self.name = _unescape(saslname)
        if identity and _unescape(identity) != self.name:
            raise AuthenticationFailed(
                "Authentication failed: Client requested an authorization id that is different from username"
            )
        look_up = self._look_up
        if _has_token(extensions):
            if self._look_up_token is None:
                raise AuthenticationFailed("Authentication failed: delegation tokens are not enabled")
            self.is_by_token, look_up = True, self._look_up_token
        found = look_up(self.name)
        if found is not None and found.iterations < LEAST_ITERATIONS:
            raise InvalidCredentials(f"{found.iterations} iterations are fewer than {LEAST_ITERATIONS}")
        fake = fake_credential(self._mechanism, self.name, self._secret)  # for a known name too: it costs the same
        self._known = found is not None
        self._credential = found or fake
        bare = f"n={saslname},r={client_nonce}{extensions}"
        self._client_nonce, self._nonce = client_nonce, client_nonce + self._nonce
        salt = b64encode(self._credential.salt).decode()
        challenge = f"r={self._nonce},s={salt},i={self._credential.iterations}"
        self._binding = b64encode(f"n,{f'a={identity}' if match[1] is not None else ''},".encode()).decode()
        self._messages = f"{bare},{challenge}"
        return challenge.encode()

    def final(self, message: bytes) -> bytes:
        """Check the client's proof, and return the server's proof. Raises AuthenticationFailed."""
        mechanism, credential = self._mechanism, self._credential
        match = _FINAL.match(_text(message))
        if match is None:
            raise InvalidCredentials("Invalid SASL/SCRAM client final message format")
        binding, nonce, extensions, proof = match[1], match[2], match[3], _base64(match[4])
        if not _is_same(nonce.encode(), self._nonce.encode()):
            is_repeated = _is_same(nonce.encode(), f"{self._client_nonce}{self._nonce}".encode())
            whose = " (as of librdkafka before 2.6.1)" if is_repeated else ""
            raise InvalidCredentials(f"Invalid client nonce{whose} in the final client message.")
        if not _is_same(binding.encode(), self._binding.encode()):
            raise InvalidCredentials("Invalid channel binding in the final client message.")
        signed = f"{self._messages},c={binding},r={nonce}{extensions}".encode()
        signature = _hmac(mechanism, credential.stored_key, signed)
        has_length = len(proof) == len(signature)
        key = _xor(proof if has_length else bytes(len(signature)), signature)
        is_right = _is_same(hashlib.new(mechanism.hash, key).digest(), credential.stored_key)
        if not (is_right and has_length and self._known):
            raise InvalidCredentials("the proof is wrong, or the name is unknown")
        return b"v=" + b64encode(_hmac(mechanism, credential.server_key, signed))


class ScramClient:
    """The client's end of one exchange: `first`, `challenged`, `final`, `verify`."""

    def __init__(self, mechanism: Mechanism, name: str, nonce: str, *, is_by_token: bool = False) -> None:
        """`name` is the id of a delegation token if `is_by_token`."""
        self.mechanism = mechanism
        token = f",{TOKEN_AUTH}=true" if is_by_token else ""
        self._bare = f"n={name.replace('=', '=3D').replace(',', '=2C')},r={nonce}{token}"
        self._client_nonce = nonce
        self._signature = b""

    def first(self) -> bytes:
        """Return the first message."""
        return f"n,,{self._bare}".encode()

    def challenged(self, challenge: bytes) -> tuple[bytes, int]:
        """Take the server's challenge; return its salt and its number of iterations. Raises AuthenticationFailed."""
        match = _CHALLENGE.match(_text(challenge))
        if match is None:
            raise AuthenticationFailed("the broker's SCRAM challenge is malformed")
        nonce, iterations = match[1], int(match[3])
        if not nonce.startswith(self._client_nonce) or len(nonce) <= len(self._client_nonce):
            raise AuthenticationFailed("the broker's SCRAM nonce does not begin with the client's")
        if not LEAST_ITERATIONS <= iterations <= MOST_CLIENT_ITERATIONS:
            raise AuthenticationFailed(
                f"the broker asks for {iterations} SCRAM iterations; "
                f"{LEAST_ITERATIONS} to {MOST_CLIENT_ITERATIONS} are allowed"
            )
        self._challenge, self._nonce = challenge.decode(), nonce
        return _base64(match[2]), iterations

    def final(self, salted: bytes) -> bytes:
        """Return the final message, with the proof that the client knows the password."""
        mechanism = self.mechanism
        without_proof = f"c={_BINDING},r={self._nonce}"
        signed = f"{self._bare},{self._challenge},{without_proof}".encode()
        key = _hmac(mechanism, salted, b"Client Key")
        proof = _xor(key, _hmac(mechanism, hashlib.new(mechanism.hash, key).digest(), signed))
        self._signature = _hmac(mechanism, _hmac(mechanism, salted, b"Server Key"), signed)
        return f"{without_proof},p={b64encode(proof).decode()}".encode()

    def verify(self, answer: bytes) -> None:
        """Check that the server has proved that it knows the credential. Raises AuthenticationFailed."""
        text = _text(answer)
        if text.startswith("e="):
            raise AuthenticationFailed("the broker refused the SCRAM credentials")
        if not text.startswith("v=") or not _is_same(_base64(text[2:].partition(",")[0]), self._signature):
            raise AuthenticationFailed("the broker has not proved that it knows the SCRAM credentials")


def _text(message: bytes) -> str:
    if len(message) > MOST_MESSAGE_BYTES:
        raise InvalidCredentials(f"a SASL/SCRAM message of {len(message)} bytes")
    try:
        return message.decode()
    except UnicodeDecodeError:
        raise InvalidCredentials("Invalid SASL/SCRAM message format: it is not UTF-8") from None


def _base64(text: str) -> bytes:
    try:
        return b64decode(text.encode(), validate=True)
    except NotBase64:
        raise InvalidCredentials("Invalid SASL/SCRAM message format: it is not base64") from None


def _unescape(saslname: str) -> str:
    return saslname.replace("=2C", ",").replace("=3D", "=")


def _hmac(mechanism: Mechanism, key: bytes, message: bytes) -> bytes:
    return hmac.digest(key, message, mechanism.hash)


def _xor(one: bytes, other: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(one, other, strict=True))


def _is_same(one: bytes, other: bytes) -> bool:
    return hmac.compare_digest(one, other)
