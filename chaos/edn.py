"""Histories as Jepsen's EDN operations, so that its own checkers can judge ours, and back.

A line of Jepsen's history.edn is one map:

    {:index 1, :time 5, :type :ok, :process 0, :f :txn, :value [[:send 3 [7 12]] [:poll {3 [[6 11]]}]]}

Keywords are the field names, `type`, `f`, the names of micro-operations and of the nemesis's process. A key made of
digits only is written as a number, as Jepsen's keys are; any other key ("orders-3") is a string, which its checker
takes as well; `numbered` gives partitions the numbers that Jepsen's plots expect. `seek-to-beginning?` and
`rebalance-log` have Jepsen's spelling; every other field of ours keeps its name as a keyword.

Exact: `from_edn(to_edn(op)) == op` for the operations this harness writes.
Left out: EDN's tags other than Jepsen's records and #inst, characters beyond the five named ones, ratios, metadata.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from chaos.history import BadHistory, Key, Op, Type, from_fields


class Keyword(NamedTuple):
    """An EDN keyword, without its colon."""

    name: str


_RENAMED = {"rebalance_log": "rebalance-log", "seek_to_beginning": "seek-to-beginning?"}
_RENAMED_BACK = {jepsen: ours for ours, jepsen in _RENAMED.items()}
_MICRO = ("send", "poll", "txn", "process")
_KEYED = ("assign", "subscribe")


# Writing.


def dumps(what: Any) -> str:
    """Write any JSON value, or a `Keyword`, as EDN."""
    match what:
        case None:
            return "nil"
        case bool():
            return "true" if what else "false"
        case Keyword():
            return f":{what.name}"
        case str():
            escaped = what.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t")
            return '"' + escaped.replace("\r", "\\r") + '"'
        case int() | float():
            return repr(what)
        case dict() | Mapping():
            return "{" + ", ".join(f"{dumps(key)} {dumps(of)}" for key, of in what.items()) + "}"
        case list() | tuple():
            return "[" + " ".join(dumps(of) for of in what) + "]"
        case _:
            raise TypeError(f"no EDN for {what!r}")


def _key(key: Key) -> int | str:
    return int(key) if key.isascii() and key.isdigit() and str(int(key)) == key else key


def _micro_to_edn(micro: list[Any]) -> list[Any]:
    match micro:
        case ["send", key, value]:
            return [Keyword("send"), _key(key), value]
        case ["poll"]:
            return [Keyword("poll")]
        case ["poll", records]:
            return [Keyword("poll"), {_key(key): pairs for key, pairs in records.items()}]
        case _:
            raise BadHistory(f"no micro-operation: {micro!r}")


def _keywords(what: Any) -> Any:
    """Parse JSON objects with their names as keywords, as Clojure's JSON readers do."""
    if isinstance(what, dict):
        return {Keyword(name): _keywords(of) for name, of in what.items()}
    if isinstance(what, list):
        return [_keywords(of) for of in what]
    return what


def to_edn(op: Op) -> str:
    """One line of history.edn."""
    if op.f in _MICRO and op.value is not None:
        value: Any = [_micro_to_edn(micro) for micro in op.value]
    elif op.f in _KEYED and op.value is not None:
        value = [_key(key) for key in op.value]
    else:
        value = _keywords(op.value)
    fields: dict[Keyword, Any] = {
        Keyword("index"): op.index,
        Keyword("time"): op.time,
        Keyword("type"): Keyword(str(op.type)),
        Keyword("process"): op.process if op.is_client else Keyword(str(op.process)),
        Keyword("f"): Keyword(op.f),
        Keyword("value"): value,
    }
    for name, what in op.extra.items():
        if name == "rebalance_log":
            what = [{Keyword("keys"): [_key(key) for key in event["keys"]]} for event in what]
        else:
            what = _keywords(what)
        fields[Keyword(_RENAMED.get(name, name))] = what
    return dumps(fields)


# Reading.

_TOKEN = re.compile(
    r"""[\s,]*(?:;[^\n]*\n[\s,]*)*
    (?P<token> [\[\](){}] | \#\{ | \#_ | \#[A-Za-z][\w.\-/]* | "(?:\\.|[^"\\])*" | \\\w+ | :[^\s,\[\](){}"]+
             | [^\s,\[\](){}"]+ )""",
    re.VERBOSE,
)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", '"': '"', "\\": "\\"}
_CLOSING = {"[": "]", "(": ")", "{": "}", "#{": "}"}
_NAMED = {"nil": None, "true": True, "false": False}


