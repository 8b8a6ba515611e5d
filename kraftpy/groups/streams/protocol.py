"""What members of a streams group ask, decided: one heartbeat, one silence (KIP-1071).

As for consumer groups, every decision works on a draft and either refuses, before it has put anything there, or puts
the records of all that follows. `changes` has them stored and answers afterwards.

While the topology cannot be worked on, everybody's target is nothing and the answers say why; internal topics that are
missing are named to the shell, which makes them, and the next heartbeat finds them there.

Where this differs from Kafka: a topology that is not the group's is refused while the group has members, and takes its
place in a group that has none; static members are refused; targets are made at once, without KIP-1263's interval.

Left out: warm-up tasks (see the assignor); regular expressions are looked at again whenever a topic is made or deleted.
"""

from __future__ import annotations

from dataclasses import replace

from kraftpy.groups.config import GroupConfig, Settings
from kraftpy.groups.events import Request
from kraftpy.groups.member_epochs import JOINING, LEAVING
from kraftpy.groups.streams.assignor import Worker, assign
from kraftpy.groups.streams.endpoints import endpoints
from kraftpy.groups.streams.group import StreamsDraft, StreamsGroup, TaskOffsets
from kraftpy.groups.streams.reconciliation import reconciled_tasks
from kraftpy.groups.streams.records import (
    StreamsCurrentKey,
    StreamsCurrentValue,
    StreamsGroupKey,
    StreamsGroupValue,
    StreamsMemberKey,
    StreamsMemberValue,
    StreamsState,
    StreamsTargetKey,
    StreamsTargetMetadataKey,
    StreamsTargetMetadataValue,
    StreamsTargetValue,
    StreamsTopologyKey,
    Task,
    Tasks,
    TaskSet,
    by_subtopology,
)
from kraftpy.groups.streams.topology import (
    ASSIGNMENT_DELAYED,
    SHUTDOWN_APPLICATION,
    STALE_TOPOLOGY,
    Configured,
    CopartitionGroup,
    InternalTopic,
    NotLookedUp,
    Subtopology,
    Topology,
    configure,
    hash_of,
)
from kraftpy.groups.topic_matches import TopicMatches
from kraftpy.groups.topics import NEVER, Topics
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.messages import streams_group_heartbeat as wire
from kraftpy.protocol.messages.streams_group_heartbeat import (
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
)

ACCEPTABLE_RECOVERY_LAG = 10_000
TASK_OFFSET_INTERVAL_MS = 60_000
"""What members are told of these, the KIP's defaults: nothing is decided by task offsets here."""


def streams_error(error_code: ErrorCode, text: str | None = None) -> StreamsGroupHeartbeatResponse:
    """A heartbeat's answer that is nothing but an error."""
    return StreamsGroupHeartbeatResponse(error_code=error_code, error_message=text or error_code.meaning)


