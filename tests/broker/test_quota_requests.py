"""DescribeClientQuotas and AlterClientQuotas on the wire: every error, and what is changed all the same."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from broker_wire import ask, connect

from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    EntityData,
    EntryData,
    OpData,
)
from kraftpy.protocol.messages.describe_client_quotas import ComponentData, DescribeClientQuotasRequest
from kraftpy.testing.cluster import EmbeddedBroker

Parts = Sequence[tuple[str, str | None]]
_names = itertools.count()


@pytest.fixture
def name() -> str:
    return f"quota-user-{next(_names)}"


@pytest.fixture
def wire(kraftpy_server: EmbeddedBroker) -> Iterator[Any]:
    with connect(kraftpy_server.bootstrap) as connection:
        yield connection


def entry(parts: Parts, **values: float | None) -> EntryData:
    return EntryData(
        entity=[EntityData(entity_type=kind, entity_name=name) for kind, name in parts],
        ops=[OpData(key=key, value=value or 0.0, remove=value is None) for key, value in values.items()],
    )


def alter(wire: Any, *entries: EntryData, version: int = 1, validate_only: bool = False) -> list[Any]:
    request = AlterClientQuotasRequest(entries=list(entries), validate_only=validate_only)
    found: list[Any] = ask(wire, ApiKey.ALTER_CLIENT_QUOTAS, version, request).entries
    return found


def describe(wire: Any, *components: tuple[str, int, str | None], strict: bool = False, version: int = 1) -> Any:
    wanted = [ComponentData(entity_type=kind, match_type=match, match=text) for kind, match, text in components]
    request = DescribeClientQuotasRequest(components=wanted, strict=strict)
    return ask(wire, ApiKey.DESCRIBE_CLIENT_QUOTAS, version, request)


def values(answer: Any) -> list[tuple[dict[str, str | None], dict[str, float]]]:
    return [
        (
            {part.entity_type: part.entity_name for part in each.entity},
            {value.key: value.value for value in each.values},
        )
        for each in answer.entries
    ]


@pytest.mark.parametrize("version", [0, 1])
def test_quotas_are_set_changed_and_removed(wire: Any, name: str, version: int) -> None:
    user = [("user", name)]
    (made,) = alter(wire, entry(user, producer_byte_rate=5.0, request_percentage=0.1), version=version)
    assert (made.error_code, made.error_message) == (ErrorCode.NONE, None)
    assert [(part.entity_type, part.entity_name) for part in made.entity] == user
    exactly = ("user", 0, name)
    found = values(describe(wire, exactly, version=version))
    assert found == [({"user": name}, {"producer_byte_rate": 5.0, "request_percentage": 0.1})]
    changed = entry(user, producer_byte_rate=6.0, request_percentage=None, consumer_byte_rate=None)
    assert alter(wire, changed, version=version)[0].error_code == ErrorCode.NONE
    assert values(describe(wire, exactly)) == [({"user": name}, {"producer_byte_rate": 6.0})]
    assert alter(wire, entry(user, producer_byte_rate=None))[0].error_code == ErrorCode.NONE
    assert values(describe(wire, exactly)) == []


def test_what_is_only_checked_changes_nothing(wire: Any, name: str) -> None:
    checked = alter(
        wire,
        entry([("user", name)], producer_byte_rate=5.0),
        entry([("user", name), ("client-id", "c")], producer_byte_rate=0.5),
        validate_only=True,
    )
    assert [result.error_code for result in checked] == [ErrorCode.NONE, ErrorCode.INVALID_REQUEST]
    assert values(describe(wire, ("user", 0, name))) == []


@pytest.mark.parametrize(
    ("parts", "given", "message"),
    [
        ([], {"producer_byte_rate": 1.0}, "Invalid empty client quota entity"),
        ([("group", "g")], {}, "Unhandled client quota entity type: group"),
        ([("user", "")], {}, "Empty user not supported"),
        ([("user", "a"), ("user", "a")], {}, "Invalid client quota entity, duplicate entity entry user"),
        (
            [("user", "a"), ("ip", "::1")],
            {},
            "Invalid quota entity combination, IP entity shouldnot be combined with User or ClientId",
        ),
        ([("ip", "no.such.host.invalid")], {}, "no.such.host.invalid is not a valid IP or resolvable host."),
        ([("user", "a")], {"nonsense": 1.0}, "Invalid configuration key nonsense"),
        ([("user", "a")], {"producer_byte_rate": -1.0}, "Quota producer_byte_rate must be greater than 0"),
        ([("user", "a")], {"producer_byte_rate": float("nan")}, "Quota producer_byte_rate must be greater than 0"),
        ([("user", "a")], {"producer_byte_rate": 1.5}, "producer_byte_rate cannot be a fractional value."),
    ],
)
def test_what_is_refused_costs_nobody_else_anything(
    wire: Any, name: str, parts: Parts, given: dict[str, float], message: str
) -> None:
    bad, good = alter(wire, entry(parts, **given), entry([("user", name)], producer_byte_rate=5.0))
    assert (bad.error_code, bad.error_message) == (ErrorCode.INVALID_REQUEST, message)
    assert [(part.entity_type, part.entity_name) for part in bad.entity] == parts
    assert good.error_code == ErrorCode.NONE
    assert values(describe(wire, ("user", 0, name))) == [({"user": name}, {"producer_byte_rate": 5.0})]
    alter(wire, entry([("user", name)], producer_byte_rate=None))


def test_an_entity_or_a_key_that_comes_twice_is_refused(wire: Any, name: str) -> None:
    both = [("user", name), ("client-id", None)]
    (twice,) = alter(wire, entry(both, producer_byte_rate=1.0), entry(both[::-1], producer_byte_rate=2.0))
    assert twice.error_code == ErrorCode.INVALID_REQUEST
    assert twice.error_message.startswith("Ignoring duplicate entity ClientQuotaEntity(entries={")
    once = entry(both, producer_byte_rate=1.0)
    once.ops *= 2
    (repeated,) = alter(wire, once)
    shown = f"Ignoring duplicate entity ClientQuotaEntity(entries={{user={name}, client-id=null}})"
    assert (repeated.error_code, repeated.error_message) == (ErrorCode.INVALID_REQUEST, shown)
    assert values(describe(wire, ("user", 0, name))) == []


@pytest.mark.parametrize(
    ("components", "code", "message"),
    [
        ([("", 2, None)], ErrorCode.INVALID_REQUEST, "Invalid empty entity type."),
        ([("group", 2, None)], ErrorCode.UNSUPPORTED_VERSION, "Unsupported entity type group"),
        ([("user", 7, None)], ErrorCode.INVALID_REQUEST, "Unknown match type 7"),
        (
            [("user", 0, None)],
            ErrorCode.INVALID_REQUEST,
            "Request specified MATCH_TYPE_EXACT, but set match string to null.",
        ),
    ],
)
def test_filters_that_are_refused(
    wire: Any, components: list[tuple[str, int, str | None]], code: ErrorCode, message: str
) -> None:
    refused = describe(wire, *components)
    assert (refused.error_code, refused.error_message, refused.entries) == (code, message, None)


def test_many_entities_in_one_request(wire: Any, name: str) -> None:
    users = [[("user", f"{name}-{number}"), ("client-id", name)] for number in range(2_000)]
    made = alter(wire, *(entry(user, producer_byte_rate=1.0) for user in users))
    assert {result.error_code for result in made} == {ErrorCode.NONE}
    assert len(describe(wire, ("client-id", 0, name)).entries) == len(users)
    assert {each.error_code for each in alter(wire, *(entry(user, producer_byte_rate=None) for user in users))} == {0}
    assert describe(wire, ("client-id", 0, name)).entries == []
