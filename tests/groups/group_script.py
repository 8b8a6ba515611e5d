"""Runs `*.script` files: the coordinator's specification.

A script is blocks divided by blank lines. A block is comments (`#`), commands, `---`, and what happened. A block
without `---` happens silently only if nothing happens at all, so every block with effects must tell them.

Commands (group `g` unless `group=`; `v=` picks the API version; `now=` moves the clock first, without a Tick):

    config NAME=VALUE ...                       before anything else
    join [client=] [member=] [instance=] [session=] [rebalance=] [type=] [protocols=NAME:METADATA,...] [topics=A+B]
    sync member= generation= [protocol=] [type=] [instance=] [MEMBER=ASSIGNMENT ...]
    heartbeat member= generation= [instance=]
    leave member= | leave MEMBER MEMBER@INSTANCE @INSTANCE ...
    commit [member=] [generation=] [instance=] [retention=] [TOPIC:PARTITION=OFFSET[/METADATA] ...]
    txn-commit PRODUCER [member=] [generation=] [instance=] [TOPIC:PARTITION=OFFSET ...]
    ended PRODUCER commit|abort                 its transaction's marker is in the log
    fetch [member= epoch=] [TOPIC:PARTITION ...] [stable]   nothing: all topics
    delete-offsets TOPIC:PARTITION ...
    topics-deleted TOPIC ...
    topics NAME=PARTITIONS ...                  the topics of the cluster, from now on
    beat MEMBER epoch= [topics=A+B] [regex=] [owns=A:0,1;B:2] [instance=] [assignor=] [timeout=] [rack=]
                                                a heartbeat of KIP-848; epoch 0 says that it owns nothing
    describe-consumer [GROUP ...]
    delete-group [GROUP ...]     describe [GROUP ...]     list [states=A,B] [types=A,B]
    tick NOW                                    the clock moves, and what is due happens
    hold | release                              appends wait for `appended`; or are done at once, which is how it begins
    appended [N] [ERROR]                        the oldest append that is held, or the Nth, is done
    reload                                      unload, then load from the log
    lower-max-size N                            the same, with another group.max.size
    state                                       the groups as they are, and what falls due when
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from consumer_words import read_partitions, show_beat, show_consumer_record, show_described
from group_world import World, subscription

from kraftpy.groups.config import GroupConfig
from kraftpy.groups.consumer_records import read_key as read_consumer_key
from kraftpy.groups.consumer_records import read_value as read_consumer_value
from kraftpy.groups.events import Append, Effect, GroupResponse, Note, Reply, TopicsDeleted
from kraftpy.groups.records import (
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    Record,
    read_group,
    read_key,
    read_offset,
)
from kraftpy.groups.subscription import subscribed_topics
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
)
from kraftpy.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from kraftpy.protocol.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from kraftpy.protocol.messages.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from kraftpy.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from kraftpy.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from kraftpy.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity
from kraftpy.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from kraftpy.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from kraftpy.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
)
from kraftpy.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)
from kraftpy.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment, SyncGroupResponse
from kraftpy.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from kraftpy.types import Millis

REWRITE = "KRAFTPY_REWRITE_SCRIPTS"
"""Set this in the environment to have scripts rewritten with what happens now. Then read the difference."""

CONFIG_NUMBERS = frozenset(GroupConfig.__dataclass_fields__)


class Args:
    """A command's words: positional ones, and `name=value` ones under known names."""

    def __init__(self, words: list[str], known: str) -> None:
        names = {*known.split(), "group", "v", "now"}
        self.named = dict(word.split("=", 1) for word in words if word.split("=", 1)[0] in names and "=" in word)
        self.rest = [word for word in words if not ("=" in word and word.split("=", 1)[0] in names)]
        self.group = self.named.get("group", "g")

    def text(self, name: str, default: str = "") -> str:
        return self.named.get(name, default)

    def optional(self, name: str) -> str | None:
        return self.named.get(name)

    def number(self, name: str, default: int) -> int:
        return int(self.named.get(name, default))


def word(data: bytes) -> str:
    """Metadata in one word: the topics of a subscription, or the bytes as text."""
    topics = subscribed_topics(data)
    return f"<{'+'.join(sorted(topics))}>" if topics is not None else data.decode() or "-"


def error(code: int) -> str:
    return ErrorCode.of(code).name


# ---- what happened, in words


