"""Decides the requests and timeouts of members of streams groups (KIP-1071).

As for consumer groups, every decision works on a draft and either refuses before adding anything to it, or adds all
resulting records. `changes` has them stored and answers afterwards.

While the topology cannot be run, all targets are empty and the responses say why. The shell learns which internal
topics are missing and creates them; the next heartbeat finds them.

Differences from Kafka: a topology other than the group's is refused while the group has members, and replaces it if the
group has none.

Left out: warm-up tasks (see the assignor). Regular expressions are resolved again whenever a topic is created or
deleted.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from kraftpy.groups.apart import LIGHT, UNITS_AT_ONCE, Deciding, Work
from kraftpy.groups.assignment_interval import may_assign
from kraftpy.groups.config import GroupConfig, Settings
from kraftpy.groups.events import Request
from kraftpy.groups.member_epochs import JOINING, LEAVING, next_epoch
from kraftpy.groups.member_errors import fenced_member, group_is_full, is_blank, unknown_member
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
    Subtopology,
    Topology,
    configure,
    hash_of,
    resolve,
)
from kraftpy.groups.topic_matches import TopicMatches
from kraftpy.groups.topics import NEVER, Topics
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.messages import streams_group_heartbeat as wire
from kraftpy.protocol.messages.streams_group_heartbeat import (
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
)
from kraftpy.types import Millis


def streams_error(error_code: ErrorCode, text: str | None = None) -> StreamsGroupHeartbeatResponse:
    """Return a heartbeat response that carries only an error."""
    return StreamsGroupHeartbeatResponse(error_code=error_code, error_message=text or error_code.meaning)


class StreamsProtocol:
    """Decides for the streams groups in one partition."""

    def __init__(self, config: GroupConfig, settings: Settings, topics: Topics, matches: TopicMatches) -> None:
        self.config = config
        self.settings = settings
        self.topics = topics
        self.matches = matches

    # ---- one heartbeat

    def heartbeat(
        self, draft: StreamsDraft, event: Request, message: StreamsGroupHeartbeatRequest, timestamp: Millis
    ) -> Deciding[StreamsGroupHeartbeatResponse]:
        """Let a member join, carry on or leave."""
        try:
            _check(message)
            if message.member_epoch == LEAVING:
                return (yield from self._leave(draft, message))
            return (yield from self._join_or_stay(draft, event, message, timestamp))
        except KafkaError as error:
            return streams_error(error.code, error.message)

    def _join_or_stay(
        self, draft: StreamsDraft, event: Request, message: StreamsGroupHeartbeatRequest, timestamp: Millis
    ) -> Deciding[StreamsGroupHeartbeatResponse]:
        member_id = message.member_id
        self._admit(draft.group, message)
        if message.member_epoch != JOINING:
            yield Work(_reported(message) // LIGHT, partial(_check_tasks, draft.group, message))
        topology: Topology | None = None
        if message.topology is not None:
            topology = yield Work(_size(message.topology), partial(_read_topology, draft.group, message.topology))
            _check_topology(draft.group, topology, self.matches)
        # Nothing is refused below this point.
        before = draft.group.current(member_id)
        if message.member_epoch == JOINING and before.assigned:
            # It has no tasks, and may be another process by now.
            draft.put(StreamsCurrentKey(draft.group.group_id, member_id), StreamsCurrentValue())
            before = draft.group.current(member_id)
        known = draft.group.members.get(member_id)
        is_first = not draft.group.members
        tags = len(message.client_tags or ()) // LIGHT
        updated: StreamsMemberValue
        if tags <= UNITS_AT_ONCE:
            updated = self._update(draft, message, event)
        else:
            updated = yield Work(tags, partial(self._update, draft, message, event))
        if topology is not None and _replaces(draft.group, topology, is_first=is_first):
            yield Work(topology.size, partial(draft.put, StreamsTopologyKey(draft.group.group_id), topology))
        is_changed = known != updated or self._assignment_configs(draft.group) != draft.group.assignment_configs
        if is_changed or not self.is_known(draft.group):
            yield from self._refresh(draft, changed=is_changed)
        if is_first and self.settings(draft.group.group_id).streams_initial_rebalance_delay_ms > 0:
            self._delay(draft)
        interval_ms = self.settings(draft.group.group_id).streams_assignment_interval_ms
        is_lacking = draft.group.epoch != draft.group.assignment_epoch and not draft.group.volatile.is_delayed
        if is_lacking and may_assign(draft.group.assigned_at, interval_ms, timestamp):
            yield from self._retarget(draft, timestamp)
        reported = _reported(message) // LIGHT
        owned: Tasks | None
        owned = _owned(message) if reported <= UNITS_AT_ONCE else (yield Work(reported, partial(_owned, message)))
        is_settled = before.state is StreamsState.STABLE and before.member_epoch == draft.group.assignment_epoch
        after = before
        if not is_settled or member_id not in draft.group.currents:
            units = draft.group.task_count + len(draft.group.target(member_id))
            after = yield Work(units, partial(_reconcile, draft, member_id, owned))
        has_moved = before.assigned is not after.assigned and before.assigned != after.assigned
        remember = partial(self._remember, draft.group, message, known, updated, has_moved=has_moved)
        if (units := _offset_count(message) // LIGHT) <= UNITS_AT_ONCE:
            remember()
        else:
            yield Work(units, remember)
        says_tasks = message.member_epoch == JOINING or (message.rebalance_timeout_ms >= 0 and owned is not None)
        says_tasks = says_tasks or has_moved
        says_endpoints = message.endpoint_information_epoch != draft.group.volatile.endpoint_epoch
        units = len(after.assigned) if says_tasks else 0
        if says_endpoints and (configured := draft.group.volatile.configured) is not None:
            units += draft.group.task_count + sum(map(len, configured.sources.values()))

        answer = partial(
            self._answer, draft.group, message, after, says_tasks=says_tasks, says_endpoints=says_endpoints
        )
        if units <= UNITS_AT_ONCE:
            return answer()
        answered: StreamsGroupHeartbeatResponse = yield Work(units, answer)
        return answered

    def _update(self, draft: StreamsDraft, message: StreamsGroupHeartbeatRequest, event: Request) -> StreamsMemberValue:
        """Store the member as its heartbeat describes it."""
        known = draft.group.members.get(message.member_id)
        updated = _updated(known or StreamsMemberValue(), message, event)
        if known != updated:
            draft.put(StreamsMemberKey(draft.group.group_id, message.member_id), updated)
        return updated

    def _delay(self, draft: StreamsDraft) -> None:
        """Delay the first assignment. In the meantime members have an epoch whose targets are empty."""
        draft.group.volatile.is_delayed = True
        group = draft.group
        if group.assignment_epoch == 0:
            first = StreamsTargetMetadataValue(assignment_epoch=group.epoch - 1)
            draft.put(StreamsTargetMetadataKey(group.group_id), first)

    def _admit(self, group: StreamsGroup, message: StreamsGroupHeartbeatRequest) -> None:
        if message.member_id not in group.members:
            if message.member_epoch != JOINING:
                raise unknown_member(message.member_id, group.group_id)
            if len(group.members) >= self.config.group_streams_max_size:
                raise group_is_full("streams", self.config.group_streams_max_size)
        elif message.member_epoch != JOINING:
            _check_epoch(group.current(message.member_id), message)

    def _remember(
        self,
        group: StreamsGroup,
        message: StreamsGroupHeartbeatRequest,
        known: StreamsMemberValue | None,
        updated: StreamsMemberValue,
        *,
        has_moved: bool,
    ) -> None:
        """Remember what members report that is not stored."""
        volatile = group.volatile
        if message.shutdown_application:
            volatile.shutdown_by = message.member_id
        if (has_moved and updated.user_endpoint is not None) or (
            known is not None and known.user_endpoint != updated.user_endpoint
        ):
            volatile.endpoint_epoch += 1
        for offsets, place in (
            (message.task_offsets, volatile.offsets),
            (message.task_end_offsets, volatile.end_offsets),
        ):
            if offsets is not None:
                place[message.member_id] = _offsets(offsets)

    def _answer(
        self,
        group: StreamsGroup,
        message: StreamsGroupHeartbeatRequest,
        after: StreamsCurrentValue,
        *,
        says_tasks: bool,
        says_endpoints: bool,
    ) -> StreamsGroupHeartbeatResponse:
        answer = StreamsGroupHeartbeatResponse(
            member_id=message.member_id,
            member_epoch=after.member_epoch,
            heartbeat_interval_ms=self.settings(group.group_id).streams_heartbeat_interval_ms,
            status=self._status(group, message.member_id),  # empty, not null, with which clients keep the last status
            endpoint_information_epoch=group.volatile.endpoint_epoch,
        )
        if says_tasks:
            answer.active_tasks = task_ids(after.assigned.active)
            answer.standby_tasks = task_ids(after.assigned.standby)
            answer.warmup_tasks = task_ids(after.assigned.warmup)
        if says_endpoints:
            answer.partitions_by_user_endpoint = endpoints(group, self.topics)
        return answer

    def _status(self, group: StreamsGroup, member_id: str) -> list[wire.Status]:
        found = []
        topology, configured = group.topology, group.volatile.configured
        delay = self._delay_of(group)
        if topology is not None and (epoch := group.members[member_id].topology_epoch) < topology.epoch:
            detail = f"The member's topology epoch {epoch} is behind the group's topology epoch {topology.epoch}."
            found.append(wire.Status(status_code=STALE_TOPOLOGY, status_detail=detail))
        if delay is not None:
            found.append(wire.Status(status_code=ASSIGNMENT_DELAYED, status_detail=delay))
        if configured is not None and configured.status is not None:
            found.append(wire.Status(status_code=configured.status, status_detail=configured.detail))
        if group.volatile.shutdown_by is not None:
            detail = (
                f"Streams group member {group.volatile.shutdown_by} encountered a fatal error "
                "and requested a shutdown for the entire application."
            )
            found.append(wire.Status(status_code=SHUTDOWN_APPLICATION, status_detail=detail))
        return found

    def _delay_of(self, group: StreamsGroup) -> str | None:
        """Say why the group has no targets for its epoch yet; None if it has."""
        if group.volatile.is_delayed:
            return "Assignment delayed due to the configured initial rebalance delay."
        if group.epoch > group.assignment_epoch:
            return "Assignment delayed due to the configured assignment interval."
        return None

    # ---- going

    def _leave(
        self, draft: StreamsDraft, message: StreamsGroupHeartbeatRequest
    ) -> Deciding[StreamsGroupHeartbeatResponse]:
        if message.member_id not in draft.group.members:
            raise unknown_member(message.member_id, draft.group.group_id)
        if message.shutdown_application:
            draft.group.volatile.shutdown_by = message.member_id
        yield from self.remove(draft, message.member_id)
        return StreamsGroupHeartbeatResponse(member_id=message.member_id, member_epoch=LEAVING)

    def remove(self, draft: StreamsDraft, member_id: str) -> Deciding[None]:
        """Remove a member and release its tasks. The next heartbeat of another member computes new targets."""
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
        yield from self._refresh(draft, changed=True)

    # ---- the group

    def _look(self, group: StreamsGroup) -> Deciding[None]:
        """Configure the topology for the topics that exist now, if there is one, and hash them.

        While its expressions are not fully resolved, the last result stands, and the next heartbeat continues.
        """
        volatile, topology, version = group.volatile, group.topology, self.topics.version
        if topology is None:
            volatile.topics_hash = 0
            return
        resolved = resolve(topology, self.matches)
        if resolved is None:
            if volatile.configured is None or volatile.configured_for is not topology:
                detail = "Source topics are being resolved."
                volatile.configured = Configured(status=ASSIGNMENT_DELAYED, detail=detail)
            volatile.configured_for, volatile.topics_version = topology, NEVER
            volatile.topics_hash = group.metadata_hash
            return

        def configured() -> tuple[Configured, int]:
            return configure(topology, self.topics, resolved), hash_of(topology, self.topics, resolved)

        units = topology.size + sum(map(len, resolved.values()))
        volatile.configured, volatile.topics_hash = yield Work(units, configured)
        volatile.configured_for, volatile.topics_version = topology, version

    def configured(self, group: StreamsGroup) -> Configured | None:
        """Return the topology as it was last configured, for a description; None if that is not known.

        Stores nothing: members' heartbeats must notice themselves that topics have changed. A large topology that no
        heartbeat has configured yet is not known.
        """
        volatile, topology = group.volatile, group.topology
        if topology is None or (volatile.configured is not None and volatile.configured_for is topology):
            return None if topology is None else volatile.configured
        resolved = resolve(topology, self.matches) if topology.size <= UNITS_AT_ONCE else None
        return None if resolved is None else configure(topology, self.topics, resolved)

    def is_known(self, group: StreamsGroup) -> bool:
        """Return True if the topology is configured for the topics that exist now, or the group has no topology."""
        volatile = group.volatile
        return volatile.configured_for is group.topology and volatile.topics_version == self.topics.version

    def _refresh(self, draft: StreamsDraft, *, changed: bool) -> Deciding[None]:
        """Start the group's next epoch if its members, settings, topology or topics have changed."""
        group = draft.group
        if not changed and self.is_known(group):
            return
        if not self.is_known(group):
            yield from self._look(group)
        hashed, configured = group.volatile.topics_hash, group.volatile.configured
        is_valid = configured is not None and configured.is_ready and group.topology is not None
        validated = group.topology.epoch if is_valid and group.topology is not None else -1
        if changed or hashed != group.metadata_hash or validated != group.validated_topology_epoch:
            value = StreamsGroupValue(
                epoch=next_epoch(group.epoch),
                metadata_hash=hashed,
                validated_topology_epoch=validated,
                assignment_configs=self._assignment_configs(group),
            )
            draft.put(StreamsGroupKey(group.group_id), value)

    def _assignment_configs(self, group: StreamsGroup) -> tuple[tuple[str, str], ...]:
        """Return the settings, with Kafka's names, whose change makes a group assign its tasks again."""
        return (("num.standby.replicas", str(self.settings(group.group_id).streams_num_standby_replicas)),)

    def _retarget(self, draft: StreamsDraft, timestamp: Millis) -> Deciding[None]:
        """Compute targets for the group's epoch, if that is not done yet."""
        if draft.group.epoch == draft.group.assignment_epoch:
            return
        if not self.is_known(draft.group):
            yield from self._look(draft.group)
        configured = draft.group.volatile.configured
        tasks = sum(configured.tasks.values()) if configured is not None and configured.is_ready else 0
        replicas = self.settings(draft.group.group_id).streams_num_standby_replicas
        draft.cost += len(draft.group.members) + tasks
        units = len(draft.group.members) + (1 + replicas) * tasks
        yield Work(units, lambda: self._assign(draft, configured, replicas))
        value = StreamsTargetMetadataValue(assignment_epoch=draft.group.epoch, assigned_at=timestamp)
        draft.put(StreamsTargetMetadataKey(draft.group.group_id), value)

    def _assign(self, draft: StreamsDraft, configured: Configured | None, replicas: int) -> None:
        group = draft.group
        tasks: list[Task] = []
        stateful: list[Task] = []
        if configured is not None and configured.is_ready and group.topology is not None:
            for each in group.topology.subtopologies:
                of_it = [Task(each.subtopology_id, number) for number in range(configured.tasks[each.subtopology_id])]
                tasks += of_it
                stateful += of_it if each.has_state else []
        workers = {
            member_id: Worker(process_id=group.process(member_id), target=group.target(member_id))
            for member_id in group.members
        }
        for member_id, target in sorted(assign(workers, tasks, stateful, replicas).items()):
            if member_id not in group.targets or group.targets[member_id] != target:
                draft.put(StreamsTargetKey(group.group_id, member_id), StreamsTargetValue(tasks=target))