class StreamsProtocol:
    """Decides for the streams groups of one partition."""

    def __init__(self, config: GroupConfig, settings: Settings, topics: Topics, matches: TopicMatches) -> None:
        self.config = config
        self.settings = settings
        self.topics = topics
        self.matches = matches

    # ---- one heartbeat

    def heartbeat(
        self, draft: StreamsDraft, event: Request, message: StreamsGroupHeartbeatRequest
    ) -> StreamsGroupHeartbeatResponse:
        """Let a member in, on, or out."""
        try:
            _check(message)
            if message.member_epoch == LEAVING:
                return self._leave(draft, message)
            return self._join_or_stay(draft, event, message)
        except KafkaError as error:
            return streams_error(error.code, str(error))

    def _join_or_stay(
        self, draft: StreamsDraft, event: Request, message: StreamsGroupHeartbeatRequest
    ) -> StreamsGroupHeartbeatResponse:
        member_id = message.member_id
        self._admit(draft.group, message)
        topology = _topology(message.topology) if message.topology is not None else None
        if topology is not None:
            _check_topology(draft.group, topology, self.matches)
        # From here on nothing is refused.
        if message.member_epoch == JOINING and draft.group.current(member_id).assigned:
            # It has nothing, and is perhaps another process by now.
            draft.put(StreamsCurrentKey(draft.group.group_id, member_id), StreamsCurrentValue())
        before = draft.group.current(member_id)
        known = draft.group.members.get(member_id)
        is_first = not draft.group.members
        updated = _updated(known or StreamsMemberValue(), message, event)
        if known != updated:
            draft.put(StreamsMemberKey(draft.group.group_id, member_id), updated)
        if topology is not None and _replaces(draft.group, topology, is_first=is_first):
            draft.put(StreamsTopologyKey(draft.group.group_id), topology)
        self._refresh(draft, changed=known != updated)
        if is_first and self.settings(draft.group.group_id).streams_initial_rebalance_delay_ms > 0:
            self._delay(draft)
        if not draft.group.volatile.is_delayed:
            self.retarget(draft)
        owned = _owned(message)
        after = reconciled_tasks(draft.group, member_id, owned)
        if after != before or member_id not in draft.group.currents:
            draft.put(StreamsCurrentKey(draft.group.group_id, member_id), after)
        self._remember(draft.group, message, before, after, known, updated)
        return self._answer(draft.group, message, before, after)

    def _delay(self, draft: StreamsDraft) -> None:
        """Let the first assignment wait. Meanwhile members have an epoch, for which nobody has anything."""
        draft.group.volatile.is_delayed = True
        group = draft.group
        if group.assignment_epoch == 0:
            draft.put(
                StreamsTargetMetadataKey(group.group_id), StreamsTargetMetadataValue(assignment_epoch=group.epoch)
            )
            value = StreamsGroupValue(
                epoch=group.epoch + 1,
                metadata_hash=group.metadata_hash,
                validated_topology_epoch=group.validated_topology_epoch,
            )
            draft.put(StreamsGroupKey(group.group_id), value)

    def _admit(self, group: StreamsGroup, message: StreamsGroupHeartbeatRequest) -> None:
        if message.member_id not in group.members:
            if message.member_epoch != JOINING:
                raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"{message.member_id} is no member of {group.group_id}")
            if len(group.members) >= self.config.group_streams_max_size:
                raise KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED, f"{group.group_id} has all the members it may")
        elif message.member_epoch != JOINING:
            _check_epoch(group.current(message.member_id), message)

    def _remember(
        self,
        group: StreamsGroup,
        message: StreamsGroupHeartbeatRequest,
        before: StreamsCurrentValue,
        after: StreamsCurrentValue,
        known: StreamsMemberValue | None,
        updated: StreamsMemberValue,
    ) -> None:
        """What is told of members and not stored."""
        volatile = group.volatile
        if message.shutdown_application:
            volatile.shutdown_by = message.member_id
        moved = before.assigned != after.assigned and updated.user_endpoint is not None
        if moved or (known is not None and known.user_endpoint != updated.user_endpoint):
            volatile.endpoint_epoch += 1
        for told, place in ((message.task_offsets, volatile.offsets), (message.task_end_offsets, volatile.end_offsets)):
            if told is not None:
                place[message.member_id] = _offsets(told)

    def _answer(
        self,
        group: StreamsGroup,
        message: StreamsGroupHeartbeatRequest,
        before: StreamsCurrentValue,
        after: StreamsCurrentValue,
    ) -> StreamsGroupHeartbeatResponse:
        answer = StreamsGroupHeartbeatResponse(
            member_id=message.member_id,
            member_epoch=after.member_epoch,
            heartbeat_interval_ms=self.settings(group.group_id).streams_heartbeat_interval_ms,
            acceptable_recovery_lag=ACCEPTABLE_RECOVERY_LAG,
            task_offset_interval_ms=TASK_OFFSET_INTERVAL_MS,
            status=self._status(group, message.member_id) or None,
            endpoint_information_epoch=group.volatile.endpoint_epoch,
        )
        says_everything = message.member_epoch == JOINING or (
            message.rebalance_timeout_ms >= 0 and _owned(message) is not None
        )
        if says_everything or after.assigned != before.assigned:
            answer.active_tasks = task_ids(after.assigned.active)
            answer.standby_tasks = task_ids(after.assigned.standby)
            answer.warmup_tasks = task_ids(after.assigned.warmup)
        if message.endpoint_information_epoch != group.volatile.endpoint_epoch:
            answer.partitions_by_user_endpoint = endpoints(group, self.topics)
        return answer

    def _status(self, group: StreamsGroup, member_id: str) -> list[wire.Status]:
        found = []
        topology, configured = group.topology, group.volatile.configured
        if topology is not None and group.members[member_id].topology_epoch < topology.epoch:
            found.append(wire.Status(status_code=STALE_TOPOLOGY, status_detail="The topology of this member is old."))
        if configured is not None and configured.status is not None:
            found.append(wire.Status(status_code=configured.status, status_detail=configured.detail))
        if group.volatile.shutdown_by is not None:
            detail = f"{group.volatile.shutdown_by} has asked that the whole application shut down."
            found.append(wire.Status(status_code=SHUTDOWN_APPLICATION, status_detail=detail))
        if group.volatile.is_delayed:
            detail = "The first assignment waits for further members."
            found.append(wire.Status(status_code=ASSIGNMENT_DELAYED, status_detail=detail))
        return found

    # ---- going

    def _leave(self, draft: StreamsDraft, message: StreamsGroupHeartbeatRequest) -> StreamsGroupHeartbeatResponse:
        if message.member_id not in draft.group.members:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"{message.member_id} is no member of {draft.group.group_id}")
        if message.shutdown_application:
            draft.group.volatile.shutdown_by = message.member_id
        self.remove(draft, message.member_id)
        return StreamsGroupHeartbeatResponse(member_id=message.member_id, member_epoch=LEAVING)

    def remove(self, draft: StreamsDraft, member_id: str) -> None:
        """It is no member any more, and has nothing. The next heartbeat of another makes new targets."""
        group_id, volatile = draft.group.group_id, draft.group.volatile
        if draft.group.members[member_id].user_endpoint is not None:
            volatile.endpoint_epoch += 1
        draft.put(StreamsCurrentKey(group_id, member_id), None)
        draft.put(StreamsTargetKey(group_id, member_id), None)
        draft.put(StreamsMemberKey(group_id, member_id), None)
        volatile.offsets.pop(member_id, None)
        volatile.end_offsets.pop(member_id, None)
        if not draft.group.members:
            volatile.shutdown_by = None
            volatile.is_delayed = False
        self._refresh(draft, changed=True)

    # ---- the group

    def look(self, group: StreamsGroup) -> Configured | None:
        """Configure the topology for the topics that exist now; None if there is no topology.

        While its expressions are not fully resolved, the last result stands, and the next heartbeat resolves on.
        """
        volatile = group.volatile
        if group.topology is None:
            return None
        is_known = volatile.configured_for is group.topology and volatile.topics_version == self.topics.version
        if volatile.configured is not None and is_known:
            return volatile.configured
        try:
            volatile.configured = configure(group.topology, self.topics, self.matches)
            volatile.topics_version = self.topics.version
        except NotLookedUp:
            if volatile.configured is None or volatile.configured_for is not group.topology:
                volatile.configured = Configured(status=ASSIGNMENT_DELAYED, detail="Source topics are looked up.")
            volatile.topics_version = NEVER
        volatile.configured_for = group.topology
        return volatile.configured

    def _refresh(self, draft: StreamsDraft, *, changed: bool) -> None:
        """The group's next epoch, where who is in it, its topology or its topics have changed."""
        group = draft.group
        is_known = group.volatile.topics_version == self.topics.version
        if not changed and is_known and group.volatile.configured_for is group.topology:
            return
        configured = self.look(group)
        hashed = self._hash(group)
        is_valid = configured is not None and configured.is_ready and group.topology is not None
        validated = group.topology.epoch if is_valid and group.topology is not None else -1
        if changed or hashed != group.metadata_hash or validated != group.validated_topology_epoch:
            value = StreamsGroupValue(epoch=group.epoch + 1, metadata_hash=hashed, validated_topology_epoch=validated)
            draft.put(StreamsGroupKey(group.group_id), value)

    def _hash(self, group: StreamsGroup) -> int:
        if group.topology is None:
            return 0
        try:
            return hash_of(group.topology, self.topics, self.matches)
        except NotLookedUp:
            return group.metadata_hash

    def retarget(self, draft: StreamsDraft) -> None:
        """Targets for the group's epoch, where there are none yet."""
        group = draft.group
        if group.epoch == group.assignment_epoch:
            return
        configured = self.look(group)
        tasks: list[Task] = []
        stateful: list[Task] = []
        if configured is not None and configured.is_ready and group.topology is not None:
            for each in group.topology.subtopologies:
                numbers = range(configured.tasks[each.subtopology_id])
                of_it = [Task(each.subtopology_id, number) for number in numbers]
                tasks += of_it
                stateful += of_it if each.has_state else []
        workers = {
            member_id: Worker(process_id=group.process(member_id), target=group.target(member_id))
            for member_id in group.members
        }
        replicas = self.settings(group.group_id).streams_num_standby_replicas
        draft.cost += len(workers) + len(tasks)
        for member_id, target in sorted(assign(workers, tasks, stateful, replicas).items()):
            if member_id not in group.targets or group.targets[member_id] != target:
                draft.put(StreamsTargetKey(group.group_id, member_id), StreamsTargetValue(tasks=target))
        value = StreamsTargetMetadataValue(assignment_epoch=draft.group.epoch)
        draft.put(StreamsTargetMetadataKey(group.group_id), value)


