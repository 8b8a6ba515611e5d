"""The options of Spark's own connector, one by one: what becomes of each, and that the guide says so."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import pytest

from kraftpy.spark.offsets import OptionError
from kraftpy.spark.options import parse_read_options, parse_stream_options
from kraftpy.spark.sink_options import parse_write_options

HERE = Path(__file__).resolve().parent
GUIDE = HERE.parent.parent / "docs" / "how-to" / "spark-migrate.md"


def documented() -> list[dict[str, str]]:
    lines = [line for line in (HERE / "connector_options.tsv").read_text().splitlines() if not line.startswith("#")]
    return [
        {name: value or "" for name, value in row.items()}
        for row in csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
    ]


def outcome(row: dict[str, str], kind: str) -> str:
    """The outcome of a query with the option: it is refused, warned of, or taken in silence."""
    parse = {"stream": parse_stream_options, "batch": parse_read_options, "sink": parse_write_options}[kind]
    needed = {"kafka.bootstrap.servers": "h:1", **({"topic": "t"} if kind == "sink" else {"subscribe": "t"})}
    if row["name"] in ("assign", "subscribePattern"):
        del needed["subscribe"]
    try:
        with_it = parse({**needed, **json.loads(row["with"] or "{}"), row["name"]: row["value"]})
    except OptionError as error:
        return "refused" if row["name"].removeprefix("kafka.") in str(error) else f"refused: {error}"
    warnings = with_it.read.warnings if kind == "stream" else with_it.warnings  # type: ignore[attr-defined]
    return "no effect" if any(row["name"] in each for each in warnings) else "same"


def cases() -> list[tuple[dict[str, str], str]]:
    kinds = {"both": ("stream", "batch")}
    return [
        (row, kind) for row in documented() if row["of"] != "setting" for kind in kinds.get(row["of"], (row["of"],))
    ]


@pytest.mark.parametrize(("row", "kind"), cases(), ids=lambda each: each if isinstance(each, str) else each["name"])
def test_every_option_does_what_the_list_says(row: dict[str, str], kind: str) -> None:
    verdict = "same" if row["verdict"] == "differs" else row["verdict"]
    assert outcome(row, kind) == verdict


def rows_of(section: str) -> dict[str, str]:
    """The table of a section of the guide: option -> what it says."""
    text = re.search(rf"## {section}\n(.*?)(\n## |\Z)", GUIDE.read_text(), re.DOTALL)
    assert text is not None
    found = {}
    for line in text[1].splitlines():
        if line.startswith("| `"):
            names, says = line.strip("| ").split(" | ", 1)
            found |= {name: says.strip() for name in re.findall(r"`([^`]+)`", names)}
    return found


def test_the_guide_says_of_every_option_what_becomes_of_it() -> None:
    sections = {"sink": rows_of("Options of writes"), "setting": rows_of("Settings of the session")}
    reads = rows_of("Options of reads")
    for row in documented():
        says = sections.get(row["of"], reads)[row["name"]]
        if row["of"] != "setting":
            assert says.startswith(row["verdict"]), row["name"]


def test_the_list_is_that_of_the_connector_s_guide() -> None:
    """29 of reads, their session's timeout and security among them, 6 of writes, and 22 settings."""
    counts = [
        sum((row["of"] in which) for row in documented())
        for which in (("both", "stream", "batch"), ("sink",), ("setting",))
    ]
    assert counts == [32, 6, 22]
    assert len({(row["name"], row["of"]) for row in documented()}) == sum(counts)
