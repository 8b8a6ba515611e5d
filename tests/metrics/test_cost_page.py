"""bench/METRICS.md is what its script writes: nothing but the figures and the machine may differ."""

from __future__ import annotations

from pathlib import Path

from bench_pages import without_figures

from bench.metrics import RESULTS, Page, written

RUN = {
    "requests": [[{"cpu_us": 43.4, "per_s": 16_345.0}], [{"cpu_us": 45.8, "per_s": 15_896.0}]],
    "records": [[{"cpu_us": 0.462, "rate": 616_070.0}], [{"cpu_us": 0.438, "rate": 718_621.0}]],
}


def test_the_page_is_what_the_script_writes() -> None:
    page = Page(samples=119_810, size=8_500_000, took_s=0.18, used_s=0.1, longest_s=0.006)
    made = written(["time", "processor", "system", "packages"], 6.9, 15, RUN, page)
    assert without_figures(Path(RESULTS).read_text(encoding="utf-8")) == without_figures(made)
