"""The console's parts without a cluster: kept answers, pages of rows, plots, problems, words and forms."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kraftpy.client.admin.model import ClusterDescription, LogDir, QuorumDescription, QuorumReplica
from kraftpy.client.model import Node, PartitionInfo, TopicInfo
from kraftpy.console.cache import Answers
from kraftpy.console.forms import Refused, needs_typed, number_of, settings_of
from kraftpy.console.pages.message_query import MOST_CURSOR, cursor_of, parse_cursor
from kraftpy.console.paging import page_of, sorted_by
from kraftpy.console.plots import HEIGHT, WIDTH, line_plot, nice_top
from kraftpy.console.problems import MOST_OF_A_KIND, State, problems
from kraftpy.console.rendering import NOTHING, ago, at_time, count, duration, environment, plain, short, size
from kraftpy.protocol.errors import ErrorCode
from kraftpy.types import TopicPartition

# Answers --------------------------------------------------------------------------------------------------------------


async def test_an_answer_is_kept_for_its_time_and_asked_for_once() -> None:
    now = [0.0]
    answers = Answers(10, lambda: now[0])
    asked = []
    gate = asyncio.Event()

    async def ask() -> int:
        asked.append(now[0])
        await gate.wait()
        return len(asked)

    waiting = [asyncio.create_task(answers.get("q", 2.0, ask)) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()  # a browser that goes away does not take the answer from the others
    await asyncio.sleep(0)
    gate.set()
    assert [await task for task in waiting[1:]] == [1, 1]
    now[0] = 1.9
    assert await answers.get("q", 2.0, ask) == 1
    now[0] = 2.0
    assert await answers.get("q", 2.0, ask) == 2
    answers.forget()
    assert await answers.get("q", 2.0, ask) == 3


async def test_failures_are_not_kept_and_answers_are_bounded() -> None:
    answers = Answers(3)

    async def fail() -> int:
        raise OSError("no")

    async def succeed() -> int:
        return 1

    for _ in range(2):
        with pytest.raises(OSError, match="no"):
            await answers.get("q", 60.0, fail)
    assert len(answers) == 0
    for number in range(100):
        assert await answers.get(number, 60.0, succeed) == 1
    assert len(answers) == 3


# Pages of rows --------------------------------------------------------------------------------------------------------


def test_rows_are_cut_into_pages() -> None:
    rows = list(range(250))
    first = page_of(rows, {"find": "a b"})
    assert (first.first, first.last, first.total, first.previous) == (1, 100, 250, None)
    assert first.next == "?find=a+b&page=2"
    last = page_of(rows, {"page": "99"})
    assert (list(last.rows), last.next) == (rows[200:], None)
    assert (page_of([], {}).first, page_of([], {}).last) == (0, 0)
    for page, limit in (("0", "1"), ("x", "1"), ("1", "501"), ("1", "0")):
        with pytest.raises(Refused):
            page_of(rows, {"page": page, "rows": limit})


def test_rows_are_sorted_by_a_known_column_only() -> None:
    rows: list[dict[str, Any]] = [{"a": 2}, {"a": None}, {"a": 3}]
    assert sorted_by(rows, {"sort": "-a"}, ["a"], "a") == "-a"
    assert [row["a"] for row in rows] == [3, 2, None]
    assert sorted_by(rows, {"sort": "__class__"}, ["a"], "a") == "a"
    assert [row["a"] for row in rows] == [2, 3, None]


# Plots ----------------------------------------------------------------------------------------------------------------


def test_a_plot_stays_in_its_box_and_breaks_where_nothing_was_measured() -> None:
    points = [(1_000 * number, float(number % 7)) for number in range(20)] + [(90_000, 3.0), (91_000, 100.0)]
    plot = line_plot(points, title="Lag", unit="records")
    assert plot is not None
    assert len(plot.paths) == len(plot.area) == 2
    places = [each.lstrip("ML").split() for path in plot.paths for each in path.replace(" L", "|L").split("|")]
    assert all(0 <= float(x) <= WIDTH and 0 <= float(y) <= HEIGHT for x, y in places)
    assert (plot.last, plot.highest) == (100.0, 100.0)
    assert [tick.value for tick in plot.y_ticks] == [0, 30, 60, 90, 120]


def test_plots_of_next_to_nothing() -> None:
    assert line_plot([], title="", unit="") is None
    assert line_plot([(1, 1.0)], title="", unit="") is None
    same = line_plot([(1, 0.0), (1, 0.0)], title="", unit="")
    assert same is not None


@pytest.mark.parametrize(("highest", "top"), [(0, 4), (4, 4), (5, 6), (7.9, 12), (10, 12), (99, 120), (1e9, 1.2e9)])
def test_an_axis_ends_above_what_it_shows(highest: float, top: float) -> None:
    assert nice_top(highest) == pytest.approx(top)


# Problems -------------------------------------------------------------------------------------------------------------


def _topic(name: str, *partitions: PartitionInfo) -> TopicInfo:
    return TopicInfo(name=name, topic_id=bytes(16), is_internal=False, partitions=partitions)


def _part(topic: str, number: int, leader: int, replicas: tuple[int, ...], in_sync: tuple[int, ...]) -> PartitionInfo:
    return PartitionInfo(topic=topic, partition=number, leader=leader, replicas=replicas, in_sync_replicas=in_sync)


NODES = tuple(Node(node_id=number, host="h", port=1) for number in (1, 2, 3))


def test_a_sound_cluster_has_no_problems() -> None:
    cluster = ClusterDescription(cluster_id="c", controller_id=1, nodes=NODES)
    topics = [_topic("a", _part("a", 0, 1, (1, 2), (2, 1)))]
    assert problems(State(cluster=cluster, topics=topics)) == []
    assert problems(State()) == []


def test_what_is_wrong_is_named_the_bad_things_first() -> None:
    replica = QuorumReplica(
        node_id=1, directory_id=b"", log_end_offset=9, last_fetch_ms=100_000, last_caught_up_ms=100_000
    )
    behind = QuorumReplica(
        node_id=2, directory_id=b"", log_end_offset=5, last_fetch_ms=100_000, last_caught_up_ms=80_000
    )
    quorum = QuorumDescription(
        leader_id=1, leader_epoch=3, high_watermark=9, voters=(replica, behind), observers=(), endpoints={}
    )
    found = problems(
        State(
            cluster=ClusterDescription(cluster_id="c", controller_id=-1, nodes=NODES[:2], fenced=frozenset({2})),
            topics=[_topic("a&b", _part("a&b", 0, 1, (1, 3), (1,)), _part("a&b", 1, -1, (3,), (3,)))],
            log_dirs=[
                LogDir(broker_id=1, path="/d", total_bytes=-1, usable_bytes=-1, partitions={}, error=ErrorCode(56)),
                LogDir(broker_id=1, path="/e", total_bytes=100, usable_bytes=10, partitions={}),
                LogDir(broker_id=1, path="/f", total_bytes=100, usable_bytes=50, partitions={}),
            ],
            quorum=quorum,
            groups=[
                {"group": "g/1", "state": "Empty", "lag": 7},
                {"group": "fine", "state": "Stable", "lag": 7},
                {"group": "done", "state": "Empty", "lag": 0},
            ],
        )
    )
    assert [(each.text, each.is_bad) for each in found] == [
        ("The cluster has no active controller", True),
        ("Broker 2 is fenced: it leads nothing and serves no client", True),
        ("Broker 3, which has 2 replicas, is not in the cluster", True),
        ("a&b-1 has no leader", True),
        ("Log directory /d of broker 1 is offline", True),
        ("a&b-0 is under-replicated: 3 not in sync", False),
        ("The disk of /e of broker 1 is 90% full", False),
        ("Voter 2 of the metadata quorum is behind", False),
        ("Group g/1 has 7 records to read, and no member", False),
    ]
    assert found[3].page == "/topic?name=a%26b"
    assert found[8].page == "/group?id=g%2F1"


def test_partitions_of_a_topic_are_counted() -> None:
    parts = [_part("a", number, -1 if number < 2 else 1, (1, 2, 3), (1,)) for number in range(7)]
    assert [each.text for each in problems(State(topics=[_topic("a", *parts)]))] == [
        "2 partitions of a have no leader",
        "5 partitions of a are under-replicated: 2, 3 not in sync",
    ]


def test_many_problems_of_a_kind_are_counted() -> None:
    topics = [_topic(f"t{number}", _part(f"t{number}", 0, -1, (1,), ())) for number in range(50)]
    found = problems(State(topics=topics))
    assert len(found) == MOST_OF_A_KIND + 1
    assert found[-1].text == "40 more topics have a problem"


# Words and forms ------------------------------------------------------------------------------------------------------


def test_documentation_in_html_is_shown_as_words() -> None:
    """Kafka's is HTML; ours is not, and names in angle brackets are part of it."""
    said = 'Must be <i>at least</i>\n<code>1</code> &amp; less.<br/>See <a href="https://kafka.apache.org">there</a>.'
    assert plain(said) == "Must be at least 1 & less. See there."
    assert plain("listener.name.<name>.x, if a < b and c > d") == "listener.name.<name>.x, if a < b and c > d"


