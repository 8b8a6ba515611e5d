"""What a streams group processes, and what that needs of the cluster's topics (KIP-1071).

A topology is what the application says: subtopologies with their source topics, the repartition topics they read and
write, their changelogs, and which sources must have as many partitions as each other. `configure` holds it against the
topics there are: how many tasks each subtopology has, which internal topics are missing, or what is wrong.

A subtopology has a task for each partition of the source topic that has most. A repartition topic has the partitions
its application asks for, else those of its copartition group, else as many as the largest source of those who write it.
A changelog has one for each task.

Left out: where state is, which is the members' affair.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from kraftpy.groups.consumer_group import Topics
from kraftpy.groups.patterns import Pattern, PatternError
from kraftpy.protocol.errors import ErrorCode, KafkaError

STALE_TOPOLOGY = 0
MISSING_SOURCE_TOPICS = 1
INCORRECTLY_PARTITIONED_TOPICS = 2
MISSING_INTERNAL_TOPICS = 3
SHUTDOWN_APPLICATION = 4
ASSIGNMENT_DELAYED = 5
"""What a heartbeat's answer can say of the group, by number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InternalTopic:
    """A repartition topic or a changelog; 0 partitions or replicas leave the number open."""

    name: str
    partitions: int = 0
    replication_factor: int = 0
    configs: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CopartitionGroup:
    """Sources with equal numbers of partitions, by their places in the lists of their subtopology."""

    source_topics: tuple[int, ...] = ()
    source_topic_regex: tuple[int, ...] = ()
    repartition_source_topics: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Subtopology:
    """A part that runs as tasks."""

    subtopology_id: str
    source_topics: tuple[str, ...] = ()
    source_topic_regex: tuple[str, ...] = ()
    state_changelog_topics: tuple[InternalTopic, ...] = ()
    repartition_sink_topics: tuple[str, ...] = ()
    repartition_source_topics: tuple[InternalTopic, ...] = ()
    copartition_groups: tuple[CopartitionGroup, ...] = ()

    @property
    def has_state(self) -> bool:
        """Whether its tasks have something to restore, and so are worth a standby."""
        return bool(self.state_changelog_topics)


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """The whole, with its epoch."""

    epoch: int
    subtopologies: tuple[Subtopology, ...] = ()

    def check(self) -> None:
        """Raise KafkaError where it contradicts itself."""
        ids = [each.subtopology_id for each in self.subtopologies]
        problem = None
        if not ids:
            problem = "the topology is empty"
        elif len(set(ids)) < len(ids):
            problem = "a subtopology comes twice"
        for each in self.subtopologies:
            problem = problem or _problem(each)
        if problem is not None:
            raise KafkaError(ErrorCode.STREAMS_INVALID_TOPOLOGY, problem)


def _problem(subtopology: Subtopology) -> str | None:
    name = subtopology.subtopology_id
    if any(topic.partitions != 0 for topic in subtopology.state_changelog_topics):
        return f"subtopology {name} says how many partitions a changelog has"
    for group in subtopology.copartition_groups:
        for places, there in (
            (group.source_topics, subtopology.source_topics),
            (group.source_topic_regex, subtopology.source_topic_regex),
            (group.repartition_source_topics, subtopology.repartition_source_topics),
        ):
            if any(not 0 <= place < len(there) for place in places):
                return f"subtopology {name} has a copartition group with a topic that it does not read"
    for regex in subtopology.source_topic_regex:
        try:
            Pattern(regex)
        except PatternError as error:
            return f"subtopology {name} reads by an expression that means nothing: {error}"
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Configured:
    """A topology and the topics there are: the tasks where it can be worked on, else a status that says why not."""

    tasks: Mapping[str, int] = field(default_factory=dict)  # by subtopology
    sources: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # what each reads
    internal: Mapping[str, int] = field(default_factory=dict)  # the partitions of each internal topic
    missing: tuple[InternalTopic, ...] = ()  # internal topics to be made, with their partitions
    status: int | None = None
    detail: str = ""

    @property
    def is_ready(self) -> bool:
        """Whether its tasks can be given out."""
        return self.status is None


class _Wrong(Exception):
    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status


def configure(topology: Topology, topics: Topics) -> Configured:
    """Hold a topology that `check` has passed against the topics there are."""
    try:
        sources = {each.subtopology_id: _sources(each, topics) for each in topology.subtopologies}
        counts = _counts(topology, sources, topics)
    except _Wrong as wrong:
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
    missing = []
    for name, topic in sorted(wanted.items()):
        there = topics.topic(name)
        if there is None:
            missing.append(topic)
        elif there.partition_count != topic.partitions:
            return Configured(
                internal=internal,
                status=INCORRECTLY_PARTITIONED_TOPICS,
                detail=f"Internal topic {name} has {there.partition_count} partitions and should have "
                f"{topic.partitions}.",
            )
    read_by = {each: (*sources[each], *_repartitions(topology, each)) for each in sources}
    if missing:
        names = ", ".join(topic.name for topic in missing)
        return Configured(
            internal=internal,
            missing=tuple(missing),
            status=MISSING_INTERNAL_TOPICS,
            detail=f"Internal topics are missing: {names}.",
        )
    return Configured(tasks=tasks, sources=read_by, internal=internal)


