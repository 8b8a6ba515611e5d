"""Questions of a user with some rights to clusters with an authorizer: none, each alone, all, all with each denied."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from differ import Differ
from of_kafka import APIS, OF_KAFKA_4_4
from scenario_table import add_scenario
from side import Side
from surroundings import can_be_used, wait
from worlds import RIGHTS as WORLD
from worlds import USER

from kraftpy.broker.authorization.policy import RIGHTS, Need
from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.errors import KafkaError
from kraftpy.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from kraftpy.protocol.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from kraftpy.protocol.schema import Struct, fields
from kraftpy.security.acls import CLUSTER_NAME, Permission, ResourceType

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from tests.security.api_requests import EVERY_ACL, REQUESTS, VERSIONS, Named

NOT_ASKED = frozenset(
    {
        ApiKey.CREATE_DELEGATION_TOKEN,  # tokens are random
        ApiKey.DESCRIBE_DELEGATION_TOKEN,
    }
)
ASKED_OTHERWISE: Mapping[ApiKey, Callable[[Named], Any]] = {
    # A member that is admitted waits for others, and blocks the group; this one's session is too short for any group.
    ApiKey.JOIN_GROUP: lambda named: JoinGroupRequest(
        group_id=named.group,
        session_timeout_ms=1,
        rebalance_timeout_ms=1,
        member_id="",
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
    ),
    # The meaning of an empty update is asked elsewhere; the first version has no `validate_only`.
    ApiKey.UPDATE_FEATURES: lambda named: UpdateFeaturesRequest(
        feature_updates=[FeatureUpdateKey(feature=named.topic, max_version_level=1)]
    ),
}
"""Requests in place of those of `REQUESTS`, which change nothing even with all rights."""
Grants = Iterable[tuple[Need, Permission]]


def body_of(message: Any) -> Any:
    """Return a message as the dictionary that questions are written in."""
    if isinstance(message, list):
        return [body_of(each) for each in message]
    if isinstance(message, Struct):
        return {field.name: body_of(getattr(message, field.name)) for field in fields(type(message))}
    return message


def cases(key: ApiKey) -> Mapping[str, Grants]:
    """Return the rights to ask with, by what tells them apart."""
    needs = RIGHTS[key]
    all_of_them = [(need, Permission.ALLOW) for need in needs]
    found: dict[str, Grants] = {"none": []}
    for need in needs:
        found[f"only {need.operation.name} {need.resource.name}"] = [(need, Permission.ALLOW)]
    found["all"] = all_of_them
    for need in needs:
        found[f"not {need.operation.name} {need.resource.name}"] = [*all_of_them, (need, Permission.DENY)]
    return found


def give(side: Side, named: Named, grants: Grants) -> None:
    """Have these ACLs, and no others."""
    side.quiet("delete_acls", {"filters": [EVERY_ACL]}, 3)
    names = {
        ResourceType.TOPIC: named.topic,
        ResourceType.GROUP: named.group,
        ResourceType.TRANSACTIONAL_ID: named.transaction,
        ResourceType.CLUSTER: CLUSTER_NAME,
    }
    creations = [
        {
            "resource_type": int(need.resource),
            "resource_name": names[need.resource],
            "resource_pattern_type": 3,
            "principal": f"User:{USER}",
            "host": "*",
            "operation": int(need.operation),
            "permission_type": int(permission),
        }
        for need, permission in grants
    ]
    side.quiet("create_acls", {"creations": creations}, 3)
    held = {(each["resource_type"], each["operation"], each["permission_type"]) for each in creations}
    wait(side, "the ACLs hold", lambda: _held(side) == held)


def _held(side: Side) -> set[tuple[int, int, int]]:
    answer = side.quiet("describe_acls", EVERY_ACL, 3)
    return {
        (resource.resource_type, acl.operation, acl.permission_type)
        for resource in answer.resources
        for acl in resource.acls
    }


def _make(side: Side, named: Named) -> bytes:
    topic = {"name": named.topic, "num_partitions": 1, "replication_factor": -1}
    created = side.quiet("create_topics", {"topics": [topic], "timeout_ms": 20000}, 7)
    wait(side, "the topic can be used", lambda: can_be_used(side, [named.topic]))
    topic_id: bytes = created.topics[0].topic_id
    return topic_id


def ask_with_rights(key: ApiKey, differ: Differ) -> None:
    """Ask one API with all its cases, about resources that are there and others, in its first and last version."""
    last = min(VERSIONS.get(key, APIS[key].last), APIS[key].last)
    for number, (case, grants) in enumerate(cases(key).items()):
        for exists in (True, False):
            suffix = f"{int(key)}-{number}-{'there' if exists else 'nowhere'}"
            named = Named(f"t{suffix}", f"g{suffix}", f"x{suffix}")
            if exists:
                topic_id: Any = differ.own(partial(_make, named=named))
                named = named._replace(topic_id=topic_id)
            for side in differ.sides:
                give(side, named, grants)
            note = f"{case}, {'there' if exists else 'nowhere'}"
            for version in sorted({APIS[key].first, last}):
                body = body_of(ASKED_OTHERWISE.get(key, REQUESTS[key])(named))
                try:
                    differ.ask(key.name.lower(), body, version, note=note, eventually=True)
                except KafkaError:  # this version cannot say it
                    continue
    for side in differ.sides:
        give(side, Named("", "", ""), [])


for each in sorted(REQUESTS):
    if each not in OF_KAFKA_4_4 and each not in NOT_ASKED:
        add_scenario(f"rights_{each.name.lower()}", partial(ask_with_rights, each), world=WORLD)


GOOD_BINDING = {
    "resource_type": 2,
    "resource_name": "orders",
    "resource_pattern_type": 3,
    "principal": "User:bob",
    "host": "*",
    "operation": 3,
    "permission_type": 3,
}
ODD_VALUES: Mapping[str, tuple[Any, ...]] = {
    "resource_type": (0, 1, 3, 4, 5, 6, 7, 8, -1),
    "resource_name": ("", "*", "kafka-cluster"),
    "resource_pattern_type": (0, 1, 2, 4, 5, -1),
    "principal": ("", "bob", "User:", ":bob", "Group:bob", "User:*"),
    "host": ("127.0.0.1", "::1"),
    "operation": (0, 1, 2, 8, 12, 13, 15, 16, -1),
    "permission_type": (0, 1, 2, 4, -1),
}
OF_FILTERS = {
    "resource_type": "resource_type_filter",
    "resource_name": "resource_name_filter",
    "resource_pattern_type": "pattern_type_filter",
    "principal": "principal_filter",
    "host": "host_filter",
}


def odd_acls(differ: Differ) -> None:
    """Ask the three APIs of ACLs with odd values, as a user with the right to them."""
    of_cluster = [(RIGHTS[key][0], Permission.ALLOW) for key in (ApiKey.DESCRIBE_ACLS, ApiKey.CREATE_ACLS)]
    for side in differ.sides:
        give(side, Named("", "", ""), of_cluster)
    for field, values in ODD_VALUES.items():
        for value in values:
            note = f"{field} {value!r}"
            creation = {**GOOD_BINDING, field: value}
            wanted = {OF_FILTERS.get(name, name): each for name, each in creation.items()}
            for version in (1, 3):
                differ.ask("create_acls", {"creations": [creation, GOOD_BINDING]}, version, note=note, eventually=True)
                differ.ask("describe_acls", wanted, version, note=note, eventually=True)
                differ.ask("delete_acls", {"filters": [wanted]}, version, note=note, eventually=True)
    for side in differ.sides:
        give(side, Named("", "", ""), [])


add_scenario("odd_acls", odd_acls, world=WORLD)