def test_numbers_sizes_and_times_are_written_for_people() -> None:
    assert [count(value) for value in (None, 0, 12_345, 1.0, 2.25)] == [NOTHING, "0", "12,345", "1", "2.2"]
    assert [size(value) for value in (None, -1, 0, 1_023, 1_536, 3 << 40)] == [
        NOTHING, NOTHING, "0 B", "1023 B", "1.5 KiB", "3.0 TiB",
    ]  # fmt: skip
    assert [short(value) for value in (0, 1_500, 2e7, 3e9)] == ["0", "1.5k", "20M", "3G"]
    assert [duration(value) for value in (None, 5, 1_500, 180_000, 7_200_000)] == [
        NOTHING, "5 ms", "2 s", "3 min", "2 h",
    ]  # fmt: skip
    assert at_time(-1) == ago(-1) == NOTHING
    assert at_time(2**62) == f"{2**62} ms"  # a producer may send any time


def test_templates_escape_and_miss_nothing() -> None:
    made = environment()
    assert made.from_string("{{ x }}").render(x="<b>&\"'") == "&lt;b&gt;&amp;&#34;&#39;"
    with pytest.raises(Exception, match="undefined"):
        made.from_string("{{ y }}").render()


def test_numbers_and_settings_of_forms() -> None:
    assert number_of({"a": " 7 "}, "a", None) == 7
    assert number_of({"a": ""}, "a", 3) == 3
    for text in ("", "x", "-1", "1.5", "9" * 30, "9" * 5_000):
        with pytest.raises(Refused):
            number_of({"a": text}, "a", None)
    assert settings_of("a=1\r\n\n b = x=y ") == {"a": "1", "b": "x=y"}
    with pytest.raises(Refused, match="not of the form"):
        settings_of("a")
    needs_typed({"typed": "a"}, "a")
    with pytest.raises(Refused, match="nothing was deleted"):
        needs_typed({"typed": "b"}, "a")


def test_a_cursor_is_read_as_it_was_written() -> None:
    places = {TopicPartition("a", 3): 7, TopicPartition("a", 0): 1}
    text = cursor_of(places)
    assert text == "0:1,3:7"
    assert parse_cursor("a", text) == places
    assert cursor_of({}) is None
    assert cursor_of({TopicPartition("a", number): 0 for number in range(MOST_CURSOR + 1)}) is None
    for bad in ("", "x", "0", "0:x", "0:-1", ",".join(f"{number}:0" for number in range(MOST_CURSOR + 1))):
        with pytest.raises(Refused):
            parse_cursor("a", bad)
