"""The controller's specification: each `*.script` beside this file is commands, `---`, and their outcome.

A block is one or more commands, then what happened: `> ` a record, else the caller's answer. State carries over
from block to block of a file. After every command the invariants of the image are checked, the command survives its
own encoding, and a second node that applied the same bytes, and one restored from a snapshot, hold the same bytes.

`KRAFTPY_REWRITE_SCRIPTS=1` writes what happens now into the files, to be read before it is believed.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Any

import pytest
from image_invariants import Seen, check_image, check_step, partitions

from kraftpy.metadata.commands import (
    AllocateProducerIds,
    AlterReassignments,
    BalanceLeaders,
    ChangeBroker,
    ChangePartitions,
    ChangeReplicas,
    Command,
    ConfigChange,
    ConfigOperation,
    ConfigOperationType,
    ConfigResourceType,
    ConfigValue,
    CordonBroker,
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    ElectLeaders,
    Endpoint,
    FeatureLevel,
    FeatureUpdate,
    FormatCluster,
    IsrChange,
    IsrMember,
    NewPartitions,
    NewTopic,
    PartitionReference,
    Reassignment,
    RegisterBroker,
    ReplicaAssignment,
    ReplicaChange,
    ReplicaState,
    SetConfigs,
    SetControllerDefaults,
    SyncedReplicas,
    TopicReference,
    UnregisterBroker,
    UpdateFeatures,
    decode_command,
    encode_command,
)
from kraftpy.metadata.controller import Decision, MetadataStateMachine, decide
from kraftpy.metadata.decision import (
    BrokerResult,
    ConfigResult,
    ElectionResult,
    FeatureResult,
    PartitionResult,
    ProducerIdBlock,
    ReassignmentResult,
    TopicResult,
)
from kraftpy.metadata.image import ELR_FEATURE, Image, Partition
from kraftpy.metadata.records import (
    BrokerChanged,
    BrokerRegistered,
    BrokerUnregistered,
    ClusterFormatted,
    ConfigChanged,
    ControllerDefaultsChanged,
    FeatureChanged,
    PartitionChanged,
    PartitionCreated,
    ProducerIdsAllocated,
    Record,
    TopicCreated,
    TopicDeleted,
)
from kraftpy.types import ZERO_TOPIC_ID, BrokerId, LeaderEpoch, Millis, TopicId

HERE = Path(__file__).parent
NOW = Millis(1_000)


class Script:
    """Runs the words of a script against a state machine."""

    def __init__(self) -> None:
        self.machine = MetadataStateMachine()
        self.twin = MetadataStateMachine()
        self.topics_made = 0
        self.index = 0

    @property
    def image(self) -> Image:
        return self.machine.image

    def run(self, line: str) -> list[str]:
        """One line of a script; what happened, in lines."""
        words = shlex.split(line)
        if words[0] == "show":
            return [str(getattr(self, f"_show_{words[1]}")(*words[2:]))]
        command: Command = getattr(self, f"_{words[0]}")(words[1:])
        data = encode_command(command)
        assert decode_command(data) == command
        self.index += 1
        before, seen = self.image.to_bytes(), partitions(self.image)
        assert decide(command, self.image) == decide(command, self.image)
        assert self.image.to_bytes() == before, "decide changes nothing"
        applied = self.machine.apply(self.index, 1, data)
        decision = applied.decision
        assert self.twin.apply(self.index, 1, data) == applied
        check_image(self.image)
        check_step(seen, partitions(self.image))
        assert self.twin.snapshot() == self.machine.snapshot()
        self.twin.restore(self.machine.snapshot())
        return [f"> {tell_record(record, seen)}" for record in decision.records] + tell_result(decision)

    # -- the words

    def _format(self, words: list[str]) -> Command:
        flags, options = split(words)
        return FormatCluster(
            cluster_id=flags[0],
            time_ms=NOW,
            features=(FeatureLevel(name=ELR_FEATURE, level=1),) if "elr" in flags else (),
            min_insync_replicas=int(options.get("min_isr", 1)),
        )

    def _register(self, words: list[str]) -> Command:
        flags, options = split(words)
        broker = self.image.broker(BrokerId(int(flags[0])))
        last_epoch = broker.broker_epoch if broker and "clean" in flags else -1
        return RegisterBroker(
            broker_id=BrokerId(int(flags[0])),
            incarnation_id=incarnation(options.get("incarnation", "first")),
            endpoints=(Endpoint(listener="PLAINTEXT", host=f"host{flags[0]}", port=9092),),
            time_ms=NOW,
            rack=options.get("rack"),
            host=options.get("host"),
            fenced="fenced" in flags,
            previous_session_expired="expired" in flags,
            previous_broker_epoch=int(options.get("previous", last_epoch)),
            previous_incarnation_ids=tuple(incarnation(name) for name in options.get("after", "").split(",") if name),
            synced_replicas=tuple(
                self._synced(*named.split(":")) for named in options.get("synced", "").split("/") if named
            ),
            max_partitions=int(options.get("at_most", 0)),
        )

    def _synced(self, topic: str, partitions: str) -> SyncedReplicas:
        found = self.image.topic(topic)
        topic_id = found.topic_id if found else TopicId(bytes(16))
        return SyncedReplicas(topic_id=topic_id, partitions=tuple(map(int, partitions.split(","))))

    def _unregister(self, words: list[str]) -> Command:
        return UnregisterBroker(broker_id=BrokerId(int(words[0])), time_ms=NOW)

    def _fence(self, words: list[str]) -> Command:
        return self._change(words, fenced=True)

    def _unfence(self, words: list[str]) -> Command:
        return self._change(words, fenced=False)

    def _stop(self, words: list[str]) -> Command:
        return self._change(words, fenced=False, in_controlled_shutdown=True)

    def _change(self, words: list[str], *, fenced: bool, in_controlled_shutdown: bool = False) -> Command:
        flags, options = split(words)
        broker_id = BrokerId(int(flags[0]))
        return ChangeBroker(
            broker_id=broker_id,
            broker_epoch=self._epoch(broker_id, options),
            fenced=fenced,
            in_controlled_shutdown=in_controlled_shutdown,
            controller_epoch=int(options.get("controller_epoch", -1)),
            max_partitions=int(options.get("at_most", 0)),
            time_ms=NOW,
        )

    def _cordon(self, words: list[str]) -> Command:
        return self._cordoned(words, is_cordoned=True)

    def _uncordon(self, words: list[str]) -> Command:
        return self._cordoned(words, is_cordoned=False)

    def _cordoned(self, words: list[str], *, is_cordoned: bool) -> Command:
        flags, options = split(words)
        broker_id = BrokerId(int(flags[0]))
        epoch = self._epoch(broker_id, options)
        return CordonBroker(broker_id=broker_id, broker_epoch=epoch, is_cordoned=is_cordoned, time_ms=NOW)

    def _epoch(self, broker_id: BrokerId, options: dict[str, str]) -> int:
        broker = self.image.broker(broker_id)
        return int(options.get("broker_epoch", broker.broker_epoch if broker else 1))

    def _create(self, words: list[str]) -> Command:
        validate_only, wanted = take_flag(words, "validate_only")
        defaults: dict[str, Any] = {}
        topics = []
        for part in parts(wanted):
            flags, options = split(part)
            for name in ("default_partitions", "default_replication_factor"):
                if name in options:
                    defaults[name] = int(options.pop(name))
            topics.append(self._new_topic(flags[0], options))
        return CreateTopics(topics=tuple(topics), time_ms=NOW, validate_only=validate_only, **defaults)

    def _new_topic(self, name: str, options: dict[str, str]) -> NewTopic:
        self.topics_made += 1
        topic_id = int(options.pop("id", 100 + self.topics_made))
        partitions = int(options.pop("partitions", -1))
        factor = int(options.pop("rf", -1))
        assignments = options.pop("assign", "")
        return NewTopic(
            name=name,
            topic_id=TopicId(topic_id.to_bytes(16, "big")),
            partitions=partitions,
            replication_factor=factor,
            assignments=tuple(
                ReplicaAssignment(partition=int(number), replicas=ids(replicas))
                for number, _, replicas in (one.partition(":") for one in assignments.split("/") if one)
            ),
            configs=tuple(
                ConfigValue(name=key, value=None if value == "null" else value) for key, value in options.items()
            ),
        )

    def _delete(self, words: list[str]) -> Command:
        references = []
        for word in words:
            name, at, topic_id = word.partition("@")
            identity = ZERO_TOPIC_ID if not at else TopicId(int(topic_id).to_bytes(16, "big"))
            references.append(TopicReference(name=name or None, topic_id=identity))
        return DeleteTopics(topics=tuple(references), time_ms=NOW)

    def _grow(self, words: list[str]) -> Command:
        validate_only, wanted = take_flag(words, "validate_only")
        topics = []
        for part in parts(wanted):
            flags, options = split(part)
            assignments = None
            if "assign" in options:
                assignments = tuple(ids(one) for one in options["assign"].split("/"))
            topics.append(NewPartitions(name=flags[0], count=int(flags[1]), assignments=assignments))
        return CreatePartitions(topics=tuple(topics), time_ms=NOW, validate_only=validate_only)

    def _set(self, words: list[str]) -> Command:
        return self._configs(words, replace=False)

    def _replace(self, words: list[str]) -> Command:
        return self._configs(words, replace=True)

    def _configs(self, words: list[str], *, replace: bool) -> Command:
        validate_only, wanted = take_flag(words, "validate_only")
        changes = []
        for part in parts(wanted):
            operations = []
            for word in part[2:]:
                word, _, inherited = word.partition("~")
                operation, name, value = next(
                    (operation, *word.split(sign, 1))
                    for sign, operation in (
                        ("+=", ConfigOperationType.APPEND),
                        ("-=", ConfigOperationType.SUBTRACT),
                        ("=", ConfigOperationType.SET),
                        ("!", ConfigOperationType.DELETE),
                    )
                    if sign in word
                )
                operations.append(
                    ConfigOperation(
                        name=name,
                        value=None if value in ("", "null") else value,
                        operation=operation,
                        inherited=inherited or None,
                    )
                )
            kind = {
                "topic": ConfigResourceType.TOPIC,
                "broker": ConfigResourceType.BROKER,
                "group": ConfigResourceType.GROUP,
            }.get(part[0], 8)
            name = "" if part[1] == "all" else part[1]
            changes.append(
                ConfigChange(resource_type=kind, resource_name=name, operations=tuple(operations), replace=replace)
            )
        return SetConfigs(changes=tuple(changes), time_ms=NOW, validate_only=validate_only)

    def _defaults(self, words: list[str]) -> Command:
        _, options = split(words)
        term = int(options.pop("term", -1))
        configs = tuple(ConfigValue(name=name, value=value) for name, value in options.items())
        return SetControllerDefaults(configs=configs, time_ms=NOW, controller_epoch=term)

    def _ids(self, words: list[str]) -> Command:
        flags, options = split(words)
        broker_id = BrokerId(int(flags[0]))
        return AllocateProducerIds(broker_id=broker_id, broker_epoch=self._epoch(broker_id, options), time_ms=NOW)

    def _isr(self, words: list[str]) -> Command:
        flags, options = split(words)
        changes = []
        sender = BrokerId(int(options.get("from", -1)))
        for flag in flags:
            name, _, number = flag.rpartition("-")
            topic = self.image.topic(name)
            partition = self.image.partition(name, int(number))
            members = [member.partition("@") for member in options["isr"].split(",")]
            changes.append(
                IsrChange(
                    topic_id=topic.topic_id if topic else TopicId(b"?" * 16),
                    partition=int(number),
                    leader_epoch=LeaderEpoch(
                        int(options.get("leader_epoch", partition.leader_epoch if partition else 0))
                    ),
                    partition_epoch=int(options.get("partition_epoch", partition.partition_epoch if partition else 0)),
                    isr=tuple(
                        IsrMember(broker_id=BrokerId(int(member)), broker_epoch=int(epoch) if epoch else -1)
                        for member, _, epoch in members
                    ),
                    is_recovering=options.get("recovering") == "true",
                )
            )
            if sender < 0 and partition:
                sender = partition.leader
        return ChangePartitions(
            broker_id=sender, broker_epoch=self._epoch(sender, options), changes=tuple(changes), time_ms=NOW
        )

    def _report(self, words: list[str]) -> Command:
        flags, options = split(words)
        broker_id, state = BrokerId(int(flags[0])), ReplicaState[flags[1].upper()]
        changes = []
        for word in flags[2:]:
            named = reference(word)
            topic = self.image.topic(named.topic)
            topic_id = topic.topic_id if topic else TopicId(b"?" * 16)
            changes.append(ReplicaChange(topic_id=topic_id, partition=named.partition, state=state))
        return ChangeReplicas(
            broker_id=broker_id, broker_epoch=self._epoch(broker_id, options), changes=tuple(changes), time_ms=NOW
        )

    def _elect(self, words: list[str]) -> Command:
        named = None if words[1:] == ["all"] else tuple(reference(word) for word in words[1:])
        return ElectLeaders(partitions=named, unclean=words[0] == "unclean", time_ms=NOW)

    def _balance(self, words: list[str]) -> Command:
        _, options = split(words)
        return BalanceLeaders(
            imbalance_percentage=int(options.get("percentage", 10)),
            max_elections=int(options.get("most", 1_000)),
            controller_epoch=int(options.get("controller_epoch", -1)),
            time_ms=NOW,
        )

    def _reassign(self, words: list[str]) -> Command:
        is_fixed, wanted = take_flag(words, "same_factor")
        reassignments = []
        for word in wanted:
            name, _, replicas = word.partition("=")
            partition = reference(name)
            reassignments.append(
                Reassignment(
                    topic=partition.topic,
                    partition=partition.partition,
                    replicas=None if replicas == "cancel" else ids(replicas),
                )
            )
        return AlterReassignments(
            reassignments=tuple(reassignments), time_ms=NOW, allow_replication_factor_change=not is_fixed
        )

    def _features(self, words: list[str]) -> Command:
        validate_only, wanted = take_flag(words, "validate_only")
        flags, options = split(wanted)
        kinds = {"upgrade": 1, "safe": 2, "unsafe": 3, "odd": 9}
        kind = next((kinds[flag] for flag in flags), 1)
        minimum = int(options.pop("min_isr", 1))
        updates = [FeatureUpdate(name=name, level=int(level), upgrade_type=kind) for name, level in options.items()]
        return UpdateFeatures(
            updates=tuple(updates), time_ms=NOW, validate_only=validate_only, min_insync_replicas=minimum
        )

    # -- what can be shown

    def _show_features(self) -> str:
        return " ".join(f"{name}={level}" for name, level in sorted(self.image.features().items())) or "none"

    def _show_topics(self) -> str:
        return " ".join(f"{topic.name}({len(topic.partitions)})" for topic in self.image.topics()) or "none"

    def _show_configs(self, kind: str, name: str) -> str:
        configs = self.image.configs(ConfigResourceType[kind.upper()], "" if name == "all" else name)
        return " ".join(f"{key}={value}" for key, value in sorted(configs.items())) or "none"

    def _show_partition(self, name: str, number: str) -> str:
        partition = self.image.partition(name, int(number))
        if partition is None:
            return "none"
        return (
            f"replicas={told(partition.replicas)} isr={told(partition.isr)} leader={partition.leader} "
            f"leader_epoch={partition.leader_epoch} partition_epoch={partition.partition_epoch}"
            f"{tell_rest(partition)}"
        )


def incarnation(name: str) -> bytes:
    """The 16 bytes of a process that a script calls so."""
    return name.encode().ljust(16, b".")


def split(words: list[str]) -> tuple[list[str], dict[str, str]]:
    """Words without an equals sign, and the others as a map."""
    return [word for word in words if "=" not in word], dict(word.split("=", 1) for word in words if "=" in word)


def parts(words: list[str]) -> list[list[str]]:
    """Words between one `and` and the next."""
    found: list[list[str]] = [[]]
    for word in words:
        if word == "and":
            found.append([])
        else:
            found[-1].append(word)
    return found


def take_flag(words: list[str], flag: str) -> tuple[bool, list[str]]:
    return flag in words, [word for word in words if word != flag]


def ids(text: str) -> tuple[BrokerId, ...]:
    return tuple(BrokerId(int(one)) for one in text.split(",") if one)


def told(broker_ids: tuple[BrokerId, ...]) -> str:
    return ",".join(str(broker_id) for broker_id in broker_ids)


def reference(word: str) -> PartitionReference:
    name, _, number = word.rpartition("-")
    return PartitionReference(topic=name, partition=int(number))


def tell_rest(state: Partition | PartitionChanged) -> str:
    """Describe the fields that most partitions leave at their defaults."""
    rest = ""
    for name, members in (
        ("elr", state.eligible_leader_replicas),
        ("last_known", state.last_known_elr),
        ("adding", state.adding_replicas),
        ("removing", state.removing_replicas),
        ("offline", state.offline_replicas),
    ):
        rest += f" {name}={told(members)}" if members else ""
    return rest + (" recovering" if state.is_recovering else "")


def tell_record(record: Record, seen: Seen) -> str:
    match record:
        case PartitionCreated():
            return (
                f"partition {record.topic}-{record.partition} replicas={told(record.replicas)} isr={told(record.isr)} "
                f"leader={record.leader}"
            )
        case PartitionChanged():
            before = seen[record.topic_id, record.partition].replicas
            replicas = f" replicas={told(record.replicas)}" if record.replicas != before else ""
            return (
                f"change {record.topic}-{record.partition}{replicas} isr={told(record.isr)} leader={record.leader} "
                f"leader_epoch={record.leader_epoch} partition_epoch={record.partition_epoch}{tell_rest(record)}"
            )
        case TopicCreated():
            return f"topic {record.name} id={int.from_bytes(record.topic_id, 'big')}"
        case TopicDeleted():
            return f"gone {record.name} id={int.from_bytes(record.topic_id, 'big')}"
        case ConfigChanged():
            value = "not set" if record.value is None else f"= {record.value}"
            return f"config {record.resource_type.name} {record.resource_name or 'all'}: {record.name} {value}"
        case BrokerRegistered():
            rack = f" rack={record.rack}" if record.rack else ""
            rack += f" host={record.host}" if record.host else ""
            rack += " cordoned" * record.is_cordoned
            return f"broker {record.broker_id} epoch={record.broker_epoch}{rack}{' fenced' if record.fenced else ''}"
        case BrokerChanged():
            stopping = " stopping" if record.in_controlled_shutdown else ""
            stopping += " leaving" * record.is_leaving + " returning" * record.is_returning
            stopping += " cordoned" * record.is_cordoned
            return f"broker {record.broker_id} {'fenced' if record.fenced else 'active'}{stopping}"
        case BrokerUnregistered():
            return f"broker {record.broker_id} is not known"
        case FeatureChanged():
            return f"feature {record.name} {record.level}"
        case ControllerDefaultsChanged():
            return f"the controller has {' '.join(f'{each.name}={each.value}' for each in record.configs) or 'none'}"
        case ProducerIdsAllocated():
            return f"producer ids below {record.next_producer_id} are given"
        case ClusterFormatted():
            return f"cluster {record.cluster_id}"


def tell_result(decision: Decision[Any]) -> list[str]:
    if decision.error and not isinstance(decision.result, tuple):
        return [f"{decision.error.name}: {decision.message}"]
    match decision.result:
        case tuple():
            return [tell_item(item) for item in decision.result]
        case BrokerResult(broker_epoch=epoch, is_partial=is_partial):
            return [f"ok epoch={epoch}{' in part' * is_partial}"]
        case ProducerIdBlock(first_producer_id=first, count=count):
            return [f"ok {first} to {first + count - 1}"]
        case _:
            return ["ok"]


Item = TopicResult | ConfigResult | PartitionResult | ElectionResult | ReassignmentResult | FeatureResult


def tell_item(item: Item) -> str:
    match item:
        case PartitionResult():
            after = "" if item.state is None else f" isr={told(item.state.isr)} epoch={item.state.partition_epoch}"
            return f"{int.from_bytes(item.topic_id, 'big')}-{item.partition}: {item.error.name}{after}"
        case TopicResult():
            name = item.name if item.name is not None else f"@{int.from_bytes(item.topic_id, 'big')}"
            shape = f" partitions={item.partitions} rf={item.replication_factor}" if item.partitions > 0 else ""
        case ConfigResult():
            name, shape = item.resource_name or "all", ""
        case ElectionResult() | ReassignmentResult():
            name, shape = f"{item.topic}-{item.partition}", ""
        case FeatureResult():
            name, shape = item.name, ""
    message = f" {item.message}" if item.message else ""
    return f"{name}: {'ok' if not item.error else item.error.name}{shape}{message}"


def blocks(text: str) -> list[tuple[list[str], list[str]]]:
    """The blocks of a script: lines before `---` with their comments, lines after it up to an empty one."""
    found = []
    for block in text.strip().split("\n\n"):
        before, _, after = block.partition("\n---")
        found.append((before.split("\n"), after.strip("\n").split("\n")))
    return found


@pytest.mark.parametrize("name", sorted(path.name for path in HERE.glob("*.script")))
def test_script(name: str) -> None:
    script = Script()
    expected = (HERE / name).read_text()
    actual = []
    for commands, _ in blocks(expected):
        happened = [line for command in commands if not command.startswith("#") for line in script.run(command)]
        actual.append("\n".join([*commands, "---", *happened]))
    text = "\n\n".join(actual) + "\n"
    if os.environ.get("KRAFTPY_REWRITE_SCRIPTS"):
        (HERE / name).write_text(text)
    assert text == expected
