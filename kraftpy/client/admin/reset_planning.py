"""Plans and applies a reset of a group's offsets on a cluster: what the command line and the console offer.

    moves = await plan_reset(admin, described, Reset(target=Target.EARLIEST))
    await apply_reset(admin, described, moves)

Works for share groups, too, whose start offsets are reset.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from kraftpy.client.admin.resets import Ends, Move, Reset, Target, plan
from kraftpy.client.model import OffsetSpec
from kraftpy.types import TopicPartition

if TYPE_CHECKING:
    from kraftpy.client.admin.admin import Admin
    from kraftpy.client.admin.model import GroupDescription

_SHARE: Final = "share"


async def plan_reset(
    admin: Admin, described: GroupDescription, reset: Reset, chosen: Iterable[TopicPartition] | None = None
) -> list[Move]:
    """Plan the move of each chosen partition, by default of all that the group has offsets in.

    Partitions that no longer exist are left out. Raises ValueError if the group has members or the reset is impossible,
    and KafkaError.
    """
    name = described.group_id
    if described.members:
        count = len(described.members)
        who = "a member: stop it" if count == 1 else f"{count} members: stop them"
        raise ValueError(f"group {name} has {who} before resetting its offsets")
    if described.group_type == _SHARE:
        known = await admin.list_share_group_offsets(name)
        committed = {partition: at.start_offset for partition, at in known.items() if at.start_offset is not None}
    else:
        committed = {partition: at.offset for partition, at in (await admin.list_group_offsets(name)).items()}
    ends = await partition_ends(admin, set(committed if chosen is None else chosen))
    at_time = {}
    if reset.target is Target.TIME and ends:
        found = await admin.list_offsets(dict.fromkeys(ends, reset.number))
        at_time = {partition: place.offset for partition, place in found.items() if place is not None}
    return plan(reset, ends, committed, at_time)


async def apply_reset(admin: Admin, described: GroupDescription, moves: Sequence[Move]) -> None:
    """Make the moves. Raises KafkaError, also if the group has got members."""
    if not moves:
        return
    alter = admin.alter_share_group_offsets if described.group_type == _SHARE else admin.alter_group_offsets
    await alter(described.group_id, {move.partition: move.offset for move in moves})


async def partition_ends(admin: Admin, partitions: set[TopicPartition]) -> dict[TopicPartition, Ends]:
    """Return the ends of those partitions that still exist."""
    topics = {partition.topic for partition in partitions}
    existing = {
        part.topic_partition
        for info in await admin.describe_topics()
        if info.name in topics
        for part in info.partitions
    }
    asked = sorted(partitions & existing)
    if not asked:
        return {}
    first = await admin.list_offsets(dict.fromkeys(asked, OffsetSpec.EARLIEST))
    last = await admin.list_offsets(dict.fromkeys(asked, OffsetSpec.LATEST))
    ends = {}
    for partition in asked:
        start, end = first[partition], last[partition]
        if start is not None and end is not None:
            ends[partition] = Ends(start.offset, end.offset)
    return ends
