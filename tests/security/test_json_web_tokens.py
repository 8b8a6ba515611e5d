"""JSON Web Tokens that are accepted, and every way known in which one has been accepted that should not have been."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from hypothesis import given
from hypothesis import strategies as st
from jwt.algorithms import HMACAlgorithm, RSAAlgorithm

from kraftpy.security.failures import AuthenticationFailed, InvalidCredentials
from kraftpy.security.json_web_tokens import (
    ALGORITHMS,
    MOST_JWKS_BYTES,
    Header,
    InvalidToken,
    JwksError,
    KeySet,
    TokenRules,
    expiry_ms_of,
    parse_jwks,
    read_header,
    verify,
    verify_unsecured,
)
from kraftpy.security.oauthbearer import (
    OauthBearerExchange,
    first_message,
    last_message,
    parse_first,
    refusal_of,
)
from kraftpy.security.sasl import SaslServer
from tests.security.tokens import ABSENT, AUDIENCE, ISSUER, Issuer, claims_of, encoded, hmac_token, unsecured_token

ISSUED = Issuer()
KEYS = parse_jwks(ISSUED.jwks())
RULES = TokenRules(issuer=ISSUER, audience=(AUDIENCE, "other"))
NOW = 1_800_000_000


def check(token: str, *, keys: KeySet = KEYS, rules: TokenRules = RULES, now: float = NOW) -> str:
    return verify(token, keys, rules, int(now * 1000)).name


def token(key_id: str = "rsa", algorithm: str = "RS256", header: dict[str, Any] | None = None, **claims: Any) -> str:
    return ISSUED.token(key_id, algorithm, header, **{"now": NOW, **claims})


@pytest.mark.parametrize(
    ("key_id", "algorithm"),
    [*(("rsa", each) for each in ALGORITHMS[:6]), ("ec", "ES256"), ("p384", "ES384"), ("ed", "EdDSA")],
)
def test_a_token_of_every_kind_of_key_is_accepted(key_id: str, algorithm: str) -> None:
    assert verify(token(key_id, algorithm), KEYS, RULES, NOW * 1000) == ("alice", 600_000.0)


@pytest.mark.parametrize(
    "claims",
    [
        {"aud": ["x", "other"]},
        {"aud": "other"},
        {"sub": "  alice\t"},
        {"scope": "read write"},
        {"scope": ["read", "write"]},
        {"scope": ""},
        {"nbf": NOW + 30},
        {"exp": NOW - 29, "iat": NOW - 60},
        {"exp": NOW + 0.5},
    ],
)
def test_what_a_token_may_say(claims: dict[str, Any]) -> None:
    assert check(token(**claims)) == "alice"


# --- section by section: what was once accepted somewhere


@pytest.mark.parametrize("algorithm", ["none", "None", "NONE", "nOnE", ""])
@pytest.mark.parametrize("signature", ["", "AAAA"])
def test_alg_none_is_refused(algorithm: str, signature: str) -> None:
    """CVE-2021-22160 of Pulsar, CVE-2026-33557 of Kafka."""
    with pytest.raises(InvalidToken, match="algorithm is not allowed"):
        check(unsecured_token(algorithm, signature, now=NOW))


def test_hs256_with_the_public_key_is_refused() -> None:
    jwk = json.dumps(ISSUED.described("rsa")[0]).encode()
    for secret in (ISSUED.public_pem("rsa"), ISSUED.public_pem("rsa").strip(), jwk, b""):
        for key_id in ("rsa", "ec", ABSENT):
            header = {} if key_id is ABSENT else {"kid": key_id}
            with pytest.raises(InvalidToken, match="algorithm is not allowed"):
                check(hmac_token(secret, header, now=NOW))


def test_secrets_in_a_jwks_are_no_keys() -> None:
    secret = {**HMACAlgorithm.to_jwk(b"s" * 64, as_dict=True), "kid": "oct", "alg": "HS256"}
    with pytest.raises(JwksError):
        parse_jwks(json.dumps({"keys": [secret]}).encode())
    keys = parse_jwks(json.dumps({"keys": [secret, *ISSUED.described("ec")]}).encode())
    assert len(keys) == 1
    with pytest.raises(InvalidToken):
        check(hmac_token(b"s" * 64, {"kid": "oct"}, now=NOW), keys=keys)


@pytest.mark.parametrize(
    ("key_id", "algorithm"),
    [("ec", "RS256"), ("ed", "RS256"), ("rsa", "ES256"), ("p384", "ES256"), ("ec", "ES384"), ("ed", "ES256")],
)
def test_a_key_serves_its_own_algorithms_only(key_id: str, algorithm: str) -> None:
    signed = f"{encoded({'alg': algorithm, 'kid': key_id})}.{encoded(claims_of(now=NOW))}.{encoded(b'x' * 64)}"
    with pytest.raises(InvalidToken, match="unknown key"):
        check(signed)


def test_a_key_that_names_its_algorithm_serves_no_other() -> None:
    keys = parse_jwks(json.dumps({"keys": [{**ISSUED.described("rsa")[0], "alg": "PS256"}]}).encode())
    assert check(token(algorithm="PS256"), keys=keys) == "alice"
    with pytest.raises(InvalidToken, match="unknown key"):
        check(token(algorithm="RS256"), keys=keys)


@pytest.mark.parametrize("claim", ["exp", "iat", "aud", "iss", "sub"])
@pytest.mark.parametrize("value", [ABSENT, None, "", [], {}, True])
def test_a_claim_that_is_missing_or_empty_is_refused(claim: str, value: Any) -> None:
    with pytest.raises(InvalidToken):
        check(token(**{claim: value}))


@pytest.mark.parametrize(
    "claims",
    [
        {"iss": [ISSUER]},  # CVE-2024-53861 of PyJWT: a list, or a part of the text
        {"iss": ISSUER[:-1]},
        {"iss": ISSUER + "/"},
        {"iss": "https"},
        {"iss": {ISSUER: 1}},
        {"aud": "kafk"},
        {"aud": "kafkaa"},
        {"aud": [[AUDIENCE]]},
        {"aud": [AUDIENCE, 1]},
        {"aud": {AUDIENCE: 1}},
        {"aud": AUDIENCE.upper()},
        {"exp": str(NOW + 600)},
        {"exp": NOW - 31, "iat": NOW - 60},
        {"exp": NOW - 30, "iat": NOW - 60},
        {"exp": -1, "iat": -2},
        {"exp": NOW + 100, "iat": NOW + 101},
        {"iat": "yesterday"},
        {"nbf": NOW + 31},
        {"nbf": "x"},
        {"nbf": None},
        {"nbf": True},
        {"sub": "   "},
        {"sub": ["alice"]},
        {"sub": 1},
        {"scope": 1},
        {"scope": "read read"},
        {"scope": ["read", " "]},
        {"scope": ["read", "read"]},
        {"scope": ["read", 1]},
        {"scope": {"read": 1}},
    ],
)
def test_a_claim_that_is_not_as_expected_is_refused(claims: dict[str, Any]) -> None:
    with pytest.raises(InvalidToken):
        check(token(**claims))


@pytest.mark.parametrize(
    "literal", ["NaN", "Infinity", "-Infinity", "1e999", "1" * 400, "1" * 5_000, '{"a":1}', "[1]", "1e400"]
)
@pytest.mark.parametrize("claim", ["exp", "iat"])
def test_numbers_that_are_none_are_refused(claim: str, literal: str) -> None:
    claims = json.dumps(claims_of(now=NOW, **{claim: ABSENT}))[:-1] + f', "{claim}": {literal}}}'
    signed = f"{encoded({'alg': 'RS256', 'kid': 'rsa'})}.{encoded(claims.encode())}"
    signature = encoded(ISSUED.signature(signed.encode(), "rsa", "RS256"))
    with pytest.raises(InvalidToken):
        check(f"{signed}.{signature}")


@pytest.mark.parametrize("exp", [2**31, 2**53, 2**63 - 1, 2**63, 10**17, 1e300])
def test_a_far_end_is_told_as_one_that_fits(exp: float) -> None:
    found = verify(token(exp=exp), KEYS, RULES, NOW * 1000)
    exchange = OauthBearerExchange(lambda _: found, lambda _: None)
    session = SaslServer(["OAUTHBEARER"], lambda _: exchange, {})
    assert session.handshake("OAUTHBEARER", has_requests=True, now_ms=0.0)
    _, lifetime_ms = session.evaluate(first_message("x", {}), 1_000.0)
    assert 0 < lifetime_ms * 1_000_000 < 2**63
    assert not session.has_expired(1_000.0 + lifetime_ms - 1)


def test_a_short_limit_of_the_listener_wins_over_a_far_end() -> None:
    found = verify(token(exp=2**63), KEYS, RULES, NOW * 1000)
    session = SaslServer(
        ["OAUTHBEARER"], lambda _: OauthBearerExchange(lambda _: found, lambda _: None), {"OAUTHBEARER": 5_000}
    )
    assert session.handshake("OAUTHBEARER", has_requests=True, now_ms=0.0)
    assert session.evaluate(first_message("x", {}), 1_000.0) == (b"", 5_000)
    assert session.has_expired(6_000.0)


@pytest.mark.parametrize(
    "header",
    [
        {"crit": ["exp"]},
        {"crit": ["b64"], "b64": False},
        {"crit": []},
        {"alg": ABSENT},
        {"alg": 5},
        {"alg": ["RS256"]},
        {"kid": 7},
        {"kid": ["rsa"]},
        {"kid": "k" * 1_001},
        {"kid": "unknown"},
        {"kid": "../../etc/passwd"},
        {"kid": ""},
    ],
)
def test_a_header_that_cannot_be_followed_is_refused(header: dict[str, Any]) -> None:
    with pytest.raises(InvalidToken):
        check(token(header=header))


def test_a_header_does_not_say_where_its_key_is() -> None:
    stranger = Issuer()
    own = stranger.described("rsa")[0]
    for header in ({"jwk": own}, {"jku": "https://evil.example/keys"}, {"x5u": "https://evil.example"}, {"x5c": ["x"]}):
        assert check(token(header=header)) == "alice"
        forged = stranger.token("rsa", "RS256", header, now=NOW)
        with pytest.raises(InvalidToken, match="wrong signature"):
            check(forged)


def test_a_key_id_may_be_left_out_if_one_key_fits() -> None:
    alone = parse_jwks(ISSUED.jwks("rsa"))
    assert check(token(header={"kid": ABSENT}), keys=alone) == check(token(header={"kid": ABSENT})) == "alice"
    with pytest.raises(InvalidToken):
        check(token(header={"kid": "other"}), keys=alone)
    twice = [{**ISSUED.described("rsa")[0], "kid": name} for name in ("one", "two")]
    with pytest.raises(InvalidToken, match="unknown key"):
        check(token(header={"kid": ABSENT}), keys=parse_jwks(json.dumps({"keys": twice}).encode()))


def test_nothing_of_a_token_can_be_changed() -> None:
    right = token()
    header, claims, signature = right.split(".")
    for wrong in (
        f"{header}.{encoded(claims_of(now=NOW, sub='root'))}.{signature}",
        f"{encoded({'alg': 'RS384', 'kid': 'rsa'})}.{claims}.{signature}",
        f"{header}.{claims}.",
        f"{header}.{claims}.{signature[:-4]}",
        f"{header}.{claims}.{signature[4:]}",
        f"{header}.{claims}",
        f"{header}.{claims}.{signature}.",
        f"{header}.{claims}.{signature}.{signature}",
        f".{claims}.{signature}",
        f"{header}..{signature}",
        f"{header}.{claims}.{signature[:50]}!{signature[50:]}",
        f"{header[:10]}\n{header[10:]}.{claims}.{signature}",
        f"{header}.{claims}.{encoded(b'x' * 256)}",
        "",
        "..",
        "a.b.c",
        right + "A" * 70_000,
    ):
        with pytest.raises(InvalidToken):
            check(wrong)


@pytest.mark.parametrize("what", ["header", "claims"])
def test_a_name_that_is_there_twice_is_refused(what: str) -> None:
    header = b'{"alg":"RS256","kid":"rsa","alg":"RS256"}' if what == "header" else {"alg": "RS256", "kid": "rsa"}
    twice = json.dumps(claims_of(now=NOW)).replace('"sub": "alice"', '"sub": "alice", "sub": "root"').encode()
    signed = f"{encoded(header)}.{encoded(twice if what == 'claims' else claims_of(now=NOW))}"
    with pytest.raises(InvalidToken, match="not JSON"):
        check(f"{signed}.{encoded(ISSUED.signature(signed.encode(), 'rsa', 'RS256'))}")


def test_json_as_deep_as_a_token_is_long_is_refused() -> None:
    for deep in (b"[" * 30_000, b'{"a":' * 8_000):
        with pytest.raises(InvalidToken):
            check(f"{encoded(deep)}.{encoded(claims_of(now=NOW))}.AAAA")


@pytest.mark.parametrize(
    "rules", [TokenRules(issuer=None, audience=(AUDIENCE,)), TokenRules(issuer=ISSUER, audience=())]
)
def test_without_an_expected_issuer_and_audience_no_token_is_accepted(rules: TokenRules) -> None:
    with pytest.raises(InvalidToken):
        check(token(), rules=rules)


def test_other_claims_can_have_the_name_and_the_scope() -> None:
    rules = TokenRules(issuer=ISSUER, audience=(AUDIENCE,), sub_claim_name="client_id", scope_claim_name="scp")
    assert check(token(client_id="robot", sub=ABSENT, scope=1), rules=rules) == "robot"
    with pytest.raises(InvalidToken):
        check(token(client_id="robot", scp=1), rules=rules)
    with pytest.raises(InvalidToken, match="client_id"):
        check(token(), rules=rules)


def test_reasons_do_not_quote_the_token() -> None:
    secret = "very-secret-subject"
    for wrong in (token(sub=secret, aud="x"), token(sub=secret) + "x", unsecured_token(sub=secret, now=NOW)):
        with pytest.raises(InvalidToken) as refused:
            check(wrong)
        assert secret not in str(refused.value)
        assert not any(part and part in str(refused.value) for part in wrong.split("."))


# --- keys


def test_keys_that_cannot_be_used_are_left_out() -> None:
    (good,) = ISSUED.described("rsa")
    small = RSAAlgorithm.to_jwk(rsa.generate_private_key(65537, 1024).public_key(), as_dict=True)
    odd: list[Any] = [
        {**good, "use": "enc"},
        {**good, "key_ops": ["encrypt"]},
        {**good, "key_ops": "verify"},
        {**good, "kty": "XYZ"},
        {**good, "kty": None},
        {**good, "n": "!"},
        {**good, "n": ""},
        {**good, "e": None},
        {**good, "alg": "HS256"},
        {**good, "alg": ["RS256"]},
        {"kty": "EC", "crv": "secp256k1", "x": "AA", "y": "AA"},
        {"kty": "EC", "crv": "P-256", "x": "AAAA", "y": "AAAA"},
        {"kty": "OKP", "crv": "Ed448", "x": "AA"},
        {"kty": "OKP", "crv": "Ed25519", "x": "AA"},
        {**small, "kid": "small"},
        "text",
        None,
        [],
    ]
    for each in odd:
        with pytest.raises(JwksError, match="no key for signatures"):
            parse_jwks(json.dumps({"keys": [each]}).encode())
    assert len(parse_jwks(json.dumps({"keys": [*odd, good]}).encode())) == 1


@pytest.mark.parametrize(
    "document",
    [b"", b"{}", b"[]", b"null", b'{"keys": {}}', b'{"keys": []}', b"<html>secret</html>", b"\xff", b"[" * 100_000,
     b'{"keys": [], "keys": []}', b" " * (MOST_JWKS_BYTES + 1)],
)  # fmt: skip
def test_a_document_that_is_no_jwks_is_an_error_that_does_not_quote_it(document: bytes) -> None:
    with pytest.raises(JwksError) as refused:
        parse_jwks(document)
    assert "secret" not in str(refused.value)


def test_a_private_key_in_a_jwks_is_used_as_its_public_half() -> None:
    private = RSAAlgorithm.to_jwk(ISSUED.keys["rsa"], as_dict=True)
    keys = parse_jwks(json.dumps({"keys": [{**private, "key_ops": ["sign", "verify"], "kid": "rsa"}]}).encode())
    assert check(token(), keys=keys) == "alice"


def test_keys_of_one_id_are_told_apart_by_their_algorithms() -> None:
    described = [{**each, "kid": "same"} for each in ISSUED.described("rsa", "ec")]
    keys = parse_jwks(json.dumps({"keys": described}).encode())
    for key_id, algorithm in (("rsa", "RS256"), ("ec", "ES256")):
        assert check(token(key_id, algorithm, {"kid": "same"}), keys=keys) == "alice"


# --- unsecured tokens


def test_unsecured_tokens_are_taken_only_where_they_are_asked_for_and_then_alone() -> None:
    lenient = TokenRules(issuer=None, audience=())
    free = unsecured_token(now=NOW, aud=ABSENT, iss=ABSENT)
    assert verify_unsecured(free, lenient, NOW * 1000).name == "alice"
    for wrong in (token(), unsecured_token("none", "AAAA", now=NOW), unsecured_token("None", now=NOW)):
        with pytest.raises(InvalidToken):
            verify_unsecured(wrong, lenient, NOW * 1000)
    with pytest.raises(InvalidToken):
        verify_unsecured(unsecured_token(now=NOW, exp=ABSENT), lenient, NOW * 1000)
    with pytest.raises(InvalidToken):
        verify_unsecured(unsecured_token(now=NOW, aud="x"), RULES, NOW * 1000)


# --- messages


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (b"n,,\x01auth=Bearer a.b.c\x01\x01", ("a.b.c", "")),
        (b"n,a=al=2Cice,\x01auth=bEARER   a\x01\x01", ("a", "al,ice")),
        (b"n,,\x01key=value with \t blanks\x01auth=Bearer a\x01other=x\x01\x01", ("a", "")),
    ],
)
def test_a_first_message_is_read(message: bytes, expected: tuple[str, str]) -> None:
    assert parse_first(message) == expected


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\x01",
        b"n,,",
        b"n,,\x01\x01",
        b"y,,\x01auth=Bearer a\x01\x01",
        b"p=x,,\x01auth=Bearer a\x01\x01",
        b"n,a=,\x01auth=Bearer a\x01\x01",
        b"n,a=x=y,\x01auth=Bearer a\x01\x01",
        b"n,,\x01auth=Bearer a\x01",
        b"n,,\x01auth=Bearer a",
        b"n,,\x01auth=Bearer a\x01\x01\x01",
        b"n,,\x01auth=Bearer\x01\x01",
        b"n,,\x01auth=Basic a\x01\x01",
        b"n,,\x01auth=Bearer a b\x01\x01",
        b"n,,\x01auth=Bearer a/b\x01\x01",
        b"n,,\x01auth=Bearer a\x01auth=Bearer b\x01\x01",
        b"n,,\x01k1=v\x01auth=Bearer a\x01\x01",
        b"n,,\x01key=\x01auth=Bearer a\x01\x01",
        b"n,,\x01auth=Bearer \xc3\xa9\x01\x01",
        b"n,,\x01\x00\x01auth=Bearer a\x01\x01",
    ],
)
def test_a_first_message_that_is_none_is_refused(message: bytes) -> None:
    with pytest.raises(InvalidCredentials):
        parse_first(message)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_refused(message: bytes) -> None:
    for start in (b"", b"n,,\x01auth=Bearer "):
        try:
            text, _ = parse_first(start + message)
            read_header(text)
        except InvalidCredentials:
            pass


tokens = st.text("abcXYZ019-_.", min_size=1)
extensions = st.dictionaries(
    st.text("abcXYZ", min_size=1).filter(lambda name: name != "auth"), st.text("ab !~\t", min_size=1), max_size=3
)


@given(tokens, extensions)
def test_our_message_is_understood(text: str, more: dict[str, str]) -> None:
    assert parse_first(first_message(text, more)) == (text, "")


@pytest.mark.parametrize(
    ("text", "more"), [("a b", {}), ("", {}), ("a\x01", {}), ("a", {"auth": "x"}), ("a", {"k": ""}), ("a", {"k1": "x"})]
)
def test_what_no_message_can_carry_is_an_error(text: str, more: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="does not allow"):
        first_message(text, more)


def session(exchange: OauthBearerExchange) -> SaslServer:
    made = SaslServer(["OAUTHBEARER"], lambda _: exchange, {})
    assert made.handshake("OAUTHBEARER", has_requests=True, now_ms=0.0)
    return made


def real_exchange(asked: list[Header] | None = None) -> OauthBearerExchange:
    def prepare(header: Header) -> None:
        if asked is not None:
            asked.append(header)

    return OauthBearerExchange(lambda text: verify(text, KEYS, RULES, int(time.time() * 1000)), prepare)


def test_a_session_lasts_as_long_as_its_token() -> None:
    asked: list[Header] = []
    server = session(real_exchange(asked))
    message = first_message(ISSUED.token(), {"traceId": "1"})
    assert server.prepare(message) is None
    assert asked == [Header("RS256", "rsa")]
    answer, lifetime_ms = server.evaluate(message, 0.0)
    assert answer == b""
    assert refusal_of(answer) is None
    assert 590_000 < lifetime_ms <= 600_000
    assert str(server.principal) == "User:alice"


@pytest.mark.parametrize("last", [last_message(), b"", b"\x01\x01", first_message("a.b.c", {})])
def test_a_refusal_has_two_steps_and_ends(last: bytes) -> None:
    server = session(real_exchange())
    answer, lifetime_ms = server.evaluate(first_message("a.b.c", {}), 0.0)
    assert (json.loads(answer), lifetime_ms) == ({"status": "invalid_token"}, 0)
    assert refusal_of(answer) == "invalid_token"
    assert server.prepare(last) is None
    with pytest.raises(AuthenticationFailed, match="invalid_token"):
        server.evaluate(last, 0.0)


def test_nobody_acts_as_another() -> None:
    """CVE-2017-12610, for this mechanism."""
    right = ISSUED.token()
    for identity, is_right in (("alice", True), ("root", False), ("Alice", False)):
        server = session(real_exchange())
        message = first_message(right, {}).replace(b"n,,", f"n,a={identity},".encode())
        if is_right:
            assert server.evaluate(message, 0.0)[0] == b""
        else:
            with pytest.raises(AuthenticationFailed, match="authorization id"):
                server.evaluate(message, 0.0)


@pytest.mark.parametrize("answer", [b"{}", b"x", b"[1]", b'{"status": 1}', b'{"status": "\\u001b"}', b"[" * 100_000])
def test_a_brokers_refusal_may_be_anything(answer: bytes) -> None:
    assert refusal_of(answer) == "refused"


def test_the_end_of_ones_own_token() -> None:
    assert expiry_ms_of(token(exp=NOW + 5)) == (NOW + 5) * 1000.0
    for other in ("", "a", "a.b.c", "opaque-token", token(exp=ABSENT), token(exp="x")):
        assert expiry_ms_of(other) is None
