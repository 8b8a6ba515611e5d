"""Histories: what clients asked for and how it ended, one JSON object per line.

An operation is an invocation (`invoke`) or its completion: `ok` (it happened), `fail` (it did not and will not),
`info` (unknown: it may have happened, or happen later). A line holds

    index     its place in the history
    time      nanoseconds since the run began
    process   a client: one producer and one consumer with one invocation at a time; or the name of a bystander,
              such as "nemesis", whose operations are all `info` and stand alone
    type      invoke, ok, fail, info
    f         what was asked: send, poll, txn, assign, subscribe, commit, create-topic, ...
    value     its arguments in an invocation; arguments and results in a completion

and, where there is more to say, further fields (`error`, `rebalance_log`, `node`, ...), which are `extra` here.

The value of send, poll and txn is a list of micro-operations, as in Jepsen's Kafka workload:

    ["send", key, value]      completed as  ["send", key, [offset or null, value]]
    ["poll"]                  completed as  ["poll", {key: [[offset, value], ...], ...}]

A key is one partition of one topic, "orders-3"; a value is a number or a string and never sent twice to a key.

Invariants: indexes and times never fall; a process has one invocation open; after an `info` it is gone and its client
continues under a new number; an invocation that was never completed counts as `info` with its arguments (`History`).
This module uses neither clocks nor randomness.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, TextIO

Process = int | str
Key = str
Value = int | str

NEMESIS = "nemesis"
FAULT = "fault"
"""The nemesis started a fault; the value is `chaos.nemesis.Fault` as data."""
HEAL = "heal"
"""The nemesis ended the fault with the same id."""


class Type(StrEnum):
    """The end of an operation."""

    INVOKE = "invoke"  # invoked
    OK = "ok"  # it happened
    FAIL = "fail"  # it did not, and never will
    INFO = "info"  # unknown, perhaps forever


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """One line of a history."""

    index: int
    time: int
    process: Process
    type: Type
    f: str
    value: Any = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_client(self) -> bool:
        """Return True if it belongs to a client, not to the nemesis or another bystander."""
        return isinstance(self.process, int)

    def rebalanced_keys(self) -> frozenset[Key]:
        """Return the keys that a rebalance assigned or revoked while the operation ran."""
        log = self.extra.get("rebalance_log") or ()
        return frozenset(key for event in log for key in event["keys"])


class BadHistory(Exception):
    """An impossible history: the line (or index) and the reason."""


_OWN_FIELDS = ("index", "time", "process", "type", "f", "value")
_TYPES = {str(kind): kind for kind in Type}


def value_of(data: bytes | memoryview | None) -> Value | None:
    """Return a record's value as histories hold it: a number if it is decimal, otherwise text."""
    text = None if data is None else bytes(data).decode(errors="replace")
    return int(text) if text is not None and text.isdecimal() else text


def to_line(op: Op) -> str:
    """Return the operation as one line of JSON, without the line's end."""
    fields: dict[str, Any] = {
        "index": op.index,
        "time": op.time,
        "process": op.process,
        "type": str(op.type),
        "f": op.f,
        "value": op.value,
    }
    for name, what in op.extra.items():
        if name in fields:
            raise BadHistory(f"operation {op.index}: {name!r} is a field of its own")
        fields[name] = what
    return json.dumps(fields, separators=(",", ":"), ensure_ascii=False)


def from_fields(fields: dict[str, Any]) -> Op:
    """Build the operation that a line's object describes."""
    try:
        kind = _TYPES[fields["type"]]
        op = Op(
            index=fields["index"],
            time=fields["time"],
            process=fields["process"],
            type=kind,
            f=fields["f"],
            value=fields.get("value"),
            extra={name: what for name, what in fields.items() if name not in _OWN_FIELDS},
        )
    except (KeyError, TypeError, AttributeError) as missing:
        raise BadHistory(f"no operation: {missing!r} in {fields!r}") from missing
    shaped: list[tuple[object, type | tuple[type, ...]]] = [(op.index, int), (op.time, int), (op.process, (int, str))]
    if not all(isinstance(what, kind) for what, kind in shaped):
        raise BadHistory(f"no operation: index, time and process of {fields!r}")
    return op


def read(lines: Iterable[str]) -> list[Op]:
    """Read the operations of a file. A last line without its end was being written when the run died, and is left
    out."""
    ops: list[Op] = []
    for number, line in enumerate(lines, 1):
        if not line.endswith("\n"):
            try:
                json.loads(line)
            except ValueError:
                break
        if not line.strip():
            continue
        try:
            fields = json.loads(line)
        except ValueError as error:
            raise BadHistory(f"line {number}: {error}") from error
        ops.append(from_fields(fields))
    return ops


