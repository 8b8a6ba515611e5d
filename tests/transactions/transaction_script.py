"""Runs `*.script` files: the transaction coordinator's specification.

A script is blocks divided by blank lines. A block is comments (`#`), commands, `---`, and what happened. A block
without `---` happens silently only if nothing happens at all.

Commands (`t` is a transactional id, `1/0` a producer id and its epoch, `a-0` a partition; `v2` says that the producer
speaks transactions v2):

    config NAME=VALUE ...                       before anything else
    init t [1/0] [timeout=]                     a producer takes the id over; or goes on, with what it has
    add t 1/0 a-0 b-1 [v2]
    verify t 1/0 a-0
    commit t 1/0 [v2] | abort t 1/0 [v2]
    written t [a-0 ...]                         the markers that were asked for last are there; or some of them
    tick NOW                                    the clock moves, and what is due happens
    hold | release                              appends wait for `appended`; or are done at once, which is how it begins
    appended [ERROR]                            the oldest append that is held is done
    reload [found]                              a new coordinator loads the log; with `found`, what was held is in it
    epoch t 32765                               the log says this epoch (so that a script need not count to it)
    state
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from transaction_world import World

from kraftpy.protocol.errors import ErrorCode
from kraftpy.transactions.config import TransactionConfig
from kraftpy.transactions.events import (
    AddPartitions,
    Append,
    Command,
    Effect,
    EndTransaction,
    InitProducerId,
    Note,
    Reply,
    VerifyPartitions,
    WriteMarkers,
)
from kraftpy.transactions.records import Record, read_key, read_value, transaction_record
from kraftpy.transactions.transaction import TransactionValue
from kraftpy.types import TopicPartition

REWRITE = "KRAFTPY_REWRITE_SCRIPTS"
"""Set this in the environment to have scripts rewritten with what happens now. Then read the difference."""


def partitions_of(words: list[str]) -> frozenset[TopicPartition]:
    pairs = [word.rpartition("-") for word in words]
    return frozenset(TopicPartition(topic, int(number)) for topic, _, number in pairs)


def show_partitions(partitions: frozenset[TopicPartition] | set[TopicPartition]) -> str:
    return " ".join(str(each) for each in sorted(partitions)) or "-"


def show_value(value: TransactionValue) -> str:
    parts = [f"{value.state.value} {value.producer_id}/{value.producer_epoch}"]
    if value.next_producer_id >= 0:
        parts.append(f"next={value.next_producer_id}")
    if value.partitions:
        parts.append(show_partitions(value.partitions))
    if value.client_version:
        parts.append(f"v{value.client_version}")
    return " ".join(parts)


def show_record(record: Record) -> str:
    name = read_key(record[0])
    return f"{name} deleted" if record[1] is None else f"{name} {show_value(read_value(record[1]))}"


class Script(World):
    """A world that tells what happens in it."""

    def __init__(self, config: TransactionConfig | None = None) -> None:
        self.lines: list[str] = []
        super().__init__(config)

    def told(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Reply():
                    self.lines.append(f"#{effect.request_id} {self.show_reply(effect)}")
                case Append():
                    self.lines.append(f"append {show_record(effect.record)}")
                case WriteMarkers():
                    outcome = "commit" if effect.is_commit else "abort"
                    version = f" v{effect.client_version}" if effect.client_version else ""
                    self.lines.append(
                        f"markers {effect.transactional_id} {effect.producer_id}/{effect.producer_epoch} {outcome}"
                        f"{version}: {show_partitions(effect.partitions)}"
                    )
                case Note():
                    self.lines.append(f"note {effect.transactional_id}: {effect.text}")

    def show_reply(self, reply: Reply) -> str:
        command, result = self.requests[reply.request_id], reply.result
        match command:
            case InitProducerId():
                what = "init"
            case AddPartitions():
                what = "add"
            case VerifyPartitions():
                what = "verify"
            case EndTransaction():
                what = "commit" if command.is_commit else "abort"
        if result.error_code is not ErrorCode.NONE:
            return f"{what} {result.error_code.name}"
        if isinstance(command, VerifyPartitions):
            return f"verify missing {show_partitions(result.missing)}"
        return what if result.producer_id < 0 else f"{what} {result.producer_id}/{result.producer_epoch}"

    def run(self, line: str) -> None:
        name, *words = line.split()
        getattr(self, f"do_{name}")(words)
        self.check()

    # ---- commands

    def do_init(self, words: list[str]) -> None:
        named = dict(word.split("=") for word in words if "=" in word)
        name, *had = [word for word in words if "=" not in word]
        producer_id, epoch = (int(each) for each in had[0].split("/")) if had else (-1, -1)
        self.request(
            InitProducerId(
                transactional_id=name.strip('"'),
                timeout_ms=int(named.get("timeout", "60000")),
                producer_id=producer_id,
                producer_epoch=epoch,
            )
        )

    def do_add(self, words: list[str]) -> None:
        name, producer, *rest = words
        producer_id, epoch = (int(each) for each in producer.split("/"))
        self.request(
            AddPartitions(
                transactional_id=name,
                producer_id=producer_id,
                producer_epoch=epoch,
                partitions=partitions_of([each for each in rest if each != "v2"]),
                client_version=2 if "v2" in rest else 0,
            )
        )

    def do_verify(self, words: list[str]) -> None:
        name, producer, *rest = words
        producer_id, epoch = (int(each) for each in producer.split("/"))
        command = VerifyPartitions(
            transactional_id=name, producer_id=producer_id, producer_epoch=epoch, partitions=partitions_of(rest)
        )
        self.request(command)

    def _end(self, words: list[str], *, is_commit: bool) -> Command:
        name, producer, *rest = words
        producer_id, epoch = (int(each) for each in producer.split("/"))
        return EndTransaction(
            transactional_id=name,
            producer_id=producer_id,
            producer_epoch=epoch,
            is_commit=is_commit,
            client_version=2 if "v2" in rest else 0,
        )

    def do_commit(self, words: list[str]) -> None:
        self.request(self._end(words, is_commit=True))

    def do_abort(self, words: list[str]) -> None:
        self.request(self._end(words, is_commit=False))

    def do_written(self, words: list[str]) -> None:
        self.written(words[0], partitions_of(words[1:]) if words[1:] else None)

    def do_tick(self, words: list[str]) -> None:
        self.tick(int(words[0]))

    def do_hold(self, words: list[str]) -> None:
        self.hold = True

    def do_release(self, words: list[str]) -> None:
        self.hold = False
        while self.held:
            self.appended(self.held[0].token)

    def do_appended(self, words: list[str]) -> None:
        self.appended(self.held[0].token, ErrorCode[words[0]] if words else ErrorCode.NONE)

    def do_reload(self, words: list[str]) -> None:
        self.reload(lose_held=words != ["found"])
        while self.held and not self.hold:
            self.appended(self.held[0].token)

    def do_epoch(self, words: list[str]) -> None:
        value = replace(self.stored()[words[0]], producer_epoch=int(words[1]))
        self.flushed = [*self.log, transaction_record(words[0], value)]
        self.added = {}
        self.reload()

    def do_state(self, words: list[str]) -> None:
        for name, transaction in sorted(self.coordinator.transactions.items()):
            said = "-" if transaction.value is None else show_value(transaction.value)
            unmarked = f" unmarked {show_partitions(transaction.unmarked)}" if transaction.unmarked else ""
            self.lines.append(f"{name} {said}{unmarked}{' pending' if transaction.is_pending else ''}")


def play(path: Path) -> None:
    """Run a script and compare what happens with what it says, or rewrite it if the environment asks for that."""
    text = path.read_text()
    written = []
    script: Script | None = None
    for block in text.strip("\n").split("\n\n"):
        given, _, _ = block.partition("\n---")
        commands = [line for line in given.split("\n") if line.strip() and not line.startswith("#")]
        if commands and commands[0].startswith("config"):
            assert script is None, "config comes first"
            pairs = dict(each.split("=") for each in commands.pop(0).split()[1:])
            script = Script(TransactionConfig(**{name: int(value) for name, value in pairs.items()}))
        script = script or Script()
        script.lines.clear()
        for command in commands:
            script.run(command)
        written.append("\n".join([given, *(["---", *script.lines] if script.lines else [])]))
    result = "\n\n".join(written) + "\n"
    if os.environ.get(REWRITE):
        path.write_text(result)
        return
    assert result == text, difference(text, result)


def difference(said: str, happened: str) -> str:
    """Both side by side, if they differ."""
    from difflib import unified_diff

    return "\n".join(unified_diff(said.splitlines(), happened.splitlines(), "the script says", "what happened", n=3))
