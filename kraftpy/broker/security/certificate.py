"""The TLS context of a listener, which is made again when the files of its keys or certificates have changed.

Kafka reads changed files when its settings are altered; here a changed file is enough. A renewed certificate must name
the same broker: its subject must be the same, and its alternative names must include the previous ones, unless
`ssl.allow.dn.changes` and `ssl.allow.san.changes` are set. If a file cannot be used, the error is logged and the
context stays as it was. Established connections are not affected.
"""

from __future__ import annotations

import logging
import os
import ssl

from kraftpy.config.security import TlsSettings
from kraftpy.config.settings import shortened
from kraftpy.security.distinguished_names import alternative_names_of, subject_of
from kraftpy.tls import TlsError, files_of, own_certificate, server_context

logger = logging.getLogger(__name__)


class Certificate:
    """The certificate of one listener. Raises TlsError if it cannot be used."""

    def __init__(self, listener: str, tls: TlsSettings) -> None:
        self.tls = tls
        self._listener = listener
        self._seen = self._look()
        self.context: ssl.SSLContext = server_context(tls)
        """The context for new connections."""
        self._subject, self._names = _names(own_certificate(tls))

    def renew(self) -> None:
        """Make the context again if a file has changed since the last look. Reads files."""
        seen = self._look()
        if seen == self._seen:
            return
        self._seen = seen
        try:
            context = server_context(self.tls)
            subject, names = _names(own_certificate(self.tls))
            self._check(subject, names)
        except TlsError as error:
            logger.error("%s keeps its certificate: %s", self._listener, error)
            return
        self.context, self._subject, self._names = context, subject, names
        logger.warning("%s has a new certificate, of %s", self._listener, shortened(subject) or "no subject")

    def _check(self, subject: str, names: frozenset[bytes]) -> None:
        """Check that the certificate still names this broker. Raises TlsError."""
        if subject.lower() != self._subject.lower() and not self.tls.may_change_name:
            raise TlsError(
                f"the distinguished name would change from {shortened(self._subject)} to {shortened(subject)}, "
                "and ssl.allow.dn.changes is false"
            )
        if not names >= self._names and not self.tls.may_drop_names:
            raise TlsError("subject alternative names would be lost, and ssl.allow.san.changes is false")

    def _look(self) -> tuple[tuple[int, int, int] | None, ...]:
        """Return the state of the files: a difference shows that one has changed."""
        found: list[tuple[int, int, int] | None] = []
        for path in files_of(self.tls):
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
