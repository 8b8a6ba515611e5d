"""Random histories of three to five brokers: invariants that hold after every step.

The commands are made to fit the image as it is (epochs that are current, replicas that exist), so that histories go
deep; commands that do not fit are the part of test_metadata_properties.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from image_invariants import check_image, check_step, partitions

from kraftpy.metadata.commands import (
    AlterReassignments,
    BalanceLeaders,
    ChangeBroker,
    ChangePartitions,
    ChangeReplicas,
    Command,
    ConfigChange,
    ConfigOperation,
    ConfigOperationType,
    ConfigValue,
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    ElectLeaders,
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
    TopicReference,
    UnregisterBroker,
    UpdateFeatures,
)
from kraftpy.metadata.controller import MetadataStateMachine
from kraftpy.metadata.image import ELR_FEATURE, MIN_INSYNC_REPLICAS, UNCLEAN_ELECTION, Broker, Image
from kraftpy.metadata.submissions import SubmissionId, encode_submission
from kraftpy.protocol.errors import ErrorCode
from kraftpy.types import BrokerId, LeaderEpoch, Millis, TopicId

NOW = Millis(0)


class History:
    """Commands that a cluster of this size could see, drawn one after the other."""

    def __init__(self, chance: random.Random, brokers: int, *, has_elr: bool) -> None:
        self.chance = chance
        self.broker_ids = [BrokerId(number) for number in range(1, brokers + 1)]
        self.has_elr = has_elr
        self.made = 0
        self.weights = {
            self.registration: 4,
            self.fencing: 6,
            self.unfencing: 8,
            self.stopping: 2,
            self.proposal: 10,
            self.report: 5,
            self.new_topic: 2,
            self.growth: 1,
            self.deletion: 1,
            self.election: 2,
            self.balance: 1,
            self.reassignment: 4,
            self.setting: 2,
            self.features: 1,
            self.controller_defaults: 1,
            self.unregistering: 1,
        }

    def beginning(self) -> list[Command]:
        features = (FeatureLevel(name=ELR_FEATURE, level=1),) if self.has_elr else ()
        commands: list[Command] = [FormatCluster(cluster_id="c", time_ms=NOW, features=features, min_insync_replicas=2)]
        commands += [self._registered(broker_id, previous=-1, fenced=False) for broker_id in self.broker_ids]
        return commands

    def next(self, image: Image) -> Command | None:
        kind = self.chance.choices(list(self.weights), list(self.weights.values()))[0]
        return kind(image)

    # -- one of each kind

    def _registered(self, broker_id: BrokerId, *, previous: int, fenced: bool) -> RegisterBroker:
        return RegisterBroker(
            broker_id=broker_id,
            incarnation_id=self.chance.randbytes(16),
            endpoints=(),
            time_ms=NOW,
            rack=self.chance.choice([None, "a", "b"]),
            host=self.chance.choice([None, None, "h", "i"]),
            fenced=fenced,
            previous_session_expired=self.chance.random() < 0.5,
            previous_broker_epoch=previous,
            max_partitions=self.chance.choice([0, 0, 1, 2]),
        )

    def registration(self, image: Image) -> Command:
        broker_id = self.chance.choice(self.broker_ids)
        broker = image.broker(broker_id)
        previous = broker.broker_epoch if broker and self.chance.random() < 0.5 else -1
        return self._registered(broker_id, previous=previous, fenced=self.chance.random() < 0.8)

    def _broker(self, image: Image) -> Broker | None:
        return self.chance.choice(image.brokers()) if image.brokers() else None

    def _change(self, image: Image, *, fenced: bool, stopping: bool = False) -> Command | None:
        broker = self._broker(image)
        if broker is None:
            return None
        return ChangeBroker(
            broker_id=broker.broker_id,
            broker_epoch=broker.broker_epoch,
            fenced=fenced,
            in_controlled_shutdown=stopping,
            max_partitions=self.chance.choice([0, 0, 1, 2]),
            controller_epoch=self.chance.choice([-1, 1, 1, 2]),
            time_ms=NOW,
        )

    def fencing(self, image: Image) -> Command | None:
        return self._change(image, fenced=True)

    def unfencing(self, image: Image) -> Command | None:
        return self._change(image, fenced=False)

    def stopping(self, image: Image) -> Command | None:
        return self._change(image, fenced=False, stopping=True)

    def unregistering(self, image: Image) -> Command | None:
        return UnregisterBroker(
            broker_id=self.chance.choice(self.broker_ids),
            time_ms=NOW,
            max_partitions=self.chance.choice([0, 0, 1, 2]),
        )

    def proposal(self, image: Image) -> Command | None:
        """A leader's, for all that it leads: some of the replicas, itself among them."""
        broker = self._broker(image)
        if broker is None:
            return None
        changes = []
        for topic, number, partition in image.partitions_of(broker.broker_id):
            if partition.leader != broker.broker_id or self.chance.random() < 0.3:
                continue
            some = [replica for replica in partition.replicas if self.chance.random() < 0.7]
            members = [IsrMember(broker_id=member) for member in {broker.broker_id, *some}]
            changes.append(
                IsrChange(
                    topic_id=topic.topic_id,
                    partition=number,
                    leader_epoch=LeaderEpoch(partition.leader_epoch - (self.chance.random() < 0.1)),
                    partition_epoch=partition.partition_epoch - (self.chance.random() < 0.1),
                    isr=tuple(members),
                    is_recovering=self.chance.random() < 0.2,
                )
            )
        return ChangePartitions(
            broker_id=broker.broker_id, broker_epoch=broker.broker_epoch, changes=tuple(changes), time_ms=NOW
        )

    def report(self, image: Image) -> Command | None:
        """Draw a broker's report of what its disks did to some of its replicas."""
        broker = self._broker(image)
        if broker is None:
            return None
        return ChangeReplicas(
            broker_id=broker.broker_id,
            broker_epoch=broker.broker_epoch,
            changes=tuple(
                ReplicaChange(topic_id=topic.topic_id, partition=number, state=self.chance.choice(list(ReplicaState)))
                for topic, number, _ in image.partitions_of(broker.broker_id)
                if self.chance.random() < 0.5
            ),
            time_ms=NOW,
        )

    def _replicas(self, count: int | None = None) -> tuple[BrokerId, ...]:
        return tuple(self.chance.sample(self.broker_ids, count or self.chance.randint(1, 3)))

    def new_topic(self, image: Image) -> Command:
        self.made += 1
        factor = self.chance.randint(1, 3)
        topic = NewTopic(
            name=f"t{self.chance.randint(0, 3)}",
            topic_id=TopicId(self.made.to_bytes(16, "big") if self.made > 1 else b"t" * 16),
            assignments=tuple(
                ReplicaAssignment(partition=number, replicas=self._replicas(factor))
                for number in range(self.chance.randint(1, 3))
            ),
        )
        return CreateTopics(topics=(topic,), time_ms=NOW)

    def growth(self, image: Image) -> Command | None:
        if not image.topics():
            return None
        topic = self.chance.choice(image.topics())
        return CreatePartitions(topics=(NewPartitions(name=topic.name, count=len(topic.partitions) + 1),), time_ms=NOW)

    def deletion(self, image: Image) -> Command | None:
        if not image.topics() or self.chance.random() < 0.6:
            return None
        return DeleteTopics(topics=(TopicReference(name=self.chance.choice(image.topics()).name),), time_ms=NOW)

    def election(self, image: Image) -> Command:
        some = tuple(
            PartitionReference(topic=topic.name, partition=number)
            for topic, number, _ in image.partitions()
            if self.chance.random() < 0.5
        )
        chosen = None if self.chance.random() < 0.5 else some
        return ElectLeaders(partitions=chosen, unclean=self.chance.random() < 0.5, time_ms=NOW)

    def balance(self, image: Image) -> Command:
        return BalanceLeaders(imbalance_percentage=self.chance.choice([0, 10, 50]), time_ms=NOW, max_elections=2)

    def reassignment(self, image: Image) -> Command:
        return AlterReassignments(
            reassignments=tuple(
                Reassignment(
                    topic=topic.name,
                    partition=number,
                    replicas=None if self.chance.random() < 0.3 else self._replicas(),
                )
                for topic, number, _ in image.partitions()
                if self.chance.random() < 0.4
            ),
            time_ms=NOW,
        )

    def setting(self, image: Image) -> Command:
        name, values = self.chance.choice(
            [(MIN_INSYNC_REPLICAS, ["1", "2", "3"]), (UNCLEAN_ELECTION, ["true", "false"])]
        )
        is_set = self.chance.random() < 0.7
        operation = ConfigOperation(
            name=name,
            value=self.chance.choice(values) if is_set else None,
            operation=ConfigOperationType.SET if is_set else ConfigOperationType.DELETE,
        )
        if self.chance.random() < 0.3 or not image.topics():
            change = ConfigChange(resource_type=4, resource_name="", operations=(operation,))
        else:
            topic = self.chance.choice(image.topics())
            change = ConfigChange(resource_type=2, resource_name=topic.name, operations=(operation,))
        return SetConfigs(changes=(change,), time_ms=NOW)

    def controller_defaults(self, image: Image) -> Command | None:
        """Settings of a new controller's file, which differ from those of the last one."""
        if self.chance.random() < 0.7:
            return None
        values = {MIN_INSYNC_REPLICAS: ["2", "3"], UNCLEAN_ELECTION: ["true"]}
        configs = tuple(
            ConfigValue(name=name, value=self.chance.choice(texts))
            for name, texts in values.items()
            if self.chance.random() < 0.5
        )
        return SetControllerDefaults(configs=configs, time_ms=NOW)

    def features(self, image: Image) -> Command | None:
        if self.chance.random() < 0.7:
            return None
        level = 1 - image.feature_level(ELR_FEATURE)
        update = FeatureUpdate(name=ELR_FEATURE, level=level, upgrade_type=1 if level else 2)
        return UpdateFeatures(updates=(update,), time_ms=NOW, min_insync_replicas=2)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32), st.integers(3, 5), st.booleans(), st.integers(0, 60))
