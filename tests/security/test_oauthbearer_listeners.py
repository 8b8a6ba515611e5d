"""Listeners with OAUTHBEARER: logins of other clients and ours; keys that change or cannot be fetched."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiokafka
import aiokafka.abc
import confluent_kafka
import kafka
import kafka.net.sasl.oauth
import pytest
from confluent_kafka.admin import AdminClient

from kraftpy.broker.security import listeners
from kraftpy.broker.startup import StartupError
from kraftpy.client import Admin, BlockingAdmin, ErrorCode, KafkaError
from kraftpy.config import BrokerConfig, ConfigError
from kraftpy.config.sources import load
from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from kraftpy.security.oauthbearer import first_message, last_message
from kraftpy.testing import EmbeddedBroker
from kraftpy.testing.ports import ReservedPorts
from tests.security.certificates import HOST, Certificates
from tests.security.identity_provider import CLIENT_ID, CLIENT_SECRET, IdentityProvider
from tests.security.listeners import (
    PLAIN_MODULE,
    listener_settings,
    produce_for,
    reason_not_to_start,
    round_trip_by_aiokafka,
    round_trip_by_confluent,
    round_trip_by_kafka_python,
    round_trip_by_ours,
    secure_listeners,
)
from tests.security.tokens import ABSENT, AUDIENCE, ISSUER, Issuer, hmac_token, unsecured_token
from tests.security.wire import BOUND_SECONDS, Wire
from tests.waiting import eventually

ALLOWED = "org.apache.kafka.sasl.oauthbearer.allowed"
MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"


class Served:
    """A broker that fetches keys from an identity provider with TLS; a second listener reads them from a file."""

    def __init__(self, directory: Path, ports: ReservedPorts) -> None:
        self.certificates = certificates = Certificates(directory)
        self.issuer = Issuer()
        self.provider = IdentityProvider(self.issuer, certificates.broker)
        self.provider.shown_keys = ("rsa", "ec")
        self.file = directory / "jwks.json"
        self.file.write_bytes(self.issuer.jwks("ed"))
        protocols = {"sasl": "SASL_PLAINTEXT", "file": "SASL_PLAINTEXT", "plain": "PLAINTEXT"}
        self.port = {name: ports.reserve() for name in protocols}
        url = f"{self.provider.url}/keys"
        trusted = f'{MODULE} required ssl.truststore.location="{certificates.trusted}";'
        self.broker = EmbeddedBroker(
            settings={
                **listener_settings(self.port, protocols),
                "inter.broker.listener.name": "PLAIN",
                "sasl.enabled.mechanisms": "OAUTHBEARER,PLAIN",
                "listener.name.sasl.oauthbearer.sasl.jaas.config": trusted,
                "listener.name.sasl.plain.sasl.jaas.config": f'{PLAIN_MODULE} required user_bob="b";',
                "listener.name.file.sasl.enabled.mechanisms": "OAUTHBEARER",
                "listener.name.sasl.sasl.oauthbearer.jwks.endpoint.url": url,
                "listener.name.sasl.oauthbearer.sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms": "1",
                "listener.name.file.oauthbearer.sasl.oauthbearer.jwks.endpoint.url": f"file://{self.file}",
                f"{ALLOWED}.urls": url,
                f"{ALLOWED}.files": str(self.file),
                "sasl.oauthbearer.expected.issuer": ISSUER,
                "sasl.oauthbearer.expected.audience": f"{AUDIENCE},other",
                "connection.failed.authentication.delay.ms": "0",
                "delegation.token.secret.key": "secret",
            }
        )

    def address(self, name: str = "sasl") -> str:
        return f"{HOST}:{self.port[name]}"

    def confluent(self, **claims: Any) -> dict[str, Any]:
        return {
            "bootstrap.servers": self.address(),
            "security.protocol": "sasl_plaintext",
            "sasl.mechanism": "OAUTHBEARER",
            "oauth_cb": lambda _: (self.issuer.token(**claims), time.time() + 600),
        }

    def python(self, provider: Any) -> dict[str, Any]:
        return {
            "bootstrap_servers": self.address(),
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": "OAUTHBEARER",
            "sasl_oauth_token_provider": provider,
        }

    def ours(self, name: str = "sasl", **more: Any) -> dict[str, Any]:
        return {
            "bootstrap_servers": self.address(name),
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": "OAUTHBEARER",
            **more,
        }

    def granted(self, **more: Any) -> dict[str, Any]:
        """The options of our clients, with tokens from the endpoint."""
        return self.ours(
            sasl_oauthbearer_token_endpoint_url=f"{self.provider.url}/token",
            sasl_oauthbearer_client_credentials_client_id=CLIENT_ID,
            **{
                "sasl_oauthbearer_client_credentials_client_secret": CLIENT_SECRET,
                "sasl_jaas_config": f'{MODULE} required ssl.truststore.location="{self.certificates.trusted}";',
                **more,
            },
        )


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with ReservedPorts() as ports:
        made = Served(tmp_path_factory.mktemp("served"), ports)
        with made.provider, made.broker as running:
            for key, listener in (((), "sasl"), (("ed", "EdDSA"), "file")):
                eventually(lambda key=key, name=listener: log_in(made, made.issuer.token(*key), name)[0], "keys")  # type: ignore[misc]
            yield made
            assert "Traceback" not in running.log_text
            assert "eyJ" not in running.log_text  # as every token begins


@pytest.fixture
def provider(served: Served) -> Iterator[IdentityProvider]:
    """The identity provider; its answers are reset after the test."""
    yield served.provider
    served.provider.answers.clear()
    served.provider.headers.clear()
    served.provider.may_answer.set()


def test_confluent_gets_in(served: Served) -> None:
    round_trip_by_confluent(served.confluent(), "confluent")


def test_kafka_python_gets_in(served: Served) -> None:
    class Provider(kafka.net.sasl.oauth.AbstractTokenProvider):
        def token(self) -> str:
            return served.issuer.token("ec", "ES256")

        def extensions(self) -> dict[str, str]:
            return {"traceId": "1"}

    round_trip_by_kafka_python(served.python(Provider()), "kafka-python")


async def test_aiokafka_gets_in(served: Served) -> None:
    class Provider(aiokafka.abc.AbstractTokenProvider):
        async def token(self) -> str:
            return served.issuer.token()

    await round_trip_by_aiokafka(served.python(Provider()), "aiokafka")


@pytest.mark.parametrize("kind", ["provider", "endpoint", "file"])
async def test_our_client_gets_in(served: Served, kind: str, tmp_path: Path) -> None:
    if kind == "provider":
        options = served.ours(sasl_oauthbearer_token_provider=served.issuer.token)
    elif kind == "endpoint":
        options = served.granted(sasl_oauthbearer_scope="read write")
    else:
        (tmp_path / "token").write_text(served.issuer.token("ed", "EdDSA") + "\n")
        options = served.ours("file", sasl_oauthbearer_token_endpoint_url=f"file://{tmp_path / 'token'}")
    await round_trip_by_ours(options, f"ours-{kind}")
    if kind == "endpoint":
        assert served.provider.forms[-1] == {"grant_type": ["client_credentials"], "scope": ["read write"]}


async def test_the_principal_is_the_subject_of_the_token(served: Served) -> None:
    async with Admin(**served.granted()) as admin:
        assert (await admin.create_delegation_token()).owner == f"User:{CLIENT_ID}"


def log_in(served: Served, token: str, name: str = "sasl") -> tuple[bool, str | None, int]:
    """Return whether the broker accepts a token, its error message, and how long the session lasts."""
    with Wire.to(served.port[name]) as wire:
        assert wire.handshake("OAUTHBEARER").error_code == 0
        answer = wire.token(first_message(token, {}))
        assert answer.error_code == 0
        if answer.auth_bytes == b"":
            assert wire.is_served()
            return True, None, answer.session_lifetime_ms
        assert answer.auth_bytes == b'{"status":"invalid_token"}'
        answer = wire.token(last_message())
        assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert wire.is_closed()
        return False, answer.error_message, 0


def test_forged_tokens_are_refused(served: Served) -> None:
    stranger, issuer = Issuer(), served.issuer
    forged = {
        "alg none": unsecured_token(),
        "alg none, with a signature": unsecured_token("none", "AAAA"),
        "HS256 with the public key": hmac_token(issuer.public_pem("rsa"), {"kid": "rsa"}),
        "another's key": stranger.token(),
        "a key of another listener": issuer.token("ed", "EdDSA"),
        "no exp": issuer.token(exp=ABSENT),
        "no iat": issuer.token(iat=ABSENT),
        "no aud": issuer.token(aud=ABSENT),
        "no iss": issuer.token(iss=ABSENT),
        "iss is a list": issuer.token(iss=[ISSUER]),
        "expired": issuer.token(exp=time.time() - 31, iat=1),
        "crit": issuer.token(header={"crit": ["exp"]}),
        "another audience": issuer.token(aud="somebody"),
    }
    for what, token in forged.items():
        assert log_in(served, token) == (False, '{"status":"invalid_token"}', 0), what
    assert log_in(served, issuer.token())[0]


def test_a_session_lasts_as_long_as_the_token(served: Served) -> None:
    issuer = served.issuer
    assert 590_000 < log_in(served, issuer.token())[2] <= 600_000
    assert log_in(served, issuer.token(exp=2**63))[2] == 2**42
    with Wire.to(served.port["sasl"]) as wire:
        assert wire.handshake("OAUTHBEARER").error_code == 0
        ends_at = time.time() + 1.5
        assert 0 < wire.token(first_message(issuer.token(exp=ends_at), {})).session_lifetime_ms <= 1_500
        assert wire.is_served()
        time.sleep(max(0.0, ends_at - time.time()) + 0.01)  # sessions end by the clock
        assert not wire.is_served()


def test_a_session_is_renewed_by_another_token_of_the_same_user(served: Served) -> None:
    for name, is_right in (("alice", True), ("bob", False)):
        with Wire.to(served.port["sasl"]) as wire:
            for subject in ("alice", name):
                assert wire.handshake("OAUTHBEARER").error_code == 0
                answer = wire.token(first_message(served.issuer.token(sub=subject), {}))
            assert (answer.error_code == 0) is is_right
            assert is_right or "Cannot change principals" in answer.error_message


def test_confluent_goes_on_beyond_the_end_of_a_token(served: Served) -> None:
    options = served.confluent()
    options["oauth_cb"] = lambda _: (served.issuer.token(exp=time.time() + 2), time.time() + 2)
    produce_for(4, options, "renewed-tokens")


def test_a_new_key_is_fetched_when_a_token_names_it(served: Served, provider: IdentityProvider) -> None:
    assert not log_in(served, served.issuer.token("p384", "ES384"))[0]
    provider.shown_keys = ("rsa", "ec", "new")
    served.issuer.keys["new"] = served.issuer.keys["p384"]
    assert log_in(served, served.issuer.token("new", "ES384"))[0]
    before = len(provider.asked)
    for _ in range(3):  # it is known not to be there
        assert not log_in(served, served.issuer.token("p384", "ES384"))[0]
    assert len(provider.asked) == before


def test_waiting_for_keys_holds_up_nobody_else(served: Served, provider: IdentityProvider) -> None:
    provider.may_answer.clear()
    with Wire.to(served.port["sasl"]) as waiting:
        assert waiting.handshake("OAUTHBEARER").error_code == 0
        asked = len(provider.asked)
        token = first_message(served.issuer.token(header={"kid": "slow"}), {})
        waiting.socket.settimeout(BOUND_SECONDS)
        waiting.send(ApiKey.SASL_AUTHENTICATE, 2, SaslAuthenticateRequest(auth_bytes=token))
        deadline = time.monotonic() + BOUND_SECONDS
        while len(provider.asked) == asked:
            assert time.monotonic() < deadline
        assert log_in(served, served.issuer.token())[0]  # its key is known
        with Wire.to(served.port["sasl"]) as other:
            assert other.log_in("bob", "b").error_code == 0
            assert other.is_served()
        provider.may_answer.set()
        assert waiting.receive() is not None


@pytest.mark.parametrize(
    "answer", [(500, b""), (404, b""), (302, b""), (200, b""), (200, b"<html>"), (200, b"x" * (2 << 20))]
)
def test_keys_stay_when_others_cannot_be_had(
    served: Served, provider: IdentityProvider, answer: tuple[int, bytes]
) -> None:
    provider.answers["/keys"] = answer
    provider.headers["Location"] = f"{provider.url}/elsewhere"
    provider.asked.clear()
    kid = f"never-{answer[0]}-{len(answer[1])}"
    assert not log_in(served, served.issuer.token(header={"kid": kid}))[0]
    assert provider.asked == ["/keys"]
    assert log_in(served, served.issuer.token())[0]


def test_our_client_is_told_that_its_token_is_refused(served: Served) -> None:
    options = served.ours(sasl_oauthbearer_token_provider=lambda: served.issuer.token(aud="x"))
    told = "the broker refused the token: invalid_token"
    with pytest.raises(KafkaError, match=told) as refused, BlockingAdmin(**options) as admin:
        admin.list_topics()
    assert refused.value.code is ErrorCode.SASL_AUTHENTICATION_FAILED


def test_librdkafka_is_told_that_its_token_is_refused(served: Served) -> None:
    errors: list[Any] = []
    options = {**served.confluent(aud="x"), "error_cb": errors.append, "log_level": 0}
    admin = AdminClient(options)
    deadline = time.monotonic() + BOUND_SECONDS
    while not any(error.code() == confluent_kafka.KafkaError._AUTHENTICATION for error in errors):
        assert time.monotonic() < deadline
        admin.poll(0.1)


# --- what cannot be used

SETTINGS = {
    "listeners": f"SASL_PLAINTEXT://{HOST}:9092",
    "sasl.enabled.mechanisms": "OAUTHBEARER",
    "sasl.oauthbearer.jwks.endpoint.url": "https://issuer.example/keys",
    f"{ALLOWED}.urls": "https://issuer.example/keys",
    "sasl.oauthbearer.expected.issuer": ISSUER,
    "sasl.oauthbearer.expected.audience": AUDIENCE,
}
URL = "sasl.oauthbearer.jwks.endpoint.url"
UNSECURED = "kraftpy.sasl.oauthbearer.allow.unsecured.tokens"


def test_a_listener_that_says_whose_tokens_it_accepts() -> None:
    (security,) = BrokerConfig.of(SETTINGS).secured
    assert security.sasl is not None
    assert security.sasl.oauthbearer is not None
    assert security.sasl.oauthbearer.rules.audience == (AUDIENCE,)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({URL: None}, f"{URL} is not set"),
        ({"sasl.oauthbearer.expected.issuer": None}, "expected.issuer is not set"),
        ({"sasl.oauthbearer.expected.audience": None}, "expected.audience is not set"),
        ({"sasl.oauthbearer.expected.audience": ""}, "expected.audience is not set"),
        ({f"{ALLOWED}.urls": None}, f"it is not in {ALLOWED}.urls"),
        ({f"{ALLOWED}.urls": "https://issuer.example"}, f"it is not in {ALLOWED}.urls"),
        ({URL: "file:///etc/passwd"}, f"it is not in {ALLOWED}.files"),
        ({URL: "file:///etc/passwd", f"{ALLOWED}.files": "/etc"}, f"it is not in {ALLOWED}.files"),
        ({URL: "ftp://x/y", f"{ALLOWED}.urls": "ftp://x/y"}, "begins with https, http or file"),
        ({URL: "https:///y", f"{ALLOWED}.urls": "https:///y"}, "begins with https, http or file"),
        ({URL: "https://a:b@x/y", f"{ALLOWED}.urls": "https://a:b@x/y"}, "begins with https, http or file"),
        ({URL: "file://x/y", f"{ALLOWED}.urls": "file://x/y"}, "begins with https, http or file"),
        ({URL: "https://[x/y", f"{ALLOWED}.urls": "https://[x/y"}, "begins with https, http or file"),
        ({UNSECURED: "true"}, f"and {UNSECURED} are both set"),
        ({"sasl.oauthbearer.jwt.validator.class": "com.evil.V"}, "com.evil.V is not supported"),
        ({"sasl.server.callback.handler.class": "com.evil.H"}, "com.evil.H is not supported"),
        (
            {"listener.name.sasl_plaintext.oauthbearer.sasl.jaas.config": f"{PLAIN_MODULE} required;"},
            "is not a login module of OAUTHBEARER",
        ),
    ],
)
def test_what_proves_nothing_is_refused(changes: dict[str, str | None], message: str) -> None:
    """CVE-2026-33557, CVE-2025-27817 and CVE-2025-27818 of Kafka."""
    wanted = {name: value for name, value in {**SETTINGS, **changes}.items() if value is not None}
    with pytest.raises(ConfigError) as refused:
        BrokerConfig.of(wanted)
    assert message in str(refused.value)


def test_kafkas_own_classes_may_be_named() -> None:
    package = "org.apache.kafka.common.security.oauthbearer"
    for name, value in (
        ("sasl.oauthbearer.jwt.validator.class", f"{package}.BrokerJwtValidator"),
        ("sasl.server.callback.handler.class", f"{package}.OAuthBearerValidatorCallbackHandler"),
    ):
        BrokerConfig.of({**SETTINGS, f"listener.name.sasl_plaintext.oauthbearer.{name}": value})


@pytest.mark.parametrize(
    ("more", "warning"),
    [
        ({UNSECURED: "true", URL: None}, "anyone who can reach it can claim any name"),
        ({URL: "http://x/y", f"{ALLOWED}.urls": "http://x/y"}, "fetches the keys for tokens over http"),
        ({}, None),
    ],
)
def test_tokens_that_can_be_forged_are_warned_of(more: dict[str, str | None], warning: str | None) -> None:
    wanted = {name: value for name, value in {**SETTINGS, **more}.items() if value is not None}
    warnings = load("".join(f"{name}={value}\n" for name, value in wanted.items())).warnings
    assert [warning in each for each in warnings] == [True] if warning else warnings == []


def test_unsecured_tokens_get_in_only_if_a_setting_says_so() -> None:
    with ReservedPorts() as ports:
        port = ports.reserve()
        settings = {
            "listeners": f"SASL_PLAINTEXT://{HOST}:{port}",
            "sasl.enabled.mechanisms": "OAUTHBEARER",
            UNSECURED: "true",
        }
        with EmbeddedBroker(settings=settings):
            for token, is_right in ((unsecured_token(), True), (Issuer().token(), False)):
                with Wire.to(port) as wire:
                    assert wire.handshake("OAUTHBEARER").error_code == 0
                    assert (wire.token(first_message(token, {})).auth_bytes == b"") is is_right


def test_a_broker_starts_without_its_keys_and_accepts_tokens_once_it_has_them(tmp_path: Path) -> None:
    issuer = Issuer()
    with IdentityProvider(issuer) as provider, ReservedPorts() as ports:
        provider.answers["/keys"] = 503, b""
        port, url = ports.reserve(), f"{provider.url}/keys"
        settings = {**SETTINGS, "listeners": f"SASL_PLAINTEXT://{HOST}:{port}", URL: url, f"{ALLOWED}.urls": url}
        settings["connection.failed.authentication.delay.ms"] = "0"
        with EmbeddedBroker(tmp_path, settings=settings):
            made = issuer.token()

            def gets_in() -> bool:
                with Wire.to(port) as wire:
                    assert wire.handshake("OAUTHBEARER").error_code == 0
                    return bool(wire.token(first_message(made, {})).auth_bytes == b"")

            assert not gets_in()
            provider.answers.clear()
            eventually(gets_in)


@pytest.mark.parametrize("absent", ["jwt", "cryptography"])
def test_a_broker_without_the_libraries_does_not_start(monkeypatch: pytest.MonkeyPatch, absent: str) -> None:
    monkeypatch.setattr(listeners, "find_spec", lambda name: None if name == absent else name)
    config = BrokerConfig.of(SETTINGS)
    with pytest.raises(StartupError, match=r"OAUTHBEARER needs PyJWT: install kraftpy\[security\]"):
        secure_listeners(config)


def test_brokers_need_a_source_of_tokens() -> None:
    with ReservedPorts() as ports:
        port, other = ports.reserve(), ports.reserve()
        more = {
            "listeners": f"SASL_PLAINTEXT://{HOST}:{port},CONTROLLER://{HOST}:{other}",
            "listener.security.protocol.map": "SASL_PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
            "inter.broker.listener.name": "SASL_PLAINTEXT",
            "controller.quorum.voters": f"1@{HOST}:{other},2@{HOST}:1,3@{HOST}:2",
        }
        where = "listener.name.sasl_plaintext.oauthbearer.sasl.oauthbearer.token.endpoint.url"
        assert f"{where} is not set: this broker logs in to others" in reason_not_to_start({**SETTINGS, **more})
