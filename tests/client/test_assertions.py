"""Assertions for token endpoints (KIP-1139, KIP-1258): claims and signatures, and the tokens that they bring."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization

from kraftpy.client import KafkaError
from kraftpy.client.assertions import UnusableAssertion, assertion_of
from kraftpy.client.oauthbearer import tokens_of
from kraftpy.client.options import ClientOptions
from kraftpy.client.properties import options_of
from kraftpy.config.token_sources import JWT_BEARER, Assertion
from tests.security.identity_provider import CLIENT_ASSERTION, CLIENT_ID, CLIENT_SECRET, IdentityProvider
from tests.security.identity_provider import JWT_BEARER as GRANT
from tests.security.tokens import Issuer

ISSUER = Issuer()
PASSPHRASE = "the passphrase"
NOW = 1_800_000_000


def key_file(directory: Path, key_id: str, passphrase: str | None = None) -> str:
    kind = (
        serialization.NoEncryption()
        if passphrase is None
        else serialization.BestAvailableEncryption(passphrase.encode())
    )
    path = directory / f"{key_id}.pem"
    path.write_bytes(
        ISSUER.keys[key_id].private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, kind)
    )
    return str(path)


def read(assertion: str, key_id: str) -> dict[str, Any]:
    """The claims of an assertion whose signature is right, whenever it is valid."""
    public = ISSUER.keys[key_id].public_key()
    unlimited = {"verify_exp": False, "verify_nbf": False, "verify_iat": False, "verify_aud": False}
    return jwt.decode(assertion, public, ["RS256", "ES256"], options=unlimited)  # type: ignore[arg-type]


@pytest.mark.parametrize(("key_id", "algorithm"), [("rsa", "RS256"), ("ec", "ES256")])
def test_an_assertion_is_signed(tmp_path: Path, key_id: str, algorithm: str) -> None:
    path = key_file(tmp_path, key_id, PASSPHRASE)
    settings = Assertion(key_file=path, passphrase=PASSPHRASE, algorithm=algorithm, claims=(("sub", "a"),))
    made = assertion_of(settings, NOW + 0.5)
    assert jwt.get_unverified_header(made) == {"alg": algorithm, "typ": "JWT"}
    assert read(made, key_id) == {"sub": "a", "iat": NOW, "exp": NOW + 300, "nbf": NOW - 60}
    assert PASSPHRASE not in repr(settings)


def test_a_template_adds_to_the_settings_and_times_are_always_new(tmp_path: Path) -> None:
    template = tmp_path / "template.json"
    template.write_text(
        json.dumps({"header": {"kid": "k", "alg": "none"}, "payload": {"sub": "b", "exp": 1, "x": [1]}})
    )
    settings = Assertion(
        key_file=key_file(tmp_path, "rsa"), template_file=str(template), claims=(("sub", "a"), ("aud", "c")),
        lifetime_seconds=10, not_before_seconds=0, has_id=True,
    )  # fmt: skip
    first, second = (assertion_of(settings, NOW) for _ in range(2))
    assert jwt.get_unverified_header(first) == {"alg": "RS256", "typ": "JWT", "kid": "k"}
    claims, others = read(first, "rsa"), read(second, "rsa")
    assert claims.pop("jti") != others.pop("jti")
    assert claims == others == {"sub": "b", "aud": "c", "x": [1], "iat": NOW, "exp": NOW + 10, "nbf": NOW}


def test_an_assertion_may_be_ready(tmp_path: Path) -> None:
    (tmp_path / "assertion").write_text("a.b.c\n")
    assert assertion_of(Assertion(file=str(tmp_path / "assertion")), NOW) == "a.b.c"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"key_file": "missing"}, "No such file"),
        ({"passphrase": "wrong"}, "cannot be used; is its passphrase right"),
        ({"passphrase": None}, "cannot be used; is its passphrase right"),
        ({"algorithm": "ES256"}, "is none of ES256"),
        ({"template_file": "rsa.pem"}, "is not a template"),
        ({"template_file": "list.json"}, "is not a template"),
        ({"template_file": "text.json"}, "is not a template"),
    ],
)
def test_what_cannot_be_used_is_named_and_not_quoted(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    (tmp_path / "list.json").write_text("[]")
    (tmp_path / "text.json").write_text('{"header": "hidden"}')
    usual = {"key_file": key_file(tmp_path, "rsa", PASSPHRASE), "passphrase": PASSPHRASE}
    given = {name: str(tmp_path / value) if name.endswith("_file") else value for name, value in changes.items()}
    with pytest.raises(UnusableAssertion, match=message) as refused:
        assertion_of(Assertion(**{**usual, **given}), NOW)
    assert PASSPHRASE not in str(refused.value)
    assert "hidden" not in str(refused.value)


@pytest.fixture
def provider() -> Iterator[IdentityProvider]:
    with IdentityProvider(ISSUER) as made:
        yield made


DEFAULT_CLASS = "org.apache.kafka.common.security.oauthbearer.DefaultJwtRetriever"
CREDENTIALS_CLASS = "org.apache.kafka.common.security.oauthbearer.ClientCredentialsJwtRetriever"


def options(provider: IdentityProvider, *, more: Mapping[str, str] | None = None, **settings: str) -> ClientOptions:
    """The options by a properties file: `settings` are those of assertions, `more` are others."""
    given, ignored = options_of(
        {
            "bootstrap.servers": "localhost:1",
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.token.endpoint.url": f"{provider.url}/token",
            "sasl.oauthbearer.jwt.retriever.class": JWT_BEARER,
            "sasl.oauthbearer.assertion.claim.aud": provider.url,
            "sasl.oauthbearer.assertion.claim.sub": CLIENT_ID,
            "sasl.oauthbearer.scope": "a b",
            **{f"sasl.oauthbearer.assertion.{name.replace('_', '.')}": value for name, value in settings.items()},
            **{f"sasl.oauthbearer.{name}": value for name, value in (more or {}).items()},
        }
    )
    assert ignored == []
    return ClientOptions(**given)


def test_a_token_is_granted_for_an_assertion(provider: IdentityProvider, tmp_path: Path) -> None:
    made = options(provider, private_key_file=key_file(tmp_path, "ec"), algorithm="ES256")
    assert tokens_of(made, None).token().count(".") == 2
    (form,) = provider.forms
    assert form["grant_type"] == [GRANT]
    assert form["scope"] == ["a b"]
    assert read(form["assertion"][0], "ec")["exp"] > time.time()
    refused = options(provider, private_key_file=key_file(tmp_path, "ec"), algorithm="ES256", claim_sub="another")
    with pytest.raises(KafkaError, match="status 401"):
        tokens_of(refused, None).token()
    gone = options(provider, private_key_file=str(tmp_path / "gone"))
    with pytest.raises(KafkaError, match=r"no token for OAUTHBEARER: .*No such file"):
        tokens_of(gone, None).token()


@pytest.mark.parametrize("retriever", [None, DEFAULT_CLASS, CREDENTIALS_CLASS])
@pytest.mark.parametrize("client_id", [None, CLIENT_ID])
def test_an_assertion_stands_in_place_of_a_secret(
    provider: IdentityProvider, tmp_path: Path, retriever: str | None, client_id: str | None
) -> None:
    """RFC 7523, section 2.2, by the issuer claim; a secret that is set as well is not shown."""
    more = {"client.credentials.client.secret": "not shown"}
    more |= {"jwt.retriever.class": retriever} if retriever else {}
    more |= {"client.credentials.client.id": client_id} if client_id else {}
    settings = {"private_key_file": key_file(tmp_path, "rsa"), "claim_iss": CLIENT_ID, "claim_jti_include": "true"}
    made = options(provider, more={"jwt.retriever.class": DEFAULT_CLASS, **more}, **settings)
    tokens = tokens_of(made, None)
    assert tokens.token().count(".") == 2
    (form,) = provider.forms
    (assertion,) = form.pop("client_assertion")
    expected = {"grant_type": ["client_credentials"], "client_assertion_type": [CLIENT_ASSERTION], "scope": ["a b"]}
    assert form == expected | ({"client_id": [client_id]} if client_id else {})
    claims = read(assertion, "rsa")
    assert (claims["iss"], claims["sub"], claims["aud"]) == (CLIENT_ID, CLIENT_ID, provider.url)
    assert claims["jti"]
    refused = options(provider, more={"jwt.retriever.class": CREDENTIALS_CLASS}, **{**settings, "claim_iss": "another"})
    with pytest.raises(KafkaError, match="status 401"):
        tokens_of(refused, None).token()


def test_a_ready_assertion_takes_precedence(provider: IdentityProvider, tmp_path: Path) -> None:
    """Over a key that could sign one, and over a secret."""
    claims = (("iss", CLIENT_ID), ("sub", CLIENT_ID), ("aud", provider.url))
    signed = assertion_of(Assertion(key_file=key_file(tmp_path, "ec"), algorithm="ES256", claims=claims), time.time())
    (tmp_path / "ready").write_text(signed)
    more = {
        "jwt.retriever.class": CREDENTIALS_CLASS,
        "client.credentials.client.id": CLIENT_ID,
        "client.credentials.client.secret": CLIENT_SECRET,
    }
    made = options(
        provider, more=more, file=str(tmp_path / "ready"), claim_iss=CLIENT_ID, private_key_file=str(tmp_path / "gone")
    )
    tokens_of(made, None).token()
    assert provider.forms[0]["client_assertion"] == [signed]


def test_a_secret_is_shown_without_an_issuer_of_assertions(provider: IdentityProvider, tmp_path: Path) -> None:
    """A key alone makes no assertion, as in Kafka."""
    more = {
        "jwt.retriever.class": CREDENTIALS_CLASS,
        "client.credentials.client.id": CLIENT_ID,
        "client.credentials.client.secret": CLIENT_SECRET,
    }
    tokens_of(options(provider, more=more, private_key_file=key_file(tmp_path, "ec")), None).token()
    assert "client_assertion" not in provider.forms[0]


def test_mistakes_are_named(provider: IdentityProvider) -> None:
    with pytest.raises(ValueError, match="sasl_oauthbearer_assertion_private_key_file is not set"):
        tokens_of(options(provider), None)
    with pytest.raises(ValueError, match="sasl_oauthbearer_assertion_algorithm=HS256 is not supported"):
        tokens_of(options(provider, private_key_file="x", algorithm="HS256"), None)
    with pytest.raises(ValueError, match="private_key_file is not set: sasl_oauthbearer_assertion_claim_iss needs it"):
        tokens_of(options(provider, more={"jwt.retriever.class": CREDENTIALS_CLASS}, claim_iss="x"), None)
    for name, value in (("claim_exp_seconds", "86401"), ("claim_nbf_seconds", "-1")):
        with pytest.raises(ValueError, match=f"^sasl_oauthbearer_assertion_{name} must be from 0"):
            tokens_of(options(provider, private_key_file="x", **{name: value}), None)
