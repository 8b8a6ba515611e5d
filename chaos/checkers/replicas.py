"""Every replica of a partition holds the same log: each node is read on its own, and the copies are compared.

    replica-divergence   below the high watermark, two replicas hold different bytes at an offset
    log-matching         above it, two logs share offset and epoch of a batch, and differ there or before
    epoch-order          within one log offsets or leader epochs go back, or the epoch cache contradicts the batches
    damaged-batch        a node holds a batch whose bytes do not match its checksum
    lost-on-node         a node lacks an acknowledged record; `where`: before, between or after what it has
    marker-twice         a log holds the marker of one commit twice
    not-converged        in the end, replicas have different ends or high watermarks

Read from: `replica` {node, key, log_start, high_watermark, log_end, epochs: [[leader epoch, start offset], ...],
batches: [[base offset, last offset, leader epoch, digest of the bytes], ...]} and, if they were decoded, records:
[[offset, value], ...]; `damaged`: the base offsets of batches whose checksum is wrong; `transactional`: [[base offset,
producer id, producer epoch, "records", "commit" or "abort"], ...] of the batches of transactions. Dumps marked `final`
(after healing) are compared with each other; every dump must be in order in itself.

A marker is judged if the log proves that its transaction has an epoch of its own (version 2 of transactions, KIP-890):
it commits records of a lower epoch than its own. No other marker of that log may have this epoch, no matter what lies
between them (KIP-1228).

Left out: compacted partitions, which each replica cleans on its own (`compaction` judges those); markers of version 1,
which may legitimately be repeated; and those of aborts, since a producer of version 1 that was fenced is aborted with
a higher epoch too, and may then be given it.
"""

from __future__ import annotations

import itertools
from typing import Any

from chaos.checkers.verdict import Findings, Options, Verdict
from chaos.checkers.versions import Versions, versions
from chaos.history import History, Key, Op, Type

NAME = "replicas"

Batch = list[Any]


def check(history: History, options: Options) -> Verdict:
    """Judge replicas."""
    findings = Findings(NAME, options)
    final: dict[Key, dict[int, Op]] = {}
    for op in history.completed("replica"):
        if op.type is not Type.OK:
            continue
        findings.verdict.examined += 1
        _in_order(findings, op)
        _markers(findings, op)
        for offset in op.value.get("damaged", ()):
            text = f"{op.value['key']}: node {op.value['node']} has a damaged batch at offset {offset}"
            findings.add("damaged-batch", text, (op,), key=op.value["key"], node=op.value["node"], offset=offset)
        if op.extra.get("final"):
            final.setdefault(op.value["key"], {})[op.value["node"]] = op
    for key, by_node in sorted(final.items()):
        dumps = [by_node[node] for node in sorted(by_node)]
        _converged(findings, key, dumps)
        for one, other in itertools.combinations(dumps, 2):
            _compare(findings, key, one, other)
        for dump in dumps:
            _complete(versions(history), findings, key, dump)
    return findings.verdict


def _in_order(findings: Findings, op: Op) -> None:
    key, node, batches, epochs = op.value["key"], op.value["node"], op.value["batches"], op.value["epochs"]

    def wrong(what: str) -> None:
        findings.add("epoch-order", f"{key} on node {node}: {what}", (op,), key=key, node=node)

    for (base, last, epoch, _), (next_base, _, next_epoch, _) in itertools.pairwise(batches):
        if next_base <= last or last < base:
            wrong(f"a batch at {next_base} follows one up to {last}")
        if next_epoch < epoch:
            wrong(f"leader epoch {next_epoch} at {next_base} follows epoch {epoch}")
    for (epoch, start), (next_epoch, next_start) in itertools.pairwise(epochs):
        if next_epoch <= epoch or next_start < start:
            wrong(f"the epoch cache goes from {epoch} at {start} to {next_epoch} at {next_start}")
    place = -1
    for base, _, epoch, _ in batches:
        while place + 1 < len(epochs) and epochs[place + 1][1] <= base:
            place += 1
        said = epochs[place][0] if place >= 0 else None
        if said != epoch:
            wrong(f"the epoch cache gives epoch {said} for offset {base}, whose batch has {epoch}")
            return


