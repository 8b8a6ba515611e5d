"""A client's logins: TLS, and SASL with PLAIN, SCRAM, OAUTHBEARER or GSSAPI.

Before a client sends anything, it checks the broker's certificate, and that it is valid for the host it connects to.
With SCRAM and GSSAPI, the broker has to prove its identity as well.

A session that expires is renewed on its connection by the same exchange, before the first request in the last part of
its lifetime (KIP-368). The session of an unused connection is not renewed.
"""

from __future__ import annotations

import contextlib
import functools
import secrets
import ssl
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

from kraftpy.client.security import Login, Security
from kraftpy.config.security import GSSAPI, OAUTHBEARER, Store, TlsSettings
from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from kraftpy.protocol.messages.sasl_handshake import SaslHandshakeRequest
from kraftpy.security.failures import AuthenticationFailed
from kraftpy.security.gssapi import Context, choice_of
from kraftpy.security.jaas import JaasError, parse_jaas
from kraftpy.security.mapping_rules import parse_ssl_rules
from kraftpy.security.oauthbearer import first_message, last_message, refusal_of
from kraftpy.security.plain import plain_message
from kraftpy.security.scram import MECHANISMS, NONCE_BYTES, ScramClient, salted_password
from kraftpy.tls import TlsError, client_context

if TYPE_CHECKING:
    from kraftpy.client.options import ClientOptions

Exchange = Generator[tuple[ApiKey, Any] | Callable[[], Any], Any, int]
"""Yields requests to send and slow functions to run, and gets their results. Returns the session's lifetime in
milliseconds; 0 means that it does not end."""

CLIENT_MECHANISMS = ("PLAIN", *MECHANISMS, OAUTHBEARER, GSSAPI)
_RENEWED_AFTER = (0.85, 0.95)
"""The share of its lifetime after which a session is renewed: at random in between, as in Kafka."""
_LEAST_BETWEEN_RENEWALS_MS = 1_000


def renewed_after_ms(lifetime_ms: int, random: float) -> float | None:
    """Return when to renew a session, in milliseconds from its start; None if it has no end or is too short.

    `random` is in [0, 1). Brokers renew a session at most once a second.
    """
    least, most = _RENEWED_AFTER
    after_ms = lifetime_ms * (least + (most - least) * random)
    return after_ms if after_ms > _LEAST_BETWEEN_RENEWALS_MS else None


def log_in(login: Login, host: str) -> Exchange:
    """Log in on a connection to a host, once versions are agreed on. Raises KafkaError."""
    answer = yield ApiKey.SASL_HANDSHAKE, SaslHandshakeRequest(mechanism=login.mechanism)
    if answer.error_code:
        raise KafkaError(
            ErrorCode.of(answer.error_code),
            f"the broker does not support the SASL mechanism {login.mechanism}, only {', '.join(answer.mechanisms)}",
        )
    try:
        if login.mechanism == "PLAIN":
            return (yield from _token(plain_message(login.username, login.password)))[1]
        if login.token is not None:
            return (yield from _oauthbearer(login.token))
        if login.context is not None:
            return (yield from _gssapi(login.context, host))
        return (yield from _scram(login))
    except AuthenticationFailed as failure:
        raise KafkaError(ErrorCode.SASL_AUTHENTICATION_FAILED, str(failure)) from failure


def _scram(login: Login) -> Exchange:
    mechanism = MECHANISMS[login.mechanism]
    nonce = secrets.token_urlsafe(NONCE_BYTES)
    client = ScramClient(mechanism, login.username, nonce, is_by_token=login.is_by_token)
    salt, iterations = client.challenged((yield from _token(client.first()))[0])
    salted = yield lambda: salted_password(mechanism, login.password, salt, iterations)
    answer, lifetime_ms = yield from _token(client.final(salted))
    client.verify(answer)
    return lifetime_ms