class _Reader:
    def __init__(self, text: str) -> None:
        self._tokens = [match["token"] for match in _TOKEN.finditer(text)]
        self._at = 0

    def more(self) -> bool:
        return self._at < len(self._tokens)

    def form(self) -> Any:
        if not self.more():
            raise BadHistory("EDN ends in the middle of a form")
        token = self._tokens[self._at]
        self._at += 1
        if token in _CLOSING:
            return self._collection(token)
        if token.startswith("#"):  # a record, #jepsen.history.Op{...}, or #inst "...": the next form says it all
            ignored = self.form()
            return self.form() if token == "#_" else ignored
        if token.startswith('"'):
            return re.sub(r"\\(.)", lambda match: _ESCAPES.get(match[1], match[1]), token[1:-1], flags=re.DOTALL)
        if token.startswith(":"):
            return Keyword(token[1:])
        if token in _NAMED:
            return _NAMED[token]
        return self._number(token)

    def _collection(self, opening: str) -> Any:
        forms = []
        while self.more() and self._tokens[self._at] != _CLOSING[opening]:
            forms.append(self.form())
        if not self.more():
            raise BadHistory(f"EDN: {opening} is never closed")
        self._at += 1
        if opening != "{":
            return forms
        if len(forms) % 2:
            raise BadHistory("EDN: a map with a key and no value")
        return dict(zip(forms[::2], forms[1::2], strict=True))

    @staticmethod
    def _number(token: str) -> int | float | str:
        try:
            return int(token.removesuffix("N"))
        except ValueError:
            pass
        try:
            return float(token.removesuffix("M"))
        except ValueError:
            return token  # a symbol


def loads(text: str) -> list[Any]:
    """Read every form in the text. Vectors, lists and sets become lists, keywords `Keyword`."""
    reader = _Reader(text)
    forms = []
    while reader.more():
        forms.append(reader.form())
    return forms


def _plain(what: Any) -> Any:
    if isinstance(what, Keyword):
        return what.name
    if isinstance(what, dict):
        return {str(_plain(name)): _plain(of) for name, of in what.items()}
    if isinstance(what, list):
        return [_plain(of) for of in what]
    return what


def _micro_from_edn(micro: list[Any]) -> list[Any]:
    name, *rest = (_plain(part) for part in micro)
    if name == "send":
        key, value = rest
        return ["send", str(key), value]
    return [name, *rest]


def from_edn(text: str) -> list[Op]:
    """Read the operations of a history.edn: a map a line, or one vector of maps."""
    forms = loads(text)
    if len(forms) == 1 and isinstance(forms[0], list):
        forms = forms[0]
    ops = []
    for form in forms:
        if not isinstance(form, dict):
            raise BadHistory(f"no operation: {form!r}")
        ops.append(_op(form))
    return ops


def _op(form: dict[Any, Any]) -> Op:
    fields = {_RENAMED_BACK.get(name, name): of for name, of in ((str(_plain(key)), form[key]) for key in form)}
    f = _plain(fields.get("f"))
    value = fields.get("value")
    if f in _MICRO and value is not None:
        value = [_micro_from_edn(micro) for micro in value]
    elif f in _KEYED and value is not None:
        value = [str(_plain(key)) for key in value]
    else:
        value = _plain(value)
    if "rebalance_log" in fields:
        fields["rebalance_log"] = [
            {"keys": [str(_plain(key)) for key in event[Keyword("keys")]]} for event in fields["rebalance_log"]
        ]
    return from_fields({name: _plain(of) for name, of in fields.items()} | {"value": value})


def numbered(ops: Iterable[Op]) -> tuple[list[Op], dict[Key, str]]:
    """Return the same operations with keys numbered by first appearance, and the number of each key."""
    names: dict[Key, str] = {}

    def name(key: Key) -> str:
        return names.setdefault(key, str(len(names)))

    def micro(what: list[Any]) -> list[Any]:
        match what:
            case ["send", key, value]:
                return ["send", name(key), value]
            case ["poll", records]:
                return ["poll", {name(key): pairs for key, pairs in records.items()}]
            case _:
                return what

    renamed = []
    for op in ops:
        value, extra = op.value, dict(op.extra)
        if op.f in _MICRO and value is not None:
            value = [micro(what) for what in value]
        elif op.f in _KEYED and value is not None:
            value = [name(key) for key in value]
        if "rebalance_log" in extra:
            extra["rebalance_log"] = [{"keys": [name(key) for key in e["keys"]]} for e in extra["rebalance_log"]]
        renamed.append(replace(op, value=value, extra=extra))
    return renamed, names


def for_jepsen(ops: Iterable[Op]) -> str:
    """Write a history.edn as `jepsen.tests.kafka` and elle read it, a map a line."""
    known = (*_MICRO, *_KEYED, "crash", "debug-topic-partitions")
    chosen = [op for op in ops if not op.is_client or op.f in known]
    again = [
        replace(op, index=index, f="txn" if op.f == "process" else op.f)  # without the offsets, it is a transaction
        for index, op in enumerate(chosen)
    ]
    return "".join(to_edn(op) + "\n" for op in again)


__all__ = ["Keyword", "Type", "dumps", "for_jepsen", "from_edn", "loads", "numbered", "to_edn"]
