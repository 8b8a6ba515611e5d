"""Filters by JSONPath: what they select, how they compare, and what they refuse."""

from __future__ import annotations

import time
from typing import Any

import pytest

from kraftpy.console.jsonpath import MOST_FILTER, parse_filter

DOCUMENT: dict[str, Any] = {
    "id": 7,
    "paid": True,
    "customer": {"name": "Ada", "first name": "A", "tags": ["new", "vip"], "nothing": None},
    "items": [{"price": 3}, {"price": 12.5}],
    "Größe": 1,
    "[0]": "odd",
}


@pytest.mark.parametrize(
    "text",
    [
        "$",
        "$.id",
        "$.id == 7",
        " $.id==7.0 ",
        "$.id != 8",
        '$.customer.name == "Ada"',
        "$['customer']['first name'] == \"A\"",
        '$["customer"].name',
        '$.customer.tags[0] == "new"',
        '$.customer.tags[-1] == "vip"',
        '$.customer.tags[*] == "vip"',
        "$.customer.nothing == null",
        "$.paid == true",
        "$.items[*].price > 12",
        "$.items[*].price <= 3",
        "$..price >= 12.5",
        "$..tags[1]",
        "$.*.name",
        "$..*",
        "$..[1]",
        "$.Größe < 2",
        "$['[0]'] == \"odd\"",
        '$.customer.tags == ["new", "vip"]',
    ],
)
def test_it_matches(text: str) -> None:
    assert parse_filter(text)(DOCUMENT)


@pytest.mark.parametrize(
    "text",
    [
        "$.none",
        "$.id == 8",
        '$.id == "7"',
        "$.id.deeper",
        "$.customer.tags[2]",
        "$.customer.tags[-3]",
        "$.customer[0]",
        "$.paid == 1",
        "$.customer.name > 3",
        "$..price > 100",
        "$.customer.tags.new",
    ],
)
def test_it_does_not_match(text: str) -> None:
    assert not parse_filter(text)(DOCUMENT)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "begins with \\$"),
        ("id", "begins with \\$"),
        ("$.", "expected a name"),
        ("$..", "expected a name"),
        ("$.1", "expected a name"),
        ("$[", "expected a quoted name"),
        ("$[x]", "expected a quoted name"),
        ("$['a", "does not end"),
        ("$['a'", "expected \\]"),
        ("$[?@.a]", "expected a quoted name"),
        ("$.a = 3", "expected a comparison"),
        ("$.a == Ada", "not a JSON value"),
        ("$.a ==", "not a JSON value"),
        ("$.a == " + "[" * 5_000, "longer than"),
        ("$" + ".a" * MOST_FILTER, "longer than"),
    ],
)
def test_what_it_cannot_read_is_said(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        parse_filter(text)


def test_no_document_is_looked_at_for_ever() -> None:
    deep: Any = {}
    for _ in range(400):
        deep = {"a": deep, "b": deep}  # 2**400 paths
    started = time.process_time()
    assert not parse_filter("$..c..d == 1")(deep)
    assert not parse_filter("$..*..*..*.never")([[0] * 1_000] * 1_000)
    assert time.process_time() - started < 30
