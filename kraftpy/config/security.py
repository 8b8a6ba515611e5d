"""Resolves the security settings of each listener: its protocol, TLS and SASL (KIP-103, KIP-684).

A listener's own setting, `listener.name.<listener>.<setting>`, takes precedence over the plain one, and the setting of
a mechanism of that listener, `listener.name.<listener>.<mechanism>.<setting>`, over both. Listeners and mechanisms are
in lower case there.

Stores of keys and certificates are PEM (KIP-651): in the settings themselves, or in files, which the caller reads.

OAUTHBEARER accepts only tokens of a known issuer and audience: a listener without the URL of the keys, an issuer or an
audience is refused, and so is any class that Kafka would load to check tokens.

GSSAPI needs a keytab: listeners do not use a user's tickets.

Left out: stores in the formats JKS and PKCS#12, which are refused with the command that converts them; as in Kafka,
`sasl.jaas.config` without the prefix of a listener and a mechanism.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

from kraftpy.config.metrics import LISTENER as METRICS_LISTENER
from kraftpy.config.metrics import METRICS, is_https
from kraftpy.config.security_settings import SECURITY_SETTINGS
from kraftpy.config.settings import ConfigError
from kraftpy.config.token_sources import URL as TOKEN_URL
from kraftpy.config.token_sources import TokenSource, token_source
from kraftpy.frozen import frozen
from kraftpy.security.jaas import JaasError, Login, parse_jaas
from kraftpy.security.json_web_tokens import TokenRules
from kraftpy.security.kerberos_names import KerberosRules, parse_kerberos_rules
from kraftpy.security.mapping_rules import parse_ssl_rules

if TYPE_CHECKING:
    from kraftpy.config.broker import BrokerConfig, WrittenSetting
    from kraftpy.security.mapping_rules import SslRules

PREFIX: Final = "listener.name."
OAUTHBEARER: Final = "OAUTHBEARER"
GSSAPI: Final = "GSSAPI"
TLS_PROTOCOLS: Final = ("SSL", "SASL_SSL")
SASL_PROTOCOLS: Final = ("SASL_PLAINTEXT", "SASL_SSL")
SERVED_MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", OAUTHBEARER, GSSAPI)
ENABLED_VERSIONS: Final = ("TLSv1.2", "TLSv1.3")
_OAUTHBEARER_CLASS: Final = "org.apache.kafka.common.security.oauthbearer."
_VALIDATORS: Final = (f"{_OAUTHBEARER_CLASS}DefaultJwtValidator", f"{_OAUTHBEARER_CLASS}BrokerJwtValidator")
_HANDLERS: Final = (
    f"{_OAUTHBEARER_CLASS}OAuthBearerValidatorCallbackHandler",
    f"{_OAUTHBEARER_CLASS}secured.OAuthBearerValidatorCallbackHandler",
)
"""Kafka's own classes, whose checks are built in here."""
_OAUTHBEARER_SETTINGS: Final = frozenset(name for name in SECURITY_SETTINGS if "sasl.oauthbearer." in name)
_OF_MECHANISMS: Final = _OAUTHBEARER_SETTINGS | {
    "sasl.jaas.config", "connections.max.reauth.ms", "sasl.server.callback.handler.class",
}  # fmt: skip
_URL: Final = "sasl.oauthbearer.jwks.endpoint.url"
_ALLOWED: Final = "org.apache.kafka.sasl.oauthbearer.allowed"
_CONVERT: Final = (
    "convert it with 'openssl pkcs12 -in FILE -out FILE.pem', and a JKS with 'keytool -importkeystore' before that"
)


@frozen
class Store:
    """Keys or certificates: PEM texts from the settings, or the path of a PEM file. `repr` shows no secrets."""

    location: str | None = None
    certificates: str | None = field(default=None, repr=False)
    key: str | None = field(default=None, repr=False)


@frozen
class TlsSettings:
    """The TLS settings of one listener, as a server and as a client of other brokers' listeners of that name."""

    keys: Store | None
    """The private key and its certificates; None for a client that shows no certificate."""
    key_password: str | None = field(default=None, repr=False)
    trusted: Store | None = None
    """The certificates of trusted authorities; None for the system's."""
    client_auth: str = "none"
    """none, requested or required."""
    versions: tuple[str, ...] = ENABLED_VERSIONS
    cipher_suites: tuple[str, ...] = ()
    """The cipher suites by their IANA names; empty for the default ones."""
    is_host_checked: bool = True
    """True if a client checks that the server's certificate is valid for the host it connects to."""
    principal_rules: SslRules
    may_change_name: bool = False
    """True if a renewed certificate may have another subject."""
    may_drop_names: bool = False
    """True if a renewed certificate may lack alternative names."""


