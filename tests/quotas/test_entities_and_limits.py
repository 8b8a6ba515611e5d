"""Entities of quotas: which are sound, which a filter lets through, and whose quota applies."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kraftpy.quotas.entities import (
    CLIENT_ID,
    CLIENT_KEYS,
    CONNECTION_CREATION_RATE,
    IP,
    IP_KEYS,
    PRODUCER_BYTE_RATE,
    USER,
    InvalidQuota,
    QuotaFilter,
    UnsupportedType,
    check_ops,
    check_value,
    entity_of,
)
from kraftpy.quotas.limits import Limit, Limits

ALICE: tuple[str, str | None] = (USER, "alice")
BOB: tuple[str, str | None] = (USER, "bob")
ANYBODY: tuple[str, str | None] = (USER, None)
ANY_CLIENT: tuple[str, str | None] = (CLIENT_ID, None)
APP: tuple[str, str | None] = (CLIENT_ID, "app")
OTHER: tuple[str, str | None] = (CLIENT_ID, "other")
LEVELS: list[list[tuple[str, str | None]]] = [
    [ALICE, APP],
    [ALICE, ANY_CLIENT],
    [ALICE],
    [ANYBODY, APP],
    [ANYBODY, ANY_CLIENT],
    [ANYBODY],
    [APP],
    [ANY_CLIENT],
]
COUNTED = [("alice", "app"), ("alice", "app"), ("alice", None)] * 2 + [(None, "app")] * 2


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([], "Invalid empty client quota entity"),
        ([("group", "g")], "Unhandled client quota entity type: group"),
        ([ALICE, BOB], "Invalid client quota entity, duplicate entity entry user"),
        ([(USER, "")], "Empty user not supported"),
        ([(IP, "1.2.3.4"), ALICE], "IP entity shouldnot be combined with User or ClientId"),
        ([(IP, None), ANY_CLIENT], "IP entity shouldnot be combined with User or ClientId"),
    ],
)
def test_entities_that_are_refused(parts: list[tuple[str, str | None]], message: str) -> None:
    with pytest.raises(InvalidQuota, match=message):
        entity_of(parts)


@pytest.mark.parametrize(
    ("entity_type", "key", "value", "message"),
    [
        (USER, "consumer_rate", 1.0, "Invalid configuration key consumer_rate"),
        (USER, CONNECTION_CREATION_RATE, 1.0, "Invalid configuration key connection_creation_rate"),
        (IP, PRODUCER_BYTE_RATE, 1.0, "Invalid configuration key producer_byte_rate"),
        (USER, PRODUCER_BYTE_RATE, 0.0, "Quota producer_byte_rate must be greater than 0"),
        (USER, PRODUCER_BYTE_RATE, -1.0, "Quota producer_byte_rate must be greater than 0"),
        (USER, PRODUCER_BYTE_RATE, math.nan, "Quota producer_byte_rate must be greater than 0"),
        (USER, PRODUCER_BYTE_RATE, 1.5, "producer_byte_rate cannot be a fractional value."),
        (USER, PRODUCER_BYTE_RATE, 1e30, "Proposed value for producer_byte_rate is too large for a LONG."),
        (USER, PRODUCER_BYTE_RATE, math.inf, "Proposed value for producer_byte_rate is too large for a LONG."),
        (USER, "request_percentage", math.inf, "Proposed value for request_percentage is too large for a DOUBLE."),
        (IP, CONNECTION_CREATION_RATE, 2.0**31, "Proposed value for connection_creation_rate is too large for an INT."),
        (IP, CONNECTION_CREATION_RATE, 0.5, "connection_creation_rate cannot be a fractional value."),
    ],
)
def test_values_that_are_refused(entity_type: str, key: str, value: float, message: str) -> None:
    with pytest.raises(InvalidQuota) as refused:
        check_value(entity_of([(entity_type, None)]), key, value)
    assert str(refused.value) == message


def test_values_that_are_allowed() -> None:
    for key, kind in CLIENT_KEYS.items():
        check_value(entity_of([ALICE]), key, 1.0)
        check_value(entity_of([ALICE, APP]), key, 0.25 if not kind.is_whole else 2.0**62)
    for key in IP_KEYS:
        check_value(entity_of([(IP, "host")]), key, 2.0**31 - 1)


def test_a_key_that_comes_twice_is_refused() -> None:
    assert check_ops([("a", 1.0), ("b", None)]) == {"a": 1.0, "b": None}
    with pytest.raises(InvalidQuota, match="Duplicate quota key a"):
        check_ops([("a", 1.0), ("a", None)])


@pytest.mark.parametrize(
    ("components", "message"),
    [
        ([("", 2, None)], "Invalid empty entity type."),
        ([(USER, 0, "a"), (USER, 2, None)], "Entity type user cannot appear more than once in the filter."),
        ([(USER, 0, None)], "Request specified MATCH_TYPE_EXACT, but set match string to null."),
        ([(USER, 1, "a")], "Request specified MATCH_TYPE_DEFAULT, but also specified a match string."),
        ([(USER, 2, "a")], "Request specified MATCH_TYPE_SPECIFIED, but also specified a match string."),
        ([(USER, 3, None)], "Unknown match type 3"),
        ([(IP, 2, None), (USER, 2, None)], "Invalid entity filter component combination. IP filter component"),
    ],
)
def test_filters_that_are_refused(components: list[tuple[str, int, str | None]], message: str) -> None:
    with pytest.raises(InvalidQuota) as refused:
        QuotaFilter(components, strict=False)
    assert str(refused.value).startswith(message)


def test_a_filter_of_an_unknown_type_needs_a_later_version() -> None:
    with pytest.raises(UnsupportedType, match="Unsupported entity type group"):
        QuotaFilter([("group", 2, None)], strict=False)


@pytest.mark.parametrize(
    ("components", "strict", "matching"),
    [
        ([], False, [0, 1, 2, 3, 4, 5, 6, 7]),
        ([], True, []),
        ([(USER, 0, "alice")], False, [0, 1, 2]),
        ([(USER, 0, "alice")], True, [2]),
        ([(USER, 0, "bob")], False, []),
        ([(USER, 1, None)], False, [3, 4, 5]),
        ([(USER, 2, None)], False, [0, 1, 2, 3, 4, 5]),
        ([(USER, 2, None)], True, [2, 5]),
        ([(USER, 2, None), (CLIENT_ID, 2, None)], True, [0, 1, 3, 4]),
        ([(USER, 0, "alice"), (CLIENT_ID, 1, None)], False, [1]),
        ([(CLIENT_ID, 0, "app")], True, [6]),
        ([(IP, 2, None)], False, []),
    ],
)
def test_what_a_filter_lets_through(
    components: list[tuple[str, int, str | None]], strict: bool, matching: list[int]
) -> None:
    found = QuotaFilter(components, strict=strict)
    assert [place for place, level in enumerate(LEVELS) if found.matches(entity_of(level))] == matching


def test_the_most_special_quota_applies() -> None:
    limits = Limits()
    for place in reversed(range(len(LEVELS))):
        limits.set(entity_of(LEVELS[place]), PRODUCER_BYTE_RATE, place + 1)
        assert limits.of_client("alice", "app", PRODUCER_BYTE_RATE) == Limit(place + 1, *COUNTED[place])
    for place in range(len(LEVELS)):
        assert limits.of_clients
        limits.set(entity_of(LEVELS[place]), PRODUCER_BYTE_RATE, None)
        found = limits.of_client("alice", "app", PRODUCER_BYTE_RATE)
        assert found == (Limit(place + 2, *COUNTED[place + 1]) if place + 1 < len(LEVELS) else None)
    assert not limits.of_clients
    assert limits.entities() == []


def test_others_have_the_quotas_of_their_own_levels() -> None:
    limits = Limits()
    for place, level in enumerate(LEVELS, 1):
        limits.set(entity_of(level), PRODUCER_BYTE_RATE, place)
    assert limits.of_client("alice", "other", PRODUCER_BYTE_RATE) == Limit(2, "alice", "other")
    assert limits.of_client("bob", "app", PRODUCER_BYTE_RATE) == Limit(4, "bob", "app")
    assert limits.of_client("bob", "", PRODUCER_BYTE_RATE) == Limit(5, "bob", "")
    assert limits.of_client("bob", "app", "consumer_byte_rate") is None


def test_each_key_has_a_level_of_its_own() -> None:
    limits = Limits()
    limits.set(entity_of([ALICE, APP]), PRODUCER_BYTE_RATE, 1)
    limits.set(entity_of([ANYBODY]), "request_percentage", 50)
    assert limits.of_client("alice", "app", PRODUCER_BYTE_RATE) == Limit(1, "alice", "app")
    assert limits.of_client("alice", "app", "request_percentage") == Limit(50, "alice", None)


def test_addresses_have_their_own_rate_or_the_default() -> None:
    limits = Limits()
    limits.set(entity_of([(IP, "10.0.0.1")]), CONNECTION_CREATION_RATE, 5)
    assert (limits.of_ips, limits.of_clients) == (True, False)
    assert limits.of_ip("10.0.0.2", CONNECTION_CREATION_RATE) is None
    limits.set(entity_of([(IP, None)]), CONNECTION_CREATION_RATE, 7)
    assert limits.of_ip("10.0.0.1", CONNECTION_CREATION_RATE) == 5
    assert limits.of_ip("10.0.0.2", CONNECTION_CREATION_RATE) == 7
    assert limits.ips() == ["10.0.0.1"]


ENTITIES = st.sampled_from([*LEVELS, [BOB], [OTHER], [BOB, OTHER], [(IP, "1.2.3.4")], [(IP, None)]])
KEYS = st.sampled_from(["producer_byte_rate", "request_percentage"])
ALTERATIONS = st.lists(st.tuples(ENTITIES, KEYS, st.sampled_from([None, 1.0, 2.0])), max_size=30)


@given(ALTERATIONS)
def test_limits_are_as_a_naive_search_finds_them(
    alterations: list[tuple[list[tuple[str, str | None]], str, float | None]],
) -> None:
    limits, kept = Limits(), dict[tuple[frozenset[tuple[str, str | None]], str], float]()
    for parts, key, value in alterations:
        limits.set(entity_of(parts), key, value)
        kept.pop((frozenset(parts), key), None)
        if value is not None:
            kept[frozenset(parts), key] = value
    for user, client, key in itertools.product(
        ("alice", "bob"), ("app", "other"), ("producer_byte_rate", "request_percentage")
    ):
        users: list[tuple[str, str | None] | None] = [(USER, user), ANYBODY, None]
        clients: list[tuple[str, str | None] | None] = [(CLIENT_ID, client), ANY_CLIENT, None]
        found = _naive(kept, users, clients, key)
        limit = limits.of_client(user, client, key)
        assert (None if limit is None else limit.value) == found
    assert limits.of_clients == any(not any(kind == IP for kind, _ in parts) for parts, _ in kept)
    assert limits.of_ips == any(any(kind == IP for kind, _ in parts) for parts, _ in kept)


def _naive(
    kept: dict[tuple[frozenset[tuple[str, str | None]], str], float],
    users: list[tuple[str, str | None] | None],
    clients: list[tuple[str, str | None] | None],
    key: str,
) -> float | None:
    for user, client in itertools.product(users, clients):
        place = frozenset(part for part in (user, client) if part is not None)
        if (place, key) in kept:
            return kept[place, key]
    return None


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan])
def test_a_stored_value_that_is_no_limit_counts_as_not_set(value: float) -> None:
    limits = Limits()
    limits.set(entity_of([ALICE]), PRODUCER_BYTE_RATE, value)
    limits.set(entity_of([(IP, "::1")]), CONNECTION_CREATION_RATE, value)
    assert limits.of_client("alice", "app", PRODUCER_BYTE_RATE) is None
    limits.set(entity_of([ANYBODY]), PRODUCER_BYTE_RATE, 3)
    limits.set(entity_of([(IP, None)]), CONNECTION_CREATION_RATE, 4)
    assert limits.of_client("alice", "app", PRODUCER_BYTE_RATE) == Limit(3, "alice", None)
    assert limits.of_ip("::1", CONNECTION_CREATION_RATE) == 4
