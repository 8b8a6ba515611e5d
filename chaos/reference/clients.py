"""Clients of the perfect Kafka: they carry out a workload's calls and record them.

A client may die at any step; its transaction then aborts when its timeout passes, its send may arrive or not, or late.
A transaction may be given up on purpose. After an operation that is not ok, the consumer returns to its position
before the operation.
"""

from __future__ import annotations

import random
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from typing import Any

from chaos.checkers.versions import descendant
from chaos.generator import Call, Calls, FinalPolls, GroupCalls, Idle, LogCalls, PipelineCalls, QueueCalls
from chaos.history import FAULT, HEAL, NEMESIS, Key, Op, Recorder, Type
from chaos.reference import audit
from chaos.reference.cluster import Cluster, Fate, Transaction
from chaos.reference.schedule import MS, SECOND, Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class Chances:
    """The chances that things go wrong for a client, by operation or by step."""

    death: float = 0.002
    abort: float = 0.02
    poll_records: int = 40
    leader_change_every: int = 5 * SECOND


@dataclass(slots=True)
class Consumer:
    """The state of one process."""

    positions: dict[Key, int] = field(default_factory=dict)
    group: str | None = None
    subscribed: list[Key] = field(default_factory=list)
    generation: int = 0


AUDITOR = 1_000_000
"""The process that looks at nodes."""

Outcome = tuple[Type, Any]
"""How an operation ended, and its value."""


