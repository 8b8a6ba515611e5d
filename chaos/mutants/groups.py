"""Mutants of groups: members, generations, committed offsets."""

from __future__ import annotations

from typing import Any

from chaos.drawing import CONSUMER_PROTOCOL, Drawn
from chaos.mutants.mutant import ENDS, Mutant, cycle, few, quiet, replaced, three, wrapped
from chaos.nemesis import Kind
from kraftpy.broker.coordinator_shards import Shards
from kraftpy.groups import offsets
from kraftpy.groups.classic.rebalance import Rebalance
from kraftpy.groups.consumer import reconciliation
from kraftpy.groups.registry import GroupRegistry
from kraftpy.protocol.errors import ErrorCode

_COMMITS = frozenset({"lost-commit", "stale-commit", "phantom-commit", "commit-falls"})


def _with_groups(drawn: Drawn) -> bool:
    return drawn.workload == "groups" and few(*ENDS)(drawn)


def _given_at_once(original: Any) -> Any:
    def given(group: Any, *others: Any) -> Any:
        known, group.holders = group.holders, {}
        try:
            return original(group, *others)
        finally:
            group.holders = known

    return given


_groups_in_three = three(workload="groups", group_protocol="classic", load=2.0, clients=5)
_members_stall = three(workload="groups", group_protocol="classic", load=2.0, clients=5, stalls=0.04)
_coordinator_ends = cycle((Kind.KILL, "coordinator of g", 700, {}), pause_ms=(300, 1_500))


def _replay_to_high_watermark(original: Any) -> Any:
    async def replay(self: Any, shard: Any, end_offset: int) -> None:
        await original(self, shard, min(end_offset, shard.replica.high_watermark))

    return replay


def _acknowledge_at_once(original: Any) -> Any:
    def append(self: Any, shard: Any, batch: bytes, reported: Any) -> ErrorCode:
        found: ErrorCode | None = original(self, shard, batch, reported)
        if found is None:
            shard.pending.pop()
        return ErrorCode.NONE if found is None else found

    return append


def _any_generation(original: Any) -> Any:
    def check_commit(message: Any, group: Any, api_version: int) -> ErrorCode:
        error: ErrorCode = original(message, group, api_version)
        is_stale = error in (ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID)
        return ErrorCode.NONE if is_stale and group is not None else error

    return check_commit


def _same_generation(original: Any) -> Any:
    def complete_join(self: Any, group: Any, step: Any) -> None:
        before = group.generation_id
        if before <= 0:
            original(self, group, step)
            return
        group.generation_id -= 1
        original(self, group, step)
        group.generation_id = max(group.generation_id, before)

    return complete_join


MUTANTS = (
    Mutant(
        name="offsets-not-replayed",
        breaks="a new coordinator does not read the offsets committed at its predecessor",
        rule="35",
        shows=_COMMITS | {"skipped-record", "undelivered"},
        needs=_with_groups,
        patches=(replaced(GroupRegistry, "_replay_offset", lambda *_: None),),
    ),
    Mutant(
        name="offsets-replayed-to-high-watermark",
        breaks="a new coordinator reads only up to the high watermark it knows, which lags behind committed records",
        rule="11, 35",
        shows=_COMMITS | {"skipped-record", "undelivered"},
        directed=_groups_in_three,
        faults=_coordinator_ends,
        patches=(wrapped(Shards, "_replay", _replay_to_high_watermark),),
    ),
    Mutant(
        name="commit-acknowledged-at-once",
        breaks="a commit is acknowledged when the coordinator has it, before its followers do",
        rule="17, 35",
        shows=_COMMITS | {"skipped-record", "undelivered"},
        directed=_groups_in_three,
        faults=cycle((Kind.PARTITION, "coordinator of g", 5_000, {"shape": "target"})),
        patches=(wrapped(Shards, "_append", _acknowledge_at_once),),
    ),
    Mutant(
        name="commit-of-any-generation",
        breaks="a removed member may still commit: committed offsets go back",
        rule="34",
        shows=_COMMITS,
        directed=_members_stall,
        faults=quiet,
        patches=(wrapped(offsets, "check_commit", _any_generation),),
    ),
    Mutant(
        name="generation-not-raised",
        breaks="a rebalance does not begin a generation: a removed member and its successor both own a partition in it",
        rule="34",
        shows=_COMMITS | {"double-ownership"},
        directed=_groups_in_three,
        faults=_coordinator_ends,
        patches=(wrapped(Rebalance, "complete_join", _same_generation),),
    ),
    Mutant(
        name="given-before-released",
        breaks="a member of the consumer protocol gets a partition before another has given it up: both read it",
        rule="KIP-848",
        shows=_COMMITS | {"double-ownership"},
        directed=three(workload="groups", group_protocol="consumer", load=2.0, clients=5, settings=CONSUMER_PROTOCOL),
        faults=cycle((Kind.KILL, "one", 1_000, {})),
        patches=(wrapped(reconciliation, "_free", _given_at_once),),
    ),
)
