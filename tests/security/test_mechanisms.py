"""The mechanisms without sockets: exchanges that differ in one part, and bytes that are no messages at all."""

from __future__ import annotations

import ast
import base64
import hashlib
import hmac
import inspect
import re
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kraftpy.security import plain, scram
from kraftpy.security.failures import AuthenticationFailed, InvalidCredentials
from kraftpy.security.jaas import MODULES, JaasError, parse_jaas
from kraftpy.security.plain import check_plain, plain_message
from kraftpy.security.sasl import PlainServer, SaslServer, ScramExchange, State
from kraftpy.security.scram import (
    LEAST_ITERATIONS,
    MECHANISMS,
    MOST_CLIENT_ITERATIONS,
    ScramClient,
    ScramCredential,
    ScramServer,
    credential_of,
    salted_password,
)

SHA256 = MECHANISMS["SCRAM-SHA-256"]
SALT = b"0123456789abcdef"
SECRET = b"s" * 32
PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
texts = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), min_size=1, max_size=20)


def credential(password: str, mechanism: scram.Mechanism = SHA256) -> ScramCredential:
    salted = salted_password(mechanism, password, SALT, LEAST_ITERATIONS)
    return credential_of(mechanism, salted, SALT, LEAST_ITERATIONS)


ALICE = {mechanism.name: credential("right", mechanism) for mechanism in MECHANISMS.values()}


def server(look_up: Callable[[str], ScramCredential | None] = lambda _: ALICE["SCRAM-SHA-256"]) -> ScramServer:
    return ScramServer(SHA256, look_up, SECRET, "servers")


def salted(password: str, mechanism: scram.Mechanism = SHA256) -> bytes:
    return salted_password(mechanism, password, SALT, LEAST_ITERATIONS)


# --- SCRAM


