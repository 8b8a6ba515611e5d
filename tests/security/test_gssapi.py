"""GSSAPI's messages without Kerberos: both ends' rules, and bytes that are no messages at all."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kraftpy.security.failures import AuthenticationFailed, InvalidCredentials
from kraftpy.security.gssapi import ContextError, GssapiExchange, choice_of
from kraftpy.security.sasl import SaslServer, State

OFFER = b"signed:\x01\x00\x00\x00"
PRINCIPAL = "alice@REALM"


class FakeContext:
    """Established after the tokens it was given; it signs by a prefix."""

    peer = PRINCIPAL

    def __init__(self, *answers: bytes) -> None:
        self._answers = list(answers)

    @property
    def is_established(self) -> bool:
        return not self._answers

    def step(self, token: bytes) -> bytes:
        if not token.startswith(b"token"):
            raise ContextError("a token that is none")
        return self._answers.pop(0)

    def wrap(self, message: bytes) -> bytes:
        return b"signed:" + message

    def unwrap(self, token: bytes) -> bytes:
        if not token.startswith(b"signed:"):
            raise ContextError("no signature")
        return token[7:]


class Apart:
    """Runs nothing until a test lets it."""

    def __init__(self) -> None:
        self.work: list[Callable[[], None]] = []

    def __call__(self, work: Callable[[], None]) -> Awaitable[None]:
        self.work.append(work)
        return self._run()

    async def _run(self) -> None:
        while self.work:
            self.work.pop()()


def exchange(*answers: bytes, name_of: Callable[[str], str] = lambda _: "alice") -> GssapiExchange:
    return GssapiExchange(FakeContext(*answers), name_of, "kafka", Apart())


async def say(server: GssapiExchange, token: bytes) -> tuple[bytes, str | None]:
    needed = server.prepare(token)
    if needed is not None:
        await needed
    step = server.evaluate(token)
    return step.token, step.name


async def until_the_choice(*answers: bytes, name_of: Callable[[str], str] = lambda _: "alice") -> GssapiExchange:
    server = exchange(*(answers or (b"",)), name_of=name_of)
    assert (await say(server, b"token"))[0] == OFFER
    return server


async def test_the_last_token_of_a_context_is_answered_before_the_offer() -> None:
    server = exchange(b"more", b"last")
    assert await say(server, b"token 1") == (b"more", None)
    assert await say(server, b"token 2") == (b"last", None)
    assert await say(server, b"") == (OFFER, None)
    assert await say(server, b"signed:\x01\0\0\0") == (b"", "alice")


async def test_the_offer_is_the_answer_if_the_context_has_none() -> None:
    server = await until_the_choice(b"")
    assert await say(server, b"signed:\x01\0\0\0") == (b"", "alice")


def test_a_step_of_a_context_is_taken_apart() -> None:
    apart = Apart()
    context = FakeContext(b"")
    needed = GssapiExchange(context, str, "kafka", apart).prepare(b"token")
    assert needed is not None
    assert not context.is_established
    apart.work.pop()()
    assert context.is_established
    needed.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize("identity", ["", "alice", PRINCIPAL, "kafka@127.0.0.1", "kafka/127.0.0.1@REALM"])
async def test_an_identity_may_be_the_client_s_own_or_the_broker_s(identity: str) -> None:
    server = await until_the_choice()
    assert await say(server, b"signed:\x01\0\0\0" + identity.encode()) == (b"", "alice")


@pytest.mark.parametrize(
    "identity", ["bob", "bob@REALM", "alice@OTHER", "kafka", "kafkaesque@host", "alice\0", "alice/admin@REALM"]
)
async def test_nobody_acts_as_somebody_else(identity: str) -> None:
    server = await until_the_choice()
    with pytest.raises(AuthenticationFailed, match="authorization id that is different"):
        await say(server, b"signed:\x01\0\0\0" + identity.encode())


@pytest.mark.parametrize(
    "choice",
    [b"", b"\x01\0\0\0", b"signed:", b"signed:\x01\0\0", b"signed:\x02\0\0\0", b"signed:\x04\xff\xff\xff",
     b"signed:\0\0\0\0", b"signed:\x03\0\0\0", b"signed:\x01\0\0\0\xff"],
)  # fmt: skip
async def test_a_choice_that_was_not_offered_is_refused(choice: bytes) -> None:
    server = await until_the_choice()
    with pytest.raises(InvalidCredentials):
        await say(server, choice)


async def test_a_name_that_no_rule_fits_is_refused() -> None:
    def refuse(principal: str) -> str:
        raise ValueError(f"No rules apply to {principal}")

    server = await until_the_choice(name_of=refuse)
    with pytest.raises(InvalidCredentials, match="No rules apply to alice@REALM"):
        await say(server, b"signed:\x01\0\0\0")


async def test_a_bad_token_fails_the_login_and_says_little() -> None:
    sasl = SaslServer(["GSSAPI"], lambda _: exchange(b"more", b""), {})
    assert sasl.handshake("GSSAPI", has_requests=True, now_ms=0)
    needed = sasl.prepare(b"nonsense")
    assert needed is not None
    await needed
    with pytest.raises(AuthenticationFailed, match="due to invalid credentials with SASL mechanism GSSAPI") as failed:
        sasl.evaluate(b"nonsense", 0)
    assert str(failed.value.__cause__) == "a token that is none"
    assert sasl.state is State.FAILED


async def test_a_token_after_the_last_one_is_refused() -> None:
    server = exchange(b"last")
    assert await say(server, b"token") == (b"last", None)
    with pytest.raises(InvalidCredentials, match="after the last one"):
        await say(server, b"token")


@given(
    st.lists(
        st.one_of(st.binary(max_size=20), st.just(b"token"), st.binary(max_size=9).map(b"signed:".__add__)), max_size=5
    )
)
def test_any_bytes_are_an_answer_or_a_failure(tokens: list[bytes]) -> None:
    server = GssapiExchange(FakeContext(b"more", b"last"), lambda _: "alice", "kafka", Apart())
    for token in tokens:
        needed = server.prepare(token)
        if needed is not None:
            with pytest.raises(StopIteration):
                needed.send(None)  # type: ignore[attr-defined]
        try:
            name = server.evaluate(token).name
        except AuthenticationFailed:
            return
        if name is not None:
            assert tokens[2] == b""
            return


@pytest.mark.parametrize("offer", [b"", b"\x01", b"\x06\xff\xff\xff", b"\0\0\0\0", b"\x01\0\0\0\0"])
def test_a_client_takes_no_layer(offer: bytes) -> None:
    with pytest.raises(AuthenticationFailed, match="security layer"):
        choice_of(offer)


@pytest.mark.parametrize("offer", [b"\x01\0\0\0", b"\x07\0\xff\xff"])
def test_a_client_chooses_none_where_others_are_offered_too(offer: bytes) -> None:
    assert choice_of(offer) == b"\x01\0\0\0"
