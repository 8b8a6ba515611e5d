"""Delegation tokens in the metadata: what changes them, in which order changes are refused, what a snapshot keeps."""

from __future__ import annotations

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kraftpy.metadata.codec import CodecError
from kraftpy.metadata.commands import Command, decode_command, encode_command
from kraftpy.metadata.controller import MetadataStateMachine
from kraftpy.metadata.decision import Decision
from kraftpy.metadata.delegation_tokens import (
    CreateDelegationToken,
    DelegationToken,
    ExpireDelegationToken,
    RemoveDelegationTokens,
    token_bytes,
)
from kraftpy.metadata.image import Image
from kraftpy.metadata.proposals import check_proposal
from kraftpy.metadata.submissions import SubmissionId, encode_submission
from kraftpy.protocol.errors import ErrorCode
from kraftpy.types import Millis

NOW = 1_000_000


def token(token_id: str = "a", **changes: object) -> DelegationToken:
    values: dict[str, object] = {
        "token_id": token_id,
        "digest": f"digest of {token_id}".encode(),
        "owner": "alice",
        "requester": "maker",
        "renewers": ("ren",),
        "issue_ms": NOW,
        "expiry_ms": NOW + 100,
        "max_ms": NOW + 1_000,
    }
    return DelegationToken(**{**values, **changes})  # type: ignore[arg-type]


class Metadata:
    """A state machine that decides one command after the other."""

    def __init__(self, *tokens: DelegationToken) -> None:
        self.machine = MetadataStateMachine()
        self._index = 0
        for each in tokens:
            assert not self.apply(CreateDelegationToken(token=each, time_ms=each.issue_ms)).error

    def apply(self, command: Command) -> Decision[object]:
        self._index += 1
        return self.machine.apply(self._index, 1, encode_command(command)).decision

    def expire(
        self, requester: str, period_ms: int, at: int, *, is_renewal: bool = False, digest: bytes = b"digest of a"
    ) -> tuple[ErrorCode, int | None]:
        """Return the error, and when the token expires now."""
        decision = self.apply(
            ExpireDelegationToken(
                digest=digest, requester=requester, period_ms=period_ms, is_renewal=is_renewal, time_ms=Millis(at)
            )
        )
        found = self.machine.image.delegation_tokens.of_digest(digest)
        if decision.result is not None:
            assert found is not None
            assert decision.result.expiry_ms == found.expiry_ms  # type: ignore[attr-defined]
        return decision.error, None if found is None else found.expiry_ms

    @property
    def ids(self) -> list[str]:
        return sorted(each.token_id for each in self.machine.image.delegation_tokens.all())


def test_a_token_expires_when_it_is_told_but_never_after_its_longest_life() -> None:
    metadata = Metadata(token())
    assert metadata.expire("alice", 500, NOW) == (ErrorCode.NONE, NOW + 500)
    assert metadata.expire("ren", 10, NOW) == (ErrorCode.NONE, NOW + 10)
    assert metadata.expire("ren", 2**63 - 1, NOW) == (ErrorCode.NONE, NOW + 1_000)
    assert metadata.expire("alice", 0, NOW) == (ErrorCode.NONE, NOW)


@pytest.mark.parametrize("is_renewal", [True, False])
def test_only_owner_and_renewers_change_a_token(is_renewal: bool) -> None:
    metadata = Metadata(token())
    for stranger in ("maker", "mallory", "", "Alice"):
        error, expiry = metadata.expire(stranger, 500, NOW, is_renewal=is_renewal)
        assert (error, expiry) == (ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH, NOW + 100)
        removal = RemoveDelegationTokens(digest=b"digest of a", requester=stranger, time_ms=Millis(NOW))
        assert metadata.apply(removal).error is ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
    unknown = metadata.expire("alice", 1, NOW, is_renewal=is_renewal, digest=b"other")
    assert unknown == (ErrorCode.DELEGATION_TOKEN_NOT_FOUND, None)
    assert metadata.ids == ["a"]


def test_the_order_of_refusals_is_kafkas() -> None:
    metadata, later = Metadata(token()), NOW + 101
    assert metadata.expire("mallory", 1, later, is_renewal=True)[0] is ErrorCode.DELEGATION_TOKEN_EXPIRED
    assert metadata.expire("mallory", 1, later)[0] is ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
    for is_renewal in (True, False):
        assert metadata.expire("alice", 1, later, is_renewal=is_renewal)[0] is ErrorCode.DELEGATION_TOKEN_EXPIRED
    assert metadata.expire("alice", 50, NOW + 100, is_renewal=True) == (ErrorCode.NONE, NOW + 150)


def test_an_expired_token_may_still_be_removed_by_its_owner() -> None:
    metadata = Metadata(token())
    removal = RemoveDelegationTokens(digest=b"digest of a", requester="alice", time_ms=Millis(NOW + 5_000))
    decision = metadata.apply(removal)
    assert decision.error is ErrorCode.NONE
    assert decision.result is not None
    assert decision.result.expiry_ms == NOW + 5_000  # type: ignore[attr-defined]
    assert metadata.ids == []
    assert metadata.apply(removal).error is ErrorCode.DELEGATION_TOKEN_NOT_FOUND


