"""`kraftpy spark report`: pages of what a real query has left behind, and one line about files that are not whole."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pyarrow as pa
import pytest
from click.testing import CliRunner

from kraftpy.cli import cli
from kraftpy.spark import event_logs
from kraftpy.spark.checkpoint_batches import read_checkpoint
from kraftpy.spark.event_logs import read_event_log
from kraftpy.spark.report import MOST_COLUMNS, page
from kraftpy.testing.cluster import EmbeddedBroker
from kraftpy.types import TopicPartition

PROGRESS = "org.apache.spark.sql.streaming.StreamingQueryListener$QueryProgressEvent"
TERMINATED = "org.apache.spark.sql.streaming.StreamingQueryListener$QueryTerminatedEvent"


def report(source: Path, output: Path) -> str:
    result = CliRunner().invoke(cli, ["spark", "report", str(source), "--output", str(output)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return output.read_text()


def refusal(source: Path) -> str:
    """The one line that is said of a source that cannot be read."""
    output = source.parent / "no-page.html"
    result = CliRunner().invoke(cli, ["spark", "report", str(source), "--output", str(output)], catch_exceptions=False)
    assert result.exit_code == 1
    assert not output.exists()
    lines = result.stderr.splitlines()
    assert len(lines) == 1, lines
    return lines[0]


class Tags(HTMLParser):
    """Counts tags, and looks for anything that a page would load or run."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.counts: dict[str, int] = {}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.counts[tag] = self.counts.get(tag, 0) + 1
        assert tag not in ("script", "link", "img", "iframe", "object", "embed")
        assert not any(name in ("src", "href") or name.startswith("on") for name, _ in attrs)


def charts(text: str) -> list[ElementTree.Element]:
    Tags(text)
    assert "url(" not in text
    assert "@import" not in text
    return [ElementTree.fromstring(each) for each in re.findall(r"<svg.*?</svg>", text, re.DOTALL)]


@pytest.fixture
def event_log(spark: Any, tmp_path: Path) -> Iterator[Callable[[], Path]]:
    """Have the session write an event log, compressed as is Spark's default; calling it ends it."""
    jvm, context = spark._jvm, spark.sparkContext._jsc.sc()
    directory = tmp_path / "events"
    directory.mkdir()
    conf = context.conf().clone().set("spark.eventLog.rolling.enabled", "true").set("spark.eventLog.compress", "true")
    make = jvm.org.apache.spark.scheduler.EventLoggingListener
    listener = make(
        "application-1",
        jvm.scala.Option.empty(),
        jvm.java.net.URI(directory.as_uri()),
        conf,
        spark.sparkContext._jsc.hadoopConfiguration(),
    )
    listener.start()
    context.addSparkListener(listener)

    def end() -> Path:
        context.listenerBus().waitUntilEmpty()
        context.removeSparkListener(listener)
        listener.stop()
        return directory

    yield end
    context.removeSparkListener(listener)


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_pages_of_a_real_query(
    spark: Any,
    topic_of: Callable[..., str],
    kraftpy_server: EmbeddedBroker,
    event_log: Callable[[], Path],
    tmp_path: Path,
) -> None:
    topic = topic_of([{"value": b"12345", "partition": n % 2} for n in range(60)], partitions=2)
    checkpoint = tmp_path / "checkpoint"
    reader = spark.readStream.format("kraftpy").option("kafka.bootstrap.servers", kraftpy_server.bootstrap)
    options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "20", "prefetchRecords": "0"}
    stream = reader.options(subscribe=topic, **options).load()
    writer = stream.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    query = writer.queryName("told").trigger(availableNow=True).start()
    assert query.awaitTermination(120)
    assert query.exception() is None
    log = event_log()

    recorded = read_event_log(log)
    (history,) = recorded.queries.values()
    assert recorded.notes == []
    assert history.name == "told"
    assert [(each.number, each.rows, each.lag) for each in history.points] == [(0, 20, 40), (1, 20, 20), (2, 20, 0)]
    assert history.rows_by_partition == {TopicPartition(topic, 0): 30, TopicPartition(topic, 1): 30}
    assert history.tasks.keys() == {0, 1, 2}
    assert all(each.count > 0 and each.failed == 0 and each.python_bytes > 0 for each in history.tasks.values())
    told = report(log, tmp_path / "log.html")
    assert "told" in told
    assert topic in told
    durations, lags, rates = charts(told)
    assert [len(each.findall("circle")) for each in (lags, rates)] == [3, 3]
    titles = [each.findtext("title") or "" for each in durations.findall("g")]
    assert [title.partition(",")[0] for title in titles] == ["batch 0", "batch 1", "batch 2"]
    assert all("addBatch" in title for title in titles)

    (history,) = read_checkpoint(checkpoint).queries.values()
    assert history.query_id == query.id
    assert [(each.number, each.rows) for each in history.points] == [(0, 20), (1, 20), (2, 20)]
    assert all(0 <= each.duration_ms < 120_000 for each in history.points)
    kept = report(checkpoint, tmp_path / "checkpoint.html")
    assert len(charts(kept)) == 2  # no lag, and the page says why
    assert "for the lag, read an event log" in kept

    # The application is killed while it writes: what is there is read, down to a byte.
    (file,) = (log / "eventlog_v2_application-1").glob("events_1_*.zstd")
    torn = tmp_path / "application-2.zstd.inprogress"
    torn.write_bytes(file.read_bytes()[: file.stat().st_size - 40])
    (history,) = read_event_log(torn).queries.values()
    assert history.points
    torn.write_bytes(file.read_bytes()[:20])
    assert "no finished batch" in refusal(torn)
    torn.write_bytes(b"\x00" * 100 + file.read_bytes())
    assert "cannot be read" in refusal(torn)

    # A copy without times, a batch under way, and files that are not whole.
    copied = shutil.copytree(checkpoint, tmp_path / "copied")
    (copied / "commits" / "2").unlink()
    assert "Batch 2 was planned, and is not done." in report(copied, tmp_path / "copied.html")
    whole = (copied / "offsets" / "1").read_text()
    for content, said in [
        ("", "version ''"),
        ("v1\n", "cut short"),
        ("v1\n{}\n{}", "no 'batchTimestampMs'"),
        ("v9" + whole[2:], "version 'v9'"),
        (whole[:-20], "cut short or damaged"),
        (whole.replace('"0"', '"x"'), "not an offset"),
        (whole[:40] + "\ud800", "can't decode"),
        ("v1\n" + "[" * 100_000 + "\n{}", "damaged"),
    ]:
        (copied / "offsets" / "1").write_bytes(content.encode("utf-8", "surrogatepass"))
        line = refusal(copied)
        assert said in line, (content[:40], line)
        assert str(copied / "offsets" / "1") in line
    (copied / "offsets" / "1").write_text(whole)
    (copied / "metadata").write_text("{")
    assert str(copied / "metadata") in refusal(copied)


