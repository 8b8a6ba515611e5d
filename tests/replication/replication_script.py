"""Runs `*.script` files: the leader's and the follower's specification.

A script is paragraphs: comments (`#`), commands, `---`, and the results, a line for each effect or answer. A paragraph
lists all of its results.

Commands for a leader (broker 1; time starts at 1000):

    lead end= hw= replicas=1,2,3 isr=1,2,3 [min=1] [epoch=1] [pe=1] [recovering=1]
    brokers 1:11 2:12 ...                  who may be in an ISR, with broker epochs; 1:11 2:12 3:13 at first
    now MS | tick                          the clock moves | what is due happens
    append END
    fetch BROKER OFFSET [epoch=] [start=] [end=]
    asks BROKER                            a request for the same again, which is not passed on
    forgets BROKER                         it asks no more
    check BROKER [epoch=]
    changed [replicas=] [isr=] [epoch=] [pe=] [recovering=]      what is not said stays; pe goes up by one
    refused ERROR [pe=]
    min-isr N
    nearest RACK OFFSET                    racks: 1 in a, 2 in b, 3 in c, 4 in b
    low START
    state | progress | settled

Commands for a follower of broker 9, with a real log:

    log [start=] [hw=] COUNT@EPOCH ...     a log of such runs; COUNT 0: an epoch without records
    follow EPOCH                           a new leader epoch
    now MS | ask | failed ERROR
    answer [error=] [hw=] [start=] [records=FIRST-LAST@EPOCH,...] [diverging=EPOCH/END] [to=ask number]
    show
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from kraftpy.config.topic import TopicConfig
from kraftpy.log.partition_log import PartitionLog
from kraftpy.log.results import Origin
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.record_batch import encode_batch, stamp
from kraftpy.replication.events import (
    AdvanceHighWatermark,
    AdvanceLogStart,
    AppendRecords,
    BackOff,
    FollowerEffect,
    FollowerLeftIsr,
    HighWatermarkAdvanced,
    LeaderEffect,
    NeedsMetadata,
    ProposeIsr,
    StartOver,
    TruncateTo,
)
from kraftpy.replication.follower import DivergingEpoch, FetchAnswer, FetchPosition, Follower
from kraftpy.replication.leader import Leader, PartitionState
from kraftpy.testing.memory_files import MemoryDisk
from kraftpy.types import BrokerId, Millis

RACKS = {BrokerId(1): "a", BrokerId(2): "b", BrokerId(3): "c", BrokerId(4): "b"}


def paragraphs(path: Path) -> Iterator[tuple[str, list[str], list[str]]]:
    """(comment, commands, expected lines) of each paragraph."""
    for paragraph in path.read_text().strip().split("\n\n"):
        lines = paragraph.strip().splitlines()
        comment = " ".join(line.lstrip("# ") for line in lines if line.startswith("#"))
        rest = [line for line in lines if not line.startswith("#")]
        cut = rest.index("---") if "---" in rest else len(rest)
        yield comment, rest[:cut], rest[cut + 1 :]


def brokers_of(text: str) -> tuple[BrokerId, ...]:
    return tuple(BrokerId(int(part)) for part in text.split(",") if part)


def shown(brokers: Sequence[BrokerId] | frozenset[BrokerId]) -> str:
    return ",".join(map(str, sorted(brokers)))


@dataclass
class Fetching:
    """A follower's place in its session."""

    asked_at: Millis | None = None