def show_record(record: Record) -> str:
    key, value = read_key(record[0]), record[1]
    consumer_key = read_consumer_key(record[0])
    if consumer_key is not None:
        said = None if value is None else read_consumer_value(consumer_key, value)
        return show_consumer_record(consumer_key, said)
    match key:
        case OffsetCommitKey():
            name = f"offset {key.group_id} {key.topic}:{key.partition}"
            if value is None:
                return f"delete {name}"
            offset = read_offset(value)
            epoch = f" epoch={offset.leader_epoch}" if offset.leader_epoch != -1 else ""
            metadata = f" metadata={offset.metadata}" if offset.metadata else ""
            expires = f" expires={offset.expire_timestamp}" if offset.expire_timestamp != -1 else ""
            return f"{name} = {offset.offset}{epoch}{metadata}{expires} at {offset.commit_timestamp}"
        case GroupMetadataKey():
            if value is None:
                return f"delete group {key.group_id}"
            return f"group {key.group_id} {show_group(read_group(value))}"
    raise AssertionError(record)


def show_group(value: GroupMetadataValue) -> str:
    members = " ".join(
        f"{m.member_id}{'@' + m.group_instance_id if m.group_instance_id else ''}"
        f"({word(m.subscription)})={word(m.assignment)}"
        for m in value.members
    )
    return (
        f"generation={value.generation_id} type={value.protocol_type or '-'} protocol={value.protocol or '-'} "
        f"leader={value.leader or '-'} {members or 'empty'}"
    )


def show_join(r: JoinGroupResponse) -> str:
    if r.error_code:
        return f"join {error(r.error_code)}{' member=' + r.member_id if r.member_id else ''}"
    skip = " skip-assignment" if r.skip_assignment else ""
    members = " ".join(
        f"{m.member_id}{'@' + m.group_instance_id if m.group_instance_id else ''}({word(m.metadata)})"
        for m in r.members
    )
    return (
        f"join generation={r.generation_id} member={r.member_id} leader={r.leader} protocol={r.protocol_name}{skip}"
        f"{': ' + members if members else ''}"
    )


def show_fetch(r: OffsetFetchResponse) -> str:
    if r.error_code:
        return f"fetch {error(r.error_code)}"
    parts = []
    for topics, code in [(r.topics, 0), *((group.topics, group.error_code) for group in r.groups)]:
        parts += [error(code)] if code else []
        for topic in topics:
            for p in topic.partitions:
                epoch = f"/epoch={p.committed_leader_epoch}" if p.committed_leader_epoch != -1 else ""
                metadata = f"/{p.metadata}" if p.metadata else ""
                failed = f"/{error(p.error_code)}" if p.error_code else ""
                parts.append(f"{topic.name}:{p.partition_index}={p.committed_offset}{metadata}{epoch}{failed}")
    return f"fetch {' '.join(parts) or 'nothing'}"


def show_leave(r: LeaveGroupResponse) -> str:
    members = " ".join(
        f"{m.member_id}{'@' + m.group_instance_id if m.group_instance_id else ''}:{error(m.error_code)}"
        for m in r.members
    )
    return f"leave {error(r.error_code)} {members}".rstrip()


def show_describe(r: DescribeGroupsResponse) -> str:
    lines = []
    for group in r.groups:
        head = f"describe {group.group_id} {error(group.error_code)} {group.group_state}"
        message = f' "{group.error_message}"' if group.error_message else ""
        lines.append(f"{head}{message} type={group.protocol_type or '-'} protocol={group.protocol_data or '-'}")
        for m in group.members:
            instance = f"@{m.group_instance_id}" if m.group_instance_id else ""
            lines.append(
                f"    {m.member_id}{instance} client={m.client_id} host={m.client_host} "
                f"metadata={word(m.member_metadata)} assignment={word(m.member_assignment)}"
            )
    return "\n".join(lines)


def show_by_partition(name: str, r: OffsetCommitResponse | OffsetDeleteResponse | TxnOffsetCommitResponse) -> str:
    parts = [f"{t.name}:{p.partition_index}={error(p.error_code)}" for t in r.topics for p in t.partitions]
    top = [error(r.error_code)] if isinstance(r, OffsetDeleteResponse) else []
    return " ".join([name, *top, *parts])


