"""The generated reference: the differences in docs/differences.toml hold, and no setting or public name is missing."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

import kraftpy.client
import kraftpy.testing
from kraftpy.broker.handlers.table import served
from kraftpy.config.broker_settings import BROKER_TABLE
from kraftpy.config.dynamic import DYNAMIC_SETTINGS
from kraftpy.config.other_settings import OTHER_SETTINGS
from kraftpy.config.settings import parse_table
from kraftpy.config.topic_settings import NO_EFFECT
from kraftpy.protocol.apis import ApiKey

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "docs" / "_ext"))

import pages  # noqa: E402

DIFFERENCES = pages.differences()


@pytest.mark.parametrize("entry", DIFFERENCES, ids=lambda entry: entry["kafka"][:50])
def test_a_difference_is_as_the_page_says(entry: dict[str, object]) -> None:
    names = set(entry.get("settings", ()))  # type: ignore[call-overload]
    match entry.get("check"):
        case "apis":
            assert pages.numbers(entry["apis"]) == [int(key) for key in served()]
        case "no_apis":
            assert not {*pages.numbers(entry["apis"])} & {int(key) for key in served()}
        case "dynamic":
            assert names == DYNAMIC_SETTINGS
        case "unused":
            assert names
            assert names <= set(OTHER_SETTINGS)
        case "no_effect":
            assert names == NO_EFFECT
        case None:
            assert "settings" not in entry
        case other:
            raise AssertionError(other)
    for name in entry.get("tests", ()):  # type: ignore[attr-defined]
        assert (ROOT / name).exists()


def test_areas_are_not_scattered() -> None:
    areas = [entry["area"] for entry in DIFFERENCES]
    assert areas == sorted(areas, key=areas.index)


@pytest.mark.parametrize("kind", sorted(pages.TABLES))
def test_every_setting_is_in_the_reference(kind: str) -> None:
    page = pages.settings_page(kind)
    shown = re.findall(r"^````\{[a-z-]+\} (\S+)$", page, re.MULTILINE)
    assert shown == list(parse_table(pages.TABLES[kind]))
    assert page.count("- **Default:**") == page.count("- **Value:**") == page.count("- **Whose:**") == len(shown)


def test_chapters_are_those_of_the_table() -> None:
    headings = [heading for heading, _ in pages.chapters(BROKER_TABLE)]
    assert len(headings) > 5
    assert all(headings)


@pytest.mark.parametrize(("page", "package"), [("client", kraftpy.client), ("testing", kraftpy.testing)])
def test_every_public_name_is_in_the_reference(page: str, package: object) -> None:
    text = (ROOT / "docs" / "reference" / "api" / f"{page}.md").read_text(encoding="utf-8")
    documented = re.findall(rf"autoclass:: kraftpy\.{page}\.(\w+)", text)
    assert sorted(documented) == sorted(package.__all__)  # type: ignore[attr-defined]


NOT_SERVED = {17, 36, 38, 39, 40, 41, 48, 49, 50, 51}
"""APIs without a name here, which are not advertised."""
UNKNOWN_TO_KAFKA = {93, 94}
"""APIs without a name in Kafka 4.3."""
ANSWER_KEYS = {
    "request",
    "field",
    "kafka",
    "here",
    "why",
    "when",
    "versions",
    "about",
    "case",
    "nodes",
    "world",
    "follows",
}


@pytest.mark.parametrize("entry", pages.answers(), ids=lambda entry: f"{entry['request']} {entry['field']}")
def test_an_answer_that_differs_names_a_request_and_says_why(entry: dict[str, object]) -> None:
    assert set(entry) <= ANSWER_KEYS
    assert {"request", "field", "kafka", "here", "why"} <= set(entry)
    requests = {entry["request"]} if isinstance(entry["request"], str) else set(entry["request"])  # type: ignore[call-overload]
    named = {key.name.title().replace("_", "") for key in ApiKey} | {
        f"API {key}" for key in NOT_SERVED | UNKNOWN_TO_KAFKA
    }
    assert requests == {"*"} or requests <= named
    if ("case" in entry or "about" in entry) and not entry.get("follows"):
        assert entry.get("when"), "a pattern is told in words"
