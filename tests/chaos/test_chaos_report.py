"""The cost of faults, the page, and that the page needs nothing from outside."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from planted import done

from chaos import checkers
from chaos.__main__ import main
from chaos.availability import SECOND, by_kind, longest_gap, outages, quantiles, spans, workload_end
from chaos.generator import LogCalls, LogOptions
from chaos.history import FAULT, HEAL, NEMESIS, History, Op, Type, to_line
from chaos.plots import plot
from chaos.reference.clients import Clients
from chaos.report import render

MS = 1_000_000


def timed(*events: tuple[int, Any, str, str, Any]) -> History:
    """(milliseconds, process, type, f, value), put in order of time."""
    ordered = sorted(events, key=lambda event: event[0])
    return History(
        [
            Op(index=place, time=at * MS, process=process, type=Type(kind), f=f, value=value)
            for place, (at, process, kind, f, value) in enumerate(ordered)
        ]
    )


def steady(begin: int, end: int, every: int = 10) -> list[tuple[int, Any, str, str, Any]]:
    """Return sends at this interval in milliseconds, each acknowledged after one."""
    events: list[tuple[int, Any, str, str, Any]] = []
    for at in range(begin, end, every):
        events.append((at, 0, "invoke", "send", [["send", "x", at]]))
        events.append((at + 1, 0, "ok", "send", [["send", "x", [at, at]]]))
    return events


def fault(number: int, kind: str, begin: int, end: int) -> list[tuple[int, Any, str, str, Any]]:
    return [
        (begin, NEMESIS, "info", FAULT, {"id": number, "kind": kind, "target": "one", "nodes": [2]}),
        (end, NEMESIS, "info", HEAL, {"id": number}),
    ]


OUTAGE = timed(
    *steady(0, 20_000), *fault(0, "kill", 20_005, 21_000), *steady(23_000, 40_000), *fault(1, "pause", 30_005, 31_000)
)


def test_a_gap_and_the_time_to_heal_are_measured() -> None:
    killed, paused = outages(OUTAGE)
    assert (killed.span.kind, killed.span.begin, killed.span.end) == ("kill", 20_005 * MS, 21_000 * MS)
    assert killed.send_gap_ms == 23_001 - 20_005
    assert killed.poll_gap_ms is None, "nobody polled"
    assert killed.heal_ms == 23_001 - 21_000
    assert paused.send_gap_ms == 10
    assert paused.heal_ms == 1


def test_a_rate_that_never_comes_back_is_not_healed() -> None:
    history = timed(*steady(0, 20_000), *fault(0, "kill", 20_005, 21_000), *steady(23_000, 40_000, every=500))
    (killed,) = outages(history)
    assert killed.heal_ms is None
    (kind,) = by_kind([killed])
    assert (kind.not_healed, kind.heal) == (1, None)


def test_a_fault_without_an_end_lasts_to_the_end() -> None:
    begin, _ = fault(0, "kill", 500, 600)
    (span,) = spans(timed(*steady(0, 1000), begin))
    assert span.end == 991 * MS


@pytest.mark.parametrize(
    ("f", "value", "extra"),
    [
        ("poll", [["poll", {}]], {"final": True}),
        ("send", [["send", "x0-0", [1, 1]]], {"last": True}),
        ("init", [7, 0], {}),
        ("acquire", {"group": "q", "records": []}, {}),
    ],
)
def test_what_comes_after_the_workload_is_no_part_of_it(f: str, value: Any, extra: dict[str, Any]) -> None:
    asked = Op(index=10**6, time=60 * SECOND, process=7, type=Type.INVOKE, f=f, value=value, extra=extra)
    history = History([*OUTAGE.ops, asked, replace(asked, index=10**6 + 1, time=61 * SECOND, type=Type.OK)])
    assert workload_end(history) == 39_991 * MS


def test_numbers_by_nearest_rank() -> None:
    found = quantiles(range(1, 101))
    assert found is not None
    assert (found.count, found.p50, found.p99, found.most) == (100, 50, 99, 100)
    assert quantiles([]) is None
    assert longest_gap([], 0, 10) is None
    assert longest_gap([0, 2 * MS, 10 * MS], MS, 12 * MS) == 8


class Page(HTMLParser):
    """Tags that are open, attributes that lead elsewhere, the text."""

    VOID = ("meta", "br", "link", "img", "input", "hr")

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.outside: list[str] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in self.VOID:
            self.open.append(tag)
        for name, value in attrs:
            if name in ("src", "href", "xlink:href", "action") and not str(value).startswith("#"):
                self.outside.append(f"{tag} {name}={value}")
        assert tag not in ("script", "link", "img", "iframe")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def sample() -> History:
    return History(Clients(2, LogCalls(2, LogOptions(transactions=True)), 5, transactions=True).run(8000))


def test_a_page_is_whole_and_needs_no_network(sample: History) -> None:
    html = render(sample, checkers.check(sample), command="python -m chaos <repeat> --seed 2", title="A run & more")
    page = Page(html)
    assert page.open == []
    assert page.outside == []
    assert "@import" not in html
    assert not re.search(r"url\((?!#)", html)
    for text in ("A run & more", "nothing wrong", "python -m chaos <repeat> --seed 2", "What the faults cost", "G0"):
        assert text in page.text


def test_a_plot_is_an_svg_with_each_fault_shaded_and_always_the_same(sample: History) -> None:
    faults = spans(sample)
    assert faults
    svg = plot(sample, faults)
    ElementTree.fromstring(svg)
    assert svg == plot(sample, faults)
    shaded = plot(sample, faults).count("<path") - plot(sample, []).count("<path")
    assert shaded == 2 * len(faults)
    for span in faults:
        assert f">{span.kind}<" in svg


def test_an_anomaly_is_shown_with_its_lines_and_escaped() -> None:
    lines = [*done(0, "fail", "send", [["send", "x", "<b>"]]), *done(1, "ok", "poll", [["poll", {"x": [[0, "<b>"]]}]])]
    history = History(
        [
            Op(index=place, time=place * MS, process=p, type=Type(kind), f=f, value=value)
            for place, (p, kind, f, value, _) in enumerate(lines)
        ]
    )
    html = render(history, checkers.check(history))
    assert "<b>'" not in html
    page = Page(html)
    assert "anomalies" in page.text
    assert "G1a" in page.text
    assert '"f":"send","value":[["send","x","<b>"]]' in page.text


def test_a_history_with_nothing_in_it_is_no_approval() -> None:
    history = History([])
    assert "nothing to judge" in Page(render(history, checkers.check(history))).text


def test_the_command_writes_the_page_beside_the_history(tmp_path: Path, sample: History) -> None:
    file = tmp_path / "history.jsonl"
    run = Op(
        index=0, time=0, process="run", type=Type.INFO, f="run", value={"command": "repeat me", "world": "thin air"}
    )
    again = [replace(op, index=op.index + 1) for op in sample.ops]
    file.write_text("".join(to_line(op) + "\n" for op in [run, *again]), encoding="utf-8")
    result = CliRunner().invoke(main, ["report", str(file)])
    assert result.exit_code == 0, result.output
    page = Page((tmp_path / "history.html").read_text(encoding="utf-8"))
    assert "repeat me" in page.text
    assert "thin air" in page.text


def test_what_a_run_saw_besides_its_operations_is_shown() -> None:
    said = (
        {"command": "repeat me"},
        {"problems": ["node 2 ended <by itself>"], "damage": ["node 1: t0-0: a wrong CRC"]},
    )
    history = History(
        [Op(index=i, time=i, process="run", type=Type.INFO, f="run", value=v) for i, v in enumerate(said)]
    )
    page = Page(render(history, checkers.check(history)))
    shown = ("something wrong", "Wrong besides", "node 2 ended <by itself>", "node 1: t0-0: a wrong CRC")
    for text in ("repeat me", *shown):
        assert text in page.text
    assert "nothing to judge" not in page.text.split("To repeat it")[0]


def test_the_command_shows_a_schedule() -> None:
    result = CliRunner().invoke(main, ["plan", "--seed", "4", "--minutes", "3", "--kind", "pause"])
    assert result.exit_code == 0, result.output
    assert '"kind": "pause"' in result.output
    assert '"kind": "kill"' not in result.output
