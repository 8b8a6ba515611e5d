"""Client quotas in the metadata: changes, snapshots, and the versions of nodes that can read them."""

from __future__ import annotations

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kraftpy.metadata.codec import CodecError
from kraftpy.metadata.commands import decode_command, encode_command
from kraftpy.metadata.controller import MetadataStateMachine
from kraftpy.metadata.image import Image
from kraftpy.metadata.quotas import AlterClientQuotas, QuotaChange, quota_bytes, quota_change
from kraftpy.protocol.errors import ErrorCode
from kraftpy.quotas.entities import QuotaEntity, entity_of
from kraftpy.types import Millis

ENTITIES = [
    entity_of(parts)
    for parts in ([("user", "alice")], [("user", None)], [("user", "alice"), ("client-id", None)], [("ip", "::1")])
]
KEYS = ("producer_byte_rate", "request_percentage")
changes = st.builds(
    quota_change, st.sampled_from(ENTITIES), st.sampled_from(KEYS), st.none() | st.sampled_from((1.0, 0.5, 2.0**60))
)


def command(*wanted: QuotaChange) -> bytes:
    return encode_command(AlterClientQuotas(changes=wanted, time_ms=Millis(1)))


@given(st.lists(st.lists(changes, max_size=4), max_size=6))
def test_quotas_are_as_a_dictionary_would_have_them(batches: list[list[QuotaChange]]) -> None:
    machine, kept = MetadataStateMachine(), dict[QuotaEntity, dict[str, float]]()
    for index, batch in enumerate(batches, 1):
        before = machine.image.version, {entity: dict(values) for entity, values in kept.items()}
        decision = machine.apply(index, 1, command(*batch)).decision
        assert decision.error == ErrorCode.NONE
        for change in batch:
            values = kept.setdefault(change.entity, {})
            values.pop(change.key, None)
            if change.value is not None:
                values[change.key] = change.value
            if not values:
                del kept[change.entity]
        if kept != before[1]:
            assert machine.image.version > before[0]
    image = machine.image
    assert {entity: dict(image.quotas.values(entity)) for entity in image.quotas.entities()} == kept
    assert image.quotas.bytes == sum(quota_bytes(entity, len(values)) for entity, values in kept.items())
    restored = Image.from_bytes(image.to_bytes())
    assert restored.quotas.saved() == image.quotas.saved()
    assert restored.quotas.bytes == image.quotas.bytes
    assert restored.to_bytes() == image.to_bytes()


def test_what_changes_nothing_writes_nothing() -> None:
    machine = MetadataStateMachine()
    change = quota_change(ENTITIES[0], KEYS[0], 5.0)
    assert len(machine.apply(1, 1, command(change)).decision.records) == 1
    assert not machine.apply(2, 1, command(change)).decision.records
    assert not machine.apply(3, 1, command(quota_change(ENTITIES[1], KEYS[0], None))).decision.records
    again = (quota_change(ENTITIES[0], KEYS[0], None), change)
    assert len(machine.apply(4, 1, command(*again)).decision.records) == 2
    assert machine.image.quotas.values(ENTITIES[0]) == {KEYS[0]: 5.0}


def test_only_metadata_with_quotas_needs_the_newest_version() -> None:
    machine = MetadataStateMachine()
    assert msgpack.unpackb(machine.snapshot())[0] == 4
    added = command(quota_change(ENTITIES[0], KEYS[0], 5.0))
    assert msgpack.unpackb(added)[:2] == [6, 20]
    machine.apply(1, 1, added)
    assert msgpack.unpackb(machine.snapshot())[0] == 6
    machine.apply(2, 1, command(quota_change(ENTITIES[0], KEYS[0], None)))
    assert msgpack.unpackb(machine.snapshot())[0] == 4


def test_a_value_that_is_no_number_is_no_command() -> None:
    parts = [{"entity_type": "user"}]
    for value in (True, 5, "5"):
        bad = msgpack.packb([6, 20, {"changes": [{"parts": parts, "key": "k", "value": value}], "time_ms": 1}])
        with pytest.raises(CodecError, match="value"):
            decode_command(bad)