# ---- parts


def _check(message: StreamsGroupHeartbeatRequest) -> None:
    """Refuse invalid requests."""
    problem = None
    joins = message.member_epoch == JOINING
    reported = (message.active_tasks, message.standby_tasks, message.warmup_tasks)
    if message.member_epoch < LEAVING:
        problem = f"MemberEpoch is {message.member_epoch}, but must be greater than or equal to {LEAVING}."
    elif is_blank(message.member_id):
        problem = "MemberId can't be empty."
    elif message.instance_id is not None:
        problem = "Static membership is not yet supported."
    elif message.rack_id is not None and is_blank(message.rack_id):
        problem = "RackId can't be empty."
    elif joins and message.rebalance_timeout_ms < 0:
        problem = "RebalanceTimeoutMs must be provided in first request."
    elif joins and message.topology is None:
        problem = "Topology must be non-null when (re-)joining."
    elif joins and any(tasks is None or tasks for tasks in reported):
        problem = "ActiveTasks, StandbyTasks and WarmupTasks must be empty when (re-)joining."
    elif None in reported and reported != (None, None, None):
        problem = "If one task-type is non-null, all must be non-null."
    elif not joins and message.topology is not None:
        problem = "Topology can only be provided when (re-)joining."
    if problem is not None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, problem)


