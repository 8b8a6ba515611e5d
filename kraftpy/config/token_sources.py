"""Where a node or a client gets the tokens that it shows by OAUTHBEARER (KIP-768, KIP-1139).

`sasl.oauthbearer.token.endpoint.url` is a token endpoint (https or http), or a file with a token, which is read again
for each new token. At an endpoint, a token is granted to a client with an id and a secret, the grant "client
credentials" of RFC 6749, section 4.4. The login module's options clientId, clientSecret and scope are the older form.
Instead of the secret, the client may show an assertion (RFC 7523, section 2.2; KIP-1258): a ready one from the file
`sasl.oauthbearer.assertion.file`, or one that is signed with a private key each time, if
`sasl.oauthbearer.assertion.claim.iss` is set. The file takes precedence over the key, and the key over the secret.
With `sasl.oauthbearer.jwt.retriever.class` JwtBearerJwtRetriever, a token is granted for the assertion itself, the
grant "jwt-bearer" of RFC 7523, section 2.1.

Left out: classes other than Kafka's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any, Final
from urllib.parse import urlsplit

from kraftpy.config.settings import ConfigError
from kraftpy.frozen import frozen

URL: Final = "sasl.oauthbearer.token.endpoint.url"
_RETRIEVER: Final = "sasl.oauthbearer.jwt.retriever.class"
_CLASS: Final = "org.apache.kafka.common.security.oauthbearer."
_CREDENTIALS: Final = f"{_CLASS}ClientCredentialsJwtRetriever"
_FILE: Final = f"{_CLASS}FileJwtRetriever"
JWT_BEARER: Final = f"{_CLASS}JwtBearerJwtRetriever"
_DEFAULT: Final = f"{_CLASS}DefaultJwtRetriever"
_RETRIEVERS: Final = (_DEFAULT, _CREDENTIALS, _FILE, JWT_BEARER)
_ASSERTION: Final = "sasl.oauthbearer.assertion."
_ISSUER: Final = f"{_ASSERTION}claim.iss"
ALGORITHMS: Final = ("RS256", "ES256")
_CLIENT_ID: Final = "sasl.oauthbearer.client.credentials.client.id"
_SECRET: Final = "sasl.oauthbearer.client.credentials.client.secret"


@frozen
class Assertion:
    """A ready assertion in a file, or a private key and the claims of assertions. `repr` shows no secrets."""

    file: str | None = None
    key_file: str | None = None
    passphrase: str | None = field(default=None, repr=False)
    algorithm: str = "RS256"
    template_file: str | None = None
    """A file with headers and claims, in JSON: {"header": {...}, "payload": {...}}."""
    claims: tuple[tuple[str, str], ...] = ()
    """The claims aud, iss and sub, as far as they are set; those of the template take precedence."""
    lifetime_seconds: int = 300
    not_before_seconds: int = 60
    """How far back the assertion is valid."""
    has_id: bool = False

    @property
    def files(self) -> tuple[str, ...]:
        """The paths of the files that are read."""
        return tuple(filter(None, (self.file, self.key_file, self.template_file)))


@frozen
class TokenSource:
    """A token endpoint with the credentials to show there, or a file with a token. `repr` shows no secrets."""

    url: str
    client_id: str = ""
    """Empty if only the assertion tells it."""
    secret: str = field(default="", repr=False)
    is_url_encoded: bool = False
    """True if id and secret are URL-encoded before they are shown (RFC 6749, section 2.3.1)."""
    scope: str | None = None
    assertion: Assertion | None = None
    """The assertion to show in place of the secret."""
    is_for_assertion: bool = False
    """True if the token is granted for the assertion, which then stands in place of the client id as well."""
    trusted: str | None = None
    """A file with the authorities to trust for the URL's server; None for the system's."""

    @property
    def is_file(self) -> bool:
        """True if the URL names a file with a token."""
        return urlsplit(self.url).scheme == "file"


def token_source(
    value: Callable[[str], Any], written: Callable[[str], str], options: Mapping[str, str]
) -> TokenSource | None:
    """Return the source that settings name; None if they name none.

    `value` looks a setting up by its plain name, `written` returns its name for messages, and `options` are those of
    the login module. Raises ConfigError.
    """
    url, retriever = value(URL), value(_RETRIEVER) or _DEFAULT
    if retriever not in _RETRIEVERS:
        raise ConfigError(
            f"{written(_RETRIEVER)}={retriever} is not supported: expected one of {', '.join(_RETRIEVERS)}"
        )
    if url is None:
        return None
    is_file = urlsplit(url).scheme == "file"
    if retriever in ((_CREDENTIALS, JWT_BEARER) if is_file else (_FILE,)):
        raise ConfigError(f"{written(_RETRIEVER)}={retriever} does not fit {written(URL)}")
    if is_file:
        return TokenSource(url=url)
    trusted = options.get("ssl.truststore.location")
    if retriever == JWT_BEARER:
        return TokenSource(
            url=url,
            assertion=_assertion(value, written, f"{written(_RETRIEVER)}={JWT_BEARER}"),
            is_for_assertion=True,
            scope=value("sasl.oauthbearer.scope"),
            trusted=trusted,
        )
    client_id, secret = value(_CLIENT_ID) or options.get("clientId"), value(_SECRET) or options.get("clientSecret")
    assertion = None
    if value(f"{_ASSERTION}file") or value(_ISSUER):
        assertion, secret = _assertion(value, written, written(_ISSUER)), None
    else:
        for name, given in ((_CLIENT_ID, client_id), (_SECRET, secret)):
            if not given:
                raise ConfigError(f"{written(name)} is not set: {written(URL)} needs it")
    return TokenSource(
        url=url,
        client_id=client_id or "",
        secret=secret or "",
        assertion=assertion,
        scope=value("sasl.oauthbearer.scope") or options.get("scope"),
        trusted=trusted,
    )


def _assertion(value: Callable[[str], Any], written: Callable[[str], str], needed_by: str) -> Assertion:
    def setting(name: str) -> Any:
        return value(_ASSERTION + name)

    if setting("file"):
        return Assertion(file=setting("file"))
    if not setting("private.key.file"):
        raise ConfigError(
            f"{written(_ASSERTION + 'private.key.file')} is not set: {needed_by} needs it, or a file with an assertion"
        )
    if setting("algorithm") not in ALGORITHMS:
        name = written(_ASSERTION + "algorithm")
        raise ConfigError(f"{name}={setting('algorithm')} is not supported: expected one of {', '.join(ALGORITHMS)}")
    return Assertion(
        key_file=setting("private.key.file"),
        passphrase=setting("private.key.passphrase"),
        algorithm=setting("algorithm"),
        template_file=setting("template.file"),
        claims=tuple((each, setting(f"claim.{each}")) for each in ("aud", "iss", "sub") if setting(f"claim.{each}")),
        lifetime_seconds=setting("claim.exp.seconds"),
        not_before_seconds=setting("claim.nbf.seconds"),
        has_id=setting("claim.jti.include"),
    )
