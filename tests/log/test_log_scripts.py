"""The scripts: what is done to a log, and what must come of it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
from log_model import NOW, batch, check_invariants, config, copies, open_log

from kraftpy.log.deletion import delete_old_segments
from kraftpy.log.epochs import UNDEFINED, EpochEnd
from kraftpy.log.partition_log import PartitionLog
from kraftpy.log.producer_states import Verification
from kraftpy.log.results import AppendResult, Origin
from kraftpy.protocol.errors import KafkaError
from kraftpy.protocol.record_batch import ControlType, encode_control_batch
from kraftpy.testing.memory_files import Loss, MemoryDisk
from kraftpy.types import Millis

SCRIPTS = sorted((Path(__file__).parent / "scripts").glob("*.script"))


def paragraphs(path: Path) -> Iterator[tuple[str, list[str], list[str]]]:
    """(comment, commands, expected lines) of each paragraph."""
    for paragraph in path.read_text().split("\n\n"):
        lines = paragraph.strip().splitlines()
        comment = " ".join(line.lstrip("# ") for line in lines if line.startswith("#"))
        rest = [line for line in lines if not line.startswith("#")]
        cut = rest.index("---")
        yield comment, rest[:cut], rest[cut + 1 :]


class Scripted:
    """A log that understands the scripts' commands; each returns its line, or None for silence."""

    def __init__(self) -> None:
        self.disk = MemoryDisk()
        self.now = int(NOW)
        self.leader_epoch = 0
        self.settings: dict[str, object] = {"segment_bytes": 600}
        self.log: PartitionLog = self.open()
        self.verifications: dict[tuple[int, int], Verification | None] = {}

    def open(self, **how: object) -> PartitionLog:
        self.disk.root.sync()
        return open_log(self.disk.root.child("t-0"), now=self.now, topic=config(**self.settings), **how)

    def do(self, line: str) -> str | None:
        command, *arguments = line.split()
        fields: dict[str, str] = dict(argument.split("=") for argument in arguments)
        action: Callable[..., str | None] = getattr(self, command)
        try:
            return action(
                **{key: int(value) if value.lstrip("-").isdigit() else value for key, value in fields.items()}
            )
        except KafkaError as error:
            return error.code.name

    @staticmethod
    def appended(result: AppendResult) -> str:
        return f"{'duplicate' if result.is_duplicate else 'appended'} {result.base_offset}-{result.last_offset}"

    def _batch(self, id: int, epoch: int, seq: int, count: int, txn: int = 0) -> bytes:  # noqa: A002
        return batch(
            *[b"v"] * count,
            timestamp=self.now,
            step_ms=0,
            producer_id=id,
            producer_epoch=epoch if id >= 0 else -1,
            base_sequence=seq,
            is_transactional=bool(txn),
        )

    def write(self, count: int, id: int = -1, epoch: int = -1, seq: int = -1, txn: int = 0) -> str | None:  # noqa: A002
        leader_epoch = max(self.leader_epoch, epoch) if id < 0 else self.leader_epoch
        data = self._batch(id, epoch, seq, count, txn)
        result = self.log.append(data, leader_epoch=leader_epoch, now=Millis(self.now))
        return self.appended(result) if id >= 0 else None

    def copy(self, count: int, id: int = -1, epoch: int = 0, seq: int = -1) -> str | None:  # noqa: A002
        leader_epoch = epoch if id < 0 else self.leader_epoch
        data = copies([(self.log.log_end_offset, self._batch(id, epoch, seq, count))], leader_epoch)
        result = self.log.append(data, leader_epoch=leader_epoch, now=Millis(self.now), origin=Origin.REPLICA)
        return self.appended(result) if id >= 0 else None

    def mark(
        self,
        id: int,  # noqa: A002
        epoch: int,
        type: str,  # noqa: A002
        coordinator: int,
        origin: Origin = Origin.COORDINATOR,
        raising: int = 0,
    ) -> str:
        data = encode_control_batch(
            ControlType[type.upper()],
            timestamp=self.now,
            producer_id=id,
            producer_epoch=epoch,
            coordinator_epoch=coordinator,
        )
        with self.log.producers.raising_epoch(id, epoch) if raising else nullcontext():
            appended = self.log.append(data, leader_epoch=self.leader_epoch, now=Millis(self.now), origin=origin)
        return self.appended(appended)

    def clientmark(self, **fields: object) -> str:
        return self.mark(**fields, origin=Origin.CLIENT)  # type: ignore[arg-type]

    def stable(self, hw: int | None = None) -> str:
        return f"stable {self.log.last_stable_offset(self.log.log_end_offset if hw is None else hw)}"

    def aborted(self, start: int, end: int) -> str:
        found = self.log.producers.aborted.between(max(start, self.log.log_start_offset), end)
        return " ".join(f"{each.producer_id}@{each.first_offset}" for each in found) or "-"

    def verify(self, id: int, epoch: int) -> str:  # noqa: A002
        """Do what the broker does before it asks the coordinator if a producer may write."""
        needed = self.verifications[id, epoch] = self.log.producers.verification(id, epoch)
        return "open already" if needed is None else "to be verified"

    def verified(self, id: int, epoch: int) -> str:  # noqa: A002
        """The coordinator said yes."""
        self.log.producers.check_verified(id, epoch, self.verifications.get((id, epoch)))
        return "may write"

    def confirm(self, id: int, epoch: int) -> None:  # noqa: A002
        """The coordinator said yes to offsets, which their group's coordinator stores later."""
        verification = self.verifications[id, epoch]
        assert verification is not None
        verification.is_confirmed = True

    def confirmed(self, id: int, epoch: int) -> str:  # noqa: A002
        """Check the confirmed producer at that later moment."""
        self.log.producers.check_confirmed(id, epoch)
        return "may write"

    def raised(self, id: int, epoch: int) -> str:  # noqa: A002
        """A marker of transactions v2 comes."""
        return "is here already" if self.log.producers.check_raised_epoch(id, epoch) else "to be written"

    def append(self, id: int, epoch: int) -> str:  # noqa: A002
        """A coordinator stores offsets in a transaction."""
        data = self._batch(id, epoch, -1, 1, 1)
        origin = Origin.COORDINATOR
        return self.appended(self.log.append(data, leader_epoch=self.leader_epoch, now=Millis(self.now), origin=origin))

    def expire(self) -> str:
        return "forgotten " + (" ".join(map(str, sorted(self.log.expire_producers(Millis(self.now))))) or "-")

    def reopen(self) -> None:
        self.log.close()
        self.log = self.open(clean=True, log_start_offset=self.log.log_start_offset)

    def crash(self) -> None:
        self.disk.crash(random.Random(0), Loss.NOTHING)
        self.log = self.open(recovery_point=self.log.recovery_point, log_start_offset=self.log.log_start_offset)

    def truncate(self, offset: int) -> str | None:
        before = self.log.log_end_offset
        self.log.truncate_to(offset)
        return f"end {self.log.log_end_offset}" if len(self.log.producers) and before > offset else None

    def deleterecords(self, offset: int) -> str | None:
        self.log.advance_log_start(offset)
        return f"start {self.log.log_start_offset}" if len(self.log.producers) else None

    def start(self) -> str:
        return f"start {self.log.log_start_offset}"

    def set(self, **settings: object) -> None:
        if (policy := settings.get("cleanup_policy")) is not None:
            settings["cleanup_policy"] = frozenset(str(policy).split(","))
        self.settings |= settings
        self.log.config = config(**self.settings)

    def writeat(self, ms: int, count: int) -> None:
        """Write what a producer stamps so much later."""
        data = batch(*[b"v"] * count, timestamp=self.now + ms)
        self.log.append(data, leader_epoch=self.leader_epoch, now=Millis(self.now))

    def roll(self) -> None:
        self.log.roll(Millis(self.now))

    def retain(self, hw: int) -> str:
        before = [segment.base_offset for segment in self.log.segments]
        delete_old_segments(self.log, Millis(self.now), hw)
        kept = {segment.base_offset for segment in self.log.segments}
        gone = " ".join(str(base) for base in before if base not in kept) or "-"
        return f"gone {gone}, start {self.log.log_start_offset}"

    def segments(self) -> str:
        return " ".join(str(segment.base_offset) for segment in self.log.segments)

    def sizes(self) -> str:
        return " ".join(str(segment.size) for segment in self.log.segments)

    def lead(self, epoch: int) -> None:
        self.leader_epoch = epoch
        self.log.assign_epoch(epoch)

    def entries(self) -> str:
        return " ".join(f"{epoch}@{start}" for epoch, start in self.log.epochs.entries())

    def end(self, epoch: int) -> str:
        found: EpochEnd = self.log.end_offset_for_epoch(epoch)
        return "undefined" if found == UNDEFINED else f"epoch {found.leader_epoch} ends {found.end_offset}"

    def epoch(self, offset: int) -> str:
        return str(self.log.epochs.epoch_of(offset))


# `pass` is a word of the language
setattr(Scripted, "pass", lambda self, ms: setattr(self, "now", self.now + ms))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_script(path: Path) -> None:
    scripted = Scripted()
    for comment, commands, expected in paragraphs(path):
        said = [line for command in commands if (line := scripted.do(command)) is not None]
        assert said == expected, comment
        check_invariants(scripted.log)