def _reconcile(draft: StreamsDraft, member_id: str, owned: Tasks | None) -> StreamsCurrentValue:
    """Move a member towards its target. Returns its tasks."""
    before = draft.group.current(member_id)
    after = reconciled_tasks(draft.group, member_id, owned)
    if after != before or member_id not in draft.group.currents:
        draft.put(StreamsCurrentKey(draft.group.group_id, member_id), after)
    return after


def _size(topology: wire.Topology) -> int:
    """Return the number of a topology's parts; if it has very many subtopologies, count only these."""
    found = len(topology.subtopologies)
    if found > UNITS_AT_ONCE:
        return found
    for each in topology.subtopologies:
        found += len(each.source_topics) + len(each.source_topic_regex) + len(each.repartition_sink_topics)
        found += len(each.copartition_groups)
        for topics in (each.state_changelog_topics, each.repartition_source_topics):
            found += len(topics)
    return found


def _read_topology(group: StreamsGroup, said: wire.Topology) -> Topology:
    """Return a member's topology: the group's own object if they are equal. Raises KafkaError if it is inconsistent."""
    topology = _topology(said)
    if group.topology is not None and group.topology == topology:
        return group.topology
    topology.check()
    return topology


def _check_topology(group: StreamsGroup, topology: Topology, matches: TopicMatches) -> None:
    known = group.topology
    if known is topology:
        return
    topology.check_expressions(matches)
    if known is None or topology.epoch < known.epoch or not group.members:
        return
    raise KafkaError(ErrorCode.INVALID_REQUEST, "Topology updates are not supported yet.")


