"""The README's Spark block and those of docs/how-to/spark.md, run as they stand in the session the other tests use."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kraftpy.testing.cluster import EmbeddedBroker

README = Path(__file__).resolve().parents[2] / "README.md"
PAGE = README.parent / "docs" / "how-to" / "spark.md"

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def test_the_readme_s_block_counts_orders(
    spark: Any, topic_of: Callable[..., str], kraftpy_server: EmbeddedBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = topic_of([{"value": b"order %d" % n, "key": b"customer %d" % (n % 7)} for n in range(100)])
    (block,) = re.findall(r"<!-- spark -->\n```python\n(.*?)^```$", README.read_text(), re.MULTILINE | re.DOTALL)
    block = block.replace("127.0.0.1:9092", kraftpy_server.bootstrap).replace('"orders"', repr(topic))
    exec(compile(block, "README.md", "exec"), {})
    assert re.search(r"\|customer 0\| +15\|", capsys.readouterr().out)


def test_the_page_s_blocks_read_orders(
    spark: Any,
    topic_of: Callable[..., str],
    kraftpy_server: EmbeddedBroker,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    topic = topic_of([{"value": b'{"id": %d, "item": "tea"}' % n} for n in range(9)] + [{"value": b"{oops"}])
    world: dict[str, Any] = {"spark": spark}
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    try:
        for block in blocks:
            for before, after in {
                "127.0.0.1:9092": kraftpy_server.bootstrap,
                '"orders"': repr(topic),
                '"path", ' + repr(topic): f'"path", {str(tmp_path / "rows")!r}',
                '"orders-checkpoint"': repr(str(tmp_path / "checkpoint")),
                '"orders-in-spark"': repr(f"{topic}-in-spark"),
            }.items():
                block = block.replace(before, after)
            exec(compile(block, str(PAGE), "exec"), world)
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")
    assert spark.read.parquet(str(tmp_path / "rows")).count() == 10
    assert world["query"].exception() is None
    shown = capsys.readouterr().out
    assert re.search(r"\|  8\| tea\| +8\|", shown)
    assert re.search(r"\| +0\| +9\|not JSON", shown)
