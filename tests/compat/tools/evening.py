"""Makes the output of two clusters comparable: addresses, ids, times, directories, widths of columns.

An address becomes the node that has it, so that an answer about another node is still another answer. A class's stack
trace tells where in the tool an error was met, not what it was, and is dropped; its causes stay.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable
from typing import Any

from command_line import CommandLine
from tool_clusters import ToolCluster

_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_ID = re.compile(r"(?<![\w.-])(?=[\w-]*[A-Z])(?=[\w-]*[a-z])[\w-]{22}(?![\w.-])")
_MILLIS = re.compile(r"\b1[78]\d{11}\b")
_DATE = re.compile(r"\b20[2-9]\d([-/])\d\d\1\d\d[T ]\d\d:\d\d:\d\d(?:[.,:]\d{1,3})?(?:[+-]\d\d:\d\d|Z)?")
_TRACE = re.compile(r"^!? *\t*(?:at [\w.$<>]+[(/].*|\.\.\. \d+ more)$")
_JSON = re.compile(r"(?:^|(?<=: ))[{\[]")
_LONG = re.compile(r"-{5,}")


def even(printed: str, command: CommandLine, cluster: ToolCluster) -> list[str]:
    """Return the lines to compare."""
    if not command.is_compared:
        return []
    text = "\n".join(_with_json(line, _named) for line in printed.splitlines())
    text = text.replace(str(cluster.directory.resolve()), "DIRECTORY").replace(str(cluster.directory), "DIRECTORY")
    for node, port in enumerate(cluster.ports, 1):
        text = re.sub(rf"127\.0\.0\.1:{port}\b", f"broker-{node}:PORT", text)
        text = re.sub(rf"\b127\.0\.0\.1( +){port}\b", f"broker-{node} PORT", text)
        text = re.sub(rf"\b{port}\b", "PORT", text)
    for node, port in enumerate(cluster.controller_ports, 1):
        text = re.sub(rf"127\.0\.0\.1:{port}\b", f"controller-{node}:PORT", text)
        text = re.sub(rf"\b127\.0\.0\.1( +){port}\b", f"controller-{node} PORT", text)
        text = re.sub(rf"\b{port}\b", "PORT", text)
    for pattern, word in ((_UUID, "UUID"), (_DATE, "DATE"), (_MILLIS, "TIME"), (_ID, "ID"), (_LONG, "-----")):
        text = pattern.sub(word, text)
    lines = [_even_line(line, command) for line in text.splitlines() if not _TRACE.match(line)]
    lines = [line for line in lines if line and not any(re.fullmatch(each, line) for each in command.drops)]
    if command.are_repeated:
        lines = list(dict.fromkeys(lines))
    if command.is_unordered:
        lines.sort()
    return lines


def _even_line(line: str, command: CommandLine) -> str:
    line = " ".join(line.split())
    if line.startswith("exit status"):
        return line
    line = _with_json(line, _sorted)
    for mask in command.masks:
        line = re.sub(mask, _hidden, line)
    return line


def _with_json(line: str, ordered: Callable[[Any], Any]) -> str:
    """Return the line with the JSON in it, if there is any, in an order that does not depend on the JVM."""
    begun = _JSON.search(line)
    if begun is not None:
        with contextlib.suppress(ValueError):
            return line[: begun.start()] + json.dumps(ordered(json.loads(line[begun.start() :])), sort_keys=True)
    return line


def _named(value: Any) -> Any:
    """Return JSON as it is; its lists can be sorted only once what is in them is even."""
    return value


def _hidden(found: re.Match[str]) -> str:
    """Hide the first group that took part, or all of the match."""
    for number in range(1, (found.re.groups or 0) + 1):
        if found.group(number) is not None:
            begin, end = found.span(number)
            whole = found.group()
            return whole[: begin - found.start()] + "#" + whole[end - found.start() :]
    return "#"


def _sorted(value: Any) -> Any:
    """Return JSON whose lists are sorted."""
    if isinstance(value, dict):
        return {name: _sorted(each) for name, each in value.items()}
    if isinstance(value, list):
        return sorted(map(_sorted, value), key=lambda each: json.dumps(each, sort_keys=True))
    return value
