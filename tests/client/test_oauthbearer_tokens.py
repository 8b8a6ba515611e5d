"""Tokens of a client: their sources, how long one is used, and the errors if none can be had."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kraftpy import endpoints
from kraftpy.client.login import security_of
from kraftpy.client.oauthbearer import Tokens
from kraftpy.client.options import ClientOptions
from kraftpy.client.properties import options_of
from kraftpy.endpoints import EndpointError, fetch
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.spark.offsets import OptionError
from kraftpy.spark.option_values import security_options
from tests.security.certificates import HOST, Certificates
from tests.security.identity_provider import CLIENT_ID, CLIENT_SECRET, IdentityProvider
from tests.security.tokens import Issuer

ISSUER = Issuer()
CREDENTIALS = "org.apache.kafka.common.security.oauthbearer.ClientCredentialsJwtRetriever"
MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"


@pytest.fixture
def provider() -> Iterator[IdentityProvider]:
    with IdentityProvider(ISSUER) as made:
        yield made


def options(**given: Any) -> ClientOptions:
    return ClientOptions(security_protocol="SASL_PLAINTEXT", sasl_mechanism="OAUTHBEARER", **given)


def granted(url: str, **more: Any) -> ClientOptions:
    return options(
        **{
            "sasl_oauthbearer_token_endpoint_url": f"{url}/token",
            "sasl_oauthbearer_client_credentials_client_id": CLIENT_ID,
            "sasl_oauthbearer_client_credentials_client_secret": CLIENT_SECRET,
            **more,
        }
    )


def token_of(made: ClientOptions) -> str:
    login = security_of(made).login
    assert login is not None
    assert login.token is not None
    return login.token()


def refusal(made: ClientOptions) -> KafkaError:
    with pytest.raises(KafkaError) as refused:
        token_of(made)
    return refused.value


# --- how long one is used


class Source:
    """Gives numbered tokens, and a time that is set."""

    def __init__(self, seconds: float | None = None, lifetime: float | None = None) -> None:
        self.given = 0
        self.now_ms = 1_000_000.0
        self._seconds, self._lifetime = seconds, lifetime

    def get(self) -> tuple[str, float | None]:
        self.given += 1
        exp = {} if self._lifetime is None else {"exp": self.now_ms / 1000 + self._lifetime}
        return ISSUER.token(now=self.now_ms / 1000, sub=f"number {self.given}", **exp), self._seconds

    def tokens(self) -> Tokens:
        return Tokens(self.get, lambda: self.now_ms)


@pytest.mark.parametrize("source", [Source(seconds=100), Source(lifetime=100), Source(seconds=100, lifetime=900)])
def test_a_token_is_used_for_four_fifths_of_its_life(source: Source) -> None:
    tokens = source.tokens()
    first = tokens.token()
    source.now_ms += 79_000
    assert tokens.token() == first
    source.now_ms += 2_000
    assert tokens.token() != first
    assert source.given == 2


def test_a_token_whose_end_is_unknown_is_asked_for_each_time() -> None:
    given: list[str] = []

    def get() -> tuple[str, float | None]:
        given.append(f"opaque-{len(given)}")
        return given[-1], None

    tokens = Tokens(get)
    assert [tokens.token(), tokens.token()] == given == ["opaque-0", "opaque-1"]


def test_a_token_is_used_until_its_end_while_no_other_can_be_had() -> None:
    """Another one is asked for every ten seconds."""
    now_ms, answers = 1_000_000.0, ["first"]
    asked: list[float] = []

    def get() -> tuple[str, float | None]:
        asked.append(now_ms)
        if not answers:
            raise KafkaError(ErrorCode.NETWORK_EXCEPTION, "the endpoint is gone")
        return answers.pop(), 100

    tokens = Tokens(get, lambda: now_ms)
    assert tokens.token() == "first"
    for later in (1_080_000.0, 1_081_000.0, 1_090_000.0, 1_099_000.0):
        now_ms = later
        assert tokens.token() == "first"
    assert asked == [1_000_000.0, 1_080_000.0, 1_090_000.0]
    now_ms = 1_100_000.0
    with pytest.raises(KafkaError, match="the endpoint is gone"):
        tokens.token()
    answers.append("second")
    assert tokens.token() == "second"


def test_connections_that_are_opened_together_get_one_token() -> None:
    source = Source(seconds=100)
    tokens, found = source.tokens(), list[str]()
    threads = [threading.Thread(target=lambda: found.append(tokens.token())) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 10
    assert source.given == 1


# --- where they come from


def test_a_token_endpoint_gives_a_token_for_a_secret(provider: IdentityProvider) -> None:
    made = granted(provider.url, sasl_oauthbearer_scope="a b")
    assert token_of(made).count(".") == 2
    assert provider.forms == [{"grant_type": ["client_credentials"], "scope": ["a b"]}]
    assert CLIENT_SECRET not in repr(made) + repr(security_of(made))


def test_a_login_module_may_have_the_secret(provider: IdentityProvider) -> None:
    jaas = f'{MODULE} required clientId="{CLIENT_ID}" clientSecret="{CLIENT_SECRET}" scope="s";'
    made = options(sasl_oauthbearer_token_endpoint_url=f"{provider.url}/token", sasl_jaas_config=jaas)
    assert token_of(made).count(".") == 2
    assert provider.forms == [{"grant_type": ["client_credentials"], "scope": ["s"]}]


def test_a_file_is_read_each_time(tmp_path: Path) -> None:
    path = tmp_path / "a token"
    made = options(sasl_oauthbearer_token_endpoint_url=path.as_uri())
    for text in ("opaque-1", "opaque-2\n"):
        path.write_text(text)
        assert token_of(made) == text.strip()
    path.unlink()
    assert "No such file" in str(refusal(made))


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        ((401, b"{}"), ErrorCode.SASL_AUTHENTICATION_FAILED),
        ((400, b"{}"), ErrorCode.SASL_AUTHENTICATION_FAILED),
        ((302, b"{}"), ErrorCode.NETWORK_EXCEPTION),
        ((429, b"{}"), ErrorCode.NETWORK_EXCEPTION),
        ((503, b"{}"), ErrorCode.NETWORK_EXCEPTION),
        ((200, b""), ErrorCode.SASL_AUTHENTICATION_FAILED),
        ((200, b"secret"), ErrorCode.SASL_AUTHENTICATION_FAILED),
        ((200, b"[]"), ErrorCode.SASL_AUTHENTICATION_FAILED),
        ((200, b'{"token": "secret"}'), ErrorCode.SASL_AUTHENTICATION_FAILED),
        ((200, b'{"access_token": 5}'), ErrorCode.SASL_AUTHENTICATION_FAILED),
        ((200, b'{"access_token": ""}'), ErrorCode.SASL_AUTHENTICATION_FAILED),
        ((200, b"[" * 100_000), ErrorCode.SASL_AUTHENTICATION_FAILED),
        ((200, b"x" * 200_000), ErrorCode.NETWORK_EXCEPTION),
    ],
)
def test_an_endpoint_that_gives_none(provider: IdentityProvider, answer: tuple[int, bytes], code: ErrorCode) -> None:
    provider.answers["/token"] = answer
    provider.headers["Location"] = f"{provider.url}/elsewhere"
    error = refusal(granted(provider.url))
    assert error.code is code
    assert CLIENT_SECRET not in str(error)
    assert "secret" not in str(error).replace("/token", "")
    assert provider.asked == ["/token"]


@pytest.mark.parametrize("seconds", [None, 0, -1, "soon", True, 1e300])
def test_a_lifetime_that_is_none_is_that_of_the_token(provider: IdentityProvider, seconds: Any) -> None:
    text = ISSUER.token()
    provider.answers["/token"] = 200, json.dumps({"access_token": text, "expires_in": seconds}).encode()
    login = security_of(granted(provider.url)).login
    assert login is not None
    assert login.token is not None
    assert login.token() == login.token() == text
    assert provider.asked == ["/token"]


def test_a_provider_that_fails_or_gives_none() -> None:
    def fail() -> str:
        raise RuntimeError("with my secret")

    error = refusal(options(sasl_oauthbearer_token_provider=fail))
    assert str(error).endswith("no token for OAUTHBEARER: the token provider failed: RuntimeError")
    for wrong in (None, 5, "", b"x", "x" * 100_000):
        assert "is not a text" in str(refusal(options(sasl_oauthbearer_token_provider=lambda wrong=wrong: wrong)))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "must be given"),
        ({"sasl_oauthbearer_token_provider": "x"}, "must be a function"),
        (
            {"sasl_oauthbearer_token_provider": str, "sasl_oauthbearer_token_endpoint_url": "https://x"},
            "exclude each other",
        ),
        ({"sasl_oauthbearer_token_endpoint_url": "ftp://x"}, "must be an https, http or file URL"),
        ({"sasl_oauthbearer_token_endpoint_url": "https://"}, "must be an https, http or file URL"),
        ({"sasl_oauthbearer_token_endpoint_url": "https://a:b@x"}, "must be an https, http or file URL"),
        (
            {"sasl_oauthbearer_token_endpoint_url": "https://x"},
            "^sasl_oauthbearer_client_credentials_client_id is not set: sasl_oauthbearer_token_endpoint_url needs it$",
        ),
        (
            {
                "sasl_oauthbearer_token_endpoint_url": "https://x",
                "sasl_oauthbearer_client_credentials_client_id": "x",
            },
            "^sasl_oauthbearer_client_credentials_client_secret is not set: sasl_oauthbearer_token_endpoint_url needs",
        ),
        (
            {
                "sasl_oauthbearer_token_endpoint_url": "file:///x",
                "sasl_oauthbearer_jwt_retriever_class": CREDENTIALS,
            },
            "ClientCredentialsJwtRetriever does not fit sasl_oauthbearer_token_endpoint_url",
        ),
    ],
)
def test_options_that_give_no_token_are_an_error(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        security_of(options(**given))


def test_ids_and_secrets_may_be_url_encoded(provider: IdentityProvider) -> None:
    """As RFC 6749, section 2.3.1, has it: by default they are sent as they are, as Kafka does."""
    given = {
        "sasl_oauthbearer_client_credentials_client_id": "a:b",
        "sasl_oauthbearer_client_credentials_client_secret": "100% of it",
    }
    refusal(granted(provider.url, **given))
    refusal(granted(provider.url, sasl_oauthbearer_header_urlencode=True, **given))
    assert provider.credentials == ["a:b:100% of it", "a%3Ab:100%25+of+it"]
    with pytest.raises(ValueError, match="sasl_oauthbearer_header_urlencode must be True or False"):
        token_of(granted(provider.url, sasl_oauthbearer_header_urlencode="yes"))


SETTINGS = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "OAUTHBEARER",
    "sasl.oauthbearer.token.endpoint.url": "https://issuer.example/token",
    "sasl.oauthbearer.client.credentials.client.id": CLIENT_ID,
    "sasl.oauthbearer.client.credentials.client.secret": CLIENT_SECRET,
    "sasl.oauthbearer.scope": "kafka",
    "sasl.oauthbearer.header.urlencode": "true",
}


def test_kafkas_settings_are_ours() -> None:
    found, ignored = options_of({**SETTINGS, "sasl.oauthbearer.token.provider": "x", "sasl.login.class": "y"})
    assert ignored == ["sasl.oauthbearer.token.provider", "sasl.login.class"]
    login = security_of(ClientOptions(**found)).login
    assert login is not None
    assert login.mechanism == "OAUTHBEARER"


def test_spark_takes_them_behind_kafka() -> None:
    behind = {f"kafka.{name}": value for name, value in SETTINGS.items()}
    found = dict(security_options(behind))
    assert found["sasl_oauthbearer_client_credentials_client_id"] == CLIENT_ID
    with pytest.raises(OptionError) as refused:
        security_options({**behind, "kafka.sasl.oauthbearer.token.endpoint.url": "ftp://x"})
    assert CLIENT_SECRET not in str(refused.value)


# --- endpoints


def test_the_server_of_a_url_has_to_prove_who_it_is(tmp_path: Path) -> None:
    for name in ("own", "other"):
        (tmp_path / name).mkdir()
    own, other = Certificates(tmp_path / "own"), Certificates(tmp_path / "other")
    with IdentityProvider(ISSUER, own.broker) as provider:
        url = f"{provider.url}/keys"
        assert json.loads(fetch(url, 100_000, trusted=str(own.trusted)))["keys"]
        for wrong, trusted in ((url, other.trusted), (url, None), (url.replace(HOST, "localhost"), own.trusted)):
            with pytest.raises(EndpointError, match="certificate cannot be trusted"):
                fetch(wrong, 100_000, trusted=None if trusted is None else str(trusted))
        with pytest.raises(EndpointError):
            fetch(url.replace("https", "http"), 100_000)
        assert provider.asked == ["/keys"]


class Dripping:
    """A server that sends its answer a byte at a time, and never all of it."""

    def __enter__(self) -> str:
        self._listening = socket.create_server((HOST, 0))
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()
        return f"http://{HOST}:{self._listening.getsockname()[1]}/"

    def _serve(self) -> None:
        peer, _ = self._listening.accept()
        with peer:
            peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
            while not self._is_over.wait(0.01):
                try:
                    peer.sendall(b"x")
                except OSError:
                    return

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()
        self._listening.close()


def test_a_slow_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoints, "MOST_SECONDS", 0.1)
    with Dripping() as url, pytest.raises(EndpointError, match="did not answer within"):
        fetch(url, 10_000_000)


def test_what_is_no_http_is_an_error(tmp_path: Path) -> None:
    with socket.create_server((HOST, 0)) as listening:
        url = f"http://{HOST}:{listening.getsockname()[1]}/"

        def serve() -> None:
            peer, _ = listening.accept()
            with peer:
                peer.sendall(b"\x00\x01\x02\r\n\r\n")

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(EndpointError):
            fetch(url, 1_000)
        thread.join()
    with pytest.raises(EndpointError, match="ConnectionRefusedError"):
        fetch(url, 1_000)
    large = tmp_path / "large"
    large.write_bytes(bytes(1_001))
    for wrong in (large.as_uri(), tmp_path.as_uri(), "file:///none", "file:///a%00b"):
        with pytest.raises(EndpointError):
            fetch(wrong, 1_000)
