"""Streams groups (KIP-1071) in the words of scripts: topologies, tasks, records, answers.

A topology is subtopologies with `;` between them, each `ID:READS>WRITES*CHANGELOGS`. Its inputs are topics with `+`
between them, or with `&` if they must have as many partitions as each other; `~r` is a repartition topic, `~r=3` one
that asks for three partitions. So `0:t>r;1:~r*s` reads t, repartitions into r, and counts what is in r in a state s.

Tasks are `0:0,1;1:2`, in the roles active/standby/warm-up with `/` between them; none are `-`.
"""

from __future__ import annotations

from kraftpy.groups.events import CreateInternalTopics
from kraftpy.groups.streams.records import (
    StreamsCurrentKey,
    StreamsCurrentValue,
    StreamsGroupKey,
    StreamsGroupValue,
    StreamsKey,
    StreamsMemberKey,
    StreamsMemberValue,
    StreamsTargetKey,
    StreamsTargetMetadataKey,
    StreamsTargetMetadataValue,
    StreamsTargetValue,
    StreamsTopologyKey,
    StreamsValue,
    Task,
    Tasks,
    TaskSet,
    by_subtopology,
)
from kraftpy.groups.streams.topology import Topology
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages import streams_group_heartbeat as wire
from kraftpy.protocol.messages.streams_group_describe import DescribedTasks, StreamsGroupDescribeResponse
from kraftpy.protocol.messages.streams_group_heartbeat import StreamsGroupHeartbeatResponse

STATUS = (
    "STALE_TOPOLOGY",
    "MISSING_SOURCE_TOPICS",
    "INCORRECTLY_PARTITIONED_TOPICS",
    "MISSING_INTERNAL_TOPICS",
    "SHUTDOWN_APPLICATION",
    "ASSIGNMENT_DELAYED",
)


def read_topology(text: str, epoch: int = 0) -> wire.Topology:
    return wire.Topology(epoch=epoch, subtopologies=[_subtopology(each) for each in text.split(";")])


def _subtopology(text: str) -> wire.Subtopology:
    subtopology_id, _, rest = text.partition(":")
    rest, _, changelogs = rest.partition("*")
    reads, _, writes = rest.partition(">")
    copartitioned = "&" in reads
    found = wire.Subtopology(subtopology_id=subtopology_id)
    for each in reads.replace("&", "+").split("+"):
        if each.startswith("~"):
            name, _, count = each[1:].partition("=")
            found.repartition_source_topics.append(wire.TopicInfo(name=name, partitions=int(count or 0)))
        elif each.startswith("/"):
            found.source_topic_regex.append(each[1:])
        elif each:
            found.source_topics.append(each)
    found.repartition_sink_topics = writes.split("+") if writes else []
    compact = [wire.KeyValue(key="cleanup.policy", value="compact")]
    found.state_changelog_topics = [
        wire.TopicInfo(name=each, topic_configs=compact) for each in (changelogs.split("+") if changelogs else [])
    ]
    if copartitioned:
        group = wire.CopartitionGroup(
            source_topics=list(range(len(found.source_topics))),
            repartition_source_topics=list(range(len(found.repartition_source_topics))),
        )
        found.copartition_groups = [group]
    return found


def read_task_ids(text: str) -> list[wire.TaskIds]:
    found = []
    for each in text.split(";") if text not in ("", "-") else []:
        name, _, numbers = each.partition(":")
        found.append(wire.TaskIds(subtopology_id=name, partitions=[int(number) for number in numbers.split(",")]))
    return found


def read_roles(text: str) -> tuple[list[wire.TaskIds], list[wire.TaskIds], list[wire.TaskIds]]:
    active, standby, warmup, *_ = [*text.split("/"), "", ""]
    return read_task_ids(active), read_task_ids(standby), read_task_ids(warmup)


def tasks_of(ids: list[wire.TaskIds] | None) -> TaskSet:
    return frozenset(Task(each.subtopology_id, number) for each in ids or [] for number in each.partitions)


def told(answer: StreamsGroupHeartbeatResponse) -> Tasks | None:
    """Return the tasks in a response."""
    if answer.active_tasks is None:
        return None
    return Tasks(
        active=tasks_of(answer.active_tasks),
        standby=tasks_of(answer.standby_tasks),
        warmup=tasks_of(answer.warmup_tasks),
    )


def _set(tasks: TaskSet) -> str:
    return ";".join(f"{name}:{','.join(map(str, numbers))}" for name, numbers in by_subtopology(tasks)) or "-"