@frozen
class OauthbearerSettings:
    """The tokens that OAUTHBEARER accepts on one listener, and the source of their keys."""

    rules: TokenRules
    url: str | None
    """The URL of the keys; None if unsecured tokens are accepted, which need no keys."""
    trusted: str | None = None
    """A file with the authorities to trust for the URL's server; None for the system's."""
    refresh_ms: int = 3_600_000
    backoff_ms: int = 100
    backoff_max_ms: int = 10_000


@frozen
class GssapiSettings:
    """The keys of a Kerberos service, and the rules for the short names of its clients."""

    keytab: str
    principal: str
    service: str
    """The first part of every broker's principal."""
    rules: KerberosRules


@frozen
class SaslSettings:
    """The SASL settings of one listener. Mappings are by mechanism."""

    mechanisms: tuple[str, ...]
    logins: Mapping[str, Login]
    """A mechanism's login module: the users of PLAIN, and this node's own name and password."""
    reauthenticate_ms: Mapping[str, int]
    """The longest lifetime of a session; 0 for no limit."""
    most_receive_bytes: int
    """The largest request before authentication."""
    failure_delay_ms: int
    """How long the answer to a failed login is delayed."""
    oauthbearer: OauthbearerSettings | None = None
    tokens: TokenSource | None = None
    """The source of the tokens with which this node itself logs in to others by OAUTHBEARER."""
    gssapi: GssapiSettings | None = None


@frozen
class ListenerSecurity:
    """The security of one listener. `tls` is None if it has no TLS, and `sasl` if it has no SASL."""

    listener: str
    protocol: str
    tls: TlsSettings | None = None
    sasl: SaslSettings | None = None
    is_elsewhere: bool = False
    """True if only other nodes have the listener, so that this node is only its client."""

    @property
    def proves_clients(self) -> bool:
        """True if every client of the listener has proved a name."""
        return self.sasl is not None or (self.tls is not None and self.tls.client_auth == "required")


def resolve(
    given: Mapping[str, WrittenSetting],
    listeners: Sequence[str],
    protocols: Mapping[str, str],
    elsewhere: Sequence[str] = (),
) -> tuple[ListenerSecurity, ...]:
    """Return the security of each listener, in order; only other nodes have those `elsewhere`. Raises ConfigError."""
    return tuple(
        _resolve(given, each, protocols.get(each, "PLAINTEXT"), is_elsewhere=each in elsewhere) for each in listeners
    )


def metrics_tls(config: BrokerConfig) -> TlsSettings | None:
    """Return the TLS settings of the listener for monitors; None if it has no TLS. Raises ConfigError.

    As for listeners with SASL, the plain `ssl.client.auth` does not apply if monitors log in.
    """
    if not is_https(config.kraftpy_metrics_listener):
        return None
    if any(listener.name == METRICS_LISTENER for listener in config.listeners):
        raise ConfigError(
            f"{METRICS}: a listener for clients is named {METRICS_LISTENER}, and would share its settings"
        )
    settings = _Settings(config.given, METRICS_LISTENER)
    protocol = "SSL" if config.kraftpy_metrics_users_file is None else "SASL_SSL"
    tls = _tls(settings, METRICS_LISTENER, protocol, is_elsewhere=True)
    if tls.keys is None:
        raise ConfigError(f"{METRICS} is https, but neither {settings.prefix}ssl.keystore.location nor .key is set")
    return tls


def base_name(name: str) -> str | None:
    """Return the name of a setting without a listener's prefix, or None if there is no such setting."""
    if not name.startswith(PREFIX):
        return None
    _, dot, rest = name.removeprefix(PREFIX).partition(".")
    if rest in SECURITY_SETTINGS:
        return rest
    _, dot, behind_mechanism = rest.partition(".")
    return behind_mechanism if dot and behind_mechanism in _OF_MECHANISMS else None


