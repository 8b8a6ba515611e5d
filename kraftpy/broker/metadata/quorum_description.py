"""The state of the metadata quorum as its leader sees it: the content of DescribeQuorum, here and between nodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kraftpy.broker.metadata.voter import Voter
from kraftpy.frozen import frozen
from kraftpy.ports import Clock

if TYPE_CHECKING:
    pass


@frozen
class ReplicaOfLog:
    """One node's progress in the metadata log. Times are wall-clock milliseconds; -1 if unknown."""

    node_id: int
    log_end_offset: int
    last_fetch_ms: int = -1
    last_caught_up_ms: int = -1
    directory_id: bytes | None = None
    """The id of its metadata directory, if the quorum tells disks apart."""


@frozen
class QuorumDescription:
    """The content of DescribeQuorum; only the quorum's leader knows all of it."""

    leader_id: int
    leader_epoch: int
    high_watermark: int
    voters: tuple[ReplicaOfLog, ...]
    observers: tuple[ReplicaOfLog, ...]
    addresses: Mapping[int, str]
    """`host:port` of each voter."""

    @property
    def has_directories(self) -> bool:
        """True if the quorum tells disks apart."""
        return any(voter.directory_id is not None for voter in self.voters)


def describe_quorum(voter: Voter, clock: Clock) -> QuorumDescription:
    """Describe the quorum that this node leads."""
    quorum = voter.quorum
    assert quorum is not None
    now, wall = clock.monotonic_ms(), clock.now()
    voters: list[ReplicaOfLog] = []
    observers: list[ReplicaOfLog] = []
    for progress in quorum.progress():
        replica = ReplicaOfLog(
            node_id=progress.id,
            log_end_offset=progress.log_end_index + 1,
            last_fetch_ms=_at(progress.last_contact_ms, now, wall),
            last_caught_up_ms=_at(progress.last_caught_up_ms, now, wall),
            directory_id=progress.directory_id,
        )
        (voters if progress.is_voter else observers).append(replica)
    for node_id, (index, asked_ms, caught_up_ms) in sorted(voter.observers.items()):
        observers.append(
            ReplicaOfLog(
                node_id=node_id,
                log_end_offset=index + 1,
                last_fetch_ms=_at(asked_ms, now, wall),
                last_caught_up_ms=_at(caught_up_ms, now, wall),
            )
        )
    return QuorumDescription(
        leader_id=quorum.node_id,
        leader_epoch=quorum.term,
        high_watermark=quorum.commit_index + 1,
        voters=tuple(voters),
        observers=tuple(observers),
        addresses=quorum.voters,
    )


def write_description(described: QuorumDescription) -> dict[str, Any]:
    """Encode a description for a link."""
    return {
        "leader": [described.leader_id, described.leader_epoch, described.high_watermark],
        "voters": [_plain(replica) for replica in described.voters],
        "observers": [_plain(replica) for replica in described.observers],
        "addresses": [[node_id, address] for node_id, address in sorted(described.addresses.items())],
    }


def _at(monotonic_ms: int, now: int, wall: int) -> int:
    return -1 if monotonic_ms < 0 else wall - (now - monotonic_ms)


def _plain(replica: ReplicaOfLog) -> list[Any]:
    numbers = [replica.node_id, replica.log_end_offset, replica.last_fetch_ms, replica.last_caught_up_ms]
    return [*numbers, *([] if replica.directory_id is None else [replica.directory_id])]


def read_description(body: dict[str, Any]) -> QuorumDescription:
    """Decode a description received over a link."""

    def replicas(plain: list[list[Any]]) -> tuple[ReplicaOfLog, ...]:
        return tuple(
            ReplicaOfLog(
                node_id=node,
                log_end_offset=end,
                last_fetch_ms=fetched,
                last_caught_up_ms=caught_up,
                directory_id=directory[0] if directory else None,
            )
            for node, end, fetched, caught_up, *directory in plain
        )

    leader_id, leader_epoch, high_watermark = body["leader"]
    return QuorumDescription(
        leader_id=leader_id,
        leader_epoch=leader_epoch,
        high_watermark=high_watermark,
        voters=replicas(body["voters"]),
        observers=replicas(body["observers"]),
        addresses=dict(map(tuple, body["addresses"])),
    )