def show_response(response: GroupResponse) -> str:
    match response:
        case JoinGroupResponse():
            return show_join(response)
        case SyncGroupResponse(error_code=0):
            protocol = f" protocol={response.protocol_name}" if response.protocol_name else ""
            return f"sync assignment={word(response.assignment)}{protocol}"
        case SyncGroupResponse():
            return f"sync {error(response.error_code)}"
        case HeartbeatResponse():
            return f"heartbeat {error(response.error_code)}"
        case LeaveGroupResponse():
            return show_leave(response)
        case OffsetCommitResponse():
            return show_by_partition("commit", response)
        case TxnOffsetCommitResponse():
            return show_by_partition("txn-commit", response)
        case OffsetDeleteResponse():
            return show_by_partition("delete-offsets", response)
        case OffsetFetchResponse():
            return show_fetch(response)
        case DescribeGroupsResponse():
            return show_describe(response)
        case ListGroupsResponse():
            groups = [
                f"{g.group_id}[{' '.join(filter(None, (g.protocol_type, g.group_state, g.group_type)))}]"
                for g in response.groups
            ]
            return " ".join(["list", error(response.error_code), *groups])
        case ConsumerGroupHeartbeatResponse():
            return show_beat(response)
        case ConsumerGroupDescribeResponse():
            return show_described(response)
        case DeleteGroupsResponse():
            results = [f"{r.group_id}={error(r.error_code)}" for r in response.results]
            return " ".join(["delete-group", *results])