class _Settings:
    """The settings of one listener, looked up by their plain names."""

    def __init__(self, given: Mapping[str, WrittenSetting], listener: str) -> None:
        self._given = given
        self.prefix = f"{PREFIX}{listener.lower()}."

    def value(self, name: str, *, is_inherited: bool = True, is_listeners: bool = True) -> Any:
        """Return the parsed value. Raises ConfigError, which names the setting as it was written."""
        names = [self.prefix + name] if is_listeners else []
        return self._first(name, [*names, name] if is_inherited else names)

    def of_mechanism(self, name: str, mechanism: str, *, is_inherited: bool = True) -> tuple[Any, str]:
        """Return the value for a mechanism of this listener, and its most specific name. Raises ConfigError."""
        special = f"{self.prefix}{mechanism.lower()}.{name}"
        return self._first(name, [special, self.prefix + name, name] if is_inherited else [special]), special

    def _first(self, name: str, names: Sequence[str]) -> Any:
        setting = SECURITY_SETTINGS[name]
        for each in names:
            if each in self._given:
                try:
                    return setting.parse(self._given[each].text)
                except ConfigError as error:
                    raise ConfigError(str(error).replace(name, each, 1)) from None
        return setting.default_value()

    def given(self, name: str) -> str | None:
        """Return the node's own setting, if it is set."""
        return self._given[name].text.strip() if name in self._given else None

    def written(self, name: str) -> str:
        """Return the name under which the value is set, for messages."""
        return self.prefix + name if self.prefix + name in self._given else name


def _resolve(
    given: Mapping[str, WrittenSetting], listener: str, protocol: str, *, is_elsewhere: bool
) -> ListenerSecurity:
    settings = _Settings(given, listener)
    tls = _tls(settings, listener, protocol, is_elsewhere=is_elsewhere) if protocol in TLS_PROTOCOLS else None
    sasl = _sasl(settings, listener, protocol, is_elsewhere=is_elsewhere) if protocol in SASL_PROTOCOLS else None
    return ListenerSecurity(listener=listener, protocol=protocol, tls=tls, sasl=sasl, is_elsewhere=is_elsewhere)


def _sasl(settings: _Settings, listener: str, protocol: str, *, is_elsewhere: bool) -> SaslSettings:
    mechanisms = settings.value("sasl.enabled.mechanisms")
    name = settings.written("sasl.enabled.mechanisms")
    if is_elsewhere and (own := settings.given("sasl.mechanism.controller.protocol")) is not None:
        mechanisms, name = (own,), "sasl.mechanism.controller.protocol"  # no client logs in to this node there
    if not mechanisms:
        raise ConfigError(f"{name}: {listener} is {protocol}, but has no mechanism")
    if unknown := [mechanism for mechanism in mechanisms if mechanism not in SERVED_MECHANISMS]:
        raise ConfigError(
            f"{name}: {unknown[0]} is not supported on {listener}: expected a list of {', '.join(SERVED_MECHANISMS)}"
        )
    logins: dict[str, Login] = {}
    for mechanism in mechanisms:
        _check_handler(settings, mechanism)
        text, where = settings.of_mechanism("sasl.jaas.config", mechanism, is_inherited=False)
        if text is not None:
            try:
                logins[mechanism] = parse_jaas(text)
            except JaasError as error:
                raise ConfigError(f"{where}: {error}") from None
            if mechanism not in logins[mechanism].mechanisms:
                raise ConfigError(f"{where}: {logins[mechanism].module} is not a login module of {mechanism}")
        elif mechanism == "PLAIN" and not is_elsewhere:
            raise ConfigError(f"{where} is not set: {listener} has the mechanism PLAIN, which needs its users there")
        elif mechanism == GSSAPI and not is_elsewhere:
            raise ConfigError(
                f"{where} is not set: {listener} has the mechanism {GSSAPI} ({name}), which needs its keytab there"
            )
    return SaslSettings(
        mechanisms=mechanisms,
        logins=logins,
        reauthenticate_ms={each: settings.of_mechanism("connections.max.reauth.ms", each)[0] for each in mechanisms},
        most_receive_bytes=settings.value("sasl.server.max.receive.size"),
        failure_delay_ms=settings.value("connection.failed.authentication.delay.ms", is_listeners=False),
        oauthbearer=_oauthbearer(settings, listener, logins)
        if OAUTHBEARER in mechanisms and not is_elsewhere
        else None,
        tokens=_tokens(settings, logins) if OAUTHBEARER in mechanisms else None,
        gssapi=_gssapi(settings, logins[GSSAPI]) if GSSAPI in logins else None,
    )


