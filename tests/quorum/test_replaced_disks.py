"""Some seeds of the simulation with replaced disks, and the numbers by which Raft knows servers."""

from __future__ import annotations

import pytest
from replaced_disks import NodeByIdAlone, TrustingNode, run_with_replaced_disks

from kraftpy.metadata import quorum_messages as wire
from kraftpy.metadata.quorum_messages import BadMessageError
from kraftpy.metadata.voters import VoterSet, directory_of, node_of, server_number

ADDRESSES = {1: "one:9093", 2: "two:9093"}
DIRECTORIES = {1: bytes(16), 2: b"\xff" * 16}
TOLD_APART = VoterSet(ADDRESSES, DIRECTORIES)


@pytest.mark.parametrize("first", range(0, 9, 3))
def test_a_quorum_that_tells_disks_apart_loses_nothing(first: int) -> None:
    runs = [run_with_replaced_disks(seed) for seed in range(first, first + 3)]
    assert [outcome for outcome, _ in runs if outcome.failures] == []
    assert sum(replaced for _, replaced in runs) > 4
    assert sum(outcome.acknowledged for outcome, _ in runs) > 200


def test_it_finds_a_quorum_that_does_not_tell_disks_apart() -> None:
    assert any(run_with_replaced_disks(seed, NodeByIdAlone)[0].failures for seed in range(4, 13))


def test_it_finds_a_node_that_does_not_look_at_its_peers_disks() -> None:
    assert any(run_with_replaced_disks(seed, TrustingNode)[0].failures for seed in range(8))


def test_a_server_is_a_node_with_a_directory() -> None:
    numbers = {server_number(node_id, directory_id) for node_id in (0, 1, (1 << 31) - 1) for directory_id in
               (None, bytes(16), b"\xff" * 16)}  # fmt: skip
    assert len(numbers) == 9
    for number in numbers:
        assert server_number(node_of(number), directory_of(number)) == number
    assert server_number(7) == 7


def test_a_node_knows_itself_by_its_id_if_its_directory_is_the_voters() -> None:
    one, two = (server_number(node_id, DIRECTORIES[node_id]) for node_id in (1, 2))
    assert TOLD_APART.servers(1, DIRECTORIES[1]) == {1, two}
    assert TOLD_APART.servers(3, bytes(16)) == {one, two}
    for other in (b"x" * 16, None):
        assert TOLD_APART.servers(1, other) == {one, two}, "it is not that voter"
    assert VoterSet(ADDRESSES).servers(1, bytes(16)) == {1, 2}, "this quorum does not tell disks apart"


@pytest.mark.parametrize("voters", [TOLD_APART, VoterSet(ADDRESSES)])
def test_voters_are_read_as_they_were_written(voters: VoterSet) -> None:
    assert wire.voters_in(wire.voters_entry(voters)) == voters
    assert wire.unpack_snapshot(wire.pack_snapshot(5, voters, b"state")) == (5, voters, b"state")


def test_a_quorum_by_node_ids_is_written_as_before_there_were_directories() -> None:
    assert wire.voters_entry(VoterSet(ADDRESSES)) == wire.VOTERS + wire.pack([[1, "one:9093"], [2, "two:9093"]])


def test_a_snapshot_of_a_node_that_knows_no_voters_can_be_read() -> None:
    assert wire.unpack_snapshot(wire.pack_snapshot(0, VoterSet({}), b"state")) == (0, None, b"state")


@pytest.mark.parametrize(
    "plain",
    [
        [[1, "one:9093", bytes(16)], [2, "two:9093"]],
        [[1, "one:9093", bytes(15)]],
        [[1, "one:9093", "x" * 16]],
        [[1 << 31, "one:9093", bytes(16)]],
        [[-1, "one:9093", bytes(16)]],
    ],
)
def test_other_voters_are_refused(plain: list[list[object]]) -> None:
    with pytest.raises(BadMessageError):
        wire.read_voters(plain)
