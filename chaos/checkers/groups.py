"""A group divides its partitions, remembers what was committed, and delivers every record.

    double-ownership   two members own a partition in one generation
    generation-falls   a member goes back to an earlier generation
    lost-commit        nothing is committed, although a commit was acknowledged earlier and nothing was reset
    stale-commit       the committed offset is older than the acknowledged one
    phantom-commit     the committed offset was never committed by anyone
    commit-falls       a commit was acknowledged below one acknowledged before it was requested
    skipped-record     a record below what the group committed was never handed to any of its members
    undelivered        the group had read everything ("drained"), but not an acknowledged record

Read from: `assigned` notes {group, generation, member, partitions}; polls and any other operation that polls, with
`group` beside the value; `commit` {group, offsets}, or `committed_offsets` beside the value of operations that also
commit; `reset` (a commit that may go back); `committed` {group, offsets}; `drained` notes {group, keys}. A group
starts at a key's first record.

Left out: which members are alive. A paused member keeps believing that it owns its partitions until it hears
otherwise, so only generations are compared; and a commit whose fate is unknown may take effect at any later time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from chaos.checkers.realtime import Register, Write, falls
from chaos.checkers.verdict import Findings, Options, Verdict
from chaos.checkers.versions import POLLING, polled, sends, versions
from chaos.history import History, Key, Op, Type

NAME = "groups"


def check(history: History, options: Options) -> Verdict:
    """Judge groups."""
    findings = Findings(NAME, options)
    assigned = list(history.notes("assigned"))
    commits = list(_commits(history))
    looks = [op for op in history.completed("committed") if op.type is Type.OK]
    polls = sum("group" in op.extra for op in history.completed(*POLLING))
    findings.verdict.examined = len(assigned) + len(commits) + len(looks) + polls
    _ownership(assigned, findings)
    _committed(history, commits, looks, findings)
    _delivered(history, commits, findings)
    return findings.verdict


def _commits(history: History) -> Iterator[tuple[Op, str, Key, int]]:
    """Return commits that happened or may have: operation, group, key, offset."""
    for op in history.completions:
        if op.type is Type.FAIL:
            continue
        if op.f in ("commit", "reset"):
            group, offsets = op.value["group"], op.value["offsets"]
        elif "committed_offsets" in op.extra:
            group, offsets = op.extra["group"], op.extra["committed_offsets"]
        else:
            continue
        for key, offset in offsets.items():
            yield op, group, key, offset


def _ownership(assigned: list[Op], findings: Findings) -> None:
    owners: dict[tuple[str, int, Key], Op] = {}
    generations: dict[tuple[str, str], Op] = {}
    for op in assigned:
        group, generation, member = op.value["group"], op.value["generation"], op.value["member"]
        before = generations.get((group, member))
        if before is not None and before.value["generation"] > generation:
            text = f"{group}: {member} went from generation {before.value['generation']} to {generation}"
            findings.add("generation-falls", text, (before, op), group=group, member=member)
        generations[group, member] = op
        for key in op.value["partitions"]:
            owner = owners.setdefault((group, generation, key), op)
            if owner.value["member"] != member:
                text = f"{group}: {key} belongs to {owner.value['member']} and {member} in generation {generation}"
                members = [owner.value["member"], member]
                findings.add(
                    "double-ownership", text, (owner, op), group=group, key=key, generation=generation, members=members
                )


def _committed(history: History, commits: list[tuple[Op, str, Key, int]], looks: list[Op], findings: Findings) -> None:
    writes: dict[tuple[str, Key], list[Write]] = {}
    for op, group, key, offset in commits:
        end = op.index if op.type is Type.OK else None
        writes.setdefault((group, key), []).append(Write(op, history.invocation(op).index, end, offset))
    registers = {what: Register(of) for what, of in writes.items()}
    for op in looks:
        group = op.value["group"]
        for key, offset in op.value["offsets"].items():
            register = registers.get((group, key)) or Register(())
            asked_at = history.invocation(op).index
            if register.allows(offset, asked_at, op.index):
                continue
            newest = register.overwriting(asked_at)
            of = newest.value if newest is not None else None
            name = "lost-commit" if offset is None else "stale-commit" if register.written(offset) else "phantom-commit"
            text = f"{group}: {key} is committed at {offset}, after {of} was acknowledged"
            evidence: dict[str, Any] = {"group": group, "key": key, "offset": offset, "acknowledged": of}
            findings.add(name, text, (newest.op if newest is not None else None, op), **evidence)
    reset = {(group, key) for op, group, key, _ in commits if op.f == "reset"}
    acknowledged = [(op, (group, key), offset) for op, group, key, offset in commits if op.type is Type.OK]
    for fall in falls(history, (reading for reading in acknowledged if reading[1] not in reset)):
        group, key = fall.what  # type: ignore[misc]  # as made two lines above
        text = f"{group}: {key} was committed at {fall.low} after {fall.high} was acknowledged"
        findings.add(
            "commit-falls", text, (fall.earlier, fall.later), group=group, key=key, offsets=[fall.high, fall.low]
        )


def _delivered(history: History, commits: list[tuple[Op, str, Key, int]], findings: Findings) -> None:
    known = versions(history)
    delivered: dict[str, dict[Key, set[int]]] = {}
    for op in history.completed(*POLLING):
        if "group" in op.extra:
            of = delivered.setdefault(op.extra["group"], {})
            for key, offset, _ in polled(op):
                of.setdefault(key, set()).add(offset)
    farthest: dict[tuple[str, Key], tuple[int, Op]] = {}
    for op, group, key, offset in commits:
        if op.type is Type.OK and offset > farthest.get((group, key), (-1, op))[0]:
            farthest[group, key] = (offset, op)
    for (group, key), (end, op) in farthest.items():
        if group not in delivered:
            continue  # the history holds only this group's commits
        got = delivered[group].get(key, set())
        order = known.order(key)
        for offset in order.offsets:
            if offset >= end:
                break
            if offset not in got:
                value = order.log[offset][0]
                writer = known.writer_of.get(key, {}).get(value)
                text = f"{group}: {key} is committed up to {end}, and no member got offset {offset}"
                findings.add("skipped-record", text, (writer, op), group=group, key=key, offset=offset, value=value)
    for drained in history.notes("drained"):
        group = drained.value["group"]
        if group not in delivered:
            continue  # a share group, which `queue` judges
        by_key = delivered[group]
        for op in known.ops:
            for key, sent_at, value in sends(op):
                if op.type is not Type.OK or sent_at is None or key not in drained.value["keys"]:
                    continue
                if sent_at not in by_key.get(key, ()) and sent_at >= farthest.get((group, key), (0, op))[0]:
                    text = f"{group} has read everything, but not {value!r} at offset {sent_at} of {key}"
                    findings.add("undelivered", text, (op, drained), group=group, key=key, offset=sent_at, value=value)