def test_every_history_keeps_the_invariants(seed: int, brokers: int, has_elr: bool, restored_at: int) -> None:
    history = History(random.Random(seed), brokers, has_elr=has_elr)
    first, second = MetadataStateMachine(), MetadataStateMachine()
    beginning = history.beginning()
    sent: list[bytes] = []
    for index in range(1, 80):
        command = beginning[index - 1] if index <= len(beginning) else history.next(first.image)
        if command is None:
            continue
        data = encode_submission(SubmissionId(node_id=1, nonce=b"n", sequence=index), command)
        seen, version = partitions(first.image), first.image.version
        applied = first.apply(index, 1, data)
        assert applied.decision.error is not ErrorCode.UNKNOWN_SERVER_ERROR, applied.decision.message
        assert not applied.is_duplicate
        check_image(first.image)
        check_step(seen, partitions(first.image))
        assert first.image.version == version + len(applied.decision.records)
        if index == restored_at:
            second.restore(second.snapshot())
        assert second.apply(index, 1, data) == applied
        sent.append(data)
        if index % 10 == 0:
            before = first.snapshot()
            assert second.snapshot() == before
            assert Image.from_bytes(before).to_bytes() == before
            assert first.apply(index, 1, history.chance.choice(sent)).is_duplicate
            assert first.snapshot() == before, "what comes again changes nothing"
    assert first.snapshot() == second.snapshot()


@pytest.mark.parametrize("seed", range(3))
def test_histories_go_deep(seed: int) -> None:
    """The histories above meet what they are for."""
    met = {"elr": 0, "recovering": 0, "empty": 0, "reassigning": 0, "leaderless": 0}
    for one in range(40):
        history = History(random.Random(seed * 1_000 + one), 4, has_elr=True)
        machine = MetadataStateMachine()
        beginning = history.beginning()
        for index in range(1, 80):
            command = beginning[index - 1] if index <= len(beginning) else history.next(machine.image)
            if command is None:
                continue
            machine.apply(index, 1, encode_submission(SubmissionId(node_id=1, nonce=b"n", sequence=index), command))
            for _, _, partition in machine.image.partitions():
                met["elr"] += bool(partition.eligible_leader_replicas)
                met["recovering"] += partition.is_recovering
                met["empty"] += not partition.isr
                met["reassigning"] += partition.is_reassigning
                met["leaderless"] += not partition.has_leader
    assert all(count > 20 for count in met.values()), met
