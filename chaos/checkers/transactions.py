"""A transaction happens completely or not at all, once, and not after its producer was replaced.

    torn-transaction     a part of what it wrote was read, and another part never was
    processed-twice      an input record has two descendants in the output that can be read
    early-read           what it wrote was read before its commit was requested
    not-processed        a later input record was processed, an earlier one never
    unknown-input        an output record descends from an input record that does not exist
    zombie-commit        a transaction was acknowledged to a producer that had been replaced before it began
    epoch-reused         two producers were given the same producer id and epoch
    epoch-falls          a producer was given a lower epoch of the same producer id
    refused-successor    a partition's leader dropped the verification of a producer that nobody had replaced

(A transaction that reads uncommitted records is G1a, in the log's checker; cycles are in `cycles`.)

Read from: `txn`; `process`, a transaction that polls, sends a descendant of each record
(`chaos.checkers.versions.descendant`) and commits the offsets; `init` {transactional_id, producer_id, epoch}, with
`transactional_id` beside the value of the transactions that follow, and `commit_asked`, when their commit was
requested, in nanoseconds like an operation's time. Torn and unprocessed transactions are judged only if the history
ends with polls marked `final`, made when no transaction was open any more.

The note `unknown_outcomes` counts the transactions of unknown fate that turned out to be committed, and those that
left no trace.
"""

from __future__ import annotations

from chaos.checkers.realtime import asked_at, falls
from chaos.checkers.verdict import Findings, Options, Verdict
from chaos.checkers.versions import Versions, ancestor, sends, versions
from chaos.history import History, Key, Op, Type

NAME = "transactions"
_NOT_VERIFIED = "no ongoing transaction that was verified here"
_SHORT_NS = 5_000_000_000
"""The coordinator aborts no transaction that began so lately."""


def check(history: History, options: Options) -> Verdict:
    """Judge transactions."""
    findings = Findings(NAME, options)
    known = versions(history)
    transactions = [op for op in known.ops if op.f in ("txn", "process")]
    inits = [op for op in history.completed("init") if op.type is Type.OK]
    findings.verdict.examined = len(transactions) + len(inits)
    if any(op.extra.get("final") for op in known.ops):
        _whole(known, findings)
        _unprocessed(known, findings)
    _once(known, findings)
    _early(known, findings)
    _producers(history, inits, findings)
    _outcomes(known, findings)
    return findings.verdict


def _whole(known: Versions, findings: Findings) -> None:
    for op in known.ops:
        if op.type is Type.FAIL:
            continue
        written = [(key, value) for key, _, value in sends(op)]
        unread = [(key, value) for key, value in written if value not in known.ok_reads.get(key, ())]
        if unread and len(unread) < len(written):
            key, value = unread[0]
            text = f"a transaction's {value!r} in {key} was never read, though other records of it were"
            readers = [known.readers_of[k][v][0] for k, v in written if (k, v) not in unread]
            findings.add("torn-transaction", text, (op, *readers[:4]), key=key, value=value, unread=unread)


def _descendants(known: Versions) -> dict[tuple[Key, int], list[tuple[Key, str]]]:
    """Return the output records that were read, by the input record they descend from."""
    found: dict[tuple[Key, int], list[tuple[Key, str]]] = {}
    for key, values in known.ok_reads.items():
        order = known.order(key)
        for value in dict.fromkeys(value for offset in order.offsets for value in order.log[offset]):
            if isinstance(value, str) and value in values and (source := ancestor(value)) is not None:
                found.setdefault(source, []).append((key, value))
    return found


def _once(known: Versions, findings: Findings) -> None:
    for (key, offset), outputs in _descendants(known).items():
        ops = [known.writer_of.get(k, {}).get(v) for k, v in outputs]
        if len(outputs) > 1:
            text = f"{key} at offset {offset} was processed into {', '.join(repr(value) for _, value in outputs)}"
            findings.add("processed-twice", text, ops, key=key, offset=offset, outputs=outputs)
        if offset not in known.order(key).log:
            text = f"{outputs[0][1]!r} in {outputs[0][0]} comes from {key} at offset {offset}, where nothing is"
            findings.add("unknown-input", text, ops, key=key, offset=offset, outputs=outputs)


