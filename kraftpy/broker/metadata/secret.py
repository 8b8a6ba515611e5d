"""The secret shared by a cluster's nodes: its source, its minimum length, and the key derived from it.

A link's first frames depend on the key, so their receiver can test guesses of the secret offline. `derived_key` makes
each guess cost 16 MiB of memory and some 50 ms of CPU time (scrypt, RFC 7914); a secret with fewer than
`MIN_CHARACTERS` is refused. The salt is the same for all clusters, because a node does not know its cluster before it
has connected to the others. An attack on a secret that several clusters share therefore covers all of them at once.

Left out: a key exchange that prevents offline guesses (a PAKE), and changing the secret while the cluster runs.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import tempfile
from functools import lru_cache
from ipaddress import ip_address
from pathlib import Path

from kraftpy.config import BrokerConfig, ConfigError
from kraftpy.config.texts import text_of

SETTING, FILE_SETTING = "kraftpy.quorum.secret", "kraftpy.quorum.secret.file"
MIN_CHARACTERS = 16
_MAX_FILE_BYTES = 4096
_SCRYPT = {"n": 1 << 14, "r": 8, "p": 1, "dklen": 32}
_SALT = b"kraftpy links, version 2"
NO_SECRET_KEY = hashlib.blake2b(b"kraftpy links: a cluster without a secret", digest_size=32).digest()
"""The key of nodes without a secret: it distinguishes them from other programs, but protects nothing."""


class SecretError(Exception):
    """The secret cannot be used; the message names the setting."""


def configured_secret(config: BrokerConfig) -> str | None:
    """Return the cluster's secret from its setting or file; None if neither is set. Blocking. Raises SecretError."""
    secret, path = config.kraftpy_quorum_secret, config.kraftpy_quorum_secret_file
    if secret is not None and path is not None:
        raise SecretError(f"{SETTING} and {FILE_SETTING} are both set: set only one of them")
    setting = SETTING
    if path is not None:
        setting = f"{FILE_SETTING}={path}"
        try:
            with Path(path).open("rb") as file:
                secret = text_of(file.read(_MAX_FILE_BYTES), path).strip()
        except OSError as error:
            raise SecretError(f"{setting} cannot be read: {error.strerror or error}") from None
        except ConfigError as error:
            raise SecretError(f"{FILE_SETTING} cannot be read: {error}") from None
    if secret is not None and len(secret) < MIN_CHARACTERS:
        raise SecretError(
            f"{setting} is not allowed: {len(secret)} characters can be guessed; at least {MIN_CHARACTERS} are needed, "
            "such as `openssl rand -base64 32` gives"
        )
    return secret


def make_secret_file(path: str) -> None:
    """Write a random secret to a file that only its owner may read, unless it exists. Raises SecretError.

    If several processes do so at once, one wins, and none ever reads a partial secret.
    """
    file = Path(path)
    if file.exists():
        return
    try:
        descriptor, name = tempfile.mkstemp(prefix=".", dir=file.parent)
        try:
            with open(descriptor, "w") as made:
                made.write(f"{secrets.token_urlsafe(32)}\n")
                made.flush()
                os.fsync(descriptor)
            with contextlib.suppress(FileExistsError):
                os.link(name, path)
        finally:
            os.unlink(name)
    except OSError as error:
        raise SecretError(f"{FILE_SETTING}={path} cannot be created: {error.strerror or error}") from None


@lru_cache(maxsize=4)
def derived_key(secret: str) -> bytes:
    """Derive the 32-byte key that nodes prove to know. Takes 50 ms: call it in a thread."""
    return hashlib.scrypt(secret.encode(), salt=_SALT, **_SCRYPT)


def is_loopback(host: str) -> bool:
    """Return whether an address (not a name) is a loopback address."""
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)


def is_remote_address(host: str) -> bool:
    """Return whether this is an address outside this machine; False for a name, which must be resolved first."""
    try:
        ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return not is_loopback(host)
