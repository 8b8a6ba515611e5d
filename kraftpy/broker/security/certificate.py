"""The TLS contexts of a listener, which are made again when its settings, or the files of its keys, have changed.

One context is for the connections that this node accepts on the listener, the other for those that it opens to the
listener on other nodes. Both show the same certificate, and change together or not at all.

Kafka reads changed files when its settings are altered; here a changed file is enough. A renewed certificate must name
the same broker: its subject must be the same, and its alternative names must include the previous ones, unless
`ssl.allow.dn.changes` and `ssl.allow.san.changes` are set. As in Kafka, a listener does not gain or lose its key store,
and does not gain a trust store. On a listener that this node both has and calls, nodes with the new certificate and
those with the previous one must accept each other, unless even those with the previous one do not. On the listener
between brokers, the certificate with which a broker starts must be accepted by the broker itself, as in Kafka: a key
store that its own trust store does not cover would otherwise show only when another broker connects. If a file cannot
be used, the error is logged and the contexts stay as they were. Established connections are not affected.

The methods read files, and may be called from any thread.
"""

from __future__ import annotations

import logging
import os
import ssl
import threading
from dataclasses import replace
from typing import NamedTuple

from kraftpy.config.security import TlsSettings
from kraftpy.config.settings import shortened
from kraftpy.security.distinguished_names import alternative_names_of, subject_of
from kraftpy.tls import (
    TlsError,
    check_trusted,
    client_context,
    files_of,
    own_certificate,
    refusal_between,
    server_context,
)

logger = logging.getLogger(__name__)

_Seen = tuple[tuple[int, int, int] | None, ...]


class _Made(NamedTuple):
    """The contexts by some settings, and the names in their certificate; None and no names without a certificate."""

    server: ssl.SSLContext | None
    client: ssl.SSLContext | None
    any_host: ssl.SSLContext | None
    """The client's, without a check of host names, for trying the certificate; None unless there are both."""
    subject: str | None
    names: frozenset[bytes]


class Certificate:
    """The certificate of one listener. Raises TlsError if it cannot be used.

    `is_served`: this node has the listener. `is_called`: it opens connections to the listener on other nodes.
    `is_between_brokers`: all brokers have it and call it, so that a broker must accept its own certificate.
    """

    def __init__(
        self,
        listener: str,
        tls: TlsSettings,
        *,
        is_served: bool = True,
        is_called: bool = False,
        is_between_brokers: bool = False,
    ) -> None:
        self.tls = tls
        self._listener = listener
        self._is_served = is_served
        self._is_called = is_called
        self._lock = threading.Lock()
        self._seen = self._look(tls)
        self._refused: tuple[TlsSettings, _Seen] | None = None
        """The settings that could not be used last, and the state of their files then."""
        self._made = self._make(tls)
        if is_between_brokers:
            _check_itself(self._made)

    @property
    def server(self) -> ssl.SSLContext:
        """The context for connections that are accepted from now on."""
        assert self._made.server is not None
        return self._made.server

    @property
    def client(self) -> ssl.SSLContext:
        """The context for connections to other nodes that are opened from now on."""
        assert self._made.client is not None
        return self._made.client

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
            self._next(tls)

    def _take_over(self, tls: TlsSettings) -> bool:
        try:
            self._made = self._next(tls)
        except TlsError as error:
            logger.error("%s keeps its certificate: %s", self._listener, error)
            return False
        logger.warning(
            "%s has a new certificate, of %s", self._listener, shortened(self._made.subject or "") or "no subject"
        )
        return True

    def _make(self, tls: TlsSettings) -> _Made:
        """Make the contexts by some settings. Raises TlsError, also for a trust store that neither context needs."""
        if tls.trusted is not None and tls.client_auth == "none" and not self._is_called:
            check_trusted(tls.trusted)
        subject, names = (None, frozenset[bytes]()) if tls.keys is None else _names(own_certificate(tls))
        return _Made(
            server_context(tls) if self._is_served else None,
            client_context(tls) if self._is_called else None,
            client_context(replace(tls, is_host_checked=False)) if self._is_called and self._is_served else None,
            subject,
            names,
        )

    def _next(self, tls: TlsSettings) -> _Made:
        """Make the contexts that replace the current ones, for the same node. Raises TlsError."""
        made, before = self._make(tls), self._made
        if (made.subject is None) != (before.subject is None):
            if made.subject is None:
                raise TlsError("an SSL keystore cannot be removed from a listener for which one was configured")
            raise TlsError("an SSL keystore cannot be added to a listener for which none was configured")
        if tls.trusted is not None and self.tls.trusted is None:
            raise TlsError("an SSL truststore cannot be added to a listener for which none was configured")
        if made.subject is None or before.subject is None:
            return made
        if made.subject.lower() != before.subject.lower() and not self.tls.may_change_name:
            raise TlsError(
                f"the distinguished name would change from {shortened(before.subject)} to {shortened(made.subject)}, "
                "and ssl.allow.dn.changes is false"
            )
        if not made.names >= before.names and not self.tls.may_drop_names:
            raise TlsError("subject alternative names would be lost, and ssl.allow.san.changes is false")
        _check_peers(before, made)
        return made

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


def _check_itself(made: _Made) -> None:
    """Check that a node would accept a connection of its own. Raises TlsError."""
    if made.server is None or made.any_host is None:
        return
    if reason := refusal_between(made.server, made.any_host):
        problem = "a client with the listener's key store and trust store cannot connect to a server with the same"
        raise TlsError(f"{problem}: {reason}")


def _check_peers(before: _Made, made: _Made) -> None:
    """Check that nodes that have changed already, and those that have not, can connect. Raises TlsError."""
    if before.server is None or made.server is None or before.any_host is None or made.any_host is None:
        return
    if refusal_between(before.server, before.any_host):
        return
    reason = refusal_between(made.server, before.any_host) or refusal_between(before.server, made.any_host)
    if reason:
        problem = "nodes with the new certificate and those with the previous one would not accept each other"
        raise TlsError(f"{problem}: {reason}")


def _names(certificate: bytes) -> tuple[str, frozenset[bytes]]:
    try:
        return subject_of(certificate), alternative_names_of(certificate)
    except ValueError as error:
        raise TlsError(f"the certificate cannot be read: {error}") from None
