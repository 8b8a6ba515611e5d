"""Where two plain answers are not the same."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from plain_answers import Plain

IDENTITY = (
    *("transactional_id", "group_id", "member_id", "key", "name", "topic_name", "topic", "topic_id"),
    *("partition_index", "partition", "partition_id", "index", "batch_index", "api_key", "feature", "subtopology_id"),
    *("log_dir", "broker_id", "replica_id", "node_id", "producer_id", "user", "entity_type"),
)
"""Fields that say what an element of a list is about, the first that it has: elements are matched by it, in whatever
order they come. Names and ids of nothing are passed over. A resource with settings has a type and a name; an entity
with quotas has these of each of its parts.
"""
NOTHING = (None, "", "<no id>")

ABSENT = "<absent>"


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """One field in which kraftpy's answer is not Kafka's."""

    field: str
    """The path of the field, as "topics.partitions.error_code"."""
    about: str
    """The path with what each element of a list is about, as "topics[t].partitions[0].error_code"."""
    kafka: Plain
    here: Plain

    def is_of_words(self) -> bool:
        """Return whether both are texts, and different ones."""
        return (
            self.field.endswith("error_message")
            and bool(self.kafka and self.here)
            and ABSENT not in (self.kafka, self.here)
        )


def differences(kafka: Mapping[str, Plain], here: Mapping[str, Plain]) -> list[Difference]:
    """Return the differences of two answers. Where error codes differ, what stands beside them follows from that."""
    if kafka["outcome"] != here["outcome"]:
        return [Difference(field="outcome", about="outcome", kafka=summary(kafka), here=summary(here))]
    found = list(_between(kafka, here, "", ""))
    refused = [each.about.rpartition(".")[0] for each in found if "error_code" in each.field]
    return [
        each
        for each in found
        if "error_code" in each.field or not any(_is_within(each.about, place) for place in refused)
    ]


def _is_within(about: str, place: str) -> bool:
    return not place or about == place or about.startswith((f"{place}.", f"{place}["))


def _between(kafka: Plain, here: Plain, field: str, about: str) -> Iterator[Difference]:
    if isinstance(kafka, dict) and isinstance(here, dict):
        for name in sorted(kafka.keys() | here.keys()):
            path = f"{field}.{name}".lstrip("."), f"{about}.{name}".lstrip(".")
            yield from _between(kafka.get(name, ABSENT), here.get(name, ABSENT), *path)
    elif isinstance(kafka, list) and isinstance(here, list) and any(isinstance(each, dict) for each in (*kafka, *here)):
        yield from _between_lists(kafka, here, field, about)
    elif kafka != here:
        yield Difference(field=field, about=about, kafka=kafka, here=here)


def _between_lists(kafka: list[Any], here: list[Any], field: str, about: str) -> Iterator[Difference]:
    theirs, ours = _by_identity(kafka), _by_identity(here)
    for identity in sorted(theirs.keys() | ours.keys()):
        place = f"{about}[{identity}]"
        left, right = theirs[identity], ours[identity]
        if len(left) != len(right):
            yield Difference(field=field, about=place, kafka=_number_of(left), here=_number_of(right))
        for one, other in zip(_in_order(left), _in_order(right), strict=False):
            yield from _between(one, other, field, place)


def _by_identity(elements: list[Any]) -> dict[str, list[Any]]:
    found = defaultdict[str, list[Any]](list)
    for element in elements:
        found[_identity(element)].append(element)
    return found


def _in_order(elements: list[Any]) -> list[Any]:
    """Return elements about the same thing so that those of two answers can be compared, in any order."""
    return sorted(elements, key=lambda element: json.dumps(element, sort_keys=True)) if len(elements) > 1 else elements


def _identity(element: Mapping[str, Plain]) -> str:
    if "resource_name" in element:
        return f"{element['resource_type']} {element['resource_name']}"
    if isinstance(element.get("entity"), list):
        return ", ".join(sorted(f"{part['entity_type']} {part['entity_name']}" for part in element["entity"]))
    about = next((name for name in IDENTITY if element.get(name) not in NOTHING), None)
    return "" if about is None else str(element[about])


def _number_of(elements: list[Any]) -> Plain:
    return ABSENT if not elements else elements[0] if len(elements) == 1 else f"{len(elements)} times"


def summary(answer: Mapping[str, Plain]) -> str:
    """Return what came, in short."""
    rest = {name: value for name, value in answer.items() if name != "outcome"}
    return f"{answer['outcome']}: {json.dumps(rest)[:300]}" if rest else str(answer["outcome"])