def _check_handler(settings: _Settings, mechanism: str) -> None:
    """Refuse a class that would check credentials in Kafka. Raises ConfigError."""
    handler, where = settings.of_mechanism("sasl.server.callback.handler.class", mechanism)
    if handler and not (mechanism == OAUTHBEARER and handler in _HANDLERS):
        raise ConfigError(f"{where}={handler} is not supported: classes that check credentials are not loaded")


def _gssapi(settings: _Settings, login: Login) -> GssapiSettings:
    where = f"{settings.prefix}{GSSAPI.lower()}.sasl.jaas.config"
    principal = login.options.get("principal")
    if not login.keytab or not principal:
        raise ConfigError(f"{where} must have useKeyTab=true with keyTab and principal")
    own, named = login.options.get("serviceName"), settings.value("sasl.kerberos.service.name")
    if own and named and own != named:
        raise ConfigError(
            f"Conflicting serviceName values found in JAAS and Kafka configs value in JAAS file {own}, value in Kafka "
            f"config {named}"
        )
    service = named or own
    if not service:
        raise ConfigError("No serviceName defined in either JAAS or Kafka config: set sasl.kerberos.service.name")
    name = settings.written("sasl.kerberos.principal.to.local.rules")
    try:
        rules = parse_kerberos_rules(settings.value("sasl.kerberos.principal.to.local.rules"))
    except ValueError as error:
        raise ConfigError(f"{name}: {error}") from None
    return GssapiSettings(keytab=login.keytab, principal=principal, service=service, rules=rules)


def _oauthbearer(settings: _Settings, listener: str, logins: Mapping[str, Login]) -> OauthbearerSettings:
    def value(name: str) -> Any:
        return settings.of_mechanism(name, OAUTHBEARER)[0]

    def written(name: str) -> str:
        return f"{settings.prefix}{OAUTHBEARER.lower()}.{name}"

    validator = value("sasl.oauthbearer.jwt.validator.class")
    if validator not in _VALIDATORS:
        name = written("sasl.oauthbearer.jwt.validator.class")
        raise ConfigError(f"{name}={validator} is not supported: expected one of {', '.join(_VALIDATORS)}")
    url, is_unsecured = value(_URL), value("kraftpy.sasl.oauthbearer.allow.unsecured.tokens")
    issuer, audience = value("sasl.oauthbearer.expected.issuer"), value("sasl.oauthbearer.expected.audience")
    if is_unsecured and url is not None:
        raise ConfigError(
            f"{written(_URL)} and kraftpy.sasl.oauthbearer.allow.unsecured.tokens are both set; only one of them may be"
        )
    if not is_unsecured:
        for name, given in (
            (_URL, url), ("sasl.oauthbearer.expected.issuer", issuer), ("sasl.oauthbearer.expected.audience", audience),
        ):  # fmt: skip
            if not given:
                raise ConfigError(f"{written(name)} is not set: {listener} has {OAUTHBEARER}, which needs it")
        urls, files = value(f"{_ALLOWED}.urls"), value(f"{_ALLOWED}.files")
        _check_url(written(_URL), url, urls, files)
    login = logins.get(OAUTHBEARER)
    return OauthbearerSettings(
        rules=TokenRules(
            issuer=issuer or None,
            audience=audience,
            sub_claim_name=value("sasl.oauthbearer.sub.claim.name"),
            scope_claim_name=value("sasl.oauthbearer.scope.claim.name"),
            clock_skew_ms=1_000 * value("sasl.oauthbearer.clock.skew.seconds"),
        ),
        url=url,
        trusted=None if login is None else login.options.get("ssl.truststore.location"),
        refresh_ms=value("sasl.oauthbearer.jwks.endpoint.refresh.ms"),
        backoff_ms=value("sasl.oauthbearer.jwks.endpoint.retry.backoff.ms"),
        backoff_max_ms=value("sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms"),
    )


def _tokens(settings: _Settings, logins: Mapping[str, Login]) -> TokenSource | None:
    def value(name: str) -> Any:
        return settings.of_mechanism(name, OAUTHBEARER)[0]

    def written(name: str) -> str:
        return f"{settings.prefix}{OAUTHBEARER.lower()}.{name}"

    login = logins.get(OAUTHBEARER)
    source = token_source(value, written, {} if login is None else login.options)
    if source is not None:
        urls, files = value(f"{_ALLOWED}.urls"), value(f"{_ALLOWED}.files")
        _check_url(written(TOKEN_URL), source.url, urls, files)
        for file in () if source.assertion is None else source.assertion.files:
            if file not in files:
                raise ConfigError(f"the file {file} of an assertion is not allowed: it is not in {_ALLOWED}.files")
    return source


