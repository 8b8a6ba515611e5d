"""The TLS context of a listener, which is made again when its settings, or the files of its keys, have changed.

Kafka reads changed files when its settings are altered; here a changed file is enough. A renewed certificate must name
the same broker: its subject must be the same, and its alternative names must include the previous ones, unless
`ssl.allow.dn.changes` and `ssl.allow.san.changes` are set. If a file cannot be used, the error is logged and the
context stays as it was. Established connections are not affected.

The methods read files, and may be called from any thread.
"""

from __future__ import annotations

import logging
import os
import ssl
import threading

from kraftpy.config.security import TlsSettings
from kraftpy.config.settings import shortened
from kraftpy.security.distinguished_names import alternative_names_of, subject_of
from kraftpy.tls import TlsError, files_of, own_certificate, server_context

logger = logging.getLogger(__name__)

_Seen = tuple[tuple[int, int, int] | None, ...]


class Certificate:
    """The certificate of one listener. Raises TlsError if it cannot be used."""

    def __init__(self, listener: str, tls: TlsSettings) -> None:
        self.tls = tls
        self._listener = listener
        self._lock = threading.Lock()
        self._seen = self._look(tls)
        self._refused: tuple[TlsSettings, _Seen] | None = None
        """The settings that could not be used last, and the state of their files then."""
        self.context: ssl.SSLContext = server_context(tls)
        """The context for new connections."""
        self._subject, self._names = _names(own_certificate(tls))

    def renew(self) -> None:
        """Make the context again if a file has changed since the last look."""
        with self._lock:
            seen = self._look(self.tls)
            if seen != self._seen:
                self._seen = seen
                self._take_over(self.tls)

    def change(self, tls: TlsSettings) -> None:
        """Make the context by other settings, if they can be used.

        Settings that cannot be used are tried again, and the log has another line, only after their files have changed.
        """
        with self._lock:
            if tls == self.tls:
                return
            seen = self._look(tls)
            if (tls, seen) == self._refused:
                return
            if self._take_over(tls):
                self.tls, self._seen, self._refused = tls, seen, None
            else:
                self._refused = tls, seen

    def check(self, tls: TlsSettings) -> None:
        """Check that a context can be made by other settings. Raises TlsError."""
        with self._lock:
            self._made(tls)

    def _take_over(self, tls: TlsSettings) -> bool:
        try:
            self.context, self._subject, self._names = self._made(tls)
        except TlsError as error:
            logger.error("%s keeps its certificate: %s", self._listener, error)
            return False
        logger.warning("%s has a new certificate, of %s", self._listener, shortened(self._subject) or "no subject")
        return True

    def _made(self, tls: TlsSettings) -> tuple[ssl.SSLContext, str, frozenset[bytes]]:
        """Return a context, and the names in its certificate, which must still be this broker's. Raises TlsError."""
        context = server_context(tls)
        subject, names = _names(own_certificate(tls))
        if subject.lower() != self._subject.lower() and not self.tls.may_change_name:
            raise TlsError(
                f"the distinguished name would change from {shortened(self._subject)} to {shortened(subject)}, "
                "and ssl.allow.dn.changes is false"
            )
        if not names >= self._names and not self.tls.may_drop_names:
            raise TlsError("subject alternative names would be lost, and ssl.allow.san.changes is false")
        return context, subject, names

    def _look(self, tls: TlsSettings) -> _Seen:
        """Return the state of the files: a difference shows that one has changed."""
        found: list[tuple[int, int, int] | None] = []
        for path in files_of(tls):
            try:
                status = os.stat(path)
                found.append((status.st_mtime_ns, status.st_size, status.st_ino))
            except OSError:
                found.append(None)
        return tuple(found)


def _names(certificate: bytes) -> tuple[str, frozenset[bytes]]:
    try:
        return subject_of(certificate), alternative_names_of(certificate)
    except ValueError as error:
        raise TlsError(f"the certificate cannot be read: {error}") from None
