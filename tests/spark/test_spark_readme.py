"""The README's Spark block, run as it stands in the session the other tests use."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kraftpy.testing.cluster import EmbeddedBroker

README = Path(__file__).resolve().parents[2] / "README.md"

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
