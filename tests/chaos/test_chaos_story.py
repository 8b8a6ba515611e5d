"""A run's story: in order of time, work folded by the second, anomalies where they were proved."""

from __future__ import annotations

import io
from dataclasses import replace

from planted import done, history
from rich.console import Console

from chaos import checkers
from chaos.history import History, Op
from chaos.story import Event, Story, print_story


def at_seconds(*parts: tuple[float, list[tuple[object, ...]]]) -> list[Op]:
    """Operations that begin and end at these seconds."""
    ops = history(*(line for _, lines in parts for line in lines)).ops
    times = [seconds for seconds, lines in parts for _ in lines]
    return [replace(op, time=int(seconds * 1e9)) for op, seconds in zip(ops, times, strict=True)]


def sent(value: int, offset: int, kind: str = "ok") -> list[tuple[object, ...]]:
    return done(0, kind, "send", [["send", "t0-0", [offset, value]]])


def polled(*records: tuple[int, int]) -> list[tuple[object, ...]]:
    return done(1, "ok", "poll", [["poll", {"t0-0": [list(record) for record in records]}]])


def lines(story: Story, ops: list[Op], problems: list[str] | None = None) -> list[Event]:
    return list(story.lines(ops, checkers.check(History(ops)), problems or []))


def test_events_and_work_are_in_order_of_time() -> None:
    story = Story()
    story(2.5, "node1", "is not running")
    story(6.25, "t0-0", "leader 2 in epoch 1, in sync 2,3 of 1,2,3")
    ops = at_seconds((0.1, sent(1, 0)), (1.2, sent(2, 1)), (4.0, sent(3, 2)), (7.0, polled((0, 1), (1, 2), (2, 3))))
    found = lines(story, ops)
    assert [event.who for event in found] == ["clients", "node1", "clients", "t0-0", "clients"]
    assert found[0].what == "sends: 2 acknowledged, since second 0"
    assert found[2].what == "sends: 1 acknowledged"
    assert found[4].what == "1 polls"
    times = [event.seconds for event in found]
    assert times == sorted(times)


def test_a_long_calm_is_several_lines() -> None:
    seconds = range(100)
    everything = polled(*((second, second) for second in seconds))
    ops = at_seconds(*((float(second), sent(second, second)) for second in seconds), (99.5, everything))
    found = [event for event in lines(Story(), ops) if event.who == "clients"]
    assert len(found) == 4
    assert [event.what for event in found[:2]] == [
        "sends: 30 acknowledged, since second 0",
        "sends: 30 acknowledged, since second 30",
    ]


def test_an_anomaly_stands_at_its_last_operation_and_problems_at_the_end() -> None:
    ops = at_seconds((1.0, sent(1, 0)), (2.0, sent(2, 1)), (3.5, polled((1, 2))), (8.0, polled((1, 2))))
    found = lines(Story(), ops, ["node2 ended: a reason"])
    (lost,) = [event for event in found if event.what.startswith("lost-write")]
    assert lost.seconds == 3.5
    assert found[-1] == Event(8.0, "problem", "node2 ended: a reason")


def test_what_is_logged_when_all_is_well_is_left_out_unless_asked_for() -> None:
    said = (
        "info: link to node 3 is up",
        "info: t0-0: truncated to 7, where it diverges from broker 2",
        "warning: t0-0: slow",
    )
    for with_log_lines, expected in ((False, said[1:]), (True, said)):
        story = Story(with_log_lines=with_log_lines)
        for text in said:
            story(1.0, "node1", text)
        assert [event.what for event in story.events] == [text.removeprefix("info: ") for text in expected]


def test_what_is_piped_is_plain_and_a_line_an_event() -> None:
    sink = io.StringIO()
    long = "warning: " + "a long story " * 40
    print_story(
        Console(file=sink, width=40), iter([Event(1.5, "node1", long), Event(12.0, "nemesis", "fault 1 [ends]")])
    )
    first, second = sink.getvalue().splitlines()
    assert first == f"    1.500  node1     {long}"
    assert second == "   12.000  nemesis   fault 1 [ends]"
