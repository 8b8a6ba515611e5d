"""bench/CONSOLE.md is what its script writes: nothing but the figures and the machine may differ."""

from __future__ import annotations

from pathlib import Path

from bench_pages import without_figures

from bench.console import PAGES, RESULTS, Times, written


def made(first_s: float) -> str:
    times = {path: Times(cold=[first_s, first_s, 9.0], warm=[0.02, 0.5, 0.01]) for _, path, _ in PAGES}
    return written(["time", "processor", "system", "packages"], 0.1, 5, [0.5, 0.6], times)


def test_the_page_is_what_the_script_writes() -> None:
    assert without_figures(Path(RESULTS).read_text(encoding="utf-8")) == without_figures(made(0.2))


def test_the_target_is_of_the_first_page_s_median() -> None:
    assert "| overview | 300 ms | 9000 ms | 20 ms | 500 ms |" in made(0.3)
    assert made(0.3).endswith("within 300 ms was the target: met\n")
    assert made(0.301).endswith("within 300 ms was the target: missed\n")