def event(number: int, **fields: Any) -> str:
    progress = {
        "id": "i",
        "runId": "r",
        "name": "<script>alert(1)</script>",
        "timestamp": f"2026-11-29T12:{number // 60 % 60:02}:{number % 60:02}.000Z",
        "batchId": number,
        "batchDuration": 100,
        "durationMs": {"addBatch": 80},
        "sources": [
            {"endOffset": json.dumps({"<b>": {"0": number}}), "latestOffset": '{"<b>":{"0":9000}}', "numInputRows": 1}
        ],
    }
    return json.dumps({"Event": PROGRESS, "progress": progress | fields}, separators=(",", ":")) + "\n"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "no finished batch"),
        (b"\n\n", "no finished batch"),
        (b"hello\n", "line 1: not an event of Spark's"),
        (b'{"Event":"SparkListenerLogStart"\n' + event(1).encode(), "line 1"),
        (event(1).encode() + b'{"Event":"SparkListenerTaskEnd"}\n', "line 2: not an event of Spark's: no 'Stage ID'"),
        (event(1, sources=None).encode(), "line 1"),
        (event(1, batchDuration=2**80).encode(), "line 1"),
        (event(1).replace("12:00", "25:00").encode(), "line 1"),
        (event(1)[:-30].encode() + b"\n" + event(2).encode(), "line 1"),
        (b'{"Event":"' + PROGRESS.encode() + b'","progress":' + b"[" * 100_000 + b"\n", "line 1"),
        (b'{"Event":"' + b"\xff" * 300, "no finished batch"),
        (b'{"Event":"SparkListenerJobStart","Properties":[1],"Stage IDs":[1]}\n', "line 1"),
        (b'{"Event":"' + TERMINATED.encode() + b'","exception":"x"}\n', "no 'id'"),
    ],
    ids=range(13),
)
def test_a_log_that_is_none_is_one_line(content: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(content)
    assert said in refusal(tmp_path / "log")


def test_what_a_log_says_is_text(tmp_path: Path) -> None:
    ended = {"Event": TERMINATED, "id": "i", "exception": "<script>boom</script>"}
    (tmp_path / "log").write_text(event(1) + event(2) + json.dumps(ended, separators=(",", ":")) + "\n" + event(3)[:50])
    text = report(tmp_path / "log", tmp_path / "page.html")
    assert len(charts(text)) == 3
    assert "&lt;script&gt;boom" in text
    assert "The log ends within an event" in text


def test_a_long_history_is_drawn_in_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_logs, "LONGEST_LINE", 2_000)
    slow = event(1_500, batchDuration=5_000, durationMs={"addBatch": 4_000})
    (tmp_path / "log").write_text("".join(slow if n == 1_500 else event(n) for n in range(2_000)))
    recorded = read_event_log(tmp_path / "log")
    text = page(recorded, title="t")
    durations = charts(text)[0]
    assert len(durations.findall("g")) <= MOST_COLUMNS
    assert "batch 1500, " in text  # the slowest of its step
    (tmp_path / "log").write_text(event(1) + '{"Event":"x' + "y" * 3_000_000 + '"}\n')
    assert "longer than 2000 bytes" in refusal(tmp_path / "log")


def test_files_of_a_log_that_rolled(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "eventlog_v2_a"
    log.mkdir(parents=True)
    (log / "appstatus_a").touch()
    for number in (1, 2, 10):
        (log / f"events_{number}_a").write_text(event(number))
    (log / "events_1_a").write_text("compacted away\n")
    (log / "events_2_a.compact").write_text(event(1) + event(2))
    (log / "events_2_a").unlink()
    (history,) = read_event_log(tmp_path / "logs").queries.values()
    assert [each.number for each in history.points] == [1, 2, 10]
    packed = pa.compress(event(3).encode(), codec="zstd", asbytes=True)
    (tmp_path / "logs" / "b.zstd").write_bytes(packed)
    (history,) = read_event_log(tmp_path / "logs" / "b.zstd").queries.values()
    assert [each.number for each in history.points] == [3]
    assert "of its 2 entries, name the one to read" in refusal(tmp_path / "logs")
    (tmp_path / "c.lz4").write_bytes(b"")
    assert "compressed by lz4" in refusal(tmp_path / "c.lz4")