def _early(known: Versions, findings: Findings) -> None:
    for op in known.ops:
        commit_asked = op.extra.get("commit_asked")
        if commit_asked is None:
            continue
        for key, _, value in sends(op):
            for reader in known.readers_of.get(key, {}).get(value, ()):
                if reader.type is Type.OK and reader.time < commit_asked:
                    text = f"{key}: {value!r} was read before the commit of its transaction was asked for"
                    findings.add("early-read", text, (op, reader), key=key, value=value)


def _unprocessed(known: Versions, findings: Findings) -> None:
    processed = _descendants(known)
    farthest: dict[Key, int] = {}
    for key, offset in processed:
        farthest[key] = max(farthest.get(key, -1), offset)
    for key, end in farthest.items():
        order = known.order(key)
        for offset in order.offsets:
            if offset < end and (key, offset) not in processed:
                value = order.log[offset][0]
                writer = known.writer_of.get(key, {}).get(value)
                text = f"{key}: offset {end} was processed, offset {offset} never"
                findings.add("not-processed", text, (writer,), key=key, offset=offset, value=value)


def _producers(history: History, inits: list[Op], findings: Findings) -> None:
    given: dict[tuple[int, int], Op] = {}
    latest: dict[str, list[Op]] = {}
    for op in inits:
        identity = (op.value["producer_id"], op.value["epoch"])
        first = given.setdefault(identity, op)
        if first is not op:
            text = f"producer id {identity[0]} with epoch {identity[1]} was given twice"
            findings.add("epoch-reused", text, (first, op), producer_id=identity[0], epoch=identity[1])
        latest.setdefault(op.value["transactional_id"], []).append(op)
    epochs = ((op, (op.value["transactional_id"], op.value["producer_id"]), op.value["epoch"]) for op in inits)
    for fall in falls(history, epochs):
        text = f"epoch {fall.low} was given after epoch {fall.high} of the same producer id"
        findings.add("epoch-falls", text, (fall.earlier, fall.later), what=fall.what, epochs=[fall.high, fall.low])
    _zombies(history, latest, findings)
    _refused(history, latest, findings)


def _zombies(history: History, inits: dict[str, list[Op]], findings: Findings) -> None:
    """Find commits acknowledged to a producer after another took over its id, if their inits did not overlap."""
    for op in history.completed("txn", "process", "send"):
        name = op.extra.get("transactional_id")
        if name not in inits or op.type is not Type.OK:
            continue
        begun = asked_at(history, op)
        own = [init for init in inits[name] if init.process == op.process and init.index < begun]
        if not own:
            continue
        for init in inits[name]:
            if init.process != op.process and own[-1].index < asked_at(history, init) and init.index < begun:
                text = f"process {op.process} committed as {name}, which process {init.process} had taken over"
                findings.add("zombie-commit", text, (own[-1], init, op), transactional_id=name)
                break


def _refused(history: History, inits: dict[str, list[Op]], findings: Findings) -> None:
    """Find short transactions whose verification a leader dropped, though no other producer could replace theirs.

    A coordinator that has been replaced, and does not know it yet, may refuse more.
    """
    completed = {asked_at(history, op): op.index for op in history.completed("init")}
    asked = [op for op in history.ops if op.f == "init" and op.type is Type.INVOKE]
    for op in history.completed("txn", "process"):
        name = op.extra.get("transactional_id")
        if name is None or _NOT_VERIFIED not in str(op.extra.get("error", "")):
            continue
        invoked = history.invocation(op)
        own = [init for init in inits.get(name, ()) if init.process == op.process and init.index < invoked.index]
        if not own or op.time - invoked.time >= _SHORT_NS:
            continue
        others = (each for each in asked if each.value["transactional_id"] == name and each.process != op.process)
        if not any(each.index < op.index and completed.get(each.index, op.index) > own[-1].index for each in others):
            text = f"process {op.process}, which nobody had replaced as {name}, was told {op.extra['error']}"
            findings.add("refused-successor", text, (own[-1], op), transactional_id=name)


def _outcomes(known: Versions, findings: Findings) -> None:
    unknown = [op for op in known.ops if op.type is Type.INFO and any(True for _ in sends(op))]
    if not unknown:
        return
    committed = sum(known.must_have_committed(op) for op in unknown)
    findings.verdict.notes["unknown_outcomes"] = {"committed": committed, "no_trace": len(unknown) - committed}
