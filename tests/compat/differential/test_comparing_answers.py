"""How answers are made plain and compared, and which differences are known: the tester finds what it has to find."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from answer_differences import ABSENT, Difference, differences
from both import Both, build, each, together
from known_differences import Known, KnownDifferences, is_value
from outcomes import Outcomes
from plain_answers import Names
from recording import Answers, Kept, OutOfDate, read, write

from kraftpy.protocol.messages.init_producer_id import InitProducerIdResponse
from kraftpy.protocol.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from kraftpy.protocol.schema import encode

TOPIC_ID, OTHER_ID = b"\x01" * 8 + b"\x02" * 8, b"\x03" * 8 + b"\x04" * 8
NOW = 1_700_000_000_000


def partition(index: int, **fields: Any) -> dict[str, Any]:
    return {"partition_index": index, "error_code": "NONE", "offset": 5, **fields}


def answer(*partitions: dict[str, Any]) -> dict[str, Any]:
    return {"outcome": "answered", "topics": [{"name": "t", "partitions": list(partitions)}]}


def found(kafka: dict[str, Any], here: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    return [(difference.about, difference.kafka, difference.here) for difference in differences(kafka, here)]


def test_elements_are_matched_by_what_they_are_about() -> None:
    assert found(answer(partition(0), partition(1)), answer(partition(1), partition(0))) == []
    assert found(answer(partition(0), partition(1)), answer(partition(1, offset=6), partition(0))) == [
        ("topics[t].partitions[1].offset", 5, 6)
    ]


def test_an_element_that_only_one_has_is_a_difference() -> None:
    assert found(answer(partition(0)), answer()) == [("topics[t].partitions[0]", partition(0), ABSENT)]
    assert found(answer(partition(0)), answer(partition(0), partition(0))) == [
        ("topics[t].partitions[0]", partition(0), "2 times")
    ]


def test_what_stands_beside_another_error_follows_from_it() -> None:
    kafka = answer(partition(0), partition(1))
    here = answer(partition(0, error_code="NOT_LEADER_OR_FOLLOWER", offset=-1), partition(1, offset=-1))
    assert found(kafka, here) == [
        ("topics[t].partitions[0].error_code", "NONE", "NOT_LEADER_OR_FOLLOWER"),
        ("topics[t].partitions[1].offset", 5, -1),
    ]


def test_an_answer_of_one_side_only_is_a_difference() -> None:
    (difference,) = differences({"outcome": "closed"}, answer())
    assert (difference.field, difference.kafka) == ("outcome", "closed")
    assert str(difference.here).startswith("answered: ")


A_DIFFERENCE = Difference(
    field="topics.partitions.error_code",
    about="topics[t].partitions[0].error_code",
    kafka="NONE",
    here="NOT_LEADER_OR_FOLLOWER",
)


@pytest.mark.parametrize(
    ("changed", "explains"),
    [
        ({}, True),
        ({"field": ("partitions.error_code",)}, True),
        ({"field": ("code",)}, False),
        ({"request": ("Produce",)}, False),
        ({"request": ("*",)}, True),
        ({"versions": "4-5"}, True),
        ({"versions": "5"}, False),
        ({"about": r"^topics\[t\]"}, True),
        ({"about": "other"}, False),
        ({"case": "a case"}, True),
        ({"case": "^case"}, False),
        ({"kafka": ("any",)}, True),
        ({"kafka": ("absent",)}, False),
        ({"here": ("NONE", "NOT_LEADER_OR_FOLLOWER")}, True),
        ({"here": ("NONE",)}, False),
    ],
)
def test_an_entry_explains_what_it_describes_and_nothing_else(changed: dict[str, Any], explains: bool) -> None:
    fields: dict[str, Any] = {
        "request": ("ListOffsets",),
        "field": ("error_code",),
        "kafka": ("NONE",),
        "here": ("NOT_LEADER_OR_FOLLOWER",),
        "why": "it is a test",
    }
    entry = Known(**{**fields, **changed})
    assert entry.explains("LIST_OFFSETS", 4, "a case", A_DIFFERENCE) is explains
    known = KnownDifferences([entry])
    known.explaining("LIST_OFFSETS", 4, "a case", A_DIFFERENCE)
    assert (known.unused(1, "open") == []) is explains
    assert known.unused(3, "open") == []


@pytest.mark.parametrize(
    ("wanted", "values", "others"),
    [
        ("text", ["why"], ["", None, ABSENT, 3]),
        ("absent", [ABSENT], ["why", None]),
        ("present", ["why", None, 0], [ABSENT]),
        ("null", [None], ["", 0]),
        ("-1", [-1], [1, None]),
        ("true", [True], [False]),
        ("answered", ["answered", "answered: {}"], ["closed"]),
    ],
)
def test_values_that_stand_for_a_kind(wanted: str, values: list[Any], others: list[Any]) -> None:
    assert [value for value in (*values, *others) if is_value(wanted, value)] == values


def test_a_question_is_counted_once_whatever_differs_in_it() -> None:
    outcomes = Outcomes(KnownDifferences([]))
    words = Difference(field="error_message", about="error_message", kafka="No.", here="Not so.")
    outcomes.add("s", "c", "FETCH", 4, {}, [A_DIFFERENCE, A_DIFFERENCE])
    outcomes.add("s", "c", "FETCH", 5, {}, [])
    outcomes.add("s", "c", "FETCH", 6, {}, [words])
    assert outcomes.totals() == "2 equal, 0 documented, 1 different"
    assert outcomes.has_differences()
    assert [(kind.versions, kind.count) for kind in outcomes.kinds.values()] == [([4], 2)]
    outcomes.failed["other"] = "a traceback"
    assert outcomes.totals() == "2 equal, 0 documented, 2 different"


def names() -> Names:
    made = Names([9092], [9093], Path("/data/of/this"))
    made.begin(NOW)
    return made


def test_what_differs_by_nature_has_one_name() -> None:
    told = []
    for producer_id, text in ((7, "at 127.0.0.1:9092 in /data/of/this"), (9, "at 127.0.0.1:9092 in /data/of/this")):
        side = names()
        message: Any = InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)
        side.learn(3, message)
        told.append((side.plain(message, 5), side._text(text)))
    assert told[0] == told[1]
    assert told[0][0]["producer_id"] == "<producer of request 3>"
    assert told[0][1] == "at 127.0.0.1:<port> in <dir>"


def test_times_are_told_by_their_distance_only_if_the_scenario_sent_them() -> None:
    side = names()
    assert side.moment(-500) == NOW - 500
    assert [side._time(time) for time in (NOW - 500, NOW - 501, 12, -1)] == ["<now-500>", "<clock>", 12, -1]


def test_topics_are_known_by_their_ids() -> None:
    side = names()
    side.topics[TOPIC_ID] = "<id of t>"
    assert side._bytes("topic_id", TOPIC_ID) == "<id of t>"
    assert side._bytes("topic_id", OTHER_ID) == "<unknown id >"
    assert side._bytes("topic_id", b"\x11" * 16) == f"<unknown id {'11' * 16}>"


def test_a_request_takes_each_sides_own_value_and_the_fields_of_its_version() -> None:
    offset = together(lambda value: value + 1, Both([1, 2]))
    assert each(offset) == (2, 3)
    asked = {"partition_index": 0, "timestamp": offset, "current_leader_epoch": 4}
    body = {"topics": [{"name": "t", "partitions": [asked]}], "timeout_ms": 9}
    made = [build(ListOffsetsRequest, body, 3, side) for side in (0, 1)]
    assert [each_made.topics[0].partitions[0].timestamp for each_made in made] == [2, 3]
    encode(made[0], 3)
    with pytest.raises(TypeError, match="has no nonsense"):
        build(ListOffsetsRequest, {"nonsense": 1}, 3, 0)


KEPT = [Kept(api="FETCH", version=4, case="a", answer={"outcome": "answered"})]


@pytest.mark.parametrize("asked", [("FETCH", 5, "a"), ("FETCH", 4, "b"), ("PRODUCE", 4, "a")])
def test_a_recording_of_other_questions_is_out_of_date(asked: tuple[str, int, str]) -> None:
    with pytest.raises(OutOfDate):
        Answers("s", KEPT).next(*asked)


def test_a_recording_is_read_as_it_was_written_and_to_its_end(tmp_path: Path) -> None:
    file = tmp_path / "recorded"
    write({"s": KEPT}, seed=7, path=file)
    assert read(file) == (7, {"s": KEPT})
    before = file.read_bytes()
    write({"s": KEPT}, seed=7, path=file)
    assert file.read_bytes() == before
    answers = Answers("s", KEPT)
    with pytest.raises(OutOfDate):
        answers.end()
    assert answers.next("FETCH", 4, "a") == {"outcome": "answered"}
    answers.end()
    with pytest.raises(OutOfDate):
        answers.next("FETCH", 4, "a")


def test_internal_topics_grow_with_what_was_done_before() -> None:
    side = names()
    topic = {"name": "__consumer_offsets", "partitions": [{"partition_index": 0, "offset": 186}]}
    made = build(ListOffsetsResponse, {"topics": [topic, {**topic, "name": "t"}]}, 4, 0)
    told = side.plain(made, 4)
    assert [each_topic["partitions"][0]["offset"] for each_topic in told["topics"]] == ["<number>", 186]
