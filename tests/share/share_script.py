"""Runs `*.script` files: the specification of share partitions and of the coordinator of their state.

A script is blocks divided by blank lines. A block is comments (`#`), commands, `---`, and what happened. A block
without `---` happens silently only if nothing happens at all. A script whose first word is `coordinator` is about the
state coordinator, any other about a partition.

Commands of a partition (offsets are `5`, or `5-9`):

    config NAME=VALUE ...                       before anything else, or at any time
    append 10 [gap=3] [empty]                   a batch of so many records comes to the log; or one without records
    fetch MEMBER [max=] [limit] [batch=]        `limit`: never more than max
    accept|release|reject|gap|renew MEMBER 0-4 7 ...
    say MEMBER 0-2:accept 3:release ...         several in one request
    undo MEMBER                                 what the last fetch acquired for it is not handed out after all
    leave MEMBER                                its session is over
    tick NOW
    retention 5                                 the log begins there
    hold | go                                   writes wait for `written`; or are done at once, which is how it begins
    written [ERROR [done]]                      the write that is held comes to that; `done`: it is done all the same
    queue [hold]                                what went to the dead letter queue; from now on it waits for `letters`
    letters [lost]                              the first that wait come to the queue; or cannot
    failover
    state

Commands of a coordinator (`g:0` is the share partition of group g on partition 0 of the topic):

    initialize g:0 1 [start=5] | read g:0 leader=2 | write g:0 1 leader=2 [start=] [0-4:acknowledged:1 ...]
    delete g:0 | summary g:0 | forget topic
    hold | go | appended [ERROR] | reload [found] | tick NOW | prune | state | log
"""

from __future__ import annotations

import os
from pathlib import Path

from share_world import KEY, CoordinatorWorld, PartitionWorld

from kraftpy.protocol.errors import ErrorCode
from kraftpy.share.acknowledgements import Acknowledgement, AcknowledgeType
from kraftpy.share.batches import DeliveryState, StateBatch
from kraftpy.share.config import ShareCoordinatorConfig, SharePartitionConfig
from kraftpy.share.effects import Acquired, Available, DeadLetters, Effect
from kraftpy.share.effects import Reply as Acknowledged
from kraftpy.share.effects import Write as WriteEffect
from kraftpy.share.events import (
    Append,
    Command,
    Delete,
    Initialize,
    Read,
    ReadSummary,
    Reply,
    Result,
    TopicsDeleted,
    Write,
)
from kraftpy.share.events import Effect as CoordinatorEffect
from kraftpy.share.records import SNAPSHOT, Record, ShareKey, from_batches, read_key, read_snapshot, read_update

REWRITE = "KRAFTPY_REWRITE_SCRIPTS"
"""Set this in the environment to have scripts rewritten with what happens now. Then read the difference."""


def offsets(word: str) -> tuple[int, int]:
    first, _, last = word.partition("-")
    return int(first), int(last or first)


