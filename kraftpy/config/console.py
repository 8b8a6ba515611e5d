"""The settings of the console: who may sign in and how, in a properties file that also has its settings as a client.

The table has the form of `broker_settings`. TLS has the settings of a listener named CONSOLE,
`listener.name.console.ssl.keystore.location` and so on. There, the plain names are not looked up: in this file they are
those of the client.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from kraftpy.config.settings import ConfigError, Setting, nearest, parse_table

if TYPE_CHECKING:
    from kraftpy.config.security import TlsSettings

CONSOLE_TABLE = """
# The console's pages
kraftpy.console.url                              string   null
    URL of the console in its users' browsers, if it is not that of its listener: behind a proxy, for example.
kraftpy.console.session.idle.ms                  long     1800000 1000..
    How long a session lasts that nobody uses.
kraftpy.console.session.max.ms                   long     43200000 1000..
    How long a session lasts at most.

# Signing in
kraftpy.console.sign.in                          list     "" {password,oidc}
    How users sign in: with a name and password in the cluster, at an identity provider, or both; empty for not at all.
kraftpy.console.operators                        string   ""
    Principals who may change the cluster, as User:name, separated by semicolons, of those who sign in with a password.
kraftpy.console.sasl.mechanism                   string   SCRAM-SHA-512 {SCRAM-SHA-512,SCRAM-SHA-256,PLAIN}
    SASL mechanism with which the console tries a user's name and password at the cluster.

# An identity provider (OpenID Connect)
kraftpy.console.oidc.issuer                      string   null
    URL of the issuer, exactly as it is in the tokens.
kraftpy.console.oidc.client.id                   string   null
    Id of the console at the provider.
kraftpy.console.oidc.client.secret               password null
    Secret of the console at the provider; without one it is a public client, and proves itself by PKCE alone.
kraftpy.console.oidc.scopes                      list     openid,profile
    Scopes that are asked for; openid must be among them.
kraftpy.console.oidc.name.claim                  string   sub
    Claim with the user's name.
kraftpy.console.oidc.role.claim                  string   groups
    Claim with the user's groups or roles; dots lead into nested claims, as in realm_access.roles.
kraftpy.console.oidc.operators                   list     ""
    Values of that claim whose users may change the cluster.
kraftpy.console.oidc.viewers                     list     ""
    Values of that claim whose users may look; * for everyone whom the provider knows.
kraftpy.console.oidc.ssl.truststore.location     string   null
    PEM file with the authorities to trust for the provider's server; by default, the system's.

# Metrics endpoints
kraftpy.console.metrics.urls                     list     ""
    Metrics endpoints of brokers, such as http://127.0.0.1:9464/metrics. A node's console reads its node's by default.
kraftpy.console.metrics.login                    password null
    Login to show them, as name:password.
kraftpy.console.metrics.ssl.truststore.location  string   null
    PEM file with the authorities to trust at https:// endpoints; by default, the system's.

# Audit log
kraftpy.audit.log.file                           string   null
    File of the audit log: a line of JSON for each change, sign-in and sign-out. Defaults to the console's log.
kraftpy.audit.log.max.bytes                      long     104857600 4096..
    Size at which a new file of the audit log begins; nine older ones are kept.
"""
CONSOLE_SETTINGS: dict[str, Setting] = parse_table(CONSOLE_TABLE)
PREFIXES: Final = ("kraftpy.", "listener.name.console.")
"""The names in the file that are the console's, and not a client's."""
LISTENER: Final = "CONSOLE"
METRICS_URLS: Final = "kraftpy.console.metrics.urls"
METRICS_LOGIN: Final = "kraftpy.console.metrics.login"
METRICS_TRUST: Final = "kraftpy.console.metrics.ssl.truststore.location"


class ConsoleSettings:
    """The settings in a console's file, parsed. Raises ConfigError, also for a name that is not one of them."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self._values: dict[str, Any] = {name: setting.default_value() for name, setting in CONSOLE_SETTINGS.items()}
        self._tls_given: dict[str, str] = {}
        for name, text in given.items():
            setting = CONSOLE_SETTINGS.get(name)
            if setting is not None:
                self._values[name] = setting.parse(text)
            elif _is_tls(name):
                self._tls_given[name] = text
            else:
                near = nearest(name, [*CONSOLE_SETTINGS])
                raise ConfigError(
                    f"{name} is not a setting of the console" + (f"; did you mean {near}?" if near else "")
                )

    def __getitem__(self, name: str) -> Any:
        """Return a value by the name of its setting; those that begin with kraftpy.console may leave this out."""
        full = f"kraftpy.console.{name}"
        return self._values[full if full in self._values else name]

    def tls(self) -> TlsSettings:
        """Return the TLS settings of the console's listener. Raises ConfigError."""
        from kraftpy.config.broker import Origin, WrittenSetting
        from kraftpy.config.security import resolve

        given = {name: WrittenSetting(text, Origin.FILE) for name, text in self._tls_given.items()}
        if not any(f"listener.name.console.ssl.keystore.{each}" in given for each in ("location", "key")):
            raise ConfigError(
                "the console is to listen with https, but neither listener.name.console.ssl.keystore.location nor .key "
                "is set"
            )
        (security,) = resolve(given, [LISTENER], {LISTENER: "SSL"})
        assert security.tls is not None
        return security.tls

    @property
    def has_tls_settings(self) -> bool:
        """True if there are settings of TLS."""
        return bool(self._tls_given)


def _is_tls(name: str) -> bool:
    from kraftpy.config.security_settings import SECURITY_SETTINGS

    plain = name.removeprefix("listener.name.console.")
    return plain != name and plain.startswith("ssl.") and plain in SECURITY_SETTINGS
