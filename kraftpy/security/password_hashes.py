"""Passwords kept as hashes of scrypt (RFC 7914), and files of users with them.

A hash is a text in PHC's form, as passlib writes it: `$scrypt$ln=15,r=8,p=3$<salt>$<key>`, salt and key in base64
without padding. A file of users has a line `name:hash` for each; empty lines and those that begin with `#` are skipped.

Salts are arguments. Deriving a key takes tenths of a second and, with our own costs, 32 MiB, without the interpreter's
lock: callers use a thread, and one hash at a time.
"""

from __future__ import annotations

import binascii
import hashlib
import hmac
import re
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import field
from typing import Final

from kraftpy.frozen import frozen

SALT_BYTES: Final = 16
"""The number of random bytes in a new salt."""
MOST_HASH_BYTES: Final = 64 << 20
"""The most memory that checking one password may take; a hash that needs more is refused."""
MOST_USERS: Final = 1_000
_LOG_COST: Final = 15
_BLOCKS: Final = 8
_ROUNDS: Final = 3
_MOST_ROUNDS: Final = 16
_KEY_BYTES: Final = 32
_HASH = re.compile(r"\$scrypt\$ln=(\d{1,2}),r=(\d{1,3}),p=(\d{1,3})\$([A-Za-z0-9+/]{11,86})\$([A-Za-z0-9+/]{22,86})\Z")


@frozen
class PasswordHash:
    """A password's hash. `repr` shows no secrets."""

    log_cost: int = _LOG_COST
    """The logarithm of scrypt's N, to base 2."""
    blocks: int = _BLOCKS
    rounds: int = _ROUNDS
    salt: bytes = field(repr=False)
    key: bytes = field(repr=False)

    def matches(self, password: bytes) -> bool:
        """Return whether this is the password, in constant time. Slow by intent."""
        return hmac.compare_digest(self._derived(password, len(self.key)), self.key)

    def _derived(self, password: bytes, size: int) -> bytes:
        return hashlib.scrypt(
            password,
            salt=self.salt,
            n=1 << self.log_cost,
            r=self.blocks,
            p=self.rounds,
            maxmem=2 * MOST_HASH_BYTES,
            dklen=size,
        )

    def __str__(self) -> str:
        costs = f"ln={self.log_cost},r={self.blocks},p={self.rounds}"
        salt, key = (b64encode(each).decode().rstrip("=") for each in (self.salt, self.key))
        return f"$scrypt${costs}${salt}${key}"


def hash_of(password: bytes, salt: bytes) -> PasswordHash:
    """Return a password's hash with our own costs. Slow by intent."""
    empty = PasswordHash(salt=salt, key=b"")
    return PasswordHash(salt=salt, key=empty._derived(password, _KEY_BYTES))


def parse_hash(text: str) -> PasswordHash:
    """Return the hash that a text stands for. Raises ValueError, which does not quote the text."""
    match = _HASH.match(text)
    if match is None:
        raise ValueError("expected $scrypt$ln=N,r=N,p=N$salt$key")
    log_cost, blocks, rounds = int(match[1]), int(match[2]), int(match[3])
    if not (log_cost and blocks and 0 < rounds <= _MOST_ROUNDS):
        raise ValueError(f"the costs of scrypt are not allowed: expected at least 1, and p of at most {_MOST_ROUNDS}")
    if (128 * blocks) << log_cost > MOST_HASH_BYTES:
        raise ValueError(f"the hash needs more than {MOST_HASH_BYTES >> 20} MiB to be checked")
    try:
        salt, key = (b64decode(part + "=" * (-len(part) % 4), validate=True) for part in (match[4], match[5]))
    except binascii.Error:
        raise ValueError("salt and key have to be in base64") from None
    return PasswordHash(log_cost=log_cost, blocks=blocks, rounds=rounds, salt=salt, key=key)


def parse_users(text: str) -> Mapping[str, PasswordHash]:
    """Return the users of a file, by name. Raises ValueError, which names the line and quotes no hash."""
    users: dict[str, PasswordHash] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        name, colon, hashed = line.rstrip().partition(":")
        if not name or not colon:
            raise ValueError(f"line {number}: expected name:hash")
        if name in users:
            raise ValueError(f"line {number}: the user occurs twice")
        if len(users) == MOST_USERS:
            raise ValueError(f"there are more than {MOST_USERS:,} users")
        try:
            users[name] = parse_hash(hashed)
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from None
    if not users:
        raise ValueError("there is no user")
    return users
