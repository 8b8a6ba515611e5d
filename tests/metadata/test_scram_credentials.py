"""SCRAM credentials in the metadata: changes, snapshots, and the versions of nodes that can read them."""

from __future__ import annotations

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kraftpy.metadata.commands import SCHEMA, NewerSchemaError, decode_command, encode_command
from kraftpy.metadata.controller import MetadataStateMachine
from kraftpy.metadata.credentials import ScramChange, ScramCredentialChanged, SetScramCredentials, credential_bytes
from kraftpy.metadata.image import Image
from kraftpy.protocol.errors import ErrorCode
from kraftpy.types import Millis

NAMES = ("alice", "bob", "carol")
SECRETS = st.binary(min_size=1, max_size=4)
PARTS = (st.sampled_from(NAMES), st.sampled_from((1, 2)), st.sampled_from((0, 4096, 8192)), SECRETS, SECRETS, SECRETS)
FIELDS = ("name", "mechanism", "iterations", "salt", "stored_key", "server_key")
changes = st.tuples(*PARTS).map(lambda parts: ScramChange(**dict(zip(FIELDS, parts, strict=True))))


def command(*wanted: ScramChange) -> bytes:
    return encode_command(SetScramCredentials(changes=wanted, time_ms=Millis(1)))


@given(st.lists(st.lists(changes, max_size=4), max_size=6))
def test_credentials_are_as_a_dictionary_would_have_them(batches: list[list[ScramChange]]) -> None:
    machine, kept = MetadataStateMachine(), dict[tuple[str, int], ScramChange]()
    for index, batch in enumerate(batches, 1):
        before = dict(kept)
        decision = machine.apply(index, 1, command(*batch)).decision
        errors = []
        for change in batch:
            place = change.name, change.mechanism
            is_refused = not change.iterations and place not in before
            errors.append(ErrorCode.RESOURCE_NOT_FOUND if is_refused else ErrorCode.NONE)
            if change.iterations:
                kept[place] = change
            elif not is_refused:
                kept.pop(place, None)
        assert [result.error for result in decision.result] == errors
    image = machine.image
    assert image.credentials.users() == sorted({name for name, _ in kept})
    for name in NAMES:
        assert image.credentials.iterations(name) == {
            mechanism: change.iterations for (of, mechanism), change in sorted(kept.items()) if of == name
        }
        for mechanism in (1, 2):
            found, change = image.credentials.of(name, mechanism), kept.get((name, mechanism))
            assert (found is None) == (change is None)
            if found is not None and change is not None:
                assert (found.salt, found.stored_key) == (change.salt, change.stored_key)
                assert (found.server_key, found.iterations) == (change.server_key, change.iterations)
    assert image.credentials.bytes == sum(map(credential_bytes, kept.values()))
    restored = Image.from_bytes(image.to_bytes())
    assert restored.credentials.saved() == image.credentials.saved()
    assert restored.credentials.bytes == image.credentials.bytes
    assert restored.to_bytes() == image.to_bytes()


def test_only_metadata_with_credentials_needs_the_newest_version() -> None:
    machine = MetadataStateMachine()
    added = ScramChange(name="alice", mechanism=1, iterations=4096, salt=b"s", stored_key=b"k", server_key=b"v")
    assert msgpack.unpackb(machine.snapshot())[0] == 4
    assert not machine.apply(1, 1, command(added)).decision.error
    assert msgpack.unpackb(command(added))[0] == msgpack.unpackb(machine.snapshot())[0] == 6
    assert not machine.apply(2, 1, command(ScramChange(name="alice", mechanism=1))).decision.error
    assert msgpack.unpackb(machine.snapshot())[0] == 4
    newer = msgpack.packb([SCHEMA + 1, 17, {"changes": [], "time_ms": 1}])
    with pytest.raises(NewerSchemaError, match="upgrade this node"):
        decode_command(newer)


def test_nothing_secret_is_shown() -> None:
    change = ScramChange(name="alice", mechanism=1, iterations=4096, salt=b"hid", stored_key=b"hid", server_key=b"hid")
    for shown in (
        change,
        SetScramCredentials(changes=(change,), time_ms=Millis(1)),
        ScramCredentialChanged(change=change),
    ):
        assert "hid" not in repr(shown)
        assert "alice" in repr(shown)