def show_tasks(tasks: Tasks) -> str:
    roles = [_set(tasks.active), _set(tasks.standby), _set(tasks.warmup)]
    while len(roles) > 1 and roles[-1] == "-":
        roles.pop()
    return "/".join(roles)


def show_streams_beat(r: StreamsGroupHeartbeatResponse) -> str:
    if r.error_code:
        return f"stream {ErrorCode.of(r.error_code).name}"
    has = told(r)
    tasks = f" has={show_tasks(has)}" if has is not None else ""
    status = "".join(f" {STATUS[each.status_code]}" for each in r.status or [])
    queries = ""
    if r.partitions_by_user_endpoint is not None:
        places = [
            f"{each.user_endpoint.host}:{each.user_endpoint.port}="
            + "/".join(
                ";".join(f"{p.topic}:{','.join(map(str, p.partitions))}" for p in role) or "-"
                for role in (each.active_partitions, each.standby_partitions)
            )
            for each in r.partitions_by_user_endpoint
        ]
        queries = f" endpoints {r.endpoint_information_epoch}: {' '.join(places)}"
    return f"stream {r.member_id} epoch={r.member_epoch}{tasks}{status}{queries}"


def _described(tasks: DescribedTasks) -> str:
    return show_tasks(
        Tasks(
            active=tasks_of(tasks.active_tasks),
            standby=tasks_of(tasks.standby_tasks),
            warmup=tasks_of(tasks.warmup_tasks),
        )
    )


def show_streams_described(r: StreamsGroupDescribeResponse) -> str:
    lines = []
    for group in r.groups:
        head = f"describe-streams {group.group_id}"
        if group.error_code:
            lines.append(f'{head} {ErrorCode.of(group.error_code).name} "{group.error_message}"')
            continue
        lines.append(f"{head} {group.group_state} epoch={group.group_epoch} assignment-epoch={group.assignment_epoch}")
        if group.topology is not None:
            parts = [
                each.subtopology_id
                + "".join(
                    f" {topic.name}={topic.partitions}"
                    for topic in (*each.repartition_source_topics, *each.state_changelog_topics)
                )
                for each in group.topology.subtopologies or []
            ]
            lines.append(f"    topology {group.topology.epoch}: {'; '.join(parts) or 'not ready'}")
        for m in group.members:
            offsets = "".join(f" at {o.subtopology_id}:{o.partition}={o.offset}" for o in m.task_offsets)
            lines.append(
                f"    {m.member_id} epoch={m.member_epoch} process={m.process_id} "
                f"has={_described(m.assignment)} target={_described(m.target_assignment)}{offsets}"
            )
    return "\n".join(lines)


def show_made(effect: CreateInternalTopics) -> str:
    topics = " ".join(
        f"{topic.name}={topic.partitions}{''.join(f'[{name}={value}]' for name, value in topic.configs)}"
        for topic in effect.topics
    )
    return f"make topics for {effect.group_id}: {topics}"


def show_streams_record(key: StreamsKey, value: StreamsValue | None) -> str:
    match key:
        case StreamsGroupKey():
            name = f"streams-group {key.group_id}"
        case StreamsMemberKey():
            name = f"streams-member {key.group_id} {key.member_id}"
        case StreamsTargetMetadataKey():
            name = f"streams-targets {key.group_id}"
        case StreamsTargetKey():
            name = f"streams-target {key.group_id} {key.member_id}"
        case StreamsCurrentKey():
            name = f"streams-current {key.group_id} {key.member_id}"
        case StreamsTopologyKey():
            name = f"topology {key.group_id}"
    match value:
        case None:
            return f"delete {name}"
        case StreamsGroupValue():
            valid = "" if value.validated_topology_epoch == -1 else f" valid={value.validated_topology_epoch}"
            return f"{name} epoch={value.epoch}{valid}"
        case StreamsMemberValue():
            endpoint = "" if value.user_endpoint is None else f" at {value.user_endpoint[0]}:{value.user_endpoint[1]}"
            return f"{name} process={value.process_id} timeout={value.rebalance_timeout_ms}{endpoint}"
        case StreamsTargetMetadataValue():
            return f"{name} epoch={value.assignment_epoch}"
        case StreamsTargetValue():
            return f"{name} = {show_tasks(value.tasks)}"
        case StreamsCurrentValue():
            gives_up = f" gives-up={show_tasks(value.pending_revocation)}" if value.pending_revocation else ""
            return f"{name} epoch={value.member_epoch} {value.state.name} has={show_tasks(value.assigned)}{gives_up}"
        case Topology():
            return f"{name} epoch={value.epoch}: {' '.join(each.subtopology_id for each in value.subtopologies)}"