# ---- parts


def _check(message: StreamsGroupHeartbeatRequest) -> None:
    """Refuse what contradicts itself."""
    problem = None
    joins = message.member_epoch == JOINING
    told = (message.active_tasks, message.standby_tasks, message.warmup_tasks)
    if message.member_epoch < LEAVING:
        problem = f"member epoch {message.member_epoch} means nothing"
    elif not message.member_id.strip():
        problem = "the member id is empty"
    elif message.instance_id is not None:
        problem = "static members of streams groups are not served"
    elif message.rack_id is not None and not message.rack_id.strip():
        problem = "the rack id is empty"
    elif joins and message.rebalance_timeout_ms < 0:
        problem = "who joins gives a rebalance timeout"
    elif joins and message.topology is None:
        problem = "who joins brings its topology"
    elif joins and any(tasks is None or tasks for tasks in told):
        problem = "who joins has no tasks, and says so"
    elif joins and message.process_id is None:
        problem = "who joins says which process it is of"
    elif not joins and message.topology is not None:
        problem = "only who joins brings a topology"
    if problem is not None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, problem)


def _check_topology(group: StreamsGroup, topology: Topology, matches: TopicMatches) -> None:
    known = group.topology
    if known == topology:
        return
    topology.check(matches)
    if known is None or topology.epoch < known.epoch or not group.members:
        return
    raise KafkaError(ErrorCode.STREAMS_INVALID_TOPOLOGY, f"{group.group_id} has members that work on another topology")