def _replaces(group: StreamsGroup, topology: Topology, *, is_first: bool) -> bool:
    return group.topology is None or (is_first and group.topology is not topology)


def _check_epoch(current: StreamsCurrentValue, message: StreamsGroupHeartbeatRequest) -> None:
    """Check the epoch: the member's, or its previous one if the response with the new one may have been lost."""
    roles = (message.active_tasks, message.standby_tasks, message.warmup_tasks)
    has_nothing = None not in roles and not any(each.partitions for role in roles for each in role or ())
    if current.state is StreamsState.UNKNOWN and not has_nothing:
        raise KafkaError(ErrorCode.FENCED_MEMBER_EPOCH, "The member's stored state is unreadable. It must rejoin.")
    if message.member_epoch == current.member_epoch:
        return
    if message.member_epoch == current.previous_member_epoch:
        owned = _owned(message)
        if owned is not None and not owned - current.assigned:
            return
    raise fenced_member("streams", message.member_epoch, current.member_epoch)


def _check_tasks(group: StreamsGroup, message: StreamsGroupHeartbeatRequest) -> None:
    """Check that the member reports only tasks that exist."""
    configured = group.volatile.configured
    if configured is None or not configured.is_ready or group.volatile.configured_for is not group.topology:
        return
    for reported in (message.active_tasks, message.standby_tasks, message.warmup_tasks):
        for each in reported or ():
            count = configured.tasks.get(each.subtopology_id)
            if count is None:
                text = f"Subtopology {each.subtopology_id} does not exist in the topology."
                raise KafkaError(ErrorCode.INVALID_REQUEST, text)
            for number in each.partitions:
                if not 0 <= number < count:
                    text = (
                        f"Task {number} for subtopology {each.subtopology_id} is invalid. Number of tasks for this "
                        f"subtopology: {count}"
                    )
                    raise KafkaError(ErrorCode.INVALID_REQUEST, text)


def _updated(known: StreamsMemberValue, message: StreamsGroupHeartbeatRequest, event: Request) -> StreamsMemberValue:
    """Return the member, updated from the heartbeat. A joining member starts from scratch."""
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


def _reported(message: StreamsGroupHeartbeatRequest) -> int:
    """Return the number of tasks that a member reports, or of subtopologies if there are very many."""
    roles = (message.active_tasks or (), message.standby_tasks or (), message.warmup_tasks or ())
    found = sum(map(len, roles))
    if found > UNITS_AT_ONCE:
        return found * LIGHT
    return found + sum(len(each.partitions) for role in roles for each in role)


def _offset_count(message: StreamsGroupHeartbeatRequest) -> int:
    return len(message.task_offsets or ()) + len(message.task_end_offsets or ())


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
    """Convert tasks to their form on the wire."""
    return [wire.TaskIds(subtopology_id=name, partitions=numbers) for name, numbers in by_subtopology(tasks)]


def _offsets(offsets: list[wire.TaskOffset]) -> TaskOffsets:
    return {Task(each.subtopology_id, each.partition): each.offset for each in offsets}


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
