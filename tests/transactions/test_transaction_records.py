"""The bytes in `__transaction_state`, against Kafka's own form laid out by hand, and every value there and back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kraftpy.protocol.errors import ProtocolError
from kraftpy.transactions.records import read_key, read_value, transaction_record, write_key, write_value
from kraftpy.transactions.transaction import State, TransactionValue
from kraftpy.types import TopicPartition

ONGOING = TransactionValue(
    producer_id=7,
    producer_epoch=3,
    timeout_ms=60000,
    state=State.ONGOING,
    partitions=frozenset({TopicPartition("b", 1), TopicPartition("a", 0), TopicPartition("a", 2)}),
    updated_at=1000,
    started_at=900,
    previous_producer_id=6,
    client_version=2,
)
OLD_BYTES = (
    bytes.fromhex("0000 0000000000000007 0003 0000ea60 01 00000002")
    + bytes.fromhex("0001 61 00000002 00000000 00000002")
    + bytes.fromhex("0001 62 00000001 00000001")
    + bytes.fromhex("00000000000003e8 0000000000000384")
)
NEW_BYTES = (
    bytes.fromhex("0001 0000000000000007 0003 0000ea60 01 03")
    + bytes.fromhex("02 61 03 00000000 00000002 00")
    + bytes.fromhex("02 62 02 00000001 00")
    + bytes.fromhex("00000000000003e8 0000000000000384")
    + bytes.fromhex("02 00 08 0000000000000006 02 02 0002")
)


def test_a_key() -> None:
    assert write_key("tx") == bytes.fromhex("0000 0002 7478")
    assert read_key(bytes.fromhex("0000 0002 7478")) == "tx"
    assert read_key(bytes.fromhex("0001 0002 7478")) is None
    assert transaction_record("tx", None) == (write_key("tx"), None)


def test_a_value_of_version_1() -> None:
    assert write_value(ONGOING) == NEW_BYTES
    assert read_value(NEW_BYTES) == ONGOING


def test_a_value_of_version_0_knows_less() -> None:
    read = read_value(OLD_BYTES)
    assert (read.producer_id, read.producer_epoch, read.timeout_ms) == (7, 3, 60000)
    assert read.partitions == ONGOING.partitions
    assert (read.updated_at, read.started_at) == (1000, 900)
    assert (read.previous_producer_id, read.next_producer_id, read.client_version) == (-1, -1, 0)


def test_an_id_without_a_transaction_has_null_for_partitions() -> None:
    empty = TransactionValue(producer_id=1, producer_epoch=0, timeout_ms=1, updated_at=5)
    assert write_value(empty)[17:18] == b"\0"
    assert read_value(write_value(empty)) == empty
    old = bytes.fromhex("0000 0000000000000001 0000 00000001 00 ffffffff 0000000000000005 ffffffffffffffff")
    assert read_value(old) == empty


def test_tags_of_other_versions_are_passed_over() -> None:
    tags = bytes.fromhex("03 00 08 0000000000000006 02 02 0002 03 02 0009")
    assert read_value(NEW_BYTES[: -len(bytes.fromhex("02 00 08 0000000000000006 02 02 0002"))] + tags) == ONGOING


@given(
    st.builds(
        TransactionValue,
        producer_id=st.integers(0, 2**63 - 1),
        producer_epoch=st.integers(0, 32767),
        timeout_ms=st.integers(1, 2**31 - 1),
        state=st.sampled_from([state for state in State if state is not State.EMPTY]),
        partitions=st.frozensets(st.builds(TopicPartition, st.text(max_size=200), st.integers(0, 2**31 - 1))),
        updated_at=st.integers(-1, 2**62),
        started_at=st.integers(-1, 2**62),
        previous_producer_id=st.integers(-1, 2**63 - 1),
        next_producer_id=st.integers(-1, 2**63 - 1),
        client_version=st.integers(0, 2),
    )
)
def test_there_and_back(value: TransactionValue) -> None:
    assert read_value(write_value(value)) == value


@pytest.mark.parametrize("length", range(len(NEW_BYTES)))
def test_what_is_cut_off_is_refused(length: int) -> None:
    with pytest.raises(ProtocolError):
        read_value(NEW_BYTES[:length])


@pytest.mark.parametrize("data", ["0002", "0001 0000000000000007 0003 0000ea60 09", "0000 0004 7478", "0000 0001 ff"])
def test_what_is_not_in_the_format_is_refused(data: str) -> None:
    read = read_value if data.startswith(("0002", "0001 0000")) else read_key
    with pytest.raises(ProtocolError):
        read(bytes.fromhex(data))