class Scripted:
    """A leader or a follower that understands the commands."""

    def __init__(self) -> None:
        self.now = Millis(1000)
        self.brokers = {BrokerId(1): 11, BrokerId(2): 12, BrokerId(3): 13, BrokerId(4): 14}
        self.leader: Leader
        self.fetching: dict[BrokerId, Fetching] = defaultdict(Fetching)
        self.log: PartitionLog
        self.high_watermark = 0
        self.follower: Follower
        self.asked: list[FetchPosition] = []

    def do(self, line: str) -> list[str]:
        command, *words = line.split()
        named = dict(word.split("=", 1) for word in words if "=" in word)
        plain = [word for word in words if "=" not in word]
        action: Callable[..., list[str] | None] = getattr(self, "do_" + command.replace("-", "_"))
        try:
            return action(*plain, **named) or []
        except KafkaError as error:
            return [f"refused {error.code.name}"]

    def check_invariants(self) -> None:
        if hasattr(self, "leader"):
            state = self.leader.state
            assert set(state.isr) | {1} <= self.leader.maximal_isr <= set(state.replicas)
            assert self.leader.high_watermark <= self.leader.log_end_offset
            if self.leader.is_settled:
                assert not self.leader.tick(Millis(self.now + 1_000_000)), "a settled leader needs no tick"

    def do_now(self, ms: str) -> None:
        self.now = Millis(int(ms))

    # --- the leader ---

    def told(self, effects: Sequence[LeaderEffect]) -> list[str]:
        lines = []
        for effect in effects:
            match effect:
                case HighWatermarkAdvanced(offset=offset):
                    lines.append(f"high watermark {offset}")
                case ProposeIsr():
                    members = " ".join(f"{broker}:{epoch}" for broker, epoch in effect.isr)
                    recovering = " recovering" if effect.is_recovering else ""
                    lines.append(f"propose {members} in {effect.leader_epoch}/{effect.partition_epoch}{recovering}")
                case FollowerLeftIsr():
                    lines.append("a follower left")
        return lines

    def do_lead(self, **named: str) -> None:
        self.leader = Leader(
            broker_id=BrokerId(1),
            state=PartitionState(
                leader_epoch=int(named.get("epoch", 1)),
                partition_epoch=int(named.get("pe", 1)),
                replicas=brokers_of(named["replicas"]),
                isr=brokers_of(named["isr"]),
                is_recovering="recovering" in named,
            ),
            log_end_offset=int(named["end"]),
            high_watermark=int(named["hw"]),
            min_insync_replicas=int(named.get("min", 1)),
            lag_time_max_ms=30_000,
            brokers=self.brokers,
            now=self.now,
            synced_end_offset=int(named["synced"]) if "synced" in named else None,
        )

    def do_brokers(self, *words: str) -> list[str]:
        pairs = (word.split(":") for word in words)
        self.brokers = {BrokerId(int(broker)): int(epoch) for broker, epoch in pairs}
        return self.told(self.leader.brokers_changed(self.brokers, self.now)) if hasattr(self, "leader") else []

    def do_tick(self) -> list[str]:
        return self.told(self.leader.tick(self.now))

    def do_append(self, end: str) -> list[str]:
        return self.told(self.leader.appended(int(end), self.now))

    def do_synced(self, end: str) -> list[str]:
        return self.told(self.leader.synced(None if end == "all" else int(end), self.now))

    def do_fetch(
        self, broker: str, offset: str, *, epoch: str | None = None, start: str = "0", end: str | None = None
    ) -> list[str]:
        return self.told(
            self.leader.fetched(
                broker_id=BrokerId(int(broker)),
                broker_epoch=10 + int(broker) if epoch is None else int(epoch),
                fetch_offset=int(offset),
                log_start_offset=int(start),
                log_end_offset=self.leader.log_end_offset if end is None else int(end),
                now=self.now,
                fetching=self.fetching[BrokerId(int(broker))],
            )
        )

    def do_asks(self, broker: str) -> None:
        self.fetching[BrokerId(int(broker))].asked_at = self.now

    def do_forgets(self, broker: str) -> None:
        self.fetching[BrokerId(int(broker))].asked_at = None

    def do_check(self, broker: str, *, epoch: str | None = None) -> list[str]:
        self.leader.check_follower(BrokerId(int(broker)), 10 + int(broker) if epoch is None else int(epoch))
        return ["welcome"]

    def do_changed(self, **named: str) -> list[str]:
        old = self.leader.state
        state = PartitionState(
            leader_epoch=int(named.get("epoch", old.leader_epoch)),
            partition_epoch=int(named.get("pe", old.partition_epoch + 1)),
            replicas=brokers_of(named["replicas"]) if "replicas" in named else old.replicas,
            isr=brokers_of(named["isr"]) if "isr" in named else old.isr,
            is_recovering=named["recovering"] == "1" if "recovering" in named else old.is_recovering,
        )
        return self.told(self.leader.changed(state, self.now))

    def do_refused(self, error: str, *, pe: str | None = None) -> list[str]:
        epoch = None if pe is None else int(pe)
        return self.told(self.leader.proposal_refused(ErrorCode[error], self.now, partition_epoch=epoch))

    def do_min_insync_replicas(self, number: str) -> list[str]:
        return self.told(self.leader.min_insync_replicas_changed(int(number), self.now))

    def do_nearest(self, rack: str, offset: str) -> list[str]:
        found = self.leader.nearest(rack, RACKS, int(offset))
        return ["here" if found is None else f"broker {found}"]

    def do_low(self, start: str) -> list[str]:
        return [f"low watermark {self.leader.low_watermark(int(start))}"]

    def do_state(self) -> list[str]:
        leader = self.leader
        notes = [
            f"hw={leader.high_watermark} isr={shown(leader.state.isr)} maximal={shown(leader.maximal_isr)}",
            *(["under min ISR"] if leader.is_under_min_insync_replicas else []),
            *([] if leader.has_enough_acks else ["not enough acks"]),
            *([] if leader.retry_at is None else [f"retry at {leader.retry_at}"]),
        ]
        return [", ".join(notes)]

    def do_settled(self) -> list[str]:
        return ["settled" if self.leader.is_settled else "not settled"]

    def do_progress(self) -> list[str]:
        return [
            f"{found.broker_id}: [{found.log_start_offset}, {found.log_end_offset}) fetched at {found.last_fetch_at}, "
            f"caught up at {found.last_caught_up_at}{', in sync' if found.is_in_isr else ''}"
            for found in self.leader.progress()
        ]

    # --- the follower ---

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

    def do_log(self, *runs: str, start: str = "0", hw: str = "0") -> None:
        config = TopicConfig(segment_bytes=1 << 20)
        self.log = PartitionLog.open(MemoryDisk().root.child("t-0"), config, now=self.now, log_start_offset=int(start))
        self.high_watermark = int(hw)
        for run in runs:
            count, epoch = map(int, run.split("@"))
            self.log.assign_epoch(epoch)
            for _ in range(count):
                self.log.append(self._batch(1), leader_epoch=epoch, now=self.now)

    def _batch(self, count: int) -> bytes:
        return encode_batch([(self.now, b"k", b"v", ())] * count)

    def do_follow(self, epoch: str) -> None:
        self.follower = Follower(leader=BrokerId(9), leader_epoch=int(epoch), log=self)

    def do_ask(self) -> list[str]:
        asked = self.follower.next_fetch(self.now)
        if asked is None:
            return [f"nothing until {self.follower.retry_at}"]
        self.asked.append(asked)
        return [
            f"ask {len(self.asked)}: from {asked.offset} after epoch {asked.last_fetched_epoch} "
            f"in epoch {asked.leader_epoch}, log start {asked.log_start_offset}"
        ]

    def do_failed(self, error: str) -> list[str]:
        return self.followed(self.follower.failed(ErrorCode[error], self.now))

    def do_answer(
        self,
        *,
        error: str = "NONE",
        hw: str = "-1",
        start: str = "-1",
        records: str = "",
        diverging: str | None = None,
        to: str = "0",
    ) -> list[str]:
        batches = bytearray()
        for run in filter(None, records.split(",")):
            offsets, epoch = run.split("@")
            first, last = map(int, offsets.split("-"))
            batch = bytearray(self._batch(last - first + 1))
            stamp(batch, first, int(epoch))
            batches += batch
        parted = None if diverging is None else DivergingEpoch(*map(int, diverging.split("/")))
        answer = FetchAnswer(
            error=ErrorCode[error],
            high_watermark=int(hw),
            log_start_offset=int(start),
            records=bytes(batches),
            diverging_epoch=parted,
        )
        return self.followed(self.follower.answered(self.asked[int(to) - 1], answer, self.now))

    def followed(self, effects: list[FollowerEffect]) -> list[str]:
        """Carry them out, as a broker would."""
        lines = []
        log = self.log
        for effect in effects:
            match effect:
                case TruncateTo(offset=offset):
                    lines.append(f"truncate to {offset}")
                    log.truncate_to(offset)
                    self.high_watermark = min(self.high_watermark, log.log_end_offset)
                case StartOver(offset=offset):
                    lines.append(f"start over at {offset}")
                    log.truncate_fully_and_start_at(offset)
                    self.high_watermark = offset
                case AppendRecords(records=data, leader_epoch=epoch):
                    lines.append(f"append, of epoch {epoch} at most")
                    log.append(data, leader_epoch=epoch, now=self.now, origin=Origin.REPLICA)
                case AdvanceHighWatermark(offset=offset):
                    lines.append(f"high watermark {offset}")
                    self.high_watermark = max(self.high_watermark, min(offset, log.log_end_offset))
                case AdvanceLogStart(offset=offset):
                    lines.append(f"log start {offset}")
                    log.advance_log_start(min(offset, log.log_end_offset))
                case BackOff(reason=reason):
                    lines.append(f"back off: {reason.name}")
                case NeedsMetadata():
                    lines.append("needs metadata")
        return lines

    def do_show(self) -> list[str]:
        epochs = " ".join(f"{epoch}@{start}" for epoch, start in self.log.epochs.entries()) or "none"
        log = self.log
        return [f"[{log.log_start_offset}, {log.log_end_offset}) hw={self.high_watermark} epochs {epochs}"]