def _replaces(group: StreamsGroup, topology: Topology, *, is_first: bool) -> bool:
    return group.topology is None or (is_first and group.topology != topology)


def _check_epoch(current: StreamsCurrentValue, message: StreamsGroupHeartbeatRequest) -> None:
    """The epoch must be the member's, or its last one where the answer with the new one may have been lost."""
    owned = _owned(message)
    if current.state is StreamsState.UNKNOWN and (owned is None or owned):
        raise KafkaError(ErrorCode.FENCED_MEMBER_EPOCH, "what was agreed with it cannot be read: join again")
    if message.member_epoch == current.member_epoch:
        return
    is_last = message.member_epoch == current.previous_member_epoch and owned is not None
    if is_last and owned is not None and not owned - current.assigned:
        return
    raise KafkaError(
        ErrorCode.FENCED_MEMBER_EPOCH, f"epoch {message.member_epoch} is not {current.member_epoch}: join again"
    )


def _updated(known: StreamsMemberValue, message: StreamsGroupHeartbeatRequest, event: Request) -> StreamsMemberValue:
    """The member, with what the heartbeat says of it. What joins says everything anew."""
    base = StreamsMemberValue() if message.member_epoch == JOINING else known
    endpoint, tags = message.user_endpoint, message.client_tags
    return replace(
        base,
        rack_id=base.rack_id if message.rack_id is None else message.rack_id,
        client_id=event.client_id,
        client_host=event.client_host,
        rebalance_timeout_ms=(
            base.rebalance_timeout_ms if message.rebalance_timeout_ms < 0 else message.rebalance_timeout_ms
        ),
        topology_epoch=base.topology_epoch if message.topology is None else message.topology.epoch,
        process_id=base.process_id or message.process_id or "",
        user_endpoint=base.user_endpoint if endpoint is None else (endpoint.host, endpoint.port),
        client_tags=base.client_tags if tags is None else tuple((tag.key, tag.value) for tag in tags),
    )


