"""Rule 8 on its own: the bug KAFKA-18723, with the logs of its three brokers. Random histories hit it too rarely."""

from __future__ import annotations

import pytest

from kraftpy.config.topic import TopicConfig
from kraftpy.log.partition_log import PartitionLog
from kraftpy.log.results import Origin
from kraftpy.protocol.record_batch import encode_batch
from kraftpy.replication.events import AppendRecords, TruncateTo
from kraftpy.replication.follower import DivergingEpoch, FetchAnswer, Follower
from kraftpy.testing.memory_files import MemoryDisk
from kraftpy.types import BrokerId, Millis

NOW = Millis(1_000)


class Copy:
    """A log as its follower sees it."""

    def __init__(self, *runs: tuple[int, int, bytes]) -> None:
        self.log = PartitionLog.open(MemoryDisk().root.child("t-0"), TopicConfig(), now=NOW)
        self.high_watermark = 0
        for count, epoch, value in runs:
            for _ in range(count):
                self.log.append(encode_batch([(NOW, None, value, ())]), leader_epoch=epoch, now=NOW)

    @property
    def log_start_offset(self) -> int:
        return self.log.log_start_offset

    @property
    def log_end_offset(self) -> int:
        return self.log.log_end_offset

    @property
    def latest_epoch(self) -> int:
        return self.log.epochs.latest

    def end_offset_for_epoch(self, leader_epoch: int) -> tuple[int, int]:
        return self.log.end_offset_for_epoch(leader_epoch)

    def bytes_from(self, offset: int) -> bytes:
        return self.log.read(offset, 1 << 20).records

    def follow(self, leader: Copy, epoch: int, answered_with: bytes | None = None, *, is_filtered: bool = True) -> None:
        """Fetch once from a leader of that epoch; `answered_with` is what came instead of its records."""
        follower = Follower(leader=BrokerId(9), leader_epoch=epoch, log=self)
        asked = follower.next_fetch(NOW)
        assert asked is not None
        end = DivergingEpoch(*leader.end_offset_for_epoch(asked.last_fetched_epoch))
        if answered_with is not None:
            answer = FetchAnswer(records=answered_with)
        elif end.leader_epoch < asked.last_fetched_epoch or end.end_offset < asked.offset:
            answer = FetchAnswer(diverging_epoch=end)
        else:
            answer = FetchAnswer(records=leader.bytes_from(asked.offset))
        for effect in follower.answered(asked, answer, NOW):
            if isinstance(effect, TruncateTo):
                self.log.truncate_to(effect.offset)
            elif isinstance(effect, AppendRecords):
                limit = effect.leader_epoch if is_filtered else -1
                self.log.append(effect.records, leader_epoch=limit, now=NOW, origin=Origin.REPLICA)


@pytest.mark.parametrize("is_filtered", [True, False])
def test_a_deposed_leader_sends_what_it_copied_from_its_successor(is_filtered: bool) -> None:
    deposed = Copy((10, 1, b"committed"), (3, 5, b"never committed"))
    late = Copy((10, 1, b"committed"), (3, 5, b"never committed"))  # in sync with the old leader, behind in metadata
    successor = Copy((10, 1, b"committed"), (6, 6, b"new"))
    # The old leader follows the new one while an answer to the late follower is still on its way out of the file.
    deposed.follow(successor, 6)
    deposed.follow(successor, 6)
    assert deposed.bytes_from(0) == successor.bytes_from(0)
    late.follow(deposed, 5, answered_with=deposed.bytes_from(13), is_filtered=is_filtered)
    # Now it hears of the new leader, too.
    for _ in range(3):
        late.follow(successor, 6)
    assert (late.bytes_from(0) == successor.bytes_from(0)) is is_filtered