def test_a_sweep_removes_none_that_was_renewed_in_the_meantime() -> None:
    metadata = Metadata(token("a"), token("b"), token("c", expiry_ms=NOW + 900))
    tokens = metadata.machine.image.delegation_tokens
    assert tokens.expired(NOW + 100, 10) == ()
    assert sorted(tokens.expired(NOW + 101, 10)) == ["a", "b"]
    assert len(tokens.expired(NOW + 2_000, 2)) == 2
    assert metadata.expire("alice", 900, NOW + 90, is_renewal=True)[0] is ErrorCode.NONE
    named = ("a", "b", "b", "c", "none")
    metadata.apply(RemoveDelegationTokens(token_ids=named, time_ms=Millis(NOW + 101)))
    assert metadata.ids == ["a", "c"]


def test_an_id_and_a_digest_are_never_given_again() -> None:
    metadata = Metadata(token("a"))
    for again in (token("a", digest=b"other"), token("b", digest=b"digest of a")):
        refused = metadata.apply(CreateDelegationToken(token=again, time_ms=Millis(NOW)))
        assert refused.error is ErrorCode.INVALID_REQUEST
    assert metadata.ids == ["a"]


IDS = ("a", "b", "c", "d")
creations = st.builds(
    lambda token_id, renewers, lives: ("create", token_id, renewers, lives),
    st.sampled_from(IDS), st.lists(st.sampled_from(("x", "yy")), max_size=3), st.integers(0, 9),
)  # fmt: skip
changes = st.tuples(st.sampled_from(("renew", "remove", "sweep")), st.sampled_from(IDS), st.integers(0, 9))


@given(st.lists(st.one_of(creations, changes), max_size=30))
def test_tokens_are_as_a_dictionary_would_have_them(steps: list[tuple[object, ...]]) -> None:
    metadata, kept = Metadata(), dict[str, DelegationToken]()
    for at, (kind, token_id, *rest) in enumerate(steps, NOW):
        assert isinstance(token_id, str)
        digest = f"digest of {token_id}".encode()
        if kind == "create":
            renewers, lives = rest
            made = token(token_id, renewers=tuple(renewers), expiry_ms=at + lives)  # type: ignore[arg-type, operator]
            metadata.apply(CreateDelegationToken(token=made, time_ms=Millis(at)))
            kept.setdefault(token_id, made)
        elif kind == "renew":
            error, expiry = metadata.expire("alice", int(str(rest[0])), at, digest=digest)
            if error is ErrorCode.NONE:
                kept[token_id] = token(token_id, renewers=kept[token_id].renewers, expiry_ms=expiry)
            else:
                assert token_id not in kept or kept[token_id].expiry_ms < at
        elif kind == "remove":
            metadata.apply(RemoveDelegationTokens(digest=digest, requester="alice", time_ms=Millis(at)))
            kept.pop(token_id, None)
        else:
            metadata.apply(RemoveDelegationTokens(token_ids=IDS, time_ms=Millis(at)))
            kept = {name: each for name, each in kept.items() if each.expiry_ms >= at}
    tokens = metadata.machine.image.delegation_tokens
    assert {each.token_id: each for each in tokens.all()} == kept
    assert tokens.bytes == sum(map(token_bytes, kept.values()))
    assert [tokens.of_id(each.token_id) for each in kept.values()] == list(kept.values())
    assert [tokens.of_digest(each.digest) for each in kept.values()] == list(kept.values())
    restored = Image.from_bytes(metadata.machine.image.to_bytes())
    assert restored.delegation_tokens.all() == tuple(each for _, each in sorted(kept.items()))
    assert restored.delegation_tokens.bytes == tokens.bytes
    assert restored.to_bytes() == metadata.machine.image.to_bytes()


def test_only_metadata_with_tokens_needs_the_newest_version() -> None:
    metadata = Metadata()
    assert msgpack.unpackb(metadata.machine.snapshot())[0] == 4
    metadata = Metadata(token())
    assert msgpack.unpackb(metadata.machine.snapshot())[0] == 6
    commands: list[tuple[int, Command]] = [
        (21, CreateDelegationToken(token=token(), time_ms=Millis(NOW))),
        (22, ExpireDelegationToken(digest=b"d", requester="r", period_ms=1, is_renewal=True, time_ms=Millis(NOW))),
        (23, RemoveDelegationTokens(token_ids=("a",), time_ms=Millis(NOW))),
    ]
    for number, command in commands:
        encoded = encode_command(command)
        assert msgpack.unpackb(encoded)[:2] == [6, number]
        assert decode_command(encoded) == command
        check_proposal(encode_submission(SubmissionId(node_id=1, nonce=b"n", sequence=0), encoded), 1)


def test_a_time_that_no_answer_can_carry_is_not_proposed() -> None:
    command = CreateDelegationToken(token=token(max_ms=2**63), time_ms=Millis(NOW))
    submission = encode_submission(SubmissionId(node_id=1, nonce=b"n", sequence=0), command)
    with pytest.raises(CodecError, match="out of range"):
        check_proposal(submission, 1)
    longest = CreateDelegationToken(token=token(max_ms=2**63 - 1), time_ms=Millis(NOW))
    check_proposal(encode_submission(SubmissionId(node_id=1, nonce=b"n", sequence=0), longest), 1)


def test_nothing_secret_is_shown() -> None:
    hidden = token(digest=b"hid")
    for shown in (
        CreateDelegationToken(token=hidden, time_ms=Millis(1)),
        ExpireDelegationToken(digest=b"hid", requester="alice", period_ms=1, is_renewal=True, time_ms=Millis(1)),
        RemoveDelegationTokens(digest=b"hid", requester="alice", time_ms=Millis(1)),
    ):
        assert "hid" not in repr(shown)
        assert "alice" in repr(shown)
