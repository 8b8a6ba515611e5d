"""The bench of instructions reads callgrind's profiles and makes a table of them; nothing is run."""

from __future__ import annotations

from bench.instructions import Count, counted, table

PROFILE = """\
version: 1
positions: line
events: Ir
ob=(1) /usr/bin/python3.11
fl=(1) ceval.c
fn=(1) _PyEval_EvalFrameDefault
10 700
+3 200
cob=(2) /site-packages/0123__mypyc.cpython-311-x86_64-linux-gnu.so
cfi=(2) ???
cfn=(2) CPyDef_append
calls=2 0
* 5000
ob=(2)
fn=(2)
0 300
cob=(3) /usr/lib/x86_64-linux-gnu/libc.so.6
cfn=(3) memcpy
calls=2 0
0 4700
ob=(3)
fn=(3)
0 40
ob=(4) /site-packages/_crc32c.cpython-311-x86_64-linux-gnu.so
fn=(4) crc
0 60
totals: 1300
"""


def test_each_instruction_is_counted_once_where_it_is() -> None:
    found = counted(PROFILE, 2)
    assert found.in_all == 650
    assert found.by_object == {
        "the interpreter": 450,
        "compiled modules": 150,
        "the C library": 20,
        "other libraries": 30,
    }


def test_a_table_has_both_sides_and_their_ratio() -> None:
    pure, compiled = Count(1000.0, {"the interpreter": 1000.0}), counted(PROFILE, 2)
    assert table({"produce": (pure, compiled)})[1:] == [
        "| instructions | interpreted | compiled | |",
        "|---|--:|--:|--:|",
        "| **produce** | 1,000 | 650 | 0.65 |",
        "| the interpreter | 1,000 | 450 | 0.45 |",
        "| compiled modules | 0 | 150 | |",
        "| the C library | 0 | 20 | |",
        "| other libraries | 0 | 30 | |",
    ]
    assert table({"fetch": (pure,)})[1:] == [
        "| instructions | interpreted |",
        "|---|--:|",
        "| **fetch** | 1,000 |",
        "| the interpreter | 1,000 |",
    ]
