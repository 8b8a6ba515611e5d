"""Partitions as arguments: `TOPIC`, or some partitions of it as `TOPIC:0,1`."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import click

from kraftpy.cli.output import Failure

if TYPE_CHECKING:
    from kraftpy.client import Admin
    from kraftpy.client.model import PartitionInfo


class PartitionSet(NamedTuple):
    """A topic and some of its partitions; None means all."""

    topic: str
    partitions: frozenset[int] | None


def parse_partitions(text: str) -> PartitionSet:
    """Read `name` or `name:0,1`. Raises ValueError."""
    name, colon, listed = text.partition(":")
    numbers = listed.split(",")
    if not name or (colon and not all(number.isascii() and number.isdecimal() for number in numbers)):
        raise ValueError(f"'{text}' is not TOPIC or TOPIC:0,1")
    return PartitionSet(name, frozenset(map(int, numbers)) if colon else None)


def _parse_all(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> list[PartitionSet]:
    try:
        return [parse_partitions(value) for value in values]
    except ValueError as error:
        raise click.BadParameter(str(error), ctx, param) from None


partitions_argument = click.argument("wanted", nargs=-1, metavar="[TOPIC[:0,1]]...", callback=_parse_all)


async def chosen_partitions(admin: Admin, wanted: list[PartitionSet]) -> list[PartitionInfo]:
    """Return the chosen partitions, sorted. Raises Failure if one does not exist, KafkaError if a topic does not."""
    infos = {info.name: info for info in await admin.describe_topic_partitions([each.topic for each in wanted])}
    found: dict[tuple[str, int], PartitionInfo] = {}
    for topic, numbers in wanted:
        existing = {part.partition: part for part in infos[topic].partitions}
        if numbers is not None and not numbers <= existing.keys():
            raise Failure(f"topic {topic} has no partition {min(numbers - existing.keys())}")
        for number in existing if numbers is None else numbers:
            found[topic, number] = existing[number]
    return [found[key] for key in sorted(found)]
