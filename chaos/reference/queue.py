"""Share groups of the perfect Kafka: locks that expire, delivery counts, acknowledgements by the lock's holder."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from typing import Any

from chaos.generator import Call
from chaos.history import Key, Type
from chaos.reference.clients import Clients, Outcome
from chaos.reference.schedule import MS

LOCK_MS = 400
MOST = 10
"""The most records in one acquisition."""


@dataclass(slots=True)
class Delivery:
    """The state of a record in the group."""

    count: int = 0
    holder: int | None = None
    until: int = 0
    acknowledged: bool = False


@dataclass(slots=True)
class ShareGroup:
    """Records by place; all below `start` are acknowledged."""

    start: dict[Key, int] = field(default_factory=dict)
    records: dict[tuple[Key, int], Delivery] = field(default_factory=dict)


class QueueClients(Clients):
    """Clients that also acquire and acknowledge."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._group = ShareGroup()

    def _perform(self, process: int, call: Call, extra: dict[str, Any]) -> Generator[int, None, Outcome]:
        if call.f not in ("acquire", "acknowledge"):
            outcome = yield from super()._perform(process, call, extra)
            return outcome
        yield self._pause(3)
        dies = self._chance.random() < self._chances.death
        if call.f == "acquire":
            extra["lock_ms"] = LOCK_MS
            if dies and self._chance.random() < 0.5:
                return Type.INFO, call.value
            records = self._acquire(process)
            yield self._pause(3)
            return (Type.INFO, call.value) if dies else (Type.OK, {**call.value, "records": records})
        if dies:
            if self._chance.random() < 0.5:
                self.schedule.add(self._late(process, call.value["records"]), self._pause(50))
            return Type.INFO, call.value
        if self._chance.random() < self._chances.abort:
            yield LOCK_MS * MS  # too slow: its locks have expired
        if not self._acknowledge(process, call.value["records"]):
            return Type.FAIL, call.value
        return Type.OK, call.value

    def _acquire(self, process: int) -> list[list[Any]]:
        now, group = self.schedule.now, self._group
        found: list[list[Any]] = []
        for key in sorted(self.cluster.logs):
            records, _ = self.cluster.log(key).read(group.start.get(key, 0), 1 << 30)
            ended = True
            for offset, value in records:
                delivery = group.records.setdefault((key, offset), Delivery())
                if delivery.acknowledged:
                    if ended:
                        group.start[key] = offset + 1
                    continue
                ended = False
                if len(found) < MOST and (delivery.holder is None or delivery.until <= now):
                    delivery.count += 1
                    delivery.holder, delivery.until = process, now + LOCK_MS * MS
                    found.append([key, offset, value, delivery.count])
        return found

    def _acknowledge(self, process: int, records: list[list[Any]]) -> bool:
        """Acknowledge all or nothing: every lock must be held."""
        deliveries = [(self._group.records[key, offset], kind) for key, offset, kind in records]
        held = all(delivery.holder == process and delivery.until > self.schedule.now for delivery, _ in deliveries)
        for delivery, kind in deliveries if held else ():
            delivery.holder = None
            delivery.acknowledged = kind != "release"
        return held

    def _late(self, process: int, records: list[list[Any]]) -> Iterator[int]:
        self._acknowledge(process, records)
        yield 0