def test_the_exchange_of_rfc_7677() -> None:
    """Section 3 of the RFC has every message of one exchange, with a password that Kafka's rules allow as well."""
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    known = credential_of(SHA256, salted_password(SHA256, "pencil", salt, 4096), salt, 4096)
    ends = ScramServer(SHA256, lambda _: known, SECRET, "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0")
    assert ends.first(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO") == (
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    )
    proof = (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    assert ends.final(proof) == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


@pytest.mark.parametrize("mechanism", MECHANISMS.values(), ids=lambda each: each.name)
@given(name=texts, password=texts)
def test_any_name_and_password_is_proved(mechanism: scram.Mechanism, name: str, password: str) -> None:
    known = {name: credential_of(mechanism, hashlib.sha256(password.encode()).digest(), SALT, 4096)}
    ends = ScramServer(mechanism, known.get, SECRET, "servers")
    client = ScramClient(mechanism, name, "clients")
    assert client.challenged(ends.first(client.first())) == (SALT, 4096)
    client.verify(ends.final(client.final(hashlib.sha256(password.encode()).digest())))
    assert ends.name == name


@pytest.mark.parametrize(
    "first",
    [
        b"y,,n=a,r=x",
        b"p=tls-unique,,n=a,r=x",
        b"n,,n=,r=x",
        b"n,,n=a,r=",
        b"n,,n=a=b,r=x",
        b"n,,n=a=2c,r=x",
        b"n,,n=a",
        b"n,,r=x,n=a",
        b"n,,n=a,r=x\x01",
        b"n,,n=a,r=x,=y",
        b"",
        b"\xff",
    ],
)
def test_a_first_message_that_is_malformed_is_refused(first: bytes) -> None:
    with pytest.raises(InvalidCredentials):
        server().first(first)


def test_a_client_acts_as_nobody_else() -> None:
    """The kind of CVE-2017-12610: an identity taken from the client's text."""
    assert server().first(b"n,a=alice,n=alice,r=x")
    with pytest.raises(AuthenticationFailed, match="different from username"):
        server().first(b"n,a=bob,n=alice,r=x")
    with pytest.raises(AuthenticationFailed, match="different from username"):
        check_plain(b"bob\0alice\0right", {"alice": "right", "bob": "other"})
    assert check_plain(b"alice\0alice\0right", {"alice": "right"}) == "alice"


@pytest.mark.parametrize(
    "change",
    [
        lambda parts: {**parts, "r": parts["r"][:-1]},
        lambda parts: {**parts, "r": parts["r"] + "x"},
        lambda parts: {**parts, "r": "clients"},
        lambda parts: {**parts, "c": "eSws"},
        lambda parts: {**parts, "c": ""},
        lambda parts: {**parts, "p": ""},
        lambda parts: {**parts, "p": "AAAA"},
        lambda parts: {**parts, "p": base64.b64encode(bytes(32)).decode()},
        lambda parts: {**parts, "p": parts["p"] + "===="},
        lambda parts: {**parts, "p": "!" + parts["p"][1:]},
        lambda parts: {"r": parts["r"], "c": parts["c"], "p": parts["p"]},
    ],
)
def test_each_part_of_the_proof_is_checked_whole(change: Callable[[dict[str, str]], dict[str, str]]) -> None:
    """The kind of CVE-2024-56128: a nonce of which only the beginning was compared; and proofs of any length."""
    ends, client = server(), ScramClient(SHA256, "alice", "clients")
    client.challenged(ends.first(client.first()))
    right = client.final(salted("right")).decode()
    parts = dict(part.split("=", 1) for part in right.split(","))
    changed = ",".join(f"{name}={value}" for name, value in change(parts).items())
    assert changed != right
    with pytest.raises(InvalidCredentials):
        ends.final(changed.encode())


def test_an_old_client_with_a_wrong_nonce_is_named() -> None:
    """Every librdkafka before 2.6.1, such as kcat's of Debian 12: Kafka 4 refuses it as well (librdkafka #4895)."""
    ends, client = server(), ScramClient(SHA256, "alice", "clients")
    client.challenged(ends.first(client.first()))
    repeated = client.final(salted("right")).replace(b"r=clients", b"r=clientsclients")
    with pytest.raises(InvalidCredentials, match=r"Invalid client nonce \(as of librdkafka before 2\.6\.1\)"):
        ends.final(repeated)
    ends, client = server(), ScramClient(SHA256, "alice", "clients")
    client.challenged(ends.first(client.first()))
    with pytest.raises(InvalidCredentials, match=r"Invalid client nonce in the final client message\.$"):
        ends.final(client.final(salted("right")).replace(b"r=clients", b"r=client"))


def test_a_long_message_is_refused_before_it_is_read() -> None:
    """Reading half a megabyte would take more than 50 ms, before anybody is authenticated."""
    for message in (b"n,,n=" + b"a" * 500_000 + b",r=x", b"n,,n=a,r=x" + b",k=v" * 100_000):
        with pytest.raises(InvalidCredentials, match=f"of {len(message)} bytes"):
            server().first(message)
    ends = server()
    longest = "," * 1_024  # the longest name a credential may have
    assert ends.first(ScramClient(SHA256, longest, "clients").first())
    assert ends.name == longest


def test_a_credential_with_few_iterations_is_not_used() -> None:
    weak = credential_of(SHA256, salted("right"), SALT, 1)
    with pytest.raises(InvalidCredentials, match="1 iterations are fewer than 4096"):
        server(lambda _: weak).first(b"n,,n=a,r=x")


def test_a_proof_of_another_exchange_proves_nothing() -> None:
    client = ScramClient(SHA256, "alice", "clients")
    client.challenged(server().first(client.first()))
    recorded = client.final(salted("right"))
    again = ScramServer(SHA256, lambda _: ALICE["SCRAM-SHA-256"], SECRET, "another")
    again.first(client.first())
    with pytest.raises(InvalidCredentials):
        again.final(recorded)


def test_an_unknown_name_is_challenged_like_a_known_one() -> None:
    def challenge(name: bytes, secret: bytes = SECRET) -> bytes:
        return ScramServer(SHA256, lambda _: None, secret, "x").first(b"n,,n=%b,r=c" % name)

    for mechanism in MECHANISMS.values():
        made = ScramServer(mechanism, lambda _: None, SECRET, "x").first(b"n,,n=a,r=c").decode()
        assert len(base64.b64decode(made.split(",")[1][2:])) == scram.SALT_BYTES, "as long as those we make"
    challenges = [challenge(name) for name in (b"a", b"a", b"b")]
    assert challenges[0] == challenges[1] != challenges[2]
    assert challenge(b"a", b"t" * 32) != challenges[0], "only the server can tell how the salt is made"
    ends, client = server(lambda _: None), ScramClient(SHA256, "a", "clients")
    salt, iterations = client.challenged(ends.first(client.first()))
    assert iterations == LEAST_ITERATIONS
    with pytest.raises(InvalidCredentials):
        ends.final(client.final(salted_password(SHA256, "any", salt, iterations)))


def test_an_unknown_name_costs_as_much_as_a_wrong_password(monkeypatch: pytest.MonkeyPatch) -> None:
    """No step of a login takes a hash more or fewer, so that its time does not tell either whether a name exists."""
    calls: Counter[str] = Counter()
    modules = {"hmac": (hmac, ("digest", "compare_digest")), "hashlib": (hashlib, ("new", "pbkdf2_hmac"))}
    for name, (module, functions) in modules.items():
        counted = {each: counting(getattr(module, each), calls, each) for each in functions}
        monkeypatch.setattr(scram, name, SimpleNamespace(**counted))

    def cost_of(look_up: Callable[[str], ScramCredential | None], mechanism: scram.Mechanism) -> list[Counter[str]]:
        """The calls of the first step, and of the second."""
        client = ScramClient(mechanism, "alice", "clients")
        ends = ScramServer(mechanism, look_up, SECRET, "servers")
        calls.clear()
        challenge = ends.first(client.first())
        steps = [calls.copy()]
        client.challenged(challenge)
        proof = client.final(b"of a wrong password")
        calls.clear()
        with pytest.raises(InvalidCredentials):
            ends.final(proof)
        return [*steps, calls.copy()]

    for mechanism in MECHANISMS.values():
        known = cost_of(lambda _: ALICE[mechanism.name], mechanism)  # noqa: B023 - called before the next
        assert known == cost_of(lambda _: None, mechanism)
        assert known[1]["digest"] > 0
        assert known[1]["compare_digest"] > 0


def counting(function: Callable[..., Any], calls: Counter[str], name: str) -> Callable[..., Any]:
    def counted(*arguments: Any) -> Any:
        calls[name] += 1
        return function(*arguments)

    return counted


@pytest.mark.parametrize(
    "challenge",
    [
        "r=clientsX,s=AAAA,i=4095",
        f"r=clientsX,s=AAAA,i={MOST_CLIENT_ITERATIONS + 1}",
        "r=clientsX,s=AAAA,i=" + "9" * 5_000,
        "r=clientsX,s=AAAA,i=-1",
        "r=clients,s=AAAA,i=4096",
        "r=other,s=AAAA,i=4096",
        "r=clientsX,s=A!,i=4096",
        "r=clientsX,i=4096",
        "e=other-error",
    ],
)
def test_a_client_is_not_made_to_work_for_a_hostile_broker(challenge: str) -> None:
    """The kind of CVE-2026-10143: iterations without a bound."""
    with pytest.raises(AuthenticationFailed):
        ScramClient(SHA256, "alice", "clients").challenged(challenge.encode())


@pytest.mark.parametrize("answer", [b"", b"v=", b"v=AAAA", b"e=invalid-proof", b"\xff"])
def test_a_broker_has_to_prove_that_it_knows_the_password(answer: bytes) -> None:
    client = ScramClient(SHA256, "alice", "clients")
    client.challenged(server().first(client.first()))
    client.final(salted("right"))
    with pytest.raises(AuthenticationFailed):
        client.verify(answer)


@given(st.lists(st.binary(max_size=200), max_size=3))
def test_bytes_that_are_no_messages_are_refused(messages: list[bytes]) -> None:
    exchanges = [ScramExchange(SHA256, lambda _: None, SECRET, "x"), PlainServer({"alice": "right"})]
    for exchange in exchanges:
        for message in messages:
            try:
                assert exchange.evaluate(message).name is None
            except AuthenticationFailed:
                break


def test_secrets_are_compared_in_constant_time() -> None:
    """The kind of CVE-2021-38153."""
    secret = re.compile("password|stored_key|server_key|signature|proof|nonce|binding|expected|digest|salted")
    for module in (plain, scram):
        source = inspect.getsource(module)
        assert "compare_digest" in source
        compared = [
            ast.unparse(node)
            for node in ast.walk(ast.parse(source))
            if isinstance(node, ast.Compare) and any(isinstance(each, ast.Eq | ast.NotEq) for each in node.ops)
        ]
        assert [text for text in compared if secret.search(text) and "len(" not in text] == []


def test_secrets_are_not_shown() -> None:
    login = parse_jaas(f'{PLAIN_MODULE} required username="u" password="hidden" user_a="hidden";')
    shown = f"{login!r} {ALICE['SCRAM-SHA-256']!r}"
    assert "hidden" not in shown
    assert repr(ALICE["SCRAM-SHA-256"].stored_key) not in shown


# --- PLAIN


@given(texts, texts)
def test_plain_takes_any_name_and_password(name: str, password: str) -> None:
    assert check_plain(plain_message(name, password), {name: password}) == name
    with pytest.raises(AuthenticationFailed):
        check_plain(plain_message(name, password + "x"), {name: password})


@pytest.mark.parametrize("passwords", [{}, {"alice": ""}, {"bob": "x"}])
def test_an_empty_password_lets_nobody_in(passwords: dict[str, str]) -> None:
    """The kind of CVE-2016-9877."""
    for message in (b"\0alice\0", b"\0alice", b"alice\0", b"\0\0", b"\0alice\0\0", b"\0\0x"):
        with pytest.raises(AuthenticationFailed):
            check_plain(message, passwords)


# --- login modules


def test_a_login_module_is_read_as_by_java() -> None:
    login = parse_jaas(
        f"""{PLAIN_MODULE} // a comment
        Required user_alice="a\\"b\\\\c\\u" user_bob='x y;' username=plain-word_1
        password = "\\101\\t" /* behind */ ;"""
    )
    assert login.users == {"alice": 'a"b\\cu', "bob": "x y;"}
    assert (login.username, login.password) == ("plain-word_1", "A\t")
    assert login.mechanisms == ("PLAIN",)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "does not contain any login modules"),
        ("a.B", "control flag is not available"),
        ("a.B sometimes;", "control flag is not available"),
        (f"{PLAIN_MODULE} required", "does not end with ';'"),
        (f"{PLAIN_MODULE} required; {PLAIN_MODULE} required;", "more than one login module"),
        (f"{PLAIN_MODULE} required a;", "an option is not of the form"),
        (f"{PLAIN_MODULE} required a=;", "an option is not of the form"),
        (f"{PLAIN_MODULE} required a=1;", "a character that has to be quoted"),
        (f'{PLAIN_MODULE} required a="b;', "a quote that does not end"),
        ("com.sun.security.auth.module.JndiLoginModule required;", "is not supported: expected one of"),
        ("com.sun.security.auth.module.LdapLoginModule required;", "is not supported: expected one of"),
        ("os.system required;", "is not supported: expected one of"),
    ],
)
def test_a_login_module_that_is_not_one_of_ours_is_refused(text: str, message: str) -> None:
    """The kind of CVE-2023-25194: no class is ever loaded by a name in a setting."""
    with pytest.raises(JaasError, match=message):
        parse_jaas(text)


@given(st.text(max_size=200))
def test_any_text_is_a_login_module_or_refused(text: str) -> None:
    assert read(text) in MODULES or "\n" not in read(text)


def read(text: str) -> str:
    """The module, or the reason that it cannot be read."""
    try:
        return parse_jaas(text).module
    except JaasError as refused:
        return str(refused)


# --- whose turn it is


def test_a_mechanism_that_is_not_there_fails_the_connection() -> None:
    sasl = SaslServer(["PLAIN"], lambda _: PlainServer({}), {})
    assert not sasl.handshake("SCRAM-SHA-256", has_requests=True, now_ms=0)
    assert sasl.state is State.FAILED


def test_a_session_lasts_as_long_as_the_shorter_of_its_limits() -> None:
    sasl = SaslServer(["PLAIN"], lambda _: PlainServer({"a": "b"}), {"PLAIN": 1_000})
    assert sasl.handshake("PLAIN", has_requests=True, now_ms=5)
    assert sasl.evaluate(plain_message("a", "b"), 10) == (b"", 1_000)
    assert not sasl.has_expired(1_009)
    assert sasl.has_expired(1_010)
