"""Runs `*.script` files: the coordinator's specification.

A script is blocks divided by blank lines. A block is comments (`#`), commands, `---`, and what happened. A block
without `---` happens silently only if nothing happens at all, so every block with effects must list them.

Commands (group `g` unless `group=`; `v=` picks the API version; `now=` moves the clock first, without a Tick):

    config NAME=VALUE ...                       before anything else
    join [client=] [member=] [instance=] [session=] [rebalance=] [type=] [protocols=NAME:METADATA,...] [topics=A+B]
         [owns=A:0,1;B:2]
    sync member= generation= [protocol=] [type=] [instance=] [MEMBER=ASSIGNMENT ...]
                                                an assignment is any word, or partitions: A:0,1;B:2, and perhaps
                                                ~WORD for what the assignor put beside them
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
    share MEMBER epoch= [topics=A+B] [rack=]    a heartbeat of KIP-932
    describe-share [GROUP ...]
    stream MEMBER epoch= [topology=] [at=] [owns=] [process=] [endpoint=] [timeout=] [offsets=] [known=] [shutdown]
                                                a heartbeat of KIP-1071, as `streams_words` has it; `at` is the epoch
                                                of the topology, `known` that of the endpoints
    describe-streams [GROUP ...]
    alter-offsets TOPIC:PARTITION=OFFSET ...    delete-share-offsets TOPIC ...     of a share group
    silent | answering                          share coordinators wait for `told`; or answer at once (at first)
    told [N] [TOPIC:PARTITION=ERROR ...]        the oldest question to them, or the Nth, is answered
    states [GROUP]                              what they keep: the epochs of states and start offsets
    delete-group [GROUP ...]     describe [GROUP ...]     list [states=A,B] [types=A,B]
    set GROUP NAME=VALUE ...                    settings of a single group
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
from typing import Any

from consumer_words import read_partitions
from group_words import assigned_word, assignment_of, partitions_of, show_record, show_response
from group_world import World, subscription
from share_words import (
    read_alteration,
    read_failures,
    show_change,
    show_partitions,
)
from streams_words import read_roles, read_topology, show_made
from topics_now import once_called

from kraftpy.groups.classic.group import ClassicGroup
from kraftpy.groups.config import GroupConfig
from kraftpy.groups.events import Append, ChangeState, CreateInternalTopics, Effect, Note, Reply
from kraftpy.groups.share.group import ShareGroup
from kraftpy.protocol.consumer_protocol import Subscription, encode_subscription
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
)
from kraftpy.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
)
from kraftpy.protocol.messages.delete_groups import DeleteGroupsRequest
from kraftpy.protocol.messages.delete_share_group_offsets import (
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsRequestTopic,
)
from kraftpy.protocol.messages.describe_groups import DescribeGroupsRequest
from kraftpy.protocol.messages.heartbeat import HeartbeatRequest
from kraftpy.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from kraftpy.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from kraftpy.protocol.messages.list_groups import ListGroupsRequest
from kraftpy.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kraftpy.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from kraftpy.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from kraftpy.protocol.messages.share_group_describe import ShareGroupDescribeRequest
from kraftpy.protocol.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from kraftpy.protocol.messages.streams_group_describe import StreamsGroupDescribeRequest
from kraftpy.protocol.messages.streams_group_heartbeat import Endpoint, StreamsGroupHeartbeatRequest, TaskOffset
from kraftpy.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from kraftpy.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
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
            case ChangeState():
                self.lines.append(show_change(effect))
            case CreateInternalTopics():
                self.lines.append(show_made(effect))
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
            "topics-deleted": lambda words: self.delete_topics(*words),
            "topics": self.do_topics,
            "beat": self.do_beat,
            "describe-consumer": lambda words: void(
                self.request(ConsumerGroupDescribeRequest(group_ids=words or ["g"]), 1)
            ),
            "share": self.do_share,
            "stream": self.do_stream,
            "describe-streams": lambda words: void(
                self.request(StreamsGroupDescribeRequest(group_ids=words or ["g"]), 0)
            ),
            "describe-share": lambda words: void(self.request(ShareGroupDescribeRequest(group_ids=words or ["g"]), 1)),
            "alter-offsets": self.do_alter_offsets,
            "delete-share-offsets": self.do_delete_share_offsets,
            "silent": lambda _: setattr(self, "silent", True),
            "answering": self.do_answering,
            "told": self.do_told,
            "states": self.do_states,
            "delete-group": lambda words: void(self.request(DeleteGroupsRequest(groups_names=words or ["g"]), 2)),
            "describe": self.do_describe,
            "list": self.do_list,
            "set": lambda words: void(self.overrides.update({words[0]: dict(w.split("=", 1) for w in words[1:])})),
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
        args = Args(words, "client member instance session rebalance type protocols topics owns reason")
        assert not args.rest, args.rest
        protocols = []
        for each in args.text("protocols", "range").split(",") if args.text("protocols", "range") else []:
            name, _, metadata = each.partition(":")
            topics = args.text("topics")
            data = subscription(topics.split("+")) if topics else metadata.encode()
            if args.text("owns"):
                owned = tuple(partitions_of(args.text("owns")))
                data = encode_subscription(Subscription(topics=tuple(topics.split("+")), owned=owned))
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
            assignments=[SyncGroupRequestAssignment(member_id=m, assignment=assignment_of(a)) for m, a in pairs],
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

    def do_share(self, words: list[str]) -> None:
        args = Args(words, "epoch topics rack client")
        (member_id,) = args.rest or [""]
        message = ShareGroupHeartbeatRequest(
            group_id=args.group,
            member_id=member_id,
            member_epoch=args.number("epoch", 0),
            rack_id=args.optional("rack"),
            subscribed_topic_names=args.text("topics").split("+") if args.text("topics") else None,
        )
        self.request(message, 1, args.text("client", "c"))

    def do_stream(self, words: list[str]) -> None:
        shuts_down = "shutdown" in words
        rest = [word for word in words if word != "shutdown"]
        args = Args(rest, "epoch topology at owns process endpoint timeout offsets known instance client")
        (member_id,) = args.rest or [""]
        epoch = args.number("epoch", 0)
        topology = args.optional("topology")
        owns = args.optional("owns") if epoch else args.text("owns", "-")
        active, standby, warmup = read_roles(owns) if owns is not None else (None, None, None)
        host, _, port = args.text("endpoint").partition(":")
        offsets = [each.partition("=") for each in args.text("offsets").split(",") if each]
        message = StreamsGroupHeartbeatRequest(
            group_id=args.group,
            member_id=member_id,
            member_epoch=epoch,
            endpoint_information_epoch=args.number("known", 0),
            instance_id=args.optional("instance"),
            rebalance_timeout_ms=args.number("timeout", -1 if epoch else 60_000),
            topology=None if topology is None else read_topology(topology, args.number("at", 0)),
            active_tasks=active,
            standby_tasks=standby,
            warmup_tasks=warmup,
            process_id=args.text("process", member_id) if epoch == 0 else None,
            user_endpoint=Endpoint(host=host, port=int(port)) if port else None,
            client_tags=[] if epoch == 0 else None,
            task_offsets=[
                TaskOffset(subtopology_id=task.split(":")[0], partition=int(task.split(":")[1]), offset=int(offset))
                for task, _, offset in offsets
            ]
            or None,
            shutdown_application=shuts_down,
        )
        self.request(message, 0, args.text("client", "c"))

    def do_alter_offsets(self, words: list[str]) -> None:
        args = Args(words, "")
        self.request(read_alteration(args.group, args.rest), 0)

    def do_delete_share_offsets(self, words: list[str]) -> None:
        args = Args(words, "")
        topics = [DeleteShareGroupOffsetsRequestTopic(topic_name=name) for name in args.rest]
        self.request(DeleteShareGroupOffsetsRequest(group_id=args.group, topics=topics), 0)

    def do_answering(self, words: list[str]) -> None:
        self.silent = False
        self.go_on()

    def do_told(self, words: list[str]) -> None:
        place = int(words.pop(0)) if words and words[0].isdigit() else 1
        self.told(self.asked[place - 1].token, read_failures(words, self.topics))

    def do_states(self, words: list[str]) -> None:
        (group_id,) = words or ["g"]
        kept = sorted(self.share_coordinators.of(group_id).items())
        shown = [f"{once_called(each.topic_id)}:{each.partition}@{start}/{epoch}" for each, (epoch, start) in kept]
        self.lines.append(" ".join(["states", group_id, *shown]))

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
        self.go_on()

    def do_lower_max_size(self, words: list[str]) -> None:
        self.config = replace(self.config, group_max_size=int(words[0]))
        self.reload()

    def do_state(self) -> None:
        for group_id, group in sorted(self.coordinator.groups.items()):
            kind = group.kind
            if not isinstance(kind, ClassicGroup):
                epochs = f"epoch={kind.epoch} assignment-epoch={kind.assignment_epoch}"
                known = f" {show_partitions(kind.partitions)}" if isinstance(kind, ShareGroup) else ""
                self.lines.append(f"state {group_id} {group.state_name} {epochs}{known}")
                continue
            members = []
            for member in kind.members.values():
                waits = "".join(mark for mark, what in (("?", member.join), ("!", member.sync)) if what is not None)
                members.append(f"{member.member_id}{waits}={assigned_word(member.assignment or b'')}")
            pending = [f"pending={','.join(sorted(kind.pending_members))}"] if kind.pending_members else []
            unsynced = [f"unsynced={','.join(sorted(kind.pending_sync))}"] if kind.pending_sync else []
            self.lines.append(
                " ".join(
                    [
                        f"state {group_id} {kind.state.value} generation={kind.generation_id}",
                        f"protocol={kind.protocol_name or '-'} leader={kind.leader_id or '-'}",
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
    """Drop the result of an expression in a lambda."""


def play(path: Path) -> None:
    """Run a script and compare the outcome with what it says, or rewrite it if the environment asks for that."""
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
            numbers: dict[str, Any] = {n: int(v) if v.isdecimal() else v for n, v in pairs.items()}
            script = Script(GroupConfig(**numbers))
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
    """Return a diff of the two texts."""
    from difflib import unified_diff

    return "\n".join(unified_diff(said.splitlines(), happened.splitlines(), "the script says", "what happened", n=3))