class Clients:
    """`count` clients, each of which works through the calls, one at a time."""

    def __init__(
        self, seed: int, calls: Calls, count: int, *, transactions: bool = False, chances: Chances | None = None
    ) -> None:
        self.ops: list[Op] = []
        self.cluster = Cluster()
        self.schedule = Schedule()
        self.recorder = Recorder(self.ops.append)
        self._chance = random.Random(seed)
        self._calls = calls
        self._count = count
        self._transactions = transactions
        self._chances = chances or Chances()
        self._consumers: dict[int, Consumer] = {}
        self._attempts = 0
        self._cut_off: dict[Key, int] = {}
        """Keys without a leader, and until when."""

    def run(self, operations: int, finally_: bool = True) -> list[Op]:
        """Work until the history has this many lines; then, if asked to, read what is left and look at every
        replica."""
        self.schedule.add(self._audit(operations), SECOND)
        processes = self._work(self._calls, list(range(self._count)), operations)
        if finally_:
            self._chances = Chances(death=0, abort=0, poll_records=500)
            if isinstance(self._calls, Idle):
                self._calls.stop_sending()
                processes = self._work(self._calls, processes, None)
                self._note_drained(self._calls)
            if isinstance(self._calls, (LogCalls, PipelineCalls)):
                self._work(FinalPolls(self._highest(), processes), processes, None)
            self._last_audit()
        return self.ops

    def _note_drained(self, calls: Idle) -> None:
        if isinstance(calls, (GroupCalls, QueueCalls)):
            value = {"group": calls.group, "keys": calls.keys}
            self.recorder.note(self.schedule.now, "workload", "drained", value)

    def _audit(self, limit: int) -> Iterator[int]:
        """Ask one node from time to time for the watermarks of a partition."""
        while len(self.ops) < limit:
            if self.cluster.logs:
                key = self._chance.choice(sorted(self.cluster.logs))
                node = self._chance.choice(audit.NODES)
                self.recorder.invoke(self.schedule.now, AUDITOR, "watermarks", {"node": node, "key": key})
                value = audit.watermarks(key, self.cluster.log(key), node)
                yield self._pause(2)
                self.recorder.complete(self.schedule.now, AUDITOR, Type.OK, value)
            yield self._pause(50)

    def _last_audit(self) -> None:
        now = self.schedule.now
        for key, log in sorted(self.cluster.logs.items()):
            for node in audit.NODES:
                for f, look in (("watermarks", audit.watermarks), ("replica", audit.replica)):
                    self.recorder.invoke(now, AUDITOR, f, {"node": node, "key": key}, final=True)
                    self.recorder.complete(now, AUDITOR, Type.OK, look(key, log, node), final=True)

    def _highest(self) -> dict[Key, int]:
        """Return the offset of the last readable record, by key."""
        ends = {}
        for key, log in sorted(self.cluster.logs.items()):
            found, _ = log.read(0, len(log.records))
            if found:
                ends[key] = found[-1][0]
        return ends

    def _work(self, calls: Calls, processes: list[int], operations: int | None) -> list[int]:
        ended: list[int] = []
        limit = None if operations is None else operations
        for process in processes:
            self.schedule.add(self._client(calls, process, limit, ended), self._chance.randrange(5 * MS))
        if operations is not None:
            self.schedule.add(self._leaders(operations), self._chances.leader_change_every)
        self.schedule.run()
        return sorted(ended)

    def _client(self, calls: Calls, process: int, limit: int | None, ended: list[int]) -> Iterator[int]:
        while limit is None or len(self.ops) < limit:
            call = calls.call(process)
            if call is None:
                break
            self.recorder.invoke(self.schedule.now, process, call.f, call.value, **call.extra)
            extra: dict[str, Any] = dict(call.extra)
            kind, value = yield from self._perform(process, call, extra)
            yield self._pause(1)
            op = self.recorder.complete(self.schedule.now, process, kind, value, **extra)
            calls.observe(op)
            if kind is Type.INFO:
                self._bury(process)
                process += self._count
            yield self._pause(5)
        ended.append(process)

    def _pause(self, most_ms: int) -> int:
        return self._chance.randrange(1, most_ms * MS)

    def _bury(self, process: int) -> None:
        """Let the group notice the death of a member once its session expires."""
        consumer = self._consumers.pop(process, None)
        if consumer is not None and consumer.group is not None:
            self.schedule.add(self._leave(consumer.group, f"m{process}"), SECOND)

    def _leave(self, group: str, member: str) -> Iterator[int]:
        self.cluster.group(group).leave(member)
        yield 0

    def _leaders(self, limit: int) -> Iterator[int]:
        number = 0
        while len(self.ops) < limit:
            keys = sorted(self.cluster.logs)
            chosen = self._chance.sample(keys, k=max(1, len(keys) // 3)) if keys else []
            outage = self._chance.randrange(300 * MS, 1500 * MS)
            kind = self._chance.choice(["kill", "pause", "partition"])
            nodes = [1 + number % 3]
            fault = {"id": number, "kind": kind, "target": "any leader", "nodes": nodes, "keys": chosen}
            self.recorder.note(self.schedule.now, NEMESIS, FAULT, fault)
            for key in chosen:
                self._cut_off[key] = self.schedule.now + outage
            yield outage
            for key in chosen:
                self.cluster.log(key).new_leader()
            self.recorder.note(self.schedule.now, NEMESIS, HEAL, {"id": number})
            number += 1
            yield self._chances.leader_change_every

    # The requests.

    def _perform(self, process: int, call: Call, extra: dict[str, Any]) -> Generator[int, None, Outcome]:
        consumer = self._consumers.setdefault(process, Consumer())
        yield self._pause(3)
        match call.f:
            case "crash":
                return Type.INFO, None
            case "assign":
                kept = {} if call.extra.get("seek_to_beginning") else consumer.positions
                consumer.positions = {key: kept.get(key, 0) for key in call.value}
                return Type.OK, call.value
            case "subscribe":
                consumer.group = call.extra.get("group", "group")
                consumer.subscribed = list(call.value)
                self.cluster.group(consumer.group).join(f"m{process}", consumer.subscribed)
                return Type.OK, call.value
            case "commit":
                return self._commit(process, consumer, call)
            case "committed":
                committed = self.cluster.group(call.value["group"]).committed
                offsets = {key: committed.get(key) for key in call.value["keys"]}
                return Type.OK, {"group": call.value["group"], "offsets": offsets}
            case _:
                outcome = yield from self._micro_operations(process, consumer, call, extra)
                return outcome

    def _commit(self, process: int, consumer: Consumer, call: Call) -> Outcome:
        group = self.cluster.group(call.value["group"])
        value = {**call.value, "generation": consumer.generation, "member": f"m{process}"}
        if self._chance.random() < self._chances.death:
            if self._chance.random() < 0.5 and consumer.generation == group.generation:
                group.committed.update(call.value["offsets"])
            return Type.INFO, value
        if consumer.generation != group.generation:
            self._rewind_to_committed(consumer)
            return Type.FAIL, value
        group.committed.update(call.value["offsets"])
        return Type.OK, value

    def _rewind_to_committed(self, consumer: Consumer) -> None:
        assert consumer.group is not None
        committed = self.cluster.group(consumer.group).committed
        consumer.positions = {key: committed.get(key, 0) for key in consumer.positions}

    def _micro_operations(
        self, process: int, consumer: Consumer, call: Call, extra: dict[str, Any]
    ) -> Generator[int, None, Outcome]:
        transaction = Transaction() if self._transactions or call.f == "process" else None
        before = dict(consumer.positions)
        done: list[Any] = []
        steps = list(call.value)
        while len(done) < len(steps):
            micro = steps[len(done)]
            if self._chance.random() < self._chances.death:
                return self._die(transaction, done, steps)
            if micro[0] == "poll":
                records = self._poll(process, consumer, extra)
                done.append(["poll", records])
                if call.f == "process":
                    steps += self._descendants(process, records, call.extra["output"])
            else:
                yield from self._leader_of(micro[1])
                offset = self.cluster.send(micro[1], micro[2], transaction)
                done.append(["send", micro[1], [offset, micro[2]]])
            yield self._pause(3)
        if transaction is not None:
            extra["commit_asked"] = self.schedule.now
        return self._finish(process, consumer, transaction, before, done)

    def _leader_of(self, key: Key) -> Iterator[int]:
        """Wait for a leader before a send."""
        wait = self._cut_off.get(key, 0) - self.schedule.now
        if wait > 0:
            yield wait + self._pause(20)

    def _descendants(self, process: int, records: dict[Key, list[Any]], output: Key) -> list[Any]:
        self._attempts += 1
        attempt = f"{process}.{self._attempts}"
        return [["send", output, descendant(key, o, attempt)] for key, pairs in records.items() for o, _ in pairs]

    def _poll(self, process: int, consumer: Consumer, extra: dict[str, Any]) -> dict[Key, list[Any]]:
        if consumer.group is not None:
            self._notice_rebalance(process, consumer, extra)
        records: dict[Key, list[Any]] = {}
        room = self._chances.poll_records
        for key in sorted(consumer.positions, key=lambda key: self._chance.random()):
            found, position = self.cluster.log(key).read(consumer.positions[key], room)
            consumer.positions[key] = position
            room -= len(found)
            if found:
                records[key] = [list(pair) for pair in found]
        return records

    def _notice_rebalance(self, process: int, consumer: Consumer, extra: dict[str, Any]) -> None:
        assert consumer.group is not None
        group = self.cluster.group(consumer.group)
        if consumer.generation == group.generation:
            return
        member = f"m{process}"
        keys = group.assigned[member]
        extra.setdefault("rebalance_log", []).append({"keys": sorted({*consumer.positions, *keys})})
        consumer.generation = group.generation
        consumer.positions = {key: group.committed.get(key, 0) for key in keys}
        value = {"group": consumer.group, "generation": group.generation, "member": member, "partitions": list(keys)}
        self.recorder.note(self.schedule.now, member, "assigned", value)

    def _die(self, transaction: Transaction | None, done: list[Any], steps: list[Any]) -> Outcome:
        pending = steps[len(done)]
        if transaction is not None:
            self.schedule.add(self._abort(transaction), SECOND)
        elif pending[0] == "send" and self._chance.random() < 0.5:
            self.schedule.add(self._arrive_late(pending), self._pause(500))
        return Type.INFO, done + steps[len(done) :]

    def _abort(self, transaction: Transaction) -> Iterator[int]:
        self.cluster.end(transaction, Fate.ABORTED)
        yield 0

    def _arrive_late(self, micro: list[Any]) -> Iterator[int]:
        self.cluster.send(micro[1], micro[2], None)
        yield 0

    def _finish(
        self, process: int, consumer: Consumer, transaction: Transaction | None, before: dict[Key, int], done: list[Any]
    ) -> Outcome:
        group = self.cluster.group(consumer.group) if consumer.group is not None else None
        if transaction is None:
            return Type.OK, done
        fenced = group is not None and consumer.generation != group.generation and _polled(done)
        if fenced or self._chance.random() < self._chances.abort:
            self.cluster.end(transaction, Fate.ABORTED)
            consumer.positions = before if not fenced else consumer.positions
            if fenced:
                consumer.generation = -1  # its partitions are assigned again before it polls
            elif group is not None:
                self._rewind_to_committed(consumer)
            return Type.FAIL, done
        dies = self._chance.random() < self._chances.death
        if dies and self._chance.random() < 0.5:
            self.schedule.add(self._abort(transaction), SECOND)
            return Type.INFO, done
        self.cluster.end(transaction, Fate.COMMITTED)
        if group is not None and consumer.generation == group.generation:
            group.committed.update(consumer.positions)
        return (Type.INFO if dies else Type.OK), done


def _polled(done: list[Any]) -> bool:
    return any(micro[0] == "poll" for micro in done)


__all__ = ["Chances", "Clients"]
