"""The security settings of each listener, resolved: its protocol, TLS and SASL (KIP-103, KIP-684).

A setting of one listener, `listener.name.<listener>.<setting>`, precedes the plain one, and one of a mechanism of that
listener, `listener.name.<listener>.<mechanism>.<setting>`, precedes both. Names of listeners and mechanisms are in
lower case there.

Stores of keys and certificates are PEM (KIP-651): in the settings themselves, or in files, which the caller reads.

Left out: stores in the formats of Java (JKS) and PKCS#12, which are refused with the command that converts them; the
mechanisms OAUTHBEARER and GSSAPI; `sasl.jaas.config` without a listener and a mechanism in front, as in Kafka.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from kraftpy.config.security_settings import SECURITY_SETTINGS
from kraftpy.config.settings import ConfigError
from kraftpy.security.jaas import JaasError, Login, parse_jaas
from kraftpy.security.mapping_rules import parse_ssl_rules

if TYPE_CHECKING:
    from kraftpy.config.broker import WrittenSetting
    from kraftpy.security.mapping_rules import SslRules

PREFIX: Final = "listener.name."
TLS_PROTOCOLS: Final = ("SSL", "SASL_SSL")
SASL_PROTOCOLS: Final = ("SASL_PLAINTEXT", "SASL_SSL")
SERVED_MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
ENABLED_VERSIONS: Final = ("TLSv1.2", "TLSv1.3")
_OF_MECHANISMS: Final = frozenset({"sasl.jaas.config", "connections.max.reauth.ms"})
_CONVERT: Final = (
    "convert it by 'openssl pkcs12 -in FILE -out FILE.pem', a JKS by 'keytool -importkeystore' before that"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    """Where keys or certificates are: PEM texts from the settings, or the path of a PEM file. Secrets are not shown."""

    location: str | None = None
    certificates: str | None = field(default=None, repr=False)
    key: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsSettings:
    """TLS of one listener, as its server and as a client of other brokers' listeners of that name."""

    keys: Store | None
    """The private key and its certificates; None if there is none, as for a client that shows no certificate."""
    key_password: str | None = field(default=None, repr=False)
    trusted: Store | None = None
    """The certificates that others are checked against; None for the system's."""
    client_auth: str = "none"
    """none, requested or required."""
    versions: tuple[str, ...] = ENABLED_VERSIONS
    cipher_suites: tuple[str, ...] = ()
    """Names of IANA; empty for the default ones."""
    is_host_checked: bool = True
    """True if a client checks that the server's certificate is for the host it connects to."""
    principal_rules: SslRules
    may_change_name: bool = False
    """True if a renewed certificate may have another subject."""
    may_drop_names: bool = False
    """True if a renewed certificate may lack alternative names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslSettings:
    """SASL of one listener. Mappings are by the names of mechanisms."""

    mechanisms: tuple[str, ...]
    logins: Mapping[str, Login]
    """A mechanism's login module: the users of PLAIN, and this node's own name and password."""
    reauthenticate_ms: Mapping[str, int]
    """How long a session lasts at most; 0 for no limit."""
    most_receive_bytes: int
    """The most that a request before authentication may have."""
    failure_delay_ms: int
    """How long a failed client waits for its answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerSecurity:
    """The security of one listener. `tls` is None on one without TLS, and `sasl` on one without SASL."""

    listener: str
    protocol: str
    tls: TlsSettings | None = None
    sasl: SaslSettings | None = None
    is_elsewhere: bool = False
    """True if only other nodes have the listener, and this node is a client of it."""

    @property
    def proves_clients(self) -> bool:
        """True if everybody who gets in has proved a name."""
        return self.sasl is not None or (self.tls is not None and self.tls.client_auth == "required")


def resolve(
    given: Mapping[str, WrittenSetting],
    listeners: Sequence[str],
    protocols: Mapping[str, str],
    elsewhere: Sequence[str] = (),
) -> tuple[ListenerSecurity, ...]:
    """Return the security of each listener, in their order; only others have those `elsewhere`. Raises ConfigError."""
    return tuple(
        _resolve(given, each, protocols.get(each, "PLAINTEXT"), is_elsewhere=each in elsewhere) for each in listeners
    )


def base_name(name: str) -> str | None:
    """Return the setting that a name with a listener's prefix is of, or None if there is no such setting."""
    if not name.startswith(PREFIX):
        return None
    _, dot, rest = name.removeprefix(PREFIX).partition(".")
    if rest in SECURITY_SETTINGS:
        return rest
    _, dot, behind_mechanism = rest.partition(".")
    return behind_mechanism if dot and behind_mechanism in _OF_MECHANISMS else None


class _Settings:
    """The settings of one listener by their plain names."""

    def __init__(self, given: Mapping[str, WrittenSetting], listener: str) -> None:
        self._given = given
        self.prefix = f"{PREFIX}{listener.lower()}."

    def value(self, name: str, *, is_inherited: bool = True, is_listeners: bool = True) -> Any:
        """Return the parsed value. Raises ConfigError, which names the setting as it was written."""
        names = [self.prefix + name] if is_listeners else []
        return self._first(name, [*names, name] if is_inherited else names)

    def of_mechanism(self, name: str, mechanism: str, *, is_inherited: bool = True) -> tuple[Any, str]:
        """Return the value of one mechanism of this listener, and the most special name. Raises ConfigError."""
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
        """Return a setting of the node itself, if it is set."""
        return self._given[name].text.strip() if name in self._given else None

    def written(self, name: str) -> str:
        """Return the name that the value comes from, for messages."""
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
        mechanisms, name = (own,), "sasl.mechanism.controller.protocol"  # nobody logs in here
    if not mechanisms:
        raise ConfigError(f"{name}: {listener} is {protocol}, and has no mechanism")
    if unknown := [mechanism for mechanism in mechanisms if mechanism not in SERVED_MECHANISMS]:
        raise ConfigError(
            f"{name}: {unknown[0]} is not supported on {listener}: expected a list of {', '.join(SERVED_MECHANISMS)}"
        )
    logins: dict[str, Login] = {}
    for mechanism in mechanisms:
        text, where = settings.of_mechanism("sasl.jaas.config", mechanism, is_inherited=False)
        if text is not None:
            try:
                logins[mechanism] = parse_jaas(text)
            except JaasError as error:
                raise ConfigError(f"{where}: {error}") from None
            if mechanism not in logins[mechanism].mechanisms:
                raise ConfigError(f"{where}: {logins[mechanism].module} is not a login module of {mechanism}")
        elif mechanism == "PLAIN" and not is_elsewhere:
            raise ConfigError(f"{where} is not set: {listener} has the mechanism PLAIN, whose users are there")
    return SaslSettings(
        mechanisms=mechanisms,
        logins=logins,
        reauthenticate_ms={each: settings.of_mechanism("connections.max.reauth.ms", each)[0] for each in mechanisms},
        most_receive_bytes=settings.value("sasl.server.max.receive.size"),
        failure_delay_ms=settings.value("connection.failed.authentication.delay.ms", is_listeners=False),
    )


def _tls(settings: _Settings, listener: str, protocol: str, *, is_elsewhere: bool) -> TlsSettings:
    keys = _key_store(settings)
    if keys is None and not is_elsewhere:
        raise ConfigError(f"listeners: {listener} is {protocol}, and has neither ssl.keystore.location nor .key")
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
        # As in Kafka, the plain setting is not meant for listeners whose clients are known by SASL.
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
    """Check that a store is a PEM one, and given once. Raises ConfigError."""
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
            "that of the private key is ssl.key.password"
        )