class Script(World):
    """A world that understands the commands and writes down what happens."""

    def __init__(self, config: GroupConfig | None = None) -> None:
        self.lines: list[str] = []
        super().__init__(config)

    def happened(self, effect: Effect) -> None:
        match effect:
            case Reply():
                self.lines.append(f"#{effect.request_id} {show_response(self.answers[effect.request_id])}")
            case Append():
                for position, record in enumerate(effect.records):
                    head = f"append {effect.token}:" if position == 0 else " " * len(f"append {effect.token}:")
                    owner = f"producer {effect.producer_id} " if effect.producer_id >= 0 else ""
                    self.lines.append(f"{head} {owner}{show_record(record)}")
            case Note():
                self.lines.append(f"note {effect.group_id}: {effect.text}")

    def run(self, line: str) -> None:
        name, *words = shlex.split(line)
        for each in words:
            if each.startswith("now="):
                self.now = Millis(int(each[4:]))
        commands: dict[str, Callable[[list[str]], None]] = {
            "join": self.do_join,
            "sync": self.do_sync,
            "heartbeat": self.do_heartbeat,
            "leave": self.do_leave,
            "commit": self.do_commit,
            "txn-commit": self.do_txn_commit,
            "ended": lambda words: self.ended(int(words[0]), is_commit=words[1] == "commit"),
            "fetch": self.do_fetch,
            "delete-offsets": self.do_delete_offsets,
            "topics-deleted": lambda words: void(self.step(TopicsDeleted(topics=tuple(words)))),
            "topics": self.do_topics,
            "beat": self.do_beat,
            "describe-consumer": lambda words: void(
                self.request(ConsumerGroupDescribeRequest(group_ids=words or ["g"]), 1)
            ),
            "delete-group": lambda words: void(self.request(DeleteGroupsRequest(groups_names=words or ["g"]), 2)),
            "describe": self.do_describe,
            "list": self.do_list,
            "tick": lambda words: self.tick(int(words[0])),
            "hold": lambda _: setattr(self, "hold", True),
            "release": self.do_release,
            "appended": self.do_appended,
            "reload": lambda _: self.reload(),
            "lower-max-size": self.do_lower_max_size,
            "state": lambda _: self.do_state(),
        }
        commands[name](words)

    def do_join(self, words: list[str]) -> None:
        args = Args(words, "client member instance session rebalance type protocols topics reason")
        assert not args.rest, args.rest
        protocols = []
        for each in args.text("protocols", "range").split(",") if args.text("protocols", "range") else []:
            name, _, metadata = each.partition(":")
            topics = args.text("topics")
            data = subscription(topics.split("+")) if topics else metadata.encode()
            protocols.append(JoinGroupRequestProtocol(name=name, metadata=data))
        client = args.text("client") or args.text("member").partition("-")[0] or "c"
        message = JoinGroupRequest(
            group_id=args.group,
            session_timeout_ms=args.number("session", 10_000),
            rebalance_timeout_ms=args.number("rebalance", 60_000),
            member_id=args.text("member"),
            group_instance_id=args.optional("instance"),
            protocol_type=args.text("type", "consumer"),
            protocols=protocols,
            reason=args.optional("reason"),
        )
        self.request(message, args.number("v", 9), client)

    def do_sync(self, words: list[str]) -> None:
        args = Args(words, "member generation protocol type instance")
        pairs = [each.split("=", 1) for each in args.rest]
        message = SyncGroupRequest(
            group_id=args.group,
            generation_id=args.number("generation", 1),
            member_id=args.text("member"),
            group_instance_id=args.optional("instance"),
            protocol_type=args.optional("type"),
            protocol_name=args.optional("protocol"),
            assignments=[SyncGroupRequestAssignment(member_id=m, assignment=a.encode()) for m, a in pairs],
        )
        self.request(message, args.number("v", 5))

    def do_heartbeat(self, words: list[str]) -> None:
        args = Args(words, "member generation instance")
        message = HeartbeatRequest(
            group_id=args.group,
            generation_id=args.number("generation", 1),
            member_id=args.text("member"),
            group_instance_id=args.optional("instance"),
        )
        self.request(message, args.number("v", 4))

    def do_leave(self, words: list[str]) -> None:
        args = Args(words, "member")
        members = [each.partition("@") for each in args.rest]
        message = LeaveGroupRequest(
            group_id=args.group,
            member_id=args.text("member"),
            members=[MemberIdentity(member_id=m, group_instance_id=i if at else None) for m, at, i in members],
        )
        self.request(message, args.number("v", 2 if args.text("member") else 5))

    def do_commit(self, words: list[str]) -> None:
        args = Args(words, "member generation instance retention epoch")
        topics: dict[str, list[OffsetCommitRequestPartition]] = {}
        for each in args.rest:
            where, _, what = each.partition("=")
            topic, _, partition = where.partition(":")
            offset, _, metadata = what.partition("/")
            topics.setdefault(topic, []).append(
                OffsetCommitRequestPartition(
                    partition_index=int(partition),
                    committed_offset=int(offset),
                    committed_leader_epoch=args.number("epoch", -1),
                    committed_metadata=metadata or None,
                )
            )
        message = OffsetCommitRequest(
            group_id=args.group,
            generation_id_or_member_epoch=args.number("generation", -1),
            member_id=args.text("member"),
            group_instance_id=args.optional("instance"),
            retention_time_ms=args.number("retention", -1),
            topics=[OffsetCommitRequestTopic(name=t, partitions=p) for t, p in topics.items()],
        )
        self.request(message, args.number("v", 9))

    def do_txn_commit(self, words: list[str]) -> None:
        args = Args(words[1:], "member generation instance")
        topics: dict[str, list[TxnOffsetCommitRequestPartition]] = {}
        for each in args.rest:
            where, _, offset = each.partition("=")
            topic, _, partition = where.partition(":")
            committed = TxnOffsetCommitRequestPartition(partition_index=int(partition), committed_offset=int(offset))
            topics.setdefault(topic, []).append(committed)
        message = TxnOffsetCommitRequest(
            transactional_id="t",
            group_id=args.group,
            producer_id=int(words[0]),
            producer_epoch=0,
            generation_id=args.number("generation", -1),
            member_id=args.text("member"),
            group_instance_id=args.optional("instance"),
            topics=[TxnOffsetCommitRequestTopic(name=t, partitions=p) for t, p in topics.items()],
        )
        self.request(message, args.number("v", 3))

    def do_fetch(self, words: list[str]) -> None:
        is_stable = "stable" in words
        args = Args([word for word in words if word != "stable"], "member epoch")
        topics: dict[str, list[int]] = {}
        for each in args.rest:
            topic, _, partition = each.partition(":")
            topics.setdefault(topic, []).append(int(partition))
        version = args.number("v", 9)
        if version >= 8:
            asked = [OffsetFetchRequestTopics(name=t, partition_indexes=p) for t, p in topics.items()] or None
            group = OffsetFetchRequestGroup(
                group_id=args.group,
                member_id=args.optional("member"),
                member_epoch=args.number("epoch", -1),
                topics=asked,
            )
            self.request(OffsetFetchRequest(groups=[group], require_stable=is_stable), version)
        else:
            old = [OffsetFetchRequestTopic(name=t, partition_indexes=p) for t, p in topics.items()] or None
            old_form = OffsetFetchRequest(group_id=args.group, topics=old, require_stable=is_stable)
            self.request(old_form, version)

    def do_topics(self, words: list[str]) -> None:
        self.topics.become({name: int(count) for name, _, count in (each.partition("=") for each in words)})

    def do_beat(self, words: list[str]) -> None:
        args = Args(words, "epoch topics regex owns instance assignor timeout rack client")
        (member_id,) = args.rest or [""]
        epoch = args.number("epoch", 0)
        owns = args.optional("owns") if epoch else args.text("owns", "-")
        message = ConsumerGroupHeartbeatRequest(
            group_id=args.group,
            member_id=member_id,
            member_epoch=epoch,
            instance_id=args.optional("instance"),
            rack_id=args.optional("rack"),
            rebalance_timeout_ms=args.number("timeout", -1 if epoch else 60_000),
            subscribed_topic_names=args.text("topics").split("+") if args.text("topics") else None,
            subscribed_topic_regex=args.optional("regex"),
            server_assignor=args.optional("assignor"),
            topic_partitions=None if owns is None else read_partitions(owns, self.topics),
        )
        self.request(message, args.number("v", 1), args.text("client", "c"))

    def do_delete_offsets(self, words: list[str]) -> None:
        args = Args(words, "")
        topics: dict[str, list[OffsetDeleteRequestPartition]] = {}
        for each in args.rest:
            topic, _, partition = each.partition(":")
            topics.setdefault(topic, []).append(OffsetDeleteRequestPartition(partition_index=int(partition)))
        asked = [OffsetDeleteRequestTopic(name=t, partitions=p) for t, p in topics.items()]
        self.request(OffsetDeleteRequest(group_id=args.group, topics=asked), 0)

    def do_describe(self, words: list[str]) -> None:
        args = Args(words, "")
        self.request(DescribeGroupsRequest(groups=args.rest or ["g"]), args.number("v", 6))

    def do_list(self, words: list[str]) -> None:
        args = Args(words, "states types")
        message = ListGroupsRequest(
            states_filter=args.text("states").split(",") if args.text("states") else [],
            types_filter=args.text("types").split(",") if args.text("types") else [],
        )
        self.request(message, args.number("v", 5))

    def do_appended(self, words: list[str]) -> None:
        place = int(words.pop(0)) if words and words[0].isdigit() else 1
        self.appended(self.held[place - 1].token, ErrorCode[words[0]] if words else ErrorCode.NONE)

    def do_release(self, words: list[str]) -> None:
        self.hold = False
        while self.held:
            self.appended(self.held[0].token)

    def do_lower_max_size(self, words: list[str]) -> None:
        self.config = replace(self.config, group_max_size=int(words[0]))
        self.reload()

    def do_state(self) -> None:
        for group_id, group in sorted(self.coordinator.groups.items()):
            if group.consumer is not None:
                epochs = f"epoch={group.consumer.epoch} assignment-epoch={group.consumer.assignment_epoch}"
                self.lines.append(f"state {group_id} {group.consumer.state} {epochs}")
                continue
            members = []
            for member in group.members.values():
                waits = "".join(mark for mark, what in (("?", member.join), ("!", member.sync)) if what is not None)
                members.append(f"{member.member_id}{waits}={word(member.assignment or b'')}")
            pending = [f"pending={','.join(sorted(group.pending_members))}"] if group.pending_members else []
            unsynced = [f"unsynced={','.join(sorted(group.pending_sync))}"] if group.pending_sync else []
            self.lines.append(
                " ".join(
                    [
                        f"state {group_id} {group.state.value} generation={group.generation_id}",
                        f"protocol={group.protocol_name or '-'} leader={group.leader_id or '-'}",
                        *members,
                        *pending,
                        *unsynced,
                    ]
                )
            )
        for key, deadline in self.coordinator._deadlines.all().items():
            if key.group_id:
                self.lines.append(f"due {deadline} {' '.join(filter(None, key))}")


