"""Dependency cycles: transactions that would each have to come before the other.

A node is a completed operation. One comes before another if

    ww        its value stands directly before the other's in a key's order
    wr        the other read what it wrote
    rw        it read up to a value, and the other wrote the next one (only with `Options.rw_edges`)
    process   it came before the other in one process
    realtime  it was complete before the other was asked for

A cycle of such edges is named by the weakest kinds it needs:

    G0 ww only · G1c ww and wr · G-single one rw · G2-item several rw        then with -process, then with -realtime

There is also G1b, an intermediate read: the last value an operation read of a key is not the last one that its writer
wrote.

Allowed, because Kafka's transactions do not promise otherwise: writers are not isolated, so every cycle that needs a
ww edge; polls have no claim to the newest record, so every cycle that needs an rw edge; a poll may end anywhere, so
G1b. A cycle of wr edges, with process and realtime order or without, is a record that was read before it was written:
never allowed. Each strongly connected set of operations is reported once, by its first name in that order, with a
shortest such cycle.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import IntFlag

from chaos.checkers.verdict import Findings, Options, Verdict
from chaos.checkers.versions import Versions, reads, versions, writes
from chaos.history import History, Key, Op, Type, Value

NAME = "cycles"


class Edge(IntFlag):
    """Why one operation comes before another."""

    WW = 1
    WR = 2
    RW = 4
    PROCESS = 8
    REALTIME = 16


_LETTERS = {Edge.WW: "ww", Edge.WR: "wr", Edge.RW: "rw", Edge.PROCESS: "process", Edge.REALTIME: "realtime"}
_SENTENCES = {
    Edge.WW: "{0}: {1!r} stands before {2!r}",
    Edge.WR: "{0}: {1!r} was read",
    Edge.RW: "{0}: read up to {1!r}, not {2!r}",
}


@dataclass(slots=True)
class Graph:
    """Edges between operations, each with the kinds it has; nodes are indexes of operations."""

    edges: dict[int, dict[int, Edge]] = field(default_factory=dict)
    why: dict[tuple[int, int, Edge], tuple[Key, Value, Value]] = field(default_factory=dict)

    def link(self, before: int, after: int, kind: Edge, why: tuple[Key, Value, Value] | None = None) -> None:
        """Add an edge. An operation never comes before itself."""
        if before == after:
            return
        following = self.edges.setdefault(before, {})
        following[after] = following.get(after, Edge(0)) | kind
        if why is not None:
            self.why.setdefault((before, after, kind), why)

    def following(self, node: int, kinds: int) -> Iterator[tuple[int, int]]:
        """Return the nodes reachable from this one by edges of these kinds, with the kinds that lead there."""
        for after, kind in self.edges.get(node, {}).items():
            usable = int(kind) & kinds
            if usable:
                yield after, usable


@dataclass(frozen=True, slots=True, kw_only=True)
class _Search:
    name: str
    kinds: int
    needed: int
    """Kinds that the cycle must contain."""
    single: bool = False
    """Require exactly one rw edge."""
    allowed: bool = False


def _searches(rw_edges: bool) -> list[_Search]:
    """The anomalies, never-allowed ones first, so that allowed ones do not hide them."""
    plan = []
    ww, wr, rw = int(Edge.WW), int(Edge.WR), int(Edge.RW)
    orders = [("", 0), ("-process", int(Edge.PROCESS)), ("-realtime", int(Edge.REALTIME))]
    below = {"": 0, "-process": int(Edge.PROCESS), "-realtime": int(Edge.PROCESS | Edge.REALTIME)}
    plan += [_Search(name=f"G1c{s}", kinds=wr | below[s], needed=wr | order) for s, order in orders]
    for suffix, order in orders:
        kinds = below[suffix]
        plan.append(_Search(name=f"G0{suffix}", kinds=ww | kinds, needed=ww | order, allowed=True))
        plan.append(_Search(name=f"G1c{suffix}", kinds=ww | wr | kinds, needed=ww | wr | order, allowed=True))
        if rw_edges:
            every = ww | wr | rw | kinds
            plan.append(_Search(name=f"G-single{suffix}", kinds=every, needed=rw | order, single=True, allowed=True))
            plan.append(_Search(name=f"G2-item{suffix}", kinds=every, needed=rw | order, allowed=True))
    return plan


def check(history: History, options: Options) -> Verdict:
    """Judge the order that operations imply on each other."""
    findings = Findings(NAME, options)
    known = versions(history)
    findings.verdict.examined = len(known.ops)
    by_index = {op.index: op for op in known.ops}
    graph = build(history, known, options)
    reported: set[int] = set()
    cyclic = list(components(graph, int(Edge(31)), graph.edges))
    for search in _searches(options.rw_edges):
        for whole in cyclic:
            for part in components(graph, search.kinds, whole):
                if reported.isdisjoint(part):
                    cycle = shortest(graph, part, search)
                    if cycle:
                        reported.update(part)
                        _report(findings, graph, by_index, cycle, search)
    _intermediate(known, findings)
    return findings.verdict


def _report(
    findings: Findings, graph: Graph, by_index: dict[int, Op], cycle: list[tuple[int, int]], search: _Search
) -> None:
    steps = []
    for place, (node, kind) in enumerate(cycle):
        after = cycle[(place + 1) % len(cycle)][0]
        edge = Edge(kind & -kind)
        why = graph.why.get((node, after, edge))
        steps.append({"from": node, "to": after, "edge": _LETTERS[edge], "why": why and _SENTENCES[edge].format(*why)})
    path = " ".join(f"{step['from']} -{step['edge']}->" for step in steps)
    text = f"each comes before the next: {path} {steps[0]['from']}"
    ops = [by_index[node] for node, _ in cycle]
    findings.add(search.name, text, ops, allowed=search.allowed, steps=steps)


def build(history: History, known: Versions, options: Options) -> Graph:
    """Build the dependency graph of a history."""
    graph = Graph()
    for key, order in known.orders.items():
        writers = known.writer_of.get(key, {})
        for value, later in itertools.pairwise(order.by_index):
            writer, after = writers.get(value), writers.get(later)
            if writer is not None and after is not None and writer is not after:
                graph.link(writer.index, after.index, Edge.WW, (key, value, later))
    for key, by_value in known.readers_of.items():
        writers = known.writer_of.get(key, {})
        for value, readers in by_value.items():
            writer = writers.get(value)
            if writer is not None:
                for reader in readers:
                    graph.link(writer.index, reader.index, Edge.WR, (key, value, value))
    if options.rw_edges:
        _anti_dependencies(known, graph)
    _process_order(known.ops, graph)
    _realtime_order(history, known.ops, graph)
    return graph


def _anti_dependencies(known: Versions, graph: Graph) -> None:
    for op in known.ops:
        for key, values in reads(op).items():
            order = known.order(key)
            farthest = max((order.by_value[value] for value in values if value in order.by_value), default=None)
            if farthest is None or farthest + 1 >= len(order.by_index):
                continue
            unseen = order.by_index[farthest + 1]
            writer = known.writer_of.get(key, {}).get(unseen)
            if writer is not None:
                graph.link(op.index, writer.index, Edge.RW, (key, values[-1], unseen))


def _process_order(ops: Iterable[Op], graph: Graph) -> None:
    last: dict[object, Op] = {}
    for op in ops:
        before = last.get(op.process)
        if before is not None:
            graph.link(before.index, op.index, Edge.PROCESS)
        last[op.process] = op


def _realtime_order(history: History, ops: list[Op], graph: Graph) -> None:
    """Link each operation to those completed before it was invoked, leaving out links that others imply."""
    events = sorted(
        [(history.invocation(op).index, False, op) for op in ops] + [(op.index, True, op) for op in ops],
        key=lambda event: event[:2],
    )
    frontier: dict[int, Op] = {}
    before: dict[int, tuple[int, ...]] = {}
    for _, completes, op in events:
        if not completes:
            before[op.index] = tuple(frontier)
            for index in frontier:
                graph.link(index, op.index, Edge.REALTIME)
        elif op.type in (Type.OK, Type.FAIL):
            for index in before.pop(op.index):
                frontier.pop(index, None)
            frontier[op.index] = op


def components(graph: Graph, kinds: int, within: Iterable[int]) -> Iterator[set[int]]:
    """Return the strongly connected components of more than one of these nodes (Tarjan's, without recursion)."""
    allowed = set(within)
    number: dict[int, int] = {}
    low: dict[int, int] = {}
    stack: list[int] = []
    on_stack: set[int] = set()
    for root in sorted(allowed):
        if root in number:
            continue
        work: list[tuple[int, Iterator[tuple[int, int]]]] = []
        _enter(graph, root, kinds, number, low, stack, on_stack, work)
        while work:
            node, following = work[-1]
            for after, _ in following:
                if after not in allowed:
                    continue
                if after not in number:
                    _enter(graph, after, kinds, number, low, stack, on_stack, work)
                    break
                if after in on_stack:
                    low[node] = min(low[node], number[after])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == number[node]:
                    part = set()
                    while True:
                        member = stack.pop()
                        on_stack.discard(member)
                        part.add(member)
                        if member == node:
                            break
                    if len(part) > 1:
                        yield part


def _enter(
    graph: Graph,
    node: int,
    kinds: int,
    number: dict[int, int],
    low: dict[int, int],
    stack: list[int],
    on_stack: set[int],
    work: list[tuple[int, Iterator[tuple[int, int]]]],
) -> None:
    number[node] = low[node] = len(number)
    stack.append(node)
    on_stack.add(node)
    work.append((node, graph.following(node, kinds)))


MOST_STARTS = 256
"""How many edges to search from for a component's shortest cycle."""


def shortest(graph: Graph, part: set[int], search: _Search) -> list[tuple[int, int]]:
    """Return a shortest cycle of the component that meets the need: nodes, each with the kind of edge that leaves it.

    Nodes are numbered by completion, so every cycle has an edge that leads back: paths are searched from its end.
    """
    best: list[tuple[int, int]] = []
    starts = 0
    for node in sorted(part):
        for after, kinds in graph.following(node, search.kinds):
            if after > node or after not in part:
                continue
            for kind in _each(kinds):
                starts += 1
                if starts > MOST_STARTS and best:
                    return best
                cycle = _back(graph, part, search, node, after, kind, len(best) or len(part) * 32)
                if cycle:
                    best = cycle
                    if len(best) == 2:
                        return best
    return best


def _back(
    graph: Graph, part: set[int], search: _Search, start: int, first: int, kind: int, limit: int
) -> list[tuple[int, int]]:
    """Return the shortest path from `first` back to `start`, breadth first over (node, needed kinds taken so far).

    Together with the edge to `first` it has fewer than `limit` edges.
    """
    begin = (first, kind & search.needed)
    came: dict[tuple[int, int], tuple[tuple[int, int], int] | None] = {begin: None}
    queue = deque([(begin, 1)])
    while queue:
        state, length = queue.popleft()
        node, taken = state
        if node == start:
            if taken == search.needed:
                return _path(came, state, start, kind)
            continue
        if length + 1 >= limit:
            continue
        for after, kinds in graph.following(node, search.kinds):
            if after not in part:
                continue
            for edge in _each(kinds):
                if search.single and edge & taken & Edge.RW:
                    continue
                beyond = (after, taken | (edge & search.needed))
                if beyond not in came:
                    came[beyond] = (state, edge)
                    queue.append((beyond, length + 1))
    return []


def _each(kinds: int) -> Iterator[int]:
    while kinds:
        edge = kinds & -kinds
        yield edge
        kinds ^= edge


def _path(
    came: dict[tuple[int, int], tuple[tuple[int, int], int] | None], state: tuple[int, int], start: int, kind: int
) -> list[tuple[int, int]]:
    back: list[tuple[int, int]] = []
    step = came[state]
    while step is not None:
        previous, edge = step
        back.append((previous[0], edge))
        step = came[previous]
    return [(start, kind), *reversed(back)]


def _intermediate(known: Versions, findings: Findings) -> None:
    """Find G1b. The last value a writer gave a key is known from its operation alone."""
    final: dict[tuple[int, Key], object] = {}
    for op in known.ops:
        for key, values in writes(op).items():
            if len(values) > 1:
                final[op.index, key] = values[-1]
    if not final:
        return
    for op in known.ops:
        for key, values in reads(op).items():
            writer = known.writer_of.get(key, {}).get(values[-1])
            if writer is None or writer is op:
                continue
            last = final.get((writer.index, key), values[-1])
            if last != values[-1]:
                text = f"{key}: a poll ends at {values[-1]!r}, and its writer wrote {last!r} after it"
                findings.add("G1b", text, (writer, op), allowed=True, key=key, value=values[-1], last=last)
