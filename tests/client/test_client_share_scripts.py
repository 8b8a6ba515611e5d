"""The client's side of share groups (KIP-932), as scripts tell it: membership, and a session with one broker."""

from __future__ import annotations

from dataclasses import fields
from itertools import pairwise
from pathlib import Path

import pytest
from client_script import Words, run_script
from hypothesis import given
from hypothesis import strategies as st

from kraftpy.client.model import AcknowledgeType
from kraftpy.client.share import membership as m
from kraftpy.client.share.reading import acquired_offsets, acquired_records
from kraftpy.client.share.session import GAP, AcknowledgementRun, Outcome, ShareRequest, ShareSession, runs
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages.share_fetch import AcquiredRecords
from kraftpy.protocol.record_batch import ControlType, CorruptBatch, encode_batch, encode_control_batch
from kraftpy.types import TopicPartition

HERE = Path(__file__).parent
T0 = TopicPartition("t", 0)


def partitions(text: str) -> tuple[TopicPartition, ...]:
    """`t-0,t-1`, or `none`."""
    found = []
    for item in text.split(",") if text not in ("", "none") else []:
        topic, _, index = item.rpartition("-")
        found.append(TopicPartition(topic, int(index)))
    return tuple(found)


class Membership:
    """One member. The clock stays at the last `now`; an answer is to the last heartbeat."""

    def __init__(self) -> None:
        self.machine = m.ShareMembership()
        self.now = 0.0
        self.last = 0

    def run(self, name: str, words: Words) -> list[str]:
        self.now = float(words.pop("now", self.now))
        machine = self.machine
        if name == "member":
            self.machine = m.ShareMembership()
            return []
        if name == "state":
            return [f"{machine.state.value} epoch={machine.member_epoch} deadline={machine.deadline_ms}"]
        before = machine.state
        effects = machine.step(self.event(name, words), self.now)
        assert machine.state is before or machine.state in m.FOLLOWS[before]
        lines = []
        for effect in effects:
            if isinstance(effect, m.SendHeartbeat):
                self.last = effect.number
            told = " ".join(
                f"{field.name}={self.shown(getattr(effect, field.name))}"
                for field in fields(effect)
                if field.name != "number"
            )
            lines.append(f"-> {type(effect).__name__} {told}".rstrip())
        return lines

    def shown(self, value: object) -> str:
        return ",".join(map(str, value)) or "none" if isinstance(value, tuple) else str(value)

    def event(self, name: str, words: Words) -> m.Event:
        match name:
            case "subscribe":
                return m.Subscribe(topics=tuple(filter(None, words.get("topics", "").split(","))))
            case "tick":
                return m.Tick()
            case "close":
                return m.Close()
            case "answer":
                return m.Answered(
                    number=int(words.get("to", self.last)),
                    error=ErrorCode[words.get("error", "NONE")],
                    member_epoch=int(words.get("epoch", "0")),
                    heartbeat_interval_ms=float(words.get("interval", "0")),
                    assignment=partitions(words["has"]) if "has" in words else None,
                )
        raise AssertionError(f"no such command: {name}")


class Session:
    """One session. Offsets are of partition t-0 unless said otherwise."""

    def __init__(self) -> None:
        self.session = ShareSession()
        self.now = 0.0

    def run(self, name: str, words: Words) -> list[str]:
        self.now = float(words.pop("now", self.now))
        session = self.session
        where = partitions(words.get("of", "t-0"))[0]
        match name:
            case "session":
                self.session = ShareSession()
            case "fetch":
                return self.request(session.fetch(partitions(words["of"])))
            case "acknowledge":
                return self.request(session.acknowledge_now())
            case "close":
                return self.request(session.close())
            case "acquired":
                session.acquired(where, self.offsets(words))
            case "say":
                kind = GAP if words["is"] == "GAP" else AcknowledgeType[words["is"]]
                told = [session.acknowledge(where, offset, kind, self.now) for offset in self.offsets(words)]
                return self.outcomes([outcome for outcome in told if outcome])
            case "release":
                session.release_held(self.now)
            case "answer":
                errors = {where: ErrorCode[words["error"]]} if "error" in words else {}
                return self.outcomes(session.answered(errors))
            case "lost":
                return self.outcomes(session.ended(ErrorCode[words["error"]]))
            case "state":
                held = {str(name): sorted(offsets) for name, offsets in session.held.items() if offsets}
                return [
                    f"epoch={session.epoch} busy={session.is_busy} over={session.is_over} held={held} "
                    f"unsettled={session.awaits_outcomes} since={session.pending_since_ms}"
                ]
            case _:
                raise AssertionError(f"no such command: {name}")
        return []

    @staticmethod
    def offsets(words: Words) -> list[int]:
        found: list[int] = []
        for item in words["at"].split(","):
            first, _, last = item.partition("..")
            found += range(int(first), int(last or first) + 1)
        return found

    @staticmethod
    def request(request: ShareRequest | None) -> list[str]:
        if request is None:
            return ["nothing"]
        said = [
            f" {name}:" + ",".join(f"{run.first_offset}..{run.last_offset}={run.type}" for run in found)
            for name, found in request.acknowledgements.items()
        ]
        added, forgotten = (",".join(map(str, names)) or "none" for names in (request.added, request.forgotten))
        renews = " renews" if request.is_renew else ""
        return [f"-> epoch={request.session_epoch} added={added} forgotten={forgotten}{renews}{''.join(said)}"]

    @staticmethod
    def outcomes(outcomes: list[Outcome]) -> list[str]:
        return [f"{name} {','.join(map(str, offsets))}: {error.name}" for name, offsets, error in outcomes]