def void(_: object) -> None:
    """For lambdas whose result is of no interest."""


def play(path: Path) -> None:
    """Run a script and compare what happens with what it says, or rewrite it where the environment asks for that."""
    text = path.read_text()
    written = []
    script: Script | None = None
    for block in text.strip("\n").split("\n\n"):
        given, _, _ = block.partition("\n---")
        lines = given.split("\n")
        commands = [line for line in lines if line.strip() and not line.startswith("#")]
        if commands and commands[0].startswith("config"):
            assert script is None, "config comes first"
            pairs = dict(each.split("=") for each in commands.pop(0).split()[1:])
            assert pairs.keys() <= CONFIG_NUMBERS, pairs
            script = Script(GroupConfig(**{name: int(value) for name, value in pairs.items()}))
        script = script or Script()
        script.lines.clear()
        for command in commands:
            script.run(command)
            script.check_replay()
        written.append("\n".join([given, *(["---", *script.lines] if script.lines else [])]))
    result = "\n\n".join(written) + "\n"
    if os.environ.get(REWRITE):
        path.write_text(result)
    assert result == text if not os.environ.get(REWRITE) else True, difference(text, result)


def difference(said: str, happened: str) -> str:
    """Both side by side where they differ."""
    from difflib import unified_diff

    return "\n".join(unified_diff(said.splitlines(), happened.splitlines(), "the script says", "what happened", n=3))