def required_topics(topology: Topology, topics: Topics) -> list[str]:
    """Every topic it has to do with, in order: changes of these concern the group."""
    names: set[str] = set()
    for each in topology.subtopologies:
        names.update(each.source_topics)
        names.update(topic.name for topic in (*each.repartition_source_topics, *each.state_changelog_topics))
        names.update(_matching(each, topics))
    return sorted(names)


def hash_of(topology: Topology, topics: Topics) -> int:
    """A number that changes when the topics of the topology do: which there are, their ids, how many partitions."""
    digest = hashlib.blake2b(digest_size=8)
    for name in required_topics(topology, topics):
        info = topics.topic(name)
        if info is not None:
            digest.update(info.topic_id + info.partition_count.to_bytes(4, "big") + name.encode() + b"\x00")
    return int.from_bytes(digest.digest(), "big", signed=True)


def _with_partitions(topic: InternalTopic, partitions: int) -> InternalTopic:
    return InternalTopic(
        name=topic.name,
        partitions=partitions,
        replication_factor=topic.replication_factor,
        configs=topic.configs,
    )


def _repartitions(topology: Topology, subtopology_id: str) -> tuple[str, ...]:
    (found,) = (each for each in topology.subtopologies if each.subtopology_id == subtopology_id)
    return tuple(topic.name for topic in found.repartition_source_topics)


def _matching(subtopology: Subtopology, topics: Topics) -> list[str]:
    patterns = [Pattern(regex) for regex in subtopology.source_topic_regex]
    return [name for name in (topics.names() if patterns else ()) if any(each.matches(name) for each in patterns)]


def _sources(subtopology: Subtopology, topics: Topics) -> tuple[str, ...]:
    """The topics it reads that are not the application's own. Raises _Wrong where one is missing."""
    missing = [name for name in subtopology.source_topics if topics.topic(name) is None]
    if missing:
        raise _Wrong(MISSING_SOURCE_TOPICS, f"Source topics {', '.join(sorted(missing))} are missing.")
    return tuple(sorted({*subtopology.source_topics, *_matching(subtopology, topics)}))


def _counts(topology: Topology, sources: Mapping[str, tuple[str, ...]], topics: Topics) -> dict[str, int]:
    """How many partitions every source has or shall have. Raises _Wrong."""
    counts: dict[str, int] = {}
    for read in sources.values():
        for name in read:
            info = topics.topic(name)
            assert info is not None, name
            counts[name] = info.partition_count
    fixed: dict[str, int] = {}
    pending: dict[str, list[Subtopology]] = {}
    for each in topology.subtopologies:
        for topic in each.repartition_source_topics:
            if topic.partitions > 0:
                counts[topic.name] = fixed[topic.name] = topic.partitions
            else:
                pending[topic.name] = [other for other in topology.subtopologies if _writes(other, topic.name)]
    while pending:
        found = {name: _largest(writers, sources, counts) for name, writers in sorted(pending.items())}
        known = {name: count for name, count in found.items() if count is not None}
        if not known:
            names = ", ".join(sorted(pending))
            detail = f"How many partitions {names} shall have cannot be told from what is written to them."
            raise _Wrong(MISSING_SOURCE_TOPICS, detail)
        for name, count in known.items():
            counts[name] = count
            del pending[name]
    for each in topology.subtopologies:
        for group in each.copartition_groups:
            _copartition(each, group, counts, fixed, topics)
    return counts


def _writes(subtopology: Subtopology, name: str) -> bool:
    return name in subtopology.repartition_sink_topics


def _largest(
    writers: list[Subtopology], sources: Mapping[str, tuple[str, ...]], counts: Mapping[str, int]
) -> int | None:
    """The partitions of the largest topic that the writers read; None while not all of them are known."""
    largest = 0
    for writer in writers:
        read = [*sources[writer.subtopology_id], *(topic.name for topic in writer.repartition_source_topics)]
        if any(name not in counts for name in read):
            return None
        largest = max([largest, *(counts[name] for name in read)])
    return largest or None


def _copartition(
    subtopology: Subtopology,
    group: CopartitionGroup,
    counts: dict[str, int],
    fixed: Mapping[str, int],
    topics: Topics,
) -> None:
    """Make the repartition topics of the group as large as its other sources. Raises _Wrong where these differ."""
    given = [subtopology.source_topics[place] for place in group.source_topics]
    for place in group.source_topic_regex:
        pattern = Pattern(subtopology.source_topic_regex[place])
        given += [name for name in topics.names() if pattern.matches(name)]
    made = [subtopology.repartition_source_topics[place].name for place in group.repartition_source_topics]
    bound = {name: counts[name] for name in [*given, *(name for name in made if name in fixed)]}
    if len(set(bound.values())) > 1:
        told = ", ".join(f"{name} ({count})" for name, count in sorted(bound.items()))
        detail = f"Topics that must have as many partitions as each other have not: {told}."
        raise _Wrong(INCORRECTLY_PARTITIONED_TOPICS, detail)
    count = next(iter(bound.values()), None) or max((counts[name] for name in made), default=0)
    for name in made:
        counts[name] = count
