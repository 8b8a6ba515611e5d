"""Histories on disk, their pairs, and the same as Jepsen's EDN."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planted import done, history

from chaos import edn
from chaos.checkers import log
from chaos.checkers.verdict import Options
from chaos.generator import GroupCalls, LogCalls, LogOptions
from chaos.history import BadHistory, History, HistoryWriter, Op, Type, read, to_line
from chaos.reference.clients import Clients


def test_each_operation_is_on_disk_before_the_next(tmp_path: Path) -> None:
    file = tmp_path / "history.jsonl"
    with file.open("w", encoding="utf-8") as sink:
        writer = HistoryWriter(sink)
        asked = writer.invoke(5, 0, "send", [["send", "x", "grüße"]], node=1)
        assert read(file.read_text(encoding="utf-8").splitlines(keepends=True)) == [asked]
        writer.complete(9, 0, Type.OK, [["send", "x", [0, "grüße"]]])
        writer.note(9, "nemesis", "fault", {"id": 1})
        ops = read(file.read_text(encoding="utf-8").splitlines(keepends=True))
    assert [op.index for op in ops] == [0, 1, 2]
    assert ops[0].extra == {"node": 1}
    assert file.read_text(encoding="utf-8").splitlines()[0] == (
        '{"index":0,"time":5,"process":0,"type":"invoke","f":"send","value":[["send","x","grüße"]],"node":1}'
    )


def test_a_writer_refuses_what_cannot_be() -> None:
    writer = HistoryWriter(io.StringIO())
    with pytest.raises(BadHistory):
        writer.complete(0, 0, Type.OK)
    writer.invoke(5, 0, "poll", [["poll"]])
    with pytest.raises(BadHistory):
        writer.invoke(6, 0, "poll", [["poll"]])
    with pytest.raises(BadHistory):
        writer.complete(4, 0, Type.OK, [])
    writer.complete(6, 0, Type.INFO, [["poll"]])
    with pytest.raises(BadHistory):
        writer.invoke(7, 0, "poll", [["poll"]])
    with pytest.raises(BadHistory):
        writer.invoke(7, 1, "poll", [["poll"]], type="a field of its own")


def test_a_torn_last_line_is_left_out_and_any_other_is_an_error() -> None:
    line = to_line(history((0, "invoke", "crash", None)).ops[0])
    assert len(read([line + "\n", line[:20]])) == 1
    assert len(read([line + "\n", line])) == 2
    with pytest.raises(BadHistory, match="line 1"):
        read([line[:20] + "\n", line + "\n"])
    with pytest.raises(BadHistory, match="no operation"):
        read(['{"index": 1}\n'])


def test_completions_find_their_invocations_and_open_ones_are_unknown() -> None:
    past = history((0, "invoke", "send", [["send", "x", 1]]), (1, "invoke", "poll", [["poll"]]), (0, "ok", "send", []))
    sent, polled = past.completions
    assert past.invocation(sent).index == 0
    assert past.completion(past.ops[0]) is sent
    assert (polled.type, polled.index, polled.value) == (Type.INFO, 3, [["poll"]])
    assert past.invocation(polled) is past.ops[1]


@pytest.mark.parametrize(
    "lines",
    [
        [(0, "ok", "send", [])],
        [(0, "invoke", "send", []), (0, "invoke", "send", [])],
        [(0, "invoke", "send", []), (0, "ok", "poll", [])],
    ],
)
def test_a_history_that_cannot_be_is_refused(lines: list[Any]) -> None:
    with pytest.raises(BadHistory):
        history(*lines)


def test_an_operation_looks_as_jepsen_writes_it() -> None:
    lines = done(0, "ok", "txn", [["send", "3", [7, 12]], ["poll", {"3": [[6, 11]]}], ["send", "4", [None, 1]]])
    ops = history(*lines, (0, "invoke", "assign", ["3"], {"seek_to_beginning": True})).ops
    assert [edn.to_edn(op) for op in ops] == [
        "{:index 0, :time 0, :type :invoke, :process 0, :f :txn, :value [[:send 3 12] [:poll] [:send 4 1]]}",
        "{:index 1, :time 1, :type :ok, :process 0, :f :txn, "
        ":value [[:send 3 [7 12]] [:poll {3 [[6 11]]}] [:send 4 [nil 1]]]}",
        "{:index 2, :time 2, :type :invoke, :process 0, :f :assign, :value [3], :seek-to-beginning? true}",
    ]
    nemesis = Op(index=1, time=2, process="nemesis", type=Type.INFO, f="fault", value={"kind": "kill"})
    assert edn.to_edn(nemesis) == (
        '{:index 1, :time 2, :type :info, :process :nemesis, :f :fault, :value {:kind "kill"}}'
    )


def test_what_jepsen_wrote_is_read_and_judged() -> None:
    """As its Kafka tests write: with another order of fields, records by name, a vector of operations, comments."""
    text = """
    ; an aborted read
    [{:type :invoke, :f :send, :value [[:send 5 2] [:send 6 3]], :process 0, :time 0, :index 0}
     #jepsen.history.Op{:index 1, :time 1, :type :fail, :process 0, :f :send, :value [[:send 5 2] [:send 6 3]],
                        :error [:timeout "no, \\"never\\""]}
     {:process 1, :type :invoke, :f :poll, :value [[:poll]], :time 280153467070, :index 2} #_ {:not "read"}
     {:process 1, :type :ok, :f :poll, :value [[:poll {5 [[0 2]]}]], :time 280153467071, :index 3,
      :rebalance-log [{:keys #{5 6}}]}]
    """
    ops = edn.from_edn(text)
    assert ops[1].extra["error"] == ["timeout", 'no, "never"']
    assert sorted(ops[3].rebalanced_keys()) == ["5", "6"]
    assert log.check(History(ops), Options()).names == {"G1a"}


@pytest.mark.parametrize("text", ["{:a", "{:a 1 :b}", "[1 2", "3"])
def test_edn_that_is_no_history_is_refused(text: str) -> None:
    with pytest.raises(BadHistory):
        edn.from_edn(text)


@pytest.mark.parametrize("seed", range(3))
def test_generated_histories_make_the_round_trip(seed: int) -> None:
    options = LogOptions(transactions=seed > 0, via="assign" if seed < 2 else "subscribe", crash_chance=0.01)
    ops = Clients(seed, LogCalls(seed, options), 4, transactions=options.transactions).run(1000)
    ops += [
        Op(
            index=len(ops) + op.index,
            time=ops[-1].time + op.time,
            process=op.process,
            type=op.type,
            f=op.f,
            value=op.value,
        )
        for op in Clients(seed, GroupCalls(seed), 5).run(300)
    ]
    assert read([to_line(op) + "\n" for op in ops]) == ops
    assert edn.from_edn("\n".join(map(edn.to_edn, ops))) == ops


names = st.from_regex(r"[a-z]{1,5}", fullmatch=True)
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
json_values = st.recursive(
    scalars | st.text('ab \\"\n\tü:,;'),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=200, deadline=None)
@given(
    value=json_values,
    key=st.sampled_from(["0", "17", "007", "t1-0", "12a", "-1"]),
    sent=st.integers() | st.text('ü"\\ '),
)
def test_any_value_makes_the_round_trip(value: Any, key: str, sent: Any) -> None:
    ops = history(
        (0, "invoke", "custom", value), (1, "invoke", "txn", [["send", key, sent], ["poll"]], {"note": value})
    ).ops
    assert edn.from_edn("".join(map(edn.to_edn, ops))) == ops
    assert read([to_line(op) + "\n" for op in ops]) == ops


def test_partitions_get_jepsen_s_numbers() -> None:
    ops = history(
        (0, "invoke", "assign", ["b-0", "a-1"]),
        (0, "ok", "assign", ["b-0", "a-1"]),
        (0, "invoke", "poll", [["poll"]]),
        (0, "ok", "poll", [["poll", {"a-1": [[0, 5]]}]], {"rebalance_log": [{"keys": ["c-2"]}]}),
        (0, "invoke", "committed", {"group": "g", "keys": ["b-0"]}),
        ("nemesis", "info", "fault", {"id": 0}),
    ).ops
    renamed, names = edn.numbered(ops)
    assert names == {"b-0": "0", "a-1": "1", "c-2": "2"}
    assert renamed[3].value == [["poll", {"1": [[0, 5]]}]]
    lines = edn.for_jepsen(renamed).splitlines()
    assert len(lines) == 5, "what its checker does not know is left out"
    assert lines[3].startswith("{:index 3, ")
    assert "[:poll {1 [[0 5]]}]" in lines[3]
    assert ":rebalance-log [{:keys [2]}]" in lines[3]