class Recorder:
    """Gives operations their index, checks that processes behave, and hands each operation on as it happens."""

    def __init__(self, emit: Callable[[Op], None]) -> None:
        self._emit = emit
        self._next_index = 0
        self._time = 0
        self._open: dict[int, Op] = {}
        self._gone: set[int] = set()

    def invoke(self, time: int, process: int, f: str, value: Any = None, **extra: Any) -> Op:
        """Record a client's request."""
        if process in self._open:
            raise BadHistory(f"process {process} waits for {self._open[process].f}")
        if process in self._gone:
            raise BadHistory(f"process {process} ended with an info")
        op = self._record(time, process, Type.INVOKE, f, value, extra)
        self._open[process] = op
        return op

    def complete(self, time: int, process: int, kind: Type, value: Any = None, **extra: Any) -> Op:
        """Record the completion of the process's invocation."""
        if process not in self._open or kind is Type.INVOKE:
            raise BadHistory(f"process {process} waits for nothing")
        op = self._record(time, process, kind, self._open[process].f, value, extra)
        del self._open[process]
        if kind is Type.INFO:
            self._gone.add(process)
        return op

    def note(self, time: int, process: str, f: str, value: Any = None, **extra: Any) -> Op:
        """Record what a bystander did."""
        return self._record(time, process, Type.INFO, f, value, extra)

    def _record(self, time: int, process: Process, kind: Type, f: str, value: Any, extra: Mapping[str, Any]) -> Op:
        if time < self._time:
            raise BadHistory(f"time {time} after {self._time}")
        op = Op(index=self._next_index, time=time, process=process, type=kind, f=f, value=value, extra=extra)
        self._emit(op)
        self._next_index += 1
        self._time = time
        return op


class HistoryWriter(Recorder):
    """Writes operations as they happen: each is one flushed line before the call returns. `seen` is then called with
    it."""

    def __init__(self, sink: TextIO, seen: Callable[[Op], None] | None = None) -> None:
        def write(op: Op) -> None:
            sink.write(to_line(op) + "\n")
            sink.flush()
            if seen is not None:
                seen(op)

        super().__init__(write)


class History:
    """Operations in order, with each completion's invocation.

    `completions` are those of clients, the unfinished ones as `info` at the end (their index is past the last line's).
    """

    def __init__(self, ops: Iterable[Op]) -> None:
        self.ops = list(ops)
        self.completions: list[Op] = []
        self._invocations: dict[int, Op] = {}
        self._completed_as: dict[int, Op] = {}
        self._pair()

    def _pair(self) -> None:
        waiting: dict[Process, Op] = {}
        last: Op | None = None
        for op in self.ops:
            if last is not None and (op.index <= last.index or op.time < last.time):
                raise BadHistory(f"operation {op.index} comes before {last.index}, which stands before it")
            last = op
            if not op.is_client:
                continue
            if op.type is Type.INVOKE:
                if op.process in waiting:
                    raise BadHistory(f"operation {op.index}: process {op.process} already waits")
                waiting[op.process] = op
                continue
            invocation = waiting.pop(op.process, None)
            if invocation is None or invocation.f != op.f:
                raise BadHistory(f"operation {op.index} completes nothing that process {op.process} asked for")
            self._add(invocation, op)
        if last is None:
            return
        for place, invocation in enumerate(sorted(waiting.values(), key=lambda op: op.index), 1):
            end = replace(invocation, index=last.index + place, time=last.time, type=Type.INFO)
            self._add(invocation, end)

    def _add(self, invocation: Op, completion: Op) -> None:
        self.completions.append(completion)
        self._invocations[completion.index] = invocation
        self._completed_as[invocation.index] = completion

    def invocation(self, completion: Op) -> Op:
        """Return the invocation of the completion."""
        return self._invocations[completion.index]

    def completion(self, invocation: Op) -> Op:
        """Return the completion of the invocation."""
        return self._completed_as[invocation.index]

    def completed(self, *fs: str) -> Iterator[Op]:
        """Return the completions of operations with these names."""
        return (op for op in self.completions if op.f in fs)

    def notes(self, *fs: str) -> Iterator[Op]:
        """Return the operations of bystanders with these names."""
        return (op for op in self.ops if not op.is_client and op.f in fs)

    @property
    def duration(self) -> int:
        """Return nanoseconds from the run's start to its last operation."""
        return self.ops[-1].time if self.ops else 0


def duration_ms(nanoseconds: int) -> float:
    """Return milliseconds, for people."""
    return nanoseconds / 1e6
