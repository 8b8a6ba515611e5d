"""Monitors' logins: HTTP's Basic authentication (RFC 7617) against a file of users.

The file is read again a few seconds after it has changed; if it cannot be used then, the users stay as they were. A
password is checked by a thread, one at a time, and a wrong one costs a pause there, so that guessing is slow and takes
little of the processor. The last right password of each user is remembered as a keyed digest: a monitor that comes
again is answered at once, even while strangers guess. An unknown name takes as long as a wrong password of the first
user.
"""

from __future__ import annotations

import asyncio
import binascii
import hmac
import logging
import os
import secrets
import time
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from kraftpy.broker.containment import Complaints
from kraftpy.broker.threads import Threads
from kraftpy.security.password_hashes import SALT_BYTES, PasswordHash, parse_users

logger = logging.getLogger(__name__)

MOST_FILE_BYTES: Final = 1 << 20
_PAUSE_S: Final = 0.2
_MOST_CREDENTIAL_BYTES: Final = 4096


class UsersError(Exception):
    """The file of users cannot be used. The message is one line, and quotes no hash."""


class Login:
    """The users of a listener for monitors. Raises UsersError, or OSError if there is no thread."""

    def __init__(self, path: str, complaints: Complaints) -> None:
        self._path = path
        self._complaints = complaints
        self._secret = secrets.token_bytes(32)
        self._right: dict[str, bytes] = {}
        """By user: the keyed digest of the last right password."""
        self._threads = Threads(max_workers=1, thread_name_prefix="monitors")
        self._threads.submit(bool).result()  # starts the thread, while there may still be one
        self._seen = self._look()
        self._users: Mapping[str, PasswordHash] = self._read()
        self._nobody = _unmatched(self._users)

    async def admits(self, authorization: bytes, host: str) -> bool:
        """Return whether a request's Authorization header proves a user; log that it does not. `host` is the peer's."""
        found = _credentials(authorization)
        if found is None:
            if authorization:
                self._refuse(host, "the header Authorization is not valid")
            return False
        name, password = found
        known = self._users.get(name, self._nobody)
        digest = hmac.digest(self._secret, b"%s\0%s" % (str(known).encode(), password), "sha256")
        if hmac.compare_digest(self._right.get(name, b""), digest):
            return True
        try:
            is_right = await asyncio.get_running_loop().run_in_executor(self._threads, _matches, known, password)
        except RuntimeError:  # the listener is closed
            return False
        if not is_right:
            self._refuse(host, "wrong user or password")
            return False
        if self._users.get(name) is not known:  # an unknown name, or the file has changed meanwhile
            return False
        self._right[name] = digest
        return True

    def _refuse(self, host: str, why: str) -> None:
        self._complaints.write(logger, logging.WARNING, "monitors", host, "monitor %s is refused: %s", host, why)

    def renew(self) -> None:
        """Read the file again if it has changed since the last look. May be called from any thread."""
        seen = self._look()
        if seen == self._seen:
            return
        self._seen = seen
        try:
            users = self._read()
        except UsersError as error:
            logger.error("monitors: the users stay as they were: %s", error)
            return
        self._users, self._nobody = users, _unmatched(users)
        self._right = {name: digest for name, digest in [*self._right.items()] if name in users}
        logger.info("monitors: %s has %d users", self._path, len(users))

    def close(self) -> None:
        """End the thread."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _look(self) -> tuple[int, int, int] | None:
        try:
            status = os.stat(self._path)
        except OSError:
            return None
        return status.st_mtime_ns, status.st_size, status.st_ino

    def _read(self) -> Mapping[str, PasswordHash]:
        try:
            with open(self._path, "rb") as file:
                content = file.read(MOST_FILE_BYTES + 1)
        except OSError as error:
            raise UsersError(f"{self._path}: {error.strerror}") from None
        if len(content) > MOST_FILE_BYTES:
            raise UsersError(f"{self._path}: the file has more than {MOST_FILE_BYTES >> 20} MiB")
        try:
            return parse_users(content.decode())
        except UnicodeDecodeError:
            raise UsersError(f"{self._path}: the file is not UTF-8") from None
        except ValueError as error:
            raise UsersError(f"{self._path}: {error}") from None


def _unmatched(users: Mapping[str, PasswordHash]) -> PasswordHash:
    """Return a hash of no password, which costs as much as that of the first user."""
    return replace(next(iter(users.values())), salt=secrets.token_bytes(SALT_BYTES), key=secrets.token_bytes(32))


def _credentials(authorization: bytes) -> tuple[str, bytes] | None:
    """Return the name and the password in an Authorization header; None if there are none."""
    scheme, _, text = authorization.partition(b" ")
    if scheme.lower() != b"basic" or len(text) > _MOST_CREDENTIAL_BYTES:
        return None
    try:
        name, colon, password = b64decode(text.strip(), validate=True).partition(b":")
        return (name.decode(), password) if colon else None
    except (binascii.Error, UnicodeDecodeError):
        return None


def _matches(known: PasswordHash, password: bytes) -> bool:
    try:
        if known.matches(password):
            return True
    except (ValueError, MemoryError):  # costs that OpenSSL refuses
        pass
    time.sleep(_PAUSE_S)
    return False
