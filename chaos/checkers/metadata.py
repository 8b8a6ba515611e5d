"""The cluster's metadata is one register that everybody agrees on, decided by one controller at a time.

    not-linearizable         what was created, deleted, altered, reassigned and described fits no order of these calls
    gave-up                  the search for such an order grew too large: no approval
    image-divergence         two brokers have different images of the same metadata offset
    not-converged            in the end, brokers' images differ
    image-falls              a broker went back to an earlier image without a restart
    two-controllers          two nodes are taken for the controller of one epoch, or decided in it
    controller-epoch-falls   a node went back to an earlier controller epoch without a restart

Read from: `create-topic` {topic, partitions}, `delete-topic` {topic}, `alter-topic` {topic, config}, `reassign`
{topic, replicas} and `describe-topic` {topic, exists, partitions, config, replicas}, a read that goes through the
quorum; of its answer only what is there is compared. A call that fails because the topic exists (`error`
TOPIC_ALREADY_EXISTS) or does not (UNKNOWN_TOPIC_OR_PARTITION) has seen just that; whatever else fails saw and did
nothing. A client that asks again by itself after a lost answer makes its own topic "exist": such calls end as `info`.

`image` {node, offset, digest} and `controller` {node, epoch, controller}, asked of one broker, `final` for those after
healing, `incarnation` beside the value if a broker may have restarted; `decided` notes {node, epoch}.

Left out: the names of topics that a broker lists between its image's changes, which lag as they please.
"""

from __future__ import annotations

from typing import Any

from chaos.checkers.linear import IMPOSSIBLE, judge
from chaos.checkers.realtime import falls
from chaos.checkers.verdict import Findings, Options, Verdict
from chaos.history import History, Op, Type

NAME = "metadata"

CALLS = ("create-topic", "delete-topic", "alter-topic", "reassign", "describe-topic")
EXISTS = "TOPIC_ALREADY_EXISTS"
UNKNOWN = "UNKNOWN_TOPIC_OR_PARTITION"

Topic = tuple[int, tuple[tuple[str, str], ...], tuple[int, ...] | None]
"""Partitions, settings, replicas if they were ever assigned by hand."""


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
    judgement = judge(history, ops, None, step, options.most_configurations)
    if judgement.linearizable:
        return
    stuck = judgement.stuck
    if judgement.linearizable is None:
        text = f"{topic}: after {judgement.configurations} configurations it is not known whether an order exists"
        findings.add("gave-up", text, (stuck,), topic=topic)
        return
    assert stuck is not None
    text = f"{topic}: {stuck.f} fits no order; before it the topic was {' or '.join(judgement.states)}"
    findings.add("not-linearizable", text, (*judgement.open, stuck), topic=topic, states=list(judgement.states))


def step(state: Topic | None, op: Op) -> Any:
    """The model: what a call does to a topic."""
    if op.type is Type.FAIL:
        return state if (state is not None) == (op.extra["error"] == EXISTS) else IMPOSSIBLE
    value = op.value
    if op.f == "create-topic":
        return (value["partitions"], (), None) if state is None else IMPOSSIBLE
    if op.f == "describe-topic":
        return state if _describes(state, value) else IMPOSSIBLE
    if state is None:
        return IMPOSSIBLE
    partitions, config, replicas = state
    match op.f:
        case "delete-topic":
            return None
        case "alter-topic":
            return (partitions, tuple(sorted({**dict(config), **value["config"]}.items())), replicas)
        case _:
            return (partitions, config, tuple(value["replicas"]))


def _describes(state: Topic | None, seen: dict[str, Any]) -> bool:
    if state is None or not seen["exists"]:
        return (state is not None) == bool(seen["exists"])
    partitions, config, replicas = state
    return bool(
        seen.get("partitions", partitions) == partitions
        and all(seen.get("config", {}).get(name, of) == of for name, of in config)
        and (replicas is None or tuple(seen.get("replicas") or replicas) == replicas)
    )


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