def show_range(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"


def show_batch(batch: StateBatch) -> str:
    return f"{show_range(batch.first_offset, batch.last_offset)}:{batch.state.name.lower()}:{batch.delivery_count}"


def show_batches(batches: tuple[StateBatch, ...] | list[StateBatch]) -> str:
    return " ".join(map(show_batch, batches)) or "-"


def options(words: list[str]) -> dict[str, int]:
    pairs = (word.split("=") for word in words if "=" in word)
    return {name: int(value) for name, value in pairs}


class PartitionScript(PartitionWorld):
    """A share partition that tells what happens to it."""

    def __init__(self, config: SharePartitionConfig | None = None) -> None:
        self.lines: list[str] = []
        self.taken: list[Acquired] = []
        super().__init__(config)

    def told(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case WriteEffect():
                    done = f" done={effect.delivery_complete_count}" if effect.delivery_complete_count else ""
                    self.lines.append(f"write start={effect.start_offset}{done} {show_batches(effect.batches)}")
                case Acknowledged():
                    why = f": {effect.message}" if effect.message else ""
                    self.lines.append(f"#{effect.request_id} {effect.error_code.name}{why}")
                case Available():
                    pass
                case DeadLetters():
                    span = show_range(effect.first_offset, effect.last_offset)
                    self.lines.append(f"letters {span} ({effect.delivery_count}): {effect.cause.value}")

    def run(self, line: str) -> None:
        name, *words = line.split()
        getattr(self, f"do_{name}")(words)
        self.check()

    def do_config(self, words: list[str]) -> None:
        self.config = SharePartitionConfig(**options(words))
        self.partition.config = self.config

    def do_append(self, words: list[str]) -> None:
        self.append(int(words[0]), has_records="empty" not in words, gap=options(words).get("gap", 0))

    def do_fetch(self, words: list[str]) -> None:
        said = options(words)
        taken = self.taken = self.fetch(
            words[0], said.get("max", 500), is_record_limit="limit" in words, batch_size=said.get("batch", 500)
        )
        shown = [f"{show_range(each.first_offset, each.last_offset)} ({each.delivery_count})" for each in taken]
        self.lines.append(f"{words[0]} has {', '.join(shown) or 'nothing'}")

    def _say(self, words: list[str], kind: AcknowledgeType) -> None:
        self.acknowledge(words[0], [Acknowledgement(*offsets(word), kind) for word in words[1:]])

    def do_accept(self, words: list[str]) -> None:
        self._say(words, AcknowledgeType.ACCEPT)

    def do_release(self, words: list[str]) -> None:
        self._say(words, AcknowledgeType.RELEASE)

    def do_reject(self, words: list[str]) -> None:
        self._say(words, AcknowledgeType.REJECT)

    def do_gap(self, words: list[str]) -> None:
        self._say(words, AcknowledgeType.GAP)

    def do_renew(self, words: list[str]) -> None:
        self._say(words, AcknowledgeType.RENEW)

    def do_say(self, words: list[str]) -> None:
        pairs = [word.split(":") for word in words[1:]]
        self.acknowledge(
            words[0], [Acknowledgement(*offsets(span), AcknowledgeType[kind.upper()]) for span, kind in pairs]
        )

    def do_undo(self, words: list[str]) -> None:
        self.take(self.partition.give_back(words[0], self.taken))

    def do_leave(self, words: list[str]) -> None:
        self.take(self.partition.release(words[0]))

    def do_tick(self, words: list[str]) -> None:
        self.tick(int(words[0]))

    def do_retention(self, words: list[str]) -> None:
        self.log_start_offset = int(words[0])
        self.take(self.partition.log_start_advanced(self.log_start_offset))

    def do_hold(self, words: list[str]) -> None:
        self.hold = True

    def do_go(self, words: list[str]) -> None:
        self.hold = False
        while self.held:
            self.write()

    def do_written(self, words: list[str]) -> None:
        self.write(ErrorCode[words[0]] if words else ErrorCode.NONE, is_done="done" in words)

    def do_queue(self, words: list[str]) -> None:
        self.holds_letters = "hold" in words
        self.lines.append(f"queue: {' '.join(map(str, self.queue)) or '-'}")

    def do_letters(self, words: list[str]) -> None:
        self.write_letters(is_done="lost" not in words)

    def do_failover(self, words: list[str]) -> None:
        self.fail_over()

    def do_state(self, words: list[str]) -> None:
        shown = []
        for run in self.partition.records:
            word = run.state.name.lower()
            who = f" {run.member_id} until {run.deadline}" if run.member_id else ""
            target = f" to be {run.target.name.lower()}" if run.target is not None else ""
            shown.append(f"  {show_range(run.first, run.last)} {word} {run.count}{who}{target}")
        self.lines += [f"from {self.partition.start_offset} to {self.partition.end_offset}", *shown]


class CoordinatorScript(CoordinatorWorld):
    """A share coordinator that tells what it does."""

    def __init__(self, config: ShareCoordinatorConfig | None = None) -> None:
        self.lines: list[str] = []
        super().__init__(config)

    def told(self, effects: list[CoordinatorEffect]) -> None:
        for effect in effects:
            match effect:
                case Reply():
                    self.lines.append(f"#{effect.request_id} {self.show_result(effect.request_id, effect.result)}")
                case Append():
                    self.lines.append(f"append {self.show_record(effect.record)}")

    def show_result(self, request_id: int, result: Result) -> str:
        if result.error_code is not ErrorCode.NONE:
            return f"{result.error_code.name}{f': {result.error_message}' if result.error_message else ''}"
        match self.requests[request_id]:
            case Read():
                return f"epoch {result.state_epoch} start={result.start_offset} {show_batches(result.batches)}"
            case ReadSummary():
                return (
                    f"epoch {result.state_epoch} leader={result.leader_epoch} start={result.start_offset}"
                    f" done={result.delivery_complete_count}"
                )
        return "NONE"

    def show_record(self, record: Record) -> str:
        found = read_key(record[0])
        assert found is not None
        kind, key = found
        name = f"{key.group_id}:{key.partition}"
        if record[1] is None:
            return f"{name} forgotten"
        if kind == SNAPSHOT:
            value = read_snapshot(record[1])
            return (
                f"{name} snapshot {value.snapshot_epoch} epoch {value.state_epoch} leader={value.leader_epoch} "
                f"start={value.start_offset} done={value.delivery_complete_count} "
                f"{show_batches(from_batches(value.state_batches))}"
            )
        update = read_update(record[1])
        return (
            f"{name} update of {update.snapshot_epoch} leader={update.leader_epoch} start={update.start_offset} "
            f"{show_batches(from_batches(update.state_batches))}"
        )

    def run(self, line: str) -> None:
        name, *words = line.split()
        getattr(self, f"do_{name}")(words)
        self.check()

    def do_config(self, words: list[str]) -> None:
        self.config = ShareCoordinatorConfig(**options(words))
        self.coordinator.config = self.config

    def _key(self, word: str) -> ShareKey:
        group, _, partition = word.partition(":")
        return KEY._replace(group_id=group, partition=int(partition))

    def do_initialize(self, words: list[str]) -> None:
        start = options(words).get("start", -1)
        self.request(Initialize(key=self._key(words[0]), state_epoch=int(words[1]), start_offset=start))

    def do_read(self, words: list[str]) -> None:
        self.request(Read(key=self._key(words[0]), leader_epoch=options(words)["leader"]))

    def do_write(self, words: list[str]) -> None:
        batches = []
        for word in words[2:]:
            if ":" in word:
                span, state, count = word.split(":")
                batches.append(StateBatch(*offsets(span), DeliveryState[state.upper()], int(count)))
        self.request(
            Write(
                key=self._key(words[0]),
                state_epoch=int(words[1]),
                leader_epoch=options(words)["leader"],
                start_offset=options(words).get("start", -1),
                delivery_complete_count=0,
                batches=tuple(batches),
            )
        )

    def _one(self, command: type[Delete] | type[ReadSummary], words: list[str]) -> None:
        made: Command = command(key=self._key(words[0]))
        self.request(made)

    def do_delete(self, words: list[str]) -> None:
        self._one(Delete, words)

    def do_summary(self, words: list[str]) -> None:
        self._one(ReadSummary, words)

    def do_forget(self, words: list[str]) -> None:
        self.step(TopicsDeleted(topic_ids=frozenset({KEY.topic_id})))

    def do_hold(self, words: list[str]) -> None:
        self.hold = True

    def do_go(self, words: list[str]) -> None:
        self.hold = False
        while self.held:
            self.appended()

    def do_appended(self, words: list[str]) -> None:
        self.appended(ErrorCode[words[0]] if words else ErrorCode.NONE)

    def do_reload(self, words: list[str]) -> None:
        self.reload(lose_held=words != ["found"])

    def do_tick(self, words: list[str]) -> None:
        self.tick(int(words[0]))

    def do_prune(self, words: list[str]) -> None:
        self.prune()

    def do_state(self, words: list[str]) -> None:
        for key, state in self.coordinator.durable().items():
            self.lines.append(
                f"{key.group_id}:{key.partition} epoch {state.state_epoch} leader={state.leader_epoch} "
                f"start={state.start_offset} done={state.delivery_complete_count} {show_batches(state.batches)}"
            )

    def do_log(self, words: list[str]) -> None:
        self.lines += [f"{offset} {self.show_record(record)}" for offset, record in self.log]


def play(path: Path) -> None:
    """Run a script and compare what happens with what it says, or rewrite it if the environment asks for that."""
    text = path.read_text()
    written = []
    script: PartitionScript | CoordinatorScript | None = None
    for block in text.strip("\n").split("\n\n"):
        given, _, _ = block.partition("\n---")
        commands = [line for line in given.split("\n") if line.strip() and not line.startswith("#")]
        if script is None and commands and commands[0] == "coordinator":
            commands.pop(0)
            script = CoordinatorScript()
        script = script or PartitionScript()
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
