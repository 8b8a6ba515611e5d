"""Mutants of share groups: locks, and what is remembered of records that were acknowledged."""

from __future__ import annotations

from typing import Any

from chaos.drawing import SHARE_GROUPS
from chaos.mutants.mutant import Mutant, cycle, replaced, three
from chaos.nemesis import Kind
from kraftpy.share import coordinator
from kraftpy.share.partition import SharePartition

_with_queue = three(with_queue=True, with_transactions=False, workload="log", settings=SHARE_GROUPS)


def _at_once(self: Any, now: Any) -> Any:
    return now


MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        name="share-updates-forgotten",
        breaks="a share coordinator replays its snapshots and ignores the updates between them",
        rule="KIP-932",
        shows=frozenset({"delivered-after-acknowledged"}),
        directed=_with_queue,
        faults=cycle((Kind.KILL, "leader of q0-0", 1_500, {}), (Kind.KILL, "leader of q0-1", 1_500, {})),
        patches=(replaced(coordinator, "_updated", lambda state, value: state),),
    ),
    Mutant(
        name="share-locks-too-short",
        breaks="an acquired record is not locked: another member gets it as well",
        rule="KIP-932",
        shows=frozenset({"concurrent-delivery", "over-delivered"}),
        directed=_with_queue,
        patches=(replaced(SharePartition, "_deadline", _at_once),),
    ),
)
