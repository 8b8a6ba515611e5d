"""Kerberos for both ends of a connection, by the library `gssapi`, which only this module imports.

A service accepts contexts with the keys of its keytab, which is read at each login, so that new keys need no restart. A
client initiates contexts with the tickets of a cache, by default the user's, or with tickets that it gets with a keytab
whenever its last ones have expired.

The realm's configuration is the system's: `/etc/krb5.conf`, or the file that KRB5_CONFIG names. Everything except
`wrap` and `unwrap` blocks, because it reads files or asks a KDC.

Left out: GSS-API mechanisms other than Kerberos, layers that sign or encrypt the connection after the login, delegation
of tickets, TLS channel bindings.
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
"""MIT's error code for a KDC that does not answer."""
_T = TypeVar("_T")


class KerberosError(ContextError):
    """A failure in the library's words, in one line. `is_transient` if no KDC could be reached."""

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
    """Call the library. Raises KerberosError."""
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
        context.__DEFER_STEP_ERRORS__ = False  # otherwise the error of a `step` is raised by the next call
        self._context = context
        self._peer = peer
        """The library's attribute with the peer's name."""

    @property
    def is_established(self) -> bool:
        """True if the peer is known and keys are agreed on."""
        return bool(self._context.complete)

    @property
    def peer(self) -> str:
        """The principal at the other end."""
        return str(_asked(lambda: getattr(self._context, self._peer)))

    def step(self, token: bytes) -> bytes:
        """Process the peer's token; return the answer."""
        return _asked(lambda: self._context.step(token)) or b""

    def wrap(self, message: bytes) -> bytes:
        """Sign a message."""
        return bytes(_asked(lambda: self._context.wrap(message, False)).message)

    def unwrap(self, token: bytes) -> bytes:
        """Check the signature of a message, and return the message."""
        return bytes(_asked(lambda: self._context.unwrap(token)).message)


class Acceptor:
    """A service with its keys. Raises KerberosError if the keytab lacks them."""

    def __init__(self, keytab: str, principal: str) -> None:
        library = load()

        kind, mechs = library.NameType.kerberos_principal, [library.MechType.kerberos]

        def acquired() -> Any:
            name, store = library.Name(principal, kind), {"keytab": keytab}
            return library.Credentials(name=name, usage="accept", mechs=mechs, store=store)

        self._library = library
        self._credentials = _asked(acquired)
        self.default_realm = ""
        """The default realm of the system's configuration; empty if it has none."""
        with contextlib.suppress(KerberosError):
            # Canonicalizing a name without a realm adds the default one.
            named = _asked(lambda: str(library.Name("any", kind).canonicalize(library.MechType.kerberos)))
            self.default_realm = named.partition("@")[2]

    def context(self) -> SecurityContext:
        """Return a context for one client's login."""
        make = self._library.SecurityContext
        return SecurityContext(_asked(lambda: make(creds=self._credentials, usage="accept")), "initiator_name")


class Initiator:
    """A client's tickets: from the keytab if there is one, else from the named cache or the user's."""

    def __init__(self, *, principal: str | None, keytab: str | None, cache: str | None) -> None:
        self._principal = principal
        self._store = {"ccache": cache} if cache else {}
        if keytab is not None:
            self._store = {"client_keytab": keytab, "ccache": f"MEMORY:kraftpy-{next(_numbers)}"}
        self._turn = threading.Lock()

    def context(self, service: str, host: str) -> SecurityContext:
        """Return a context with a service on a host. Raises KerberosError."""
        library = load()

        def made() -> Any:
            principal, kind = self._principal, library.NameType.kerberos_principal
            name = None if principal is None else library.Name(principal, kind)
            mechs, store = [library.MechType.kerberos], self._store or None
            credentials = library.Credentials(name=name, usage="initiate", mechs=mechs, store=store)
            _ = credentials.lifetime  # gets tickets with the keytab if necessary; raises if that fails
            target = library.Name(f"{service}@{host}", library.NameType.hostbased_service)
            flags = library.RequirementFlag
            return library.SecurityContext(
                name=target,
                creds=credentials,
                usage="initiate",
                mech=library.MechType.kerberos,
                flags=flags.mutual_authentication | flags.integrity | flags.out_of_sequence_detection,
            )

        with self._turn:  # all logins of a client share one cache
            return SecurityContext(_asked(made), "target_name")


_numbers = itertools.count(1)


@functools.lru_cache(maxsize=64)
def initiator_of(principal: str | None, keytab: str | None, cache: str | None) -> Initiator:
    """Return the tickets for these arguments, which all clients of this process share."""
    return Initiator(principal=principal, keytab=keytab, cache=cache)