def _oauthbearer(get: Callable[[], str]) -> Exchange:
    token = yield get
    try:
        message = first_message(token, {})
    except ValueError as error:
        raise AuthenticationFailed(str(error)) from None
    answer, lifetime_ms = yield from _token(message)
    status = refusal_of(answer)
    if status is not None:
        with contextlib.suppress(KafkaError):  # the broker's last answer is an error
            yield from _token(last_message())
        raise AuthenticationFailed(f"the broker refused the token: {status}")
    return lifetime_ms


def _gssapi(make: Callable[[str], Context], host: str) -> Exchange:
    context: Context = yield lambda: make(host)
    token: bytes = yield lambda: context.step(b"")
    while not context.is_established:
        answer, _ = yield from _token(token)
        token = yield functools.partial(context.step, answer)
    answer, _ = yield from _token(token)
    choice = choice_of((yield lambda: context.unwrap(answer)))
    _, lifetime_ms = yield from _token((yield lambda: context.wrap(choice)))
    return lifetime_ms


def _token(token: bytes) -> Generator[tuple[ApiKey, Any] | Callable[[], Any], Any, tuple[bytes, int]]:
    """Send a token; return the answer and the session's lifetime, which is 0 before the session begins."""
    answer = yield ApiKey.SASL_AUTHENTICATE, SaslAuthenticateRequest(auth_bytes=token)
    if answer.error_code:
        error = ErrorCode.of(answer.error_code)
        raise KafkaError(error, answer.error_message or error.meaning)
    return answer.auth_bytes, answer.session_lifetime_ms


def security_of(options: ClientOptions) -> Security:
    """Return the security that the options describe, reading files. Raises ValueError, which names the option."""
    protocol = options.security_protocol
    tls = _tls(options) if protocol in ("SSL", "SASL_SSL") else None
    return Security(tls=tls, login=_login(options) if protocol.startswith("SASL_") else None)


def _tls(options: ClientOptions) -> ssl.SSLContext:
    keys = trusted = None
    if options.ssl_keystore_location is not None or options.ssl_keystore_key is not None:
        keys = Store(
            location=options.ssl_keystore_location,
            key=options.ssl_keystore_key,
            certificates=options.ssl_keystore_certificate_chain,
        )
    if options.ssl_truststore_location is not None or options.ssl_truststore_certificates is not None:
        trusted = Store(location=options.ssl_truststore_location, certificates=options.ssl_truststore_certificates)
    settings = TlsSettings(
        keys=keys,
        key_password=options.ssl_key_password,
        trusted=trusted,
        is_host_checked=bool(options.ssl_endpoint_identification_algorithm),
        principal_rules=parse_ssl_rules("DEFAULT"),
    )
    try:
        return client_context(settings)
    except TlsError as error:
        raise ValueError(str(error).replace("ssl.", "ssl_", 1).replace("store.", "store_", 1)) from None


def _login(options: ClientOptions) -> Login:
    mechanism, username, password = options.sasl_mechanism, options.sasl_username, options.sasl_password
    if mechanism not in CLIENT_MECHANISMS:
        raise ValueError(f"sasl_mechanism must be one of {', '.join(CLIENT_MECHANISMS)}, not {mechanism!r}")
    parsed, is_by_token = None, False
    if options.sasl_jaas_config is not None:
        try:
            parsed = parse_jaas(options.sasl_jaas_config)
        except JaasError as error:
            raise ValueError(f"sasl_jaas_config: {error}") from None
        username, password = username or parsed.username, password or parsed.password
        is_by_token = parsed.is_by_token and mechanism in MECHANISMS
    if mechanism == OAUTHBEARER:
        from kraftpy.client.oauthbearer import tokens_of

        return Login(mechanism=mechanism, token=tokens_of(options, parsed).token)
    if mechanism == GSSAPI:
        from kraftpy.client.kerberos import contexts_of

        return Login(mechanism=mechanism, context=contexts_of(options.sasl_kerberos_service_name, parsed))
    if not username or not password:
        raise ValueError("sasl_username and sasl_password must be given, directly or in sasl_jaas_config")
    return Login(mechanism=mechanism, username=username, password=password, is_by_token=is_by_token)
