"""The cleaner's choice of a log: the dirtiest of those that are due (rule 39), and none that it may not clean."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from kraftpy.broker.containment import Complaints, Incidents
from kraftpy.broker.upkeep.cleaner import Cleaner
from kraftpy.config import BrokerConfig
from kraftpy.config.topic import TopicConfig
from kraftpy.log.compaction import Dirtiness
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.types import Millis


@dataclass(eq=False)
class Log:
    config: TopicConfig = field(default_factory=lambda: TopicConfig(cleanup_policy=frozenset({"compact"})))
    is_closed: bool = False


@dataclass(eq=False)
class Partition:
    """A replica as the cleaner sees it."""

    ratio: float
    is_due: bool = True
    error: Exception | None = None
    log: Log = field(default_factory=Log)
    is_truncating: bool = False
    topic_partition: str = "t-0"
    told: list[OSError] = field(default_factory=list)

    @property
    def operations(self) -> Partition:
        return self

    @property
    def errors(self) -> Partition:
        return self

    def dirtiness(self, now: Millis) -> Dirtiness:
        if self.error is not None:
            raise self.error
        return Dirtiness(self.ratio, self.is_due, 0, (), 0)

    def failed(self, what: str, error: OSError) -> None:
        assert what == "compact"
        self.told.append(error)


class Clock:
    def now(self) -> Millis:
        return Millis(0)


def choose(partitions: list[Partition]) -> tuple[Partition | None, Cleaner]:
    manager: Any = SimpleNamespace(replicas=partitions)
    clock: Any = Clock()
    cleaner = Cleaner(manager, clock, BrokerConfig(), Incidents(Complaints()))
    found: Any = asyncio.run(cleaner._dirtiest())
    return found, cleaner


def test_the_dirtiest_of_those_that_are_due() -> None:
    partitions = [Partition(0.6), Partition(0.9), Partition(0.99, is_due=False), Partition(0.7)]
    assert choose(partitions)[0] is partitions[1]
    assert choose([Partition(0.9, is_due=False)])[0] is None
    assert choose([])[0] is None


def test_not_one_that_is_closed_cut_or_not_compacted() -> None:
    plain = Partition(0.9, log=Log(TopicConfig()))
    assert choose([plain, Partition(0.9, log=Log(is_closed=True)), Partition(0.9, is_truncating=True)])[0] is None


def test_one_that_cannot_be_looked_at_costs_itself(caplog: pytest.LogCaptureFixture) -> None:
    damaged = Partition(0.9, error=KafkaError(ErrorCode.CORRUPT_MESSAGE, "no batch"), topic_partition="damaged-0")
    failing = Partition(0.9, error=OSError(5, "Input/output error"))
    sound = Partition(0.1)
    found, cleaner = choose([damaged, failing, sound])
    assert found is sound
    assert len(failing.told) == 1, "the disk's failure is the replica's to tell"
    assert asyncio.run(cleaner._dirtiest()) is sound
    assert len(failing.told) == 1, "not again before a pause"
    assert [record.message for record in caplog.records if "damaged-0" in record.message] == [
        "damaged-0 cannot be compacted and is left as it is: CORRUPT_MESSAGE: no batch"
    ]