def _markers(findings: Findings, op: Op) -> None:
    key, node = op.value["key"], op.value["node"]
    unended: dict[int, int] = {}
    commits: dict[tuple[int, int], int] = {}
    for offset, producer_id, epoch, what in op.value.get("transactional", ()):
        if what == "records":
            unended[producer_id] = epoch
            continue
        ended = unended.pop(producer_id, None)
        first = commits.get((producer_id, epoch))
        if first is not None:
            text = (
                f"{key} on node {node}: producer {producer_id} has a marker of epoch {epoch} at {first} and at {offset}"
            )
            evidence = {"producer_id": producer_id, "epoch": epoch, "offsets": [first, offset]}
            findings.add("marker-twice", text, (op,), key=key, node=node, **evidence)
        elif what == "commit" and ended is not None and ended < epoch:
            commits[producer_id, epoch] = offset


def _converged(findings: Findings, key: Key, dumps: list[Op]) -> None:
    ends = {dump.value["node"]: (dump.value["log_end"], dump.value["high_watermark"]) for dump in dumps}
    if len(set(ends.values())) > 1:
        text = f"{key} ends differently: " + ", ".join(f"node {node} at {end}" for node, (end, _) in ends.items())
        findings.add("not-converged", text, dumps, key=key, ends={str(node): list(end) for node, end in ends.items()})


def _compare(findings: Findings, key: Key, one: Op, other: Op) -> None:
    start = max(one.value["log_start"], other.value["log_start"])
    first, second = ([batch for batch in dump.value["batches"] if batch[1] >= start] for dump in (one, other))
    nodes = [one.value["node"], other.value["node"]]
    at = next((place for place, (a, b) in enumerate(itertools.zip_longest(first, second)) if a != b), None)
    if at is None:
        return
    differing = [part[at][0] for part in (first, second) if at < len(part)]
    offset = min(differing)
    committed = min(one.value["high_watermark"], other.value["high_watermark"])
    if offset < committed:
        text = f"{key}: nodes {nodes[0]} and {nodes[1]} differ at offset {offset}, below the high watermark {committed}"
        findings.add("replica-divergence", text, (one, other), key=key, offset=offset, nodes=nodes)
        return
    rest = {(batch[0], batch[2]): batch for batch in first[at:]}
    for batch in second[at:]:
        same = rest.get((batch[0], batch[2]))
        if same is not None and (batch is not second[at] or same[3] != batch[3]):
            text = f"{key}: nodes {nodes[0]} and {nodes[1]} share offset {batch[0]} of epoch {batch[2]} only in part"
            findings.add("log-matching", text, (one, other), key=key, offset=batch[0], epoch=batch[2], nodes=nodes)
            return


def _complete(known: Versions, findings: Findings, key: Key, dump: Op) -> None:
    records = dump.value.get("records")
    if records is None:
        return
    held = dict(records)
    node, start, end = dump.value["node"], dump.value["log_start"], dump.value["high_watermark"]
    present = [offset for offset in known.order(key).offsets if offset in held]
    for offset in known.order(key).offsets:
        value = known.order(key).log[offset][0]
        writer = known.writer_of.get(key, {}).get(value)
        if offset < start or writer is None or writer.type is not Type.OK:
            continue
        if held.get(offset) in known.order(key).log[offset]:
            continue
        where = _where(offset, present)
        text = f"{key}: node {node} has not {value!r} at offset {offset}, which was acknowledged"
        evidence: dict[str, Any] = {"key": key, "node": node, "offset": offset, "value": value, "where": where}
        findings.add("lost-on-node", text, (writer, dump), **evidence, high_watermark=end)


def _where(offset: int, present: list[int]) -> str:
    """Say which part of the log is lost, judging by the records that remain."""
    if not present:
        return "all"
    return "prefix" if offset < present[0] else "postfix" if offset > present[-1] else "middle"