def test_membership() -> None:
    run_script(HERE / "share_membership.script", Membership().run)


def test_a_session() -> None:
    run_script(HERE / "share_session.script", Session().run)


@given(st.dictionaries(st.integers(0, 40), st.sampled_from([0, 1, 2, 3, 4])))
def test_runs_say_of_each_offset_what_was_said_and_nothing_else(kinds: dict[int, int]) -> None:
    found = runs(kinds)
    assert {offset: run.type for run in found for offset in range(run.first_offset, run.last_offset + 1)} == kinds
    assert list(found) == sorted(found)
    assert all(a.last_offset + 1 < b.first_offset or a.type != b.type for a, b in pairwise(found))


# --- records ----------------------------------------------------------------------------------------------------------


def batch(base_offset: int, count: int) -> bytes:
    records = [(1000 + n, None, b"%d" % (base_offset + n), ()) for n in range(count)]
    return encode_batch(records, base_offset=base_offset, leader_epoch=3)


def acquired(*ranges: tuple[int, int, int]) -> list[AcquiredRecords]:
    return [AcquiredRecords(first_offset=first, last_offset=last, delivery_count=n) for first, last, n in ranges]


def test_only_what_was_acquired_is_handed_out_however_it_lies_in_its_batches() -> None:
    marker = encode_control_batch(
        ControlType.COMMIT, timestamp=1, producer_id=7, producer_epoch=0, coordinator_epoch=0, base_offset=20
    )
    data = batch(0, 10) + batch(10, 10) + marker + batch(30, 5)
    ranges = acquired((31, 31, 1), (2, 3, 2), (8, 11, 1), (19, 21, 5), (34, 39, 1))
    records = acquired_records(T0, data, ranges, check_crcs=True)
    assert [(record.offset, record.delivery_count) for record in records] == [
        (2, 2),
        (3, 2),
        (8, 1),
        (9, 1),
        (10, 1),
        (11, 1),
        (19, 5),
        (31, 1),
        (34, 1),
    ]
    assert [record.value for record in records[:2]] == [b"2", b"3"]
    assert (records[0].topic, records[0].partition, records[0].timestamp_ms, records[0].leader_epoch) == (
        "t",
        0,
        1002,
        3,
    )
    assert acquired_offsets(ranges) == [2, 3, 8, 9, 10, 11, 19, 20, 21, 31, *range(34, 40)]


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 8)), max_size=6), st.randoms())
def test_no_record_is_lost_or_made_up(places: list[tuple[int, int]], random: object) -> None:
    ranges, after = [], 0
    for gap, length in places:  # in order, and never the same offset twice
        ranges.append((after + gap, after + gap + length, 1))
        after += gap + length + 1
    random.shuffle(ranges)  # type: ignore[attr-defined]
    data = b"".join(batch(base, 7) for base in range(0, after + 7, 9))  # two offsets missing after each batch
    found = [record.offset for record in acquired_records(T0, data, acquired(*ranges), check_crcs=False)]
    wanted = [offset for offset in acquired_offsets(acquired(*ranges)) if offset % 9 < 7]
    assert found == wanted


def test_a_batch_with_a_wrong_checksum_is_not_read() -> None:
    data = bytearray(batch(0, 3))
    data[-1] ^= 1
    with pytest.raises(CorruptBatch):
        acquired_records(T0, bytes(data), acquired((0, 2, 1)), check_crcs=True)


def test_what_is_acknowledged_travels_with_its_numbers() -> None:
    assert runs({3: AcknowledgeType.ACCEPT, 4: AcknowledgeType.ACCEPT, 5: GAP}) == (
        AcknowledgementRun(3, 4, 1),
        AcknowledgementRun(5, 5, 0),
    )
