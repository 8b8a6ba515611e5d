"""The cluster's metadata is one register that everyone agrees on, decided by one controller at a time.

    not-linearizable         what was created, deleted, altered, reassigned and described fits no order of these calls
    image-divergence         two brokers have different images of the same metadata offset
    not-converged            in the end, brokers' images differ
    image-falls              a broker went back to an earlier image without a restart
    two-controllers          two nodes are seen as the controller of one epoch, or decided in it
    controller-epoch-falls   a node went back to an earlier controller epoch without a restart

Read from: `create-topic` {topic, partitions}, `delete-topic` {topic}, `alter-topic` {topic, config}, `reassign`
{topic, replicas} and `describe-topic` {topic, exists, partitions, config, replicas}, a read that goes through the
quorum; of its answer only what is there is compared. A call that fails because the topic exists (`error`
TOPIC_ALREADY_EXISTS) or does not (UNKNOWN_TOPIC_OR_PARTITION) has seen just that; a call that fails otherwise saw and
did nothing. A client that retries by itself after a lost answer makes its own topic "exist": such calls end as `info`.

`image` {node, offset, digest} and `controller` {node, epoch, controller}, asked of one broker, `final` for those after
healing, `incarnation` beside the value if a broker may have restarted; `decided` notes {node, epoch}.

A topic is undecided if the search for an order (`chaos.checkers.linear`) takes more than `Options.most_steps`.

Left out: the topic names that a broker lists between changes of its image; these may lag arbitrarily.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any, Final, NamedTuple, assert_never

from chaos.checkers.linear import IMPOSSIBLE, Facts, judge
from chaos.checkers.realtime import falls
from chaos.checkers.verdict import Findings, Options, Verdict
from chaos.history import History, Op, Type

NAME = "metadata"

CALLS = ("create-topic", "delete-topic", "alter-topic", "reassign", "describe-topic")
EXISTS = "TOPIC_ALREADY_EXISTS"
UNKNOWN = "UNKNOWN_TOPIC_OR_PARTITION"

_MOST_STATES_SAID: Final = 4
_MOST_UNKNOWN_SHOWN: Final = 8
"""How many calls of unknown fate the evidence shows: the latest."""


class Unseen(Enum):
    """Stands for every value that no later description names: no observer can tell such values apart."""

    UNSEEN = "not described again"

    def __str__(self) -> str:
        return self.value


UNSEEN = Unseen.UNSEEN

Partitions = int | Unseen | None
Config = tuple[tuple[str, str | Unseen], ...]
"""Settings by name, sorted by name."""
Replicas = tuple[int, ...] | Unseen | None


class Topic(NamedTuple):
    """The externally visible state of an existing topic. Parts that no description ever shows are left out."""

    partitions: Partitions = None
    config: Config = ()
    replicas: Replicas = None
    """The replicas, if they were ever assigned by hand."""

    def __str__(self) -> str:
        said = [] if self.partitions is None else [f"partitions {self.partitions}"]
        said += [f"{name}={of}" for name, of in self.config]
        said += [] if self.replicas is None else [f"replicas {self.replicas}"]
        return f"there ({', '.join(said)})" if said else "there"


def check(history: History, options: Options) -> Verdict:
    """Judge metadata."""
    findings = Findings(NAME, options)
    topics: dict[str, list[Op]] = {}
    for op in history.completed(*CALLS):
        findings.verdict.examined += 1
        if _says_something(op):
            topics.setdefault(op.value["topic"], []).append(op)
    for topic, ops in sorted(topics.items()):
        _linear(history, options, findings, topic, ops)
    _images(history, findings)
    _controllers(history, findings)
    return findings.verdict


def _says_something(op: Op) -> bool:
    if op.type is Type.FAIL:
        return op.extra.get("error") in (EXISTS, UNKNOWN)
    return op.type is Type.OK or op.f != "describe-topic"


def _linear(history: History, options: Options, findings: Findings, topic: str, ops: list[Op]) -> None:
    appearances = _Appearances(ops)
    calls = {op.index: appearances.call(history.invocation(op).index, op) for op in ops}
    facts = Facts(
        action=lambda op: calls[op.index],
        reads=lambda op: calls[op.index].what not in _WRITES,
        later=lambda op: appearances.later(calls[op.index]),
        blurs=appearances.last,
        blur=appearances.blur,
    )
    judgement = judge(history, ops, None, step, options.most_steps, facts)
    stuck = judgement.stuck
    if judgement.linearizable or stuck is None:
        return
    if judgement.linearizable is None:
        text = f"{topic}: after {judgement.steps} steps it is not known whether an order exists"
        findings.undecided(topic, text, (stuck,), steps=judgement.steps)
        return
    states = ["not there" if state is None else str(state) for state in judgement.states]
    several = states[:_MOST_STATES_SAID]
    several += [f"{len(states) - len(several)} others"] if len(states) > len(several) else []
    text = f"{topic}: {stuck.f} fits no order; before it the topic was {' or '.join(several)}"
    if judgement.unknown:
        text += f"; {len(judgement.unknown)} calls of unknown fate do not explain it"
    shown = (*judgement.unknown[-_MOST_UNKNOWN_SHOWN:], *judgement.open, stuck)
    findings.add("not-linearizable", text, shown, topic=topic, states=states)


class What(Enum):
    """The effect of a call on a topic, or what it sees of it."""

    CREATE = "create"
    DELETE = "delete"
    ALTER = "alter"
    REASSIGN = "reassign"
    IS_THERE = "is there"
    IS_NOT = "is not there"
    DESCRIBE = "describe"


_WRITES: Final = frozenset({What.CREATE, What.DELETE, What.ALTER, What.REASSIGN})


class VisibleCall(NamedTuple):
    """A call, without anything that no description can tell apart."""

    what: What
    partitions: Partitions = None
    config: Config = ()
    replicas: Replicas = None


def step(state: Topic | None, call: VisibleCall) -> Any:
    """The model: how a call changes a topic."""
    if call.what is What.CREATE:
        return Topic(partitions=call.partitions) if state is None else IMPOSSIBLE
    if call.what is What.IS_NOT:
        return None if state is None else IMPOSSIBLE
    if state is None:
        return IMPOSSIBLE
    match call.what:
        case What.DELETE:
            return None
        case What.ALTER:
            return state._replace(config=tuple(sorted({**dict(state.config), **dict(call.config)}.items())))
        case What.REASSIGN:
            return state._replace(replicas=call.replicas)
        case What.DESCRIBE:
            return state if _describes(state, call) else IMPOSSIBLE
        case What.IS_THERE:
            return state
        case _:
            assert_never(call.what)


def _describes(state: Topic, seen: VisibleCall) -> bool:
    config = dict(seen.config)
    return (
        seen.partitions in (None, state.partitions)
        and all(config.get(name, of) == of for name, of in state.config)
        and (state.replicas is None or seen.replicas in (None, state.replicas))
    )


class _Appearances:
    """The values that descriptions of a topic name, each with the index of the last description that names it.

    A value that no description names after some place is as good as any other such value. An alteration of unknown fate
    that only sets such values explains nothing: an order with it is also one without it.
    """

    def __init__(self, ops: list[Op]) -> None:
        self._last: dict[tuple[str, ...], dict[Any, int]] = {}
        """By part and value."""
        for op in ops:
            if op.f == "describe-topic" and op.type is Type.OK and op.value["exists"]:
                for part, value in _parts(_described(op.value)):
                    last = self._last.setdefault(part, {})
                    last[value] = max(last.get(value, -1), op.index)

    def call(self, begins: int, op: Op) -> VisibleCall:
        """Return the observable effect of the call."""
        if op.type is Type.FAIL:
            return VisibleCall(What.IS_THERE if op.extra["error"] == EXISTS else What.IS_NOT)
        value = op.value
        match op.f:
            case "describe-topic":
                return _described(value) if value["exists"] else VisibleCall(What.IS_NOT)
            case "create-topic":
                return VisibleCall(What.CREATE, partitions=self._seen(("partitions",), value["partitions"], begins))
            case "delete-topic":
                return VisibleCall(What.DELETE)
            case "alter-topic":
                found = ((name, self._seen(("config", name), of, begins)) for name, of in value["config"].items())
                config = tuple(sorted((name, of) for name, of in found if of is not None))
                return VisibleCall(What.ALTER, config=config) if config else VisibleCall(What.IS_THERE)
            case _:
                replicas = self._seen(("replicas",), tuple(value["replicas"]), begins)
                return VisibleCall(What.IS_THERE) if replicas is None else VisibleCall(What.REASSIGN, replicas=replicas)

    def _seen(self, part: tuple[str, ...], value: Any, begins: int) -> Any:
        """Return None if no description has the part, and `UNSEEN` if no later one has this value."""
        last = self._last.get(part)
        if last is None:
            return None
        return value if last.get(value, -1) > begins else UNSEEN

    def later(self, call: VisibleCall) -> tuple[int, VisibleCall | None] | None:
        """Return what a call of unknown fate amounts to after the last description that shows it was done."""
        if call.what is What.DELETE:
            return None
        last = max((self._of(part, value) for part, value in _parts(call)), default=-1)
        if call.what is not What.CREATE:
            return last, None
        return None if call.partitions in (None, UNSEEN) else (last, call._replace(partitions=UNSEEN))

    @property
    def last(self) -> frozenset[int]:
        """Return the indexes of all descriptions that are the last to name some value."""
        return frozenset(index for last in self._last.values() for index in last.values())

    def blur(self, state: Topic | None, index: int) -> Topic | None:
        """Return what later descriptions still show of a state."""
        if state is None:
            return None
        partitions, config, replicas = state
        return Topic(
            partitions=self._blurred(("partitions",), partitions, index),
            config=tuple((name, self._blurred(("config", name), of, index)) for name, of in config),
            replicas=self._blurred(("replicas",), replicas, index),
        )

    def _blurred(self, part: tuple[str, ...], value: Any, index: int) -> Any:
        return value if value is None or self._of(part, value) > index else UNSEEN

    def _of(self, part: tuple[str, ...], value: Any) -> int:
        return self._last.get(part, {}).get(value, -1)


def _described(value: Mapping[str, Any]) -> VisibleCall:
    config = tuple(sorted((value.get("config") or {}).items()))
    return VisibleCall(What.DESCRIBE, value.get("partitions"), config, tuple(value.get("replicas") or ()) or None)


def _parts(call: VisibleCall) -> Iterator[tuple[tuple[str, ...], Any]]:
    if call.partitions is not None:
        yield ("partitions",), call.partitions
    for name, of in call.config:
        yield ("config", name), of
    if call.replicas is not None:
        yield ("replicas",), call.replicas


def _images(history: History, findings: Findings) -> None:
    images = [op for op in history.completed("image") if op.type is Type.OK]
    findings.verdict.examined += len(images)
    by_offset: dict[int, Op] = {}
    last: dict[int, Op] = {}
    for op in images:
        first = by_offset.setdefault(op.value["offset"], op)
        if first.value["digest"] != op.value["digest"]:
            text = (
                f"brokers {first.value['node']} and {op.value['node']} differ at metadata offset {op.value['offset']}"
            )
            findings.add("image-divergence", text, (first, op), offset=op.value["offset"])
        if op.extra.get("final"):
            last[op.value["node"]] = op
    ends = {(op.value["offset"], op.value["digest"]) for op in last.values()}
    if len(ends) > 1:
        text = f"brokers {', '.join(map(str, sorted(last)))} end with {len(ends)} different images"
        findings.add(
            "not-converged", text, last.values(), offsets={str(n): op.value["offset"] for n, op in last.items()}
        )
    readings = ((op, (op.value["node"], op.extra.get("incarnation")), op.value["offset"]) for op in images)
    for fall in falls(history, readings):
        text = f"a broker's image went from metadata offset {fall.high} back to {fall.low}"
        findings.add("image-falls", text, (fall.earlier, fall.later), offsets=[fall.high, fall.low])


def _controllers(history: History, findings: Findings) -> None:
    seen = [op for op in history.completed("controller") if op.type is Type.OK]
    decided = list(history.notes("decided"))
    findings.verdict.examined += len(seen) + len(decided)
    by_epoch: dict[int, tuple[int, Op]] = {}
    said = [(op, op.value["epoch"], op.value["controller"]) for op in seen if op.value["controller"] is not None]
    said += [(op, op.value["epoch"], op.value["node"]) for op in decided]
    for op, epoch, controller in said:
        first, witness = by_epoch.setdefault(epoch, (controller, op))
        if first != controller:
            text = f"{first} and {controller} are both the controller of epoch {epoch}"
            findings.add("two-controllers", text, (witness, op), epoch=epoch, controllers=[first, controller])
    readings = ((op, (op.value["node"], op.extra.get("incarnation")), op.value["epoch"]) for op in seen)
    for fall in falls(history, readings):
        text = f"a node went from controller epoch {fall.high} back to {fall.low}"
        findings.add("controller-epoch-falls", text, (fall.earlier, fall.later), epochs=[fall.high, fall.low])
