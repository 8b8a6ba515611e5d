"""Tickets for a client's logins by GSSAPI: from the user's cache, another cache or a keytab, as the options say.

Without `sasl_jaas_config`, or with a Krb5LoginModule that has `useTicketCache=true`, the tickets are the user's, from
`kinit`, or those in the cache `ticketCache`. With `useKeyTab=true`, `keyTab` and `principal`, the client gets tickets
with the keytab, and new ones when these have expired.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from kraftpy.config.security import GSSAPI
from kraftpy.kerberos import KerberosError, initiator_of, load
from kraftpy.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from kraftpy.security.gssapi import Context
    from kraftpy.security.jaas import Login as JaasLogin

_T = TypeVar("_T")


class _Context:
    """A context that raises a client's errors."""

    def __init__(self, context: Context) -> None:
        self._context = context

    @property
    def is_established(self) -> bool:
        return self._context.is_established

    @property
    def peer(self) -> str:
        return _told(lambda: self._context.peer)

    def step(self, token: bytes) -> bytes:
        return _told(lambda: self._context.step(token))

    def wrap(self, message: bytes) -> bytes:
        return _told(lambda: self._context.wrap(message))

    def unwrap(self, token: bytes) -> bytes:
        return _told(lambda: self._context.unwrap(token))


def contexts_of(named: str | None, jaas: JaasLogin | None) -> Callable[[str], Context]:
    """Return a function from a host to a context with the brokers' service there.

    `named` is `sasl_kerberos_service_name`. Raises ValueError, which names the option.
    """
    try:
        load()
    except KerberosError as error:
        raise ValueError(f"sasl_mechanism: {error}") from None
    given = {} if jaas is None else jaas.options
    if jaas is not None and GSSAPI not in jaas.mechanisms:
        raise ValueError(f"sasl_jaas_config: {jaas.module} is not a login module of {GSSAPI}")
    own = given.get("serviceName")
    if own and named and own != named:
        raise ValueError(f"sasl_kerberos_service_name is {named}, and serviceName in sasl_jaas_config is {own}")
    service = named or own
    if not service:
        raise ValueError("sasl_kerberos_service_name must be given with GSSAPI: the first part of brokers' principals")
    keytab, principal = None if jaas is None else jaas.keytab, given.get("principal")
    if keytab is not None and not principal:
        raise ValueError("sasl_jaas_config: keyTab needs a principal")
    return contexts_with(service, principal, keytab, given.get("ticketCache"))


def contexts_with(
    service: str, principal: str | None, keytab: str | None, cache: str | None = None
) -> Callable[[str], Context]:
    """Return a function from a host to a context with the service there, by the tickets of a keytab, cache or user."""
    initiator = initiator_of(principal, keytab, cache)
    return lambda host: _Context(_told(lambda: initiator.context(service, host)))


def _told(ask: Callable[[], _T]) -> _T:
    """Call Kerberos. Raises KafkaError, which is retriable if no KDC answers."""
    try:
        return ask()
    except KerberosError as error:
        code = ErrorCode.NETWORK_EXCEPTION if error.is_transient else ErrorCode.SASL_AUTHENTICATION_FAILED
        raise KafkaError(code, f"GSSAPI: {error}") from error