def _check_url(name: str, url: str, urls: Sequence[str], files: Sequence[str]) -> None:
    """Check that keys or tokens may be fetched from a URL (CVE-2025-27817). Raises ConfigError."""
    try:
        parts = urlsplit(url)
        is_local = parts.scheme == "file" and parts.netloc in ("", "localhost")
        is_whole = bool(parts.path) if is_local else bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_local = is_whole = False
    if not is_whole or "@" in parts.netloc or (parts.scheme not in ("https", "http") and not is_local):
        raise ConfigError(f"{name} is not allowed: expected a URL that begins with https, http or file")
    if url not in urls and not (parts.scheme == "file" and unquote(parts.path) in files):
        kind = "files" if parts.scheme == "file" else "urls"
        raise ConfigError(f"{name}={url} is not allowed: it is not in {_ALLOWED}.{kind}")


def _tls(settings: _Settings, listener: str, protocol: str, *, is_elsewhere: bool) -> TlsSettings:
    keys = _key_store(settings)
    if keys is None and not is_elsewhere:
        raise ConfigError(f"listeners: {listener} is {protocol}, but has neither ssl.keystore.location nor .key")
    versions = settings.value("ssl.enabled.protocols")
    if unknown := [version for version in versions if version not in ENABLED_VERSIONS]:
        raise ConfigError(
            f"{settings.written('ssl.enabled.protocols')}={unknown[0]} is not allowed: "
            f"expected a list of {', '.join(ENABLED_VERSIONS)}"
        )
    try:
        rules = parse_ssl_rules(settings.value("ssl.principal.mapping.rules"))
    except ValueError as error:
        raise ConfigError(f"{settings.written('ssl.principal.mapping.rules')}: {error}") from None
    return TlsSettings(
        keys=keys,
        key_password=settings.value("ssl.key.password"),
        trusted=_trust_store(settings),
        # As in Kafka, the plain setting does not apply to listeners whose clients authenticate by SASL.
        client_auth=settings.value("ssl.client.auth", is_inherited=protocol == "SSL"),
        versions=versions or ENABLED_VERSIONS,
        cipher_suites=settings.value("ssl.cipher.suites"),
        is_host_checked=bool(settings.value("ssl.endpoint.identification.algorithm")),
        principal_rules=rules,
        may_change_name=settings.value("ssl.allow.dn.changes"),
        may_drop_names=settings.value("ssl.allow.san.changes"),
    )


def _key_store(settings: _Settings) -> Store | None:
    key, chain = settings.value("ssl.keystore.key"), settings.value("ssl.keystore.certificate.chain")
    location = settings.value("ssl.keystore.location")
    if (key is None) != (chain is None):
        present, absent = ("key", "certificate.chain") if chain is None else ("certificate.chain", "key")
        raise ConfigError(f"ssl.keystore.{present} is set without ssl.keystore.{absent}")
    _check_store(settings, "ssl.keystore", "ssl.keystore.key", location, key)
    if location is None and key is None:
        return None
    return Store(location=location, certificates=chain, key=key)


def _trust_store(settings: _Settings) -> Store | None:
    certificates, location = settings.value("ssl.truststore.certificates"), settings.value("ssl.truststore.location")
    _check_store(settings, "ssl.truststore", "ssl.truststore.certificates", location, certificates)
    if location is None and certificates is None:
        return None
    return Store(location=location, certificates=certificates)


def _check_store(settings: _Settings, store: str, inline: str, location: str | None, text: str | None) -> None:
    """Check that a store is in PEM, and given only once. Raises ConfigError."""
    kind = settings.written(f"{store}.type")
    value = str(settings.value(f"{store}.type")).upper()
    has_password = settings.value(f"{store}.password") is not None
    if text is not None and location is not None:
        raise ConfigError(f"Both {inline} and {store}.location are set; only one of them should be.")
    if text is not None and value != "PEM":
        raise ConfigError(f"{kind}={value} is not allowed: {inline} can be specified only for PEM stores")
    if location is None and text is None:
        if has_password:
            raise ConfigError(f"{store}.password is set without {store}.location")
        return
    if value != "PEM":
        raise ConfigError(f"{kind}={value} is not supported: only PEM is; {_CONVERT}, and set {store}.type=PEM")
    if has_password:
        raise ConfigError(
            f"{settings.written(store + '.password')}: a password cannot be specified with PEM format for a store; "
            "the password of the private key is ssl.key.password"
        )
