"""Kerberos for both ends of a connection, by the library `gssapi`, which is loaded here and nowhere else.

A service accepts contexts with the keys of its keytab, which is read at each login, so that new keys need no restart. A
client initiates them with the tickets of a cache, by default that of the user, or with tickets that it gets by a keytab
whenever it has none that last.

The realm's configuration is the system's: `/etc/krb5.conf`, or what KRB5_CONFIG names. Everything here blocks, because
it reads files or asks a KDC, apart from `wrap` and `unwrap`.

Left out: mechanisms of GSS-API other than Kerberos, layers that sign or encrypt what follows the login, delegation of
tickets, bindings to TLS's channel.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import threading
from collections.abc import Callable
from typing import Any, Final, TypeVar

from kraftpy.security.gssapi import ContextError

MISSING: Final = "GSSAPI needs the library gssapi: install kraftpy[kerberos]"
_KDC_UNREACHABLE: Final = (-1765328228) & 0xFFFFFFFF
"""Of the codes of MIT's library, the one of a KDC that does not answer."""
_T = TypeVar("_T")


class KerberosError(ContextError):
    """What the library says of a failure, in one line. `is_transient` if no KDC could be reached."""

    def __init__(self, reason: str, *, is_transient: bool = False) -> None:
        super().__init__(reason)
        self.is_transient = is_transient


def load() -> Any:
    """Return the library. Raises KerberosError if it is not installed."""
    try:
        import gssapi
    except (ImportError, OSError) as error:  # it needs the system's libgssapi_krb5
        raise KerberosError(f"{MISSING} ({error})") from None
    return gssapi


def _asked(ask: Callable[[], _T]) -> _T:
    """Ask the library. Raises KerberosError."""
    library = load()
    try:
        return ask()
    except library.exceptions.GSSError as error:
        reasons = error.get_all_statuses(error.min_code, False) if error.min_code else []
        text = "; ".join(reasons or error.get_all_statuses(error.maj_code, True))
        is_transient = error.min_code & 0xFFFFFFFF == _KDC_UNREACHABLE
        raise KerberosError(" ".join(text.split()), is_transient=is_transient) from error


class SecurityContext:
    """A context of the library."""

    def __init__(self, context: Any, peer: str) -> None:
        context.__DEFER_STEP_ERRORS__ = False  # else `step` returns, and the next question raises
        self._context = context
        self._peer = peer
        """The library's name for the other end's name."""

    @property
    def is_established(self) -> bool:
        """Whether the peer is known and there are keys."""
        return bool(self._context.complete)

    @property
    def peer(self) -> str:
        """The principal at the other end."""
        return str(_asked(lambda: getattr(self._context, self._peer)))

    def step(self, token: bytes) -> bytes:
        """Take the peer's token; return the answer."""
        return _asked(lambda: self._context.step(token)) or b""

    def wrap(self, message: bytes) -> bytes:
        """Sign a message."""
        return bytes(_asked(lambda: self._context.wrap(message, False)).message)

    def unwrap(self, token: bytes) -> bytes:
        """Check the signature of a message, and return the message."""
        return bytes(_asked(lambda: self._context.unwrap(token)).message)


class Acceptor:
    """A service with its keys. Raises KerberosError if they are not there."""

    def __init__(self, keytab: str, principal: str) -> None:
        library = load()

        kind, mechs = library.NameType.kerberos_principal, [library.MechType.kerberos]

        def acquired() -> Any:
            name, store = library.Name(principal, kind), {"keytab": keytab}
            return library.Credentials(name=name, usage="accept", mechs=mechs, store=store)

        self._library = library
        self._credentials = _asked(acquired)
        self.default_realm = ""
        """The realm of the system's configuration; empty if it has none."""
        with contextlib.suppress(KerberosError):
            # A name without a realm gets the default one.
            named = _asked(lambda: str(library.Name("any", kind).canonicalize(library.MechType.kerberos)))
            self.default_realm = named.partition("@")[2]

    def context(self) -> SecurityContext:
        """Return a context for one client."""
        make = self._library.SecurityContext
        return SecurityContext(_asked(lambda: make(creds=self._credentials, usage="accept")), "initiator_name")


class Initiator:
    """A client's tickets: from the keytab, or else from the cache of this name, or else from the user's."""

    def __init__(self, *, principal: str | None, keytab: str | None, cache: str | None) -> None:
        self._principal = principal
        self._store = {"ccache": cache} if cache else {}
        if keytab is not None:
            self._store = {"client_keytab": keytab, "ccache": f"MEMORY:kraftpy-{next(_numbers)}"}
        self._turn = threading.Lock()

    def context(self, service: str, host: str) -> SecurityContext:
        """Return a context with a service of a host. Raises KerberosError."""
        library = load()

        def made() -> Any:
            principal, kind = self._principal, library.NameType.kerberos_principal
            name = None if principal is None else library.Name(principal, kind)
            mechs, store = [library.MechType.kerberos], self._store or None
            credentials = library.Credentials(name=name, usage="initiate", mechs=mechs, store=store)
            _ = credentials.lifetime  # gets tickets by the keytab if there are none; raises if there cannot be
            target = library.Name(f"{service}@{host}", library.NameType.hostbased_service)
            flags = library.RequirementFlag
            return library.SecurityContext(
                name=target,
                creds=credentials,
                usage="initiate",
                mech=library.MechType.kerberos,
                flags=flags.mutual_authentication | flags.integrity | flags.out_of_sequence_detection,
            )

        with self._turn:  # logins of one client fill one cache
            return SecurityContext(_asked(made), "target_name")


_numbers = itertools.count(1)


@functools.lru_cache(maxsize=64)
def initiator_of(principal: str | None, keytab: str | None, cache: str | None) -> Initiator:
    """Return the tickets that all clients of this process share which ask for the same."""
    return Initiator(principal=principal, keytab=keytab, cache=cache)
