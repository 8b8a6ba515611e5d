"""Delegation tokens without sockets: their rules, and logging in with one (KIP-48)."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
from typing import Any

import pytest

from kraftpy.broker.security.token_logins import TokenCredentials
from kraftpy.metadata import delegation_tokens as kept
from kraftpy.metadata.image import Image
from kraftpy.security import delegation_tokens as rules
from kraftpy.security.failures import InvalidCredentials
from kraftpy.security.principal import Principal
from kraftpy.security.sasl import SaslServer, ScramExchange
from kraftpy.security.scram import MECHANISMS as SCRAM
from kraftpy.security.scram import ScramClient, fake_credential, salted_password, token_id_of
from kraftpy.types import Millis

SECRET = "the secret of all nodes"
MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512")
INT64_MAX = 2**63 - 1


# --- the rules


def test_the_hmac_is_that_of_kafka() -> None:
    found = rules.token_hmac(SECRET, "Vd1S1H7hQGSQ5n5rTlLs4g")
    assert found == hmac.new(SECRET.encode(), b"Vd1S1H7hQGSQ5n5rTlLs4g", hashlib.sha512).digest()
    assert rules.password_of(found) == base64.b64encode(found).decode()
    assert rules.is_hmac_of(found, SECRET, "Vd1S1H7hQGSQ5n5rTlLs4g")
    for other in (b"", found[:-1], found + b"\0", bytes(64)):
        assert not rules.is_hmac_of(other, SECRET, "Vd1S1H7hQGSQ5n5rTlLs4g")
    assert not rules.is_hmac_of(found, "another secret", "Vd1S1H7hQGSQ5n5rTlLs4g")


@pytest.mark.parametrize(
    ("asked", "expiry", "longest"),
    [(-1, 10, 70), (0, 10, 70), (5, 5, 5), (30, 10, 30), (71, 10, 70), (INT64_MAX, 10, 70), (-INT64_MAX - 1, 10, 70)],
)
def test_a_new_token_lives_as_long_as_the_settings_and_its_creator_allow(asked: int, expiry: int, longest: int) -> None:
    assert rules.times_of_new(1_000, asked, 70, 10) == (1_000 + expiry, 1_000 + longest)


def test_no_time_exceeds_64_bits() -> None:
    assert rules.times_of_new(1_000, -1, INT64_MAX, INT64_MAX) == (INT64_MAX, INT64_MAX)
    assert rules.later(1_000, INT64_MAX) == INT64_MAX
    assert rules.renewal_period(INT64_MAX, 10) == 10
    assert rules.renewal_period(-5, 10) == rules.renewal_period(0, 10) == 10
    assert rules.renewal_period(3, 10) == 3


def kept_token(token_id: str = "id", *, expiry_ms: int = 10_000) -> kept.DelegationToken:
    return kept.DelegationToken(
        token_id=token_id,
        digest=rules.hmac_digest(rules.token_hmac(SECRET, token_id)),
        owner="alice",
        requester="maker",
        renewers=("ren",),
        issue_ms=Millis(0),
        expiry_ms=Millis(expiry_ms),
        max_ms=Millis(20_000),
    )


def test_who_has_a_part_in_a_token() -> None:
    token = kept_token()
    for name, may_renew, sees in [
        ("alice", True, True), ("ren", True, True), ("maker", False, True), ("mallory", False, False),
    ]:  # fmt: skip
        assert rules.may_renew(token, Principal("User", name)) is may_renew
        assert rules.has_part_in(token, {Principal("User", name), Principal("User", "x")}) is sees
        assert not rules.may_renew(token, Principal("Group", name))
        assert not rules.has_part_in(token, {Principal("Group", name)})


# --- logging in, without sockets


class Moment:
    """A clock that is set."""

    ms = 1_000

    def now(self) -> Millis:
        return Millis(self.ms)

    def monotonic_ms(self) -> Millis:
        return Millis(self.ms)


class Logins:
    """A broker's end: one image with tokens, and a session for each login."""

    def __init__(self, *tokens: kept.DelegationToken) -> None:
        self.image, self.clock = Image(), Moment()
        for token in tokens:
            self.image.delegation_tokens.put(token)
        self.credentials = TokenCredentials(SECRET, b"own", self.clock, lambda: self.image)

    def session(self, mechanism: str = MECHANISMS[0]) -> SaslServer:
        def exchange(name: str) -> ScramExchange:
            tokens = self.credentials.of_mechanism(SCRAM[name])
            return ScramExchange(SCRAM[name], lambda _: None, b"own", "servers", tokens)

        made = SaslServer([mechanism], exchange, {})
        assert made.handshake(mechanism, has_requests=True, now_ms=0.0)
        return made

    async def challenge(self, session: SaslServer, client: ScramClient) -> tuple[bytes, int]:
        first = client.first()
        if (needed := session.prepare(first)) is not None:
            await needed
        return client.challenged(session.evaluate(first, 0.0)[0])

    async def log_in(
        self, token_id: str, password: str, mechanism: str = MECHANISMS[0], *, pause_ms: int = 0
    ) -> SaslServer:
        session = self.session(mechanism)
        client = ScramClient(SCRAM[mechanism], token_id, "clients", is_by_token=True)
        salt, iterations = await self.challenge(session, client)
        final = client.final(salted_password(SCRAM[mechanism], password, salt, iterations))
        assert session.prepare(final) is None
        self.clock.ms += pause_ms
        client.verify(session.evaluate(final, 500.0)[0])
        return session


