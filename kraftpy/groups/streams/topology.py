"""The topology of a streams group, and what it needs from the cluster's topics (KIP-1071).

A topology comes from the application: subtopologies with their source topics, the repartition topics they read and
write, their changelogs, and the sources that must have equal numbers of partitions. `configure` compares it with the
existing topics and determines how many tasks each subtopology has, which internal topics are missing, or what is wrong.

A subtopology has one task per partition of its largest source topic. A repartition topic has the partitions its
application requests, else those of its copartition group, else as many as the largest source of its writers. A
changelog has one per task.

Left out: the location of state, which members manage.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import field
from itertools import chain
from operator import attrgetter
from typing import Final

from kraftpy.frozen import frozen
from kraftpy.groups.apart import UNITS_AT_ONCE
from kraftpy.groups.patterns import PatternError, shown
from kraftpy.groups.topic_matches import TopicMatches
from kraftpy.groups.topics import Topics
from kraftpy.protocol.errors import ErrorCode, KafkaError

STALE_TOPOLOGY = 0
MISSING_SOURCE_TOPICS = 1
INCORRECTLY_PARTITIONED_TOPICS = 2
MISSING_INTERNAL_TOPICS = 3
SHUTDOWN_APPLICATION = 4
ASSIGNMENT_DELAYED = 5
"""Statuses of the group that a heartbeat response can report, by number."""
_SHOWN_TOPICS = 3

MOST_TASKS: Final = 100_000
"""The most tasks of a topology. If only one subtopology reads its topics, it has no more tasks than partitions."""


@frozen
class InternalTopic:
    """A repartition topic or changelog; 0 partitions or replicas mean that the number is not specified."""

    name: str
    partitions: int = 0
    replication_factor: int = 0
    configs: tuple[tuple[str, str], ...] = ()


@frozen
class CopartitionGroup:
    """Sources with equal numbers of partitions, by their positions in the lists of their subtopology."""

    source_topics: tuple[int, ...] = ()
    source_topic_regex: tuple[int, ...] = ()
    repartition_source_topics: tuple[int, ...] = ()


@frozen
class Subtopology:
    """A part of the topology that runs as tasks."""

    subtopology_id: str
    source_topics: tuple[str, ...] = ()
    source_topic_regex: tuple[str, ...] = ()
    state_changelog_topics: tuple[InternalTopic, ...] = ()
    repartition_sink_topics: tuple[str, ...] = ()
    repartition_source_topics: tuple[InternalTopic, ...] = ()
    copartition_groups: tuple[CopartitionGroup, ...] = ()

    @property
    def has_state(self) -> bool:
        """True if its tasks have state to restore, which makes standbys useful."""
        return bool(self.state_changelog_topics)


@frozen
class Topology:
    """A whole topology, with its epoch."""

    epoch: int
    subtopologies: tuple[Subtopology, ...] = ()

    @property
    def size(self) -> int:
        """The number of its parts: subtopologies, topics and copartition groups; if there are very many subtopologies,
        only these count."""
        if len(self.subtopologies) > UNITS_AT_ONCE:
            return len(self.subtopologies)
        return len(self.subtopologies) + sum(map(_size, self.subtopologies))

    def check(self) -> None:
        """Check that the topology is consistent. Raises KafkaError."""
        ids = [each.subtopology_id for each in self.subtopologies]
        problem = None
        if self.epoch < 0:
            problem = f"The topology epoch {self.epoch} is negative."
        elif len(set(ids)) < len(ids):
            problem = "A subtopology id occurs twice."
        for each in self.subtopologies:
            problem = problem or _problem(each)
        problem = problem or _problem_of_sources(self)
        if problem is not None:
            raise KafkaError(ErrorCode.STREAMS_INVALID_TOPOLOGY, problem)

    def check_expressions(self, matches: TopicMatches) -> None:
        """Check that every expression can be compiled now. Raises KafkaError."""
        for each in filter(_EXPRESSIONS, self.subtopologies):
            for regex in each.source_topic_regex:
                problem = _problem_of(regex, each.subtopology_id, matches)
                if problem is not None:
                    raise KafkaError(ErrorCode.STREAMS_INVALID_TOPOLOGY, problem)


_EXPRESSIONS = attrgetter("source_topic_regex")


def _size(subtopology: Subtopology) -> int:
    return (
        len(subtopology.source_topics)
        + len(subtopology.source_topic_regex)
        + len(subtopology.state_changelog_topics)
        + len(subtopology.repartition_sink_topics)
        + len(subtopology.repartition_source_topics)
        + len(subtopology.copartition_groups)
    )


def _problem(subtopology: Subtopology) -> str | None:
    name = subtopology.subtopology_id
    for topic in subtopology.state_changelog_topics:
        if topic.partitions != 0:
            return (
                f"Changelog topic {topic.name} must have an undefined partition count, "
                f"but it is set to {topic.partitions}."
            )
    for group in subtopology.copartition_groups:
        for places, there in (
            (group.source_topics, subtopology.source_topics),
            (group.source_topic_regex, subtopology.source_topic_regex),
            (group.repartition_source_topics, subtopology.repartition_source_topics),
        ):
            if any(not 0 <= place < len(there) for place in places):
                return f"Subtopology {name} has a copartition group with a topic that it does not read."
    return None


def _problem_of(regex: str, name: str, matches: TopicMatches) -> str | None:
    if matches.is_overdrawn:
        text = "Too many regular expressions are being compiled. Try again."
        raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, text)
    try:
        matches.check(regex)
    except PatternError as error:
        return f"SourceTopicRegex {shown(regex)} of subtopology {name} is not a valid expression: {error}."
    return None


def _problem_of_sources(topology: Topology) -> str | None:
    """Say what is wrong with the topics that subtopologies read, existing or not; None if nothing is."""
    sources = {each.subtopology_id: (*each.source_topics, *each.source_topic_regex) for each in topology.subtopologies}
    counts = {name: 1 for names in sources.values() for name in names}
    pending: set[str] = set()
    for each in topology.subtopologies:
        if not (sources[each.subtopology_id] or each.repartition_source_topics):
            return f"No source topics found for subtopology {each.subtopology_id}"
        for topic in each.repartition_source_topics:
            if topic.partitions > 0:
                counts[topic.name] = topic.partitions
            else:
                pending.add(topic.name)
    written = {name for each in topology.subtopologies for name in each.repartition_sink_topics}
    failed = "Failed to compute number of partitions for all repartition topics"
    if not pending <= written:
        return f"{failed}, because a repartition source topic is never used as a sink topic."
    _count_pending(topology, pending, sources, counts)
    return f"{failed}. There may be loops in the topology that cannot be resolved." if pending else None


@frozen
class Configured:
    """A topology with the existing topics: its tasks if it can be run, else a status that says why not."""

    tasks: Mapping[str, int] = field(default_factory=dict)  # by subtopology
    sources: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # the topics each reads
    internal: Mapping[str, int] = field(default_factory=dict)  # the partitions of each internal topic
    missing: tuple[InternalTopic, ...] = ()  # internal topics to create, with their partitions
    status: int | None = None
    detail: str = ""

    @property
    def is_ready(self) -> bool:
        """True if its tasks can be assigned."""
        return self.status is None


class _NotReady(Exception):
    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status


Resolved = Mapping[str, tuple[str, ...]]
"""The topics that match each expression of a topology."""


def resolve(topology: Topology, matches: TopicMatches) -> Resolved | None:
    """Return the matches of all expressions; None if some are not known yet: try again a little later."""
    resolved: dict[str, tuple[str, ...]] = {}
    for regex in chain.from_iterable(map(_EXPRESSIONS, topology.subtopologies)):
        if regex not in resolved:
            found = matches.resolve(regex)
            if found is None:
                return None
            resolved[regex] = found
    return resolved


def configure(topology: Topology, topics: Topics, matches: Resolved) -> Configured:
    """Compare a topology that passed `check` with the existing topics."""
    try:
        sources = {each.subtopology_id: _sources(each, topics, matches) for each in topology.subtopologies}
        counts = _counts(topology, sources, topics, matches)
    except _NotReady as wrong:
        return Configured(status=wrong.status, detail=str(wrong))
    tasks: dict[str, int] = {}
    wanted: dict[str, InternalTopic] = {}
    for each in topology.subtopologies:
        read = [*sources[each.subtopology_id], *(topic.name for topic in each.repartition_source_topics)]
        tasks[each.subtopology_id] = max((counts[name] for name in read), default=0)
        for topic in each.repartition_source_topics:
            wanted[topic.name] = _with_partitions(topic, counts[topic.name])
        for topic in each.state_changelog_topics:
            wanted[topic.name] = _with_partitions(topic, tasks[each.subtopology_id])
    internal = {name: topic.partitions for name, topic in sorted(wanted.items())}
    if sum(tasks.values()) > MOST_TASKS:
        return Configured(
            internal=internal,
            status=INCORRECTLY_PARTITIONED_TOPICS,
            detail=f"The topology has {sum(tasks.values())} tasks, and there can be at most {MOST_TASKS}.",
        )
    missing = []
    for name, topic in sorted(wanted.items()):
        there = topics.topic(name)
        if there is None:
            missing.append(topic)
        elif there.partition_count != topic.partitions:
            return Configured(
                internal=internal,
                status=INCORRECTLY_PARTITIONED_TOPICS,
                detail=f"Existing topic {name} has different number of partitions: expected {topic.partitions}, "
                f"found {there.partition_count}",
            )
    read_by = {
        each.subtopology_id: (*sources[each.subtopology_id], *(topic.name for topic in each.repartition_source_topics))
        for each in topology.subtopologies
    }
    if missing:
        return Configured(
            internal=internal,
            missing=tuple(missing),
            status=MISSING_INTERNAL_TOPICS,
            detail=f"Internal topics are missing: {_some([topic.name for topic in missing])}",
        )
    return Configured(tasks=tasks, sources=read_by, internal=internal)


def required_topics(topology: Topology, matches: Resolved) -> list[str]:
    """Return every topic the topology depends on, in order: changes to these affect the group."""
    names: set[str] = set()
    for each in topology.subtopologies:
        names.update(each.source_topics)
        names.update(topic.name for topic in (*each.repartition_source_topics, *each.state_changelog_topics))
        names.update(_matching(each, matches))
    return sorted(names)


def hash_of(topology: Topology, topics: Topics, matches: Resolved) -> int:
    """Hash the topics of the topology that exist, their ids and their partition counts."""
    digest = hashlib.blake2b(digest_size=8)
    for name in required_topics(topology, matches):
        info = topics.topic(name)
        if info is not None:
            digest.update(info.topic_id + info.partition_count.to_bytes(4, "big") + name.encode() + b"\x00")
    return int.from_bytes(digest.digest(), "big", signed=True)


def _some(names: Sequence[str]) -> str:
    """Name the first few topics, and the number of the others."""
    shown = ", ".join(names[:_SHOWN_TOPICS])
    return shown if len(names) <= _SHOWN_TOPICS else f"{shown} and {len(names) - _SHOWN_TOPICS} additional topics"


def _with_partitions(topic: InternalTopic, partitions: int) -> InternalTopic:
    return InternalTopic(
        name=topic.name,
        partitions=partitions,
        replication_factor=topic.replication_factor,
        configs=topic.configs,
    )


def _matching(subtopology: Subtopology, matches: Resolved) -> set[str]:
    return {name for regex in subtopology.source_topic_regex for name in matches[regex]}


def _sources(subtopology: Subtopology, topics: Topics, matches: Resolved) -> tuple[str, ...]:
    """Return the topics it reads other than internal ones. Raises _NotReady if one is missing."""
    missing = [name for name in subtopology.source_topics if topics.topic(name) is None]
    if missing:
        raise _NotReady(MISSING_SOURCE_TOPICS, f"Source topics {_some(sorted(missing))} are missing.")
    return tuple(sorted({*subtopology.source_topics, *_matching(subtopology, matches)}))


def _counts(
    topology: Topology, sources: Mapping[str, tuple[str, ...]], topics: Topics, matches: Resolved
) -> dict[str, int]:
    """Return the number of partitions that every source has or should have. Raises _NotReady."""
    counts: dict[str, int] = {}
    for read in sources.values():
        for name in read:
            info = topics.topic(name)
            assert info is not None, name
            counts[name] = info.partition_count
    fixed: dict[str, int] = {}
    pending: set[str] = set()
    for each in topology.subtopologies:
        for topic in each.repartition_source_topics:
            if topic.partitions > 0:
                counts[topic.name] = fixed[topic.name] = topic.partitions
            else:
                pending.add(topic.name)
    _count_pending(topology, pending, sources, counts)
    if pending:
        names = _some(sorted(pending))
        detail = f"Cannot determine the number of partitions of {names} from the topics that their writers read."
        raise _NotReady(MISSING_SOURCE_TOPICS, detail)
    for each in topology.subtopologies:
        for group in each.copartition_groups:
            _copartition(each, group, counts, fixed, matches)
    return counts


def _count_pending(
    topology: Topology, pending: set[str], sources: Mapping[str, tuple[str, ...]], counts: dict[str, int]
) -> None:
    """Give repartition topics as many partitions as the largest topic their writers read; the rest stay pending.

    Runs in time linear in the topology's size: a writer is examined once, when the sizes of all its topics are known.
    """
    parts = {each.subtopology_id: each for each in topology.subtopologies}
    reads = {key: {topic.name for topic in each.repartition_source_topics} for key, each in parts.items()}
    writes = {key: set(each.repartition_sink_topics) for key, each in parts.items()}
    readers, writers = _by_topic(reads), _by_topic(writes)
    unknown = {key: sum(name not in counts for name in names) for key, names in reads.items()}
    unfinished = {name: len(writers.get(name, ())) for name in pending}
    largest = dict.fromkeys(pending, 0)
    finished = [key for key in parts if not unknown[key]]
    while finished:
        key = finished.pop()
        most = max((counts[name] for name in (*sources[key], *reads[key])), default=0)
        for name in sorted(writes[key] & pending):
            largest[name] = max(largest[name], most)
            unfinished[name] -= 1
            if unfinished[name] or not largest[name]:
                continue
            pending.discard(name)
            if name not in counts:
                for reader in readers.get(name, ()):
                    unknown[reader] -= 1
                    if not unknown[reader]:
                        finished.append(reader)
            counts[name] = largest[name]
    if pending:
        _count_in_loops(parts, pending, sources, counts)


def _count_in_loops(
    parts: Mapping[str, Subtopology], pending: set[str], sources: Mapping[str, tuple[str, ...]], counts: dict[str, int]
) -> None:
    """Size topics in loops, whose writers read, perhaps indirectly, their own output, by the other topics they read.

    Kafka does the same. Topics that stay pending are written only by subtopologies that read no topic of known size.
    """
    reads = {key: {topic.name for topic in each.repartition_source_topics} for key, each in parts.items()}
    writes = {key: set(each.repartition_sink_topics) for key, each in parts.items()}
    readers, writers = _by_topic(reads), _by_topic(writes)
    largest = {key: max((counts.get(name, 0) for name in (*sources[key], *reads[key])), default=0) for key in parts}
    known = [key for key in parts if largest[key]]
    for key in known:  # grows
        for name in sorted(writes[key] & pending):
            pending.discard(name)
            counts[name] = max(largest[writer] for writer in writers[name])
            for reader in readers.get(name, ()):
                if not largest[reader]:
                    known.append(reader)
                largest[reader] = max(largest[reader], counts[name])


def _by_topic(named: Mapping[str, set[str]]) -> dict[str, list[str]]:
    """Return, by topic, the subtopologies that name it."""
    found: dict[str, list[str]] = {}
    for key, names in named.items():
        for name in sorted(names):
            found.setdefault(name, []).append(key)
    return found


def _copartition(
    subtopology: Subtopology,
    group: CopartitionGroup,
    counts: dict[str, int],
    fixed: Mapping[str, int],
    matches: Resolved,
) -> None:
    """Make the group's repartition topics as large as its other sources. Raises _NotReady if those differ."""
    given = [subtopology.source_topics[place] for place in group.source_topics]
    for place in group.source_topic_regex:
        given += matches[subtopology.source_topic_regex[place]]
    made = [subtopology.repartition_source_topics[place].name for place in group.repartition_source_topics]
    if given:
        sources = {name: counts[name] for name in given}
        count = _same_count(sources, sources)
    elif promised := {name: counts[name] for name in made if name in fixed}:
        count = _same_count(promised, {name: counts[name] for name in made})
    else:
        count = max((counts[name] for name in made), default=0)
    for name in made:
        if name in fixed and fixed[name] != count:
            raise _NotReady(
                INCORRECTLY_PARTITIONED_TOPICS,
                f"Number of partitions [{fixed[name]}] of repartition topic [{name}] doesn't match "
                f"number of partitions [{count}] of the source topic.",
            )
        counts[name] = count


def _same_count(counts: Mapping[str, int], shown: Mapping[str, int]) -> int:
    """Return the number of partitions that all of `counts` have. Raises _NotReady, which shows `shown`."""
    found = set(counts.values())
    if len(found) > 1:
        differing = _some([f"{name}={count}" for name, count in sorted(shown.items())])
        detail = f"Following topics do not have the same number of partitions: [{{{differing}}}]"
        raise _NotReady(INCORRECTLY_PARTITIONED_TOPICS, detail)
    return found.pop()