def _owned(message: StreamsGroupHeartbeatRequest) -> Tasks | None:
    if message.active_tasks is None or message.standby_tasks is None or message.warmup_tasks is None:
        return None
    return Tasks(
        active=_task_set(message.active_tasks),
        standby=_task_set(message.standby_tasks),
        warmup=_task_set(message.warmup_tasks),
    )


def _task_set(ids: list[wire.TaskIds]) -> TaskSet:
    return frozenset(Task(each.subtopology_id, number) for each in ids for number in each.partitions)


def task_ids(tasks: TaskSet) -> list[wire.TaskIds]:
    """Tasks as the wire has them."""
    return [wire.TaskIds(subtopology_id=name, partitions=numbers) for name, numbers in by_subtopology(tasks)]


def _offsets(told: list[wire.TaskOffset]) -> TaskOffsets:
    return {Task(each.subtopology_id, each.partition): each.offset for each in told}


def _internal_topic(topic: wire.TopicInfo) -> InternalTopic:
    return InternalTopic(
        name=topic.name,
        partitions=topic.partitions,
        replication_factor=topic.replication_factor,
        configs=tuple(sorted((pair.key, pair.value) for pair in topic.topic_configs)),
    )


def _topology(topology: wire.Topology) -> Topology:
    return Topology(
        epoch=topology.epoch,
        subtopologies=tuple(
            Subtopology(
                subtopology_id=each.subtopology_id,
                source_topics=tuple(each.source_topics),
                source_topic_regex=tuple(each.source_topic_regex),
                state_changelog_topics=tuple(map(_internal_topic, each.state_changelog_topics)),
                repartition_sink_topics=tuple(each.repartition_sink_topics),
                repartition_source_topics=tuple(map(_internal_topic, each.repartition_source_topics)),
                copartition_groups=tuple(
                    CopartitionGroup(
                        source_topics=tuple(group.source_topics),
                        source_topic_regex=tuple(group.source_topic_regex),
                        repartition_source_topics=tuple(group.repartition_source_topics),
                    )
                    for group in each.copartition_groups
                ),
            )
            for each in sorted(topology.subtopologies, key=lambda each: each.subtopology_id)
        ),
    )
