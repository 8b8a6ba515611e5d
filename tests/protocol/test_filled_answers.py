"""Every field of every answer is filled somewhere in the broker, or is named here with the reason why not."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from kraftpy.protocol.apis import APIS

PACKAGE = Path(__file__).parent.parent.parent / "kraftpy"
MESSAGES = PACKAGE / "protocol" / "messages"
FILLING = ("broker", "groups", "share", "transactions", "metadata")
"""The packages that make answers."""

NEVER_FILLED = {
    ("ApiVersionsResponse", "zk_migration_ready"): "there is no ZooKeeper; nor is there in Kafka 4",
    (
        "DescribeLogDirsResponse",
        "error_code",
    ): "only an authorizer refuses the whole, as `broker.authorization` fills it",
    ("PartitionData", "snapshot_id"): "only the metadata quorum of Kafka fetches snapshots with Fetch (KIP-630)",
    ("SnapshotId", "end_offset"): "see snapshot_id",
    ("SnapshotId", "epoch"): "see snapshot_id",
    ("QuorumPartitionState", "error_message"): "the only error there is of a partition without a quorum says it all",
    ("StreamsGroupHeartbeatResponse", "topology_description_required"): "topologies are not described (KIP-1331)",
    ("StreamsGroupHeartbeatResponse", "acceptable_recovery_lag_legacy"): "0, as Kafka says: nobody looks at lags",
    ("StreamsGroupHeartbeatResponse", "acceptable_recovery_lag"): "-1, as Kafka says: nobody looks at lags",
    ("StreamsGroupHeartbeatResponse", "task_offset_interval_ms"): "0, as Kafka says: nobody looks at task offsets",
    ("DescribedStreamsGroup", "topology_description"): "topologies are not described (KIP-1331)",
    ("DescribedStreamsMember", "is_classic"): "streams groups have no members of the classic protocol yet (KIP-1071)",
}
"""Throttle times are not listed: `broker.quotas.clients` fills those of all answers."""


@cache
def declared(module: str) -> dict[str, dict[str, str]]:
    """The fields of each class of a module of messages, with their types as text."""
    return {
        node.name: {
            field.target.id: ast.unparse(field.annotation)
            for field in node.body
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        }
        for node in ast.parse((MESSAGES / f"{module}.py").read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef)
    }


@cache
def filled() -> tuple[set[tuple[str, str]], dict[str, set[str]]]:
    """Return (class, keyword) of each call, and the attributes that are assigned or changed, by file."""
    keywords: set[tuple[str, str]] = set()
    attributes: dict[str, set[str]] = {}
    for package in FILLING:
        for file in (PACKAGE / package).rglob("*.py"):
            text = file.read_text(encoding="utf-8")
            changed = attributes.setdefault(text, set())
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.Call):
                    function = node.func
                    name = getattr(function, "id", None) or getattr(function, "attr", "")
                    keywords.update((name, each.arg) for each in node.keywords if each.arg)
                    if name.islower():  # a class that is looked up
                        changed.update(each.arg for each in node.keywords if each.arg)
                    if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Attribute):
                        changed.add(function.value.attr)  # a list that is appended to
                targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
                for target in targets:
                    if target is not None:
                        changed.update(each.attr for each in ast.walk(target) if isinstance(each, ast.Attribute))
    return keywords, attributes


def is_filled(module: str, name: str, field: str) -> bool:
    keywords, attributes = filled()
    if (name, field) in keywords:
        return True
    return any(field in changed for text, changed in attributes.items() if re.search(rf"\b{module}\b", text))


def parts(module: str, name: str) -> list[str]:
    """Return the classes that a class consists of, itself included."""
    found = [name]
    for each in found:
        for kind in declared(module)[each].values():
            found += [part for part in declared(module) if part not in found and re.search(rf"\b{part}\b", kind)]
    return found


@pytest.mark.parametrize("module", sorted({api.response.__module__.rpartition(".")[2] for api in APIS.values()}))
def test_every_field_of_an_answer_is_filled_or_has_a_reason(module: str) -> None:
    roots = [api.response.__name__ for api in APIS.values() if api.response.__module__.endswith(f".{module}")]
    for name in (part for root in roots for part in parts(module, root)):
        for field in declared(module)[name]:
            if field == "throttle_time_ms" or (name, field) in NEVER_FILLED:
                continue
            assert is_filled(module, name, field), f"{name}.{field} is never filled"