def right_password(token_id: str = "id") -> str:
    return rules.password_of(rules.token_hmac(SECRET, token_id))


@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_a_bearer_is_the_owner_until_the_token_expires(mechanism: str) -> None:
    session = await Logins(kept_token()).log_in("id", right_password(), mechanism)
    assert session.principal == Principal("User", "alice")
    assert session.is_by_token
    assert session.expires_at_ms == 500.0 + 9_000


@pytest.mark.parametrize("wrong", ["", "x", right_password("other"), right_password() + "=", "alice"])
async def test_another_password_does_not_do(wrong: str) -> None:
    with pytest.raises(Exception, match="invalid credentials") as failed:
        await Logins(kept_token()).log_in("id", wrong)
    assert isinstance(failed.value.__cause__, InvalidCredentials)


async def test_a_token_that_expires_or_goes_during_the_login_does_not_do() -> None:
    with pytest.raises(Exception, match="invalid credentials"):
        await Logins(kept_token()).log_in("id", right_password(), pause_ms=9_001)
    await Logins(kept_token()).log_in("id", right_password(), pause_ms=9_000)


async def test_an_expired_token_an_unknown_one_and_a_users_name_are_challenged_alike() -> None:
    logins = Logins(kept_token("over", expiry_ms=999), kept_token("good"), kept_token("later"))
    for token_id in ("over", "none", "alice", "good", "later"):
        salt, iterations = await logins.challenge(
            logins.session(), ScramClient(SCRAM[MECHANISMS[0]], token_id, "clients", is_by_token=True)
        )
        expected = fake_credential(SCRAM[MECHANISMS[0]], token_id, b"own")
        assert (salt, iterations) == (expected.salt, expected.iterations)
    for token_id in ("over", "none", "alice"):
        with pytest.raises(Exception, match="invalid credentials"):
            await logins.log_in(token_id, right_password(token_id))


async def test_a_credential_is_derived_once_and_goes_with_its_token(monkeypatch: pytest.MonkeyPatch) -> None:
    derived: list[str] = []
    derive = rules.token_credential

    def count(*arguments: Any) -> Any:
        derived.append(arguments[2])
        return derive(*arguments)

    monkeypatch.setattr("kraftpy.broker.security.token_logins.token_credential", count)
    names = [f"token-{number}" for number in range(20)]
    logins = Logins(*map(kept_token, names))
    await asyncio.gather(*(logins.log_in("token-0", right_password("token-0")) for _ in range(5)))
    await logins.log_in("token-0", right_password("token-0"))
    assert derived == ["token-0"]
    for name in names[1:]:
        await logins.log_in(name, right_password(name))
    assert sorted(derived) == sorted(names)
    for name in names[:-1]:
        logins.image.delegation_tokens.remove(name)
    with pytest.raises(Exception, match="invalid credentials"):
        await logins.log_in("token-0", right_password("token-0"))
    await logins.log_in("token-19", right_password("token-19"), MECHANISMS[1])
    for name in names[:-1]:
        assert logins.credentials.derived(SCRAM[MECHANISMS[0]], name) is None
    assert logins.credentials.derived(SCRAM[MECHANISMS[0]], "token-19") is not None


@pytest.mark.parametrize(
    ("message", "token_id"),
    [
        (b"n,,n=id,r=x,tokenauth=true", "id"),
        (b"n,,n=i=2Cd,r=x,other=1,tokenauth=TRUE", "i,d"),
        (b"n,,n=id,r=x,tokenauth=false", None),
        (b"n,,n=id,r=x,TOKENAUTH=true", None),
        (b"n,,n=id,r=x,notokenauth=true", None),
        (b"n,,n=id,r=x", None),
        (b"n,,n=tokenauth=true,r=x", None),
        (b"c=biws,r=xy,p=AAAA", None),
        (b"\xff", None),
        (b"", None),
        (b"n" * 20_000, None),
    ],
)
def test_the_token_that_a_first_message_names(message: bytes, token_id: str | None) -> None:
    assert token_id_of(message) == token_id
