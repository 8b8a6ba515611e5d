"""confluent-kafka members move from the classic protocol to KIP-848's and back, one by one, while records flow."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import ConsumerGroupState, ConsumerGroupType
from confluent_kafka.admin import AdminClient, NewTopic

from kraftpy.testing.cluster import EmbeddedBroker

BrokerFactory = Callable[..., EmbeddedBroker]

BOUND_SECONDS = 60.0
PARTITIONS = 6
REFUSED_MEANWHILE = (
    confluent_kafka.KafkaError.REBALANCE_IN_PROGRESS,
    confluent_kafka.KafkaError.ILLEGAL_GENERATION,
    confluent_kafka.KafkaError.STALE_MEMBER_EPOCH,
    confluent_kafka.KafkaError.UNKNOWN_MEMBER_ID,
    confluent_kafka.KafkaError._ASSIGNMENT_LOST,
)
QUICK = {
    "group.consumer.heartbeat.interval.ms": "300",
    "group.consumer.session.timeout.ms": "6000",
    "offsets.topic.num.partitions": "2",
}


class Fleet:
    """Members of one group, each of either protocol, and a producer that never stops for long."""

    def __init__(self, bootstrap: str, assignor: str) -> None:
        self.bootstrap = bootstrap
        self.assignor = assignor
        self.members: list[Any] = []
        self.seen: list[bytes] = []
        self.sent = 0
        self.producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})

    def member(self, protocol: str) -> Any:
        classic = {
            "partition.assignment.strategy": self.assignor,
            "heartbeat.interval.ms": 300,
            "session.timeout.ms": 6000,
        }
        return confluent_kafka.Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": "g",
                "group.protocol": protocol,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                **(classic if protocol == "classic" else {}),
            }
        )

    def join(self, protocol: str) -> None:
        member = self.member(protocol)
        member.subscribe(["t"])
        self.members.append(member)

    def replace(self, place: int, protocol: str) -> None:
        """Restart a member with the other protocol, as a rolling restart does."""
        self.members.pop(place).close()
        self.join(protocol)

    def send(self, count: int = 60) -> None:
        for number in range(self.sent, self.sent + count):
            self.producer.produce("t", b"%d" % number, partition=number % PARTITIONS)
        self.sent += count
        assert self.producer.flush(BOUND_SECONDS) == 0

    def owned(self) -> list[list[int]]:
        return [sorted(each.partition for each in member.assignment()) for member in self.members]

    def settle(self) -> None:
        """Poll and commit until every partition has one owner, and all that was sent is read."""
        deadline = time.monotonic() + BOUND_SECONDS
        self.send()
        while not self.is_settled():
            assert time.monotonic() < deadline, (self.owned(), len(set(self.seen)), self.sent)
            for member in self.members:
                for message in member.consume(500, 0.05):
                    if message.error() is not None:
                        assert self.is_sent_back(message.error()), message.error()
                        continue
                    self.seen.append(message.value())
                    self.commit(member, message)

    def is_sent_back(self, error: confluent_kafka.KafkaError) -> bool:
        """Whether the group changed its protocol while this member's JoinGroup waited.

        Kafka ends such a wait with REBALANCE_IN_PROGRESS, and so does kraftpy. librdkafka tells the application, then
        joins again.
        """
        return error.code() == error.REBALANCE_IN_PROGRESS and "JoinGroup failed" in error.str()

    def is_settled(self) -> bool:
        owned = [each for of_member in self.owned() for each in of_member]
        read_all = len(set(self.seen)) == self.sent
        return read_all and sorted(owned) == list(range(PARTITIONS)) and all(self.owned())

    def commit(self, member: Any, message: Any) -> None:
        """A commit in the middle of a rebalance may be refused: the record is then read again."""
        try:
            member.commit(message=message, asynchronous=False)
        except confluent_kafka.KafkaException as error:
            if error.args[0].code() not in REFUSED_MEANWHILE:
                raise

    def close(self) -> None:
        for member in self.members:
            member.close()


@pytest.fixture
def fleets() -> Iterator[list[Fleet]]:
    made: list[Fleet] = []
    yield made
    for fleet in made:
        fleet.close()


@pytest.mark.parametrize("assignor", ["range", "cooperative-sticky"])
def test_members_move_one_by_one_to_the_newer_protocol_and_back(
    start_broker: BrokerFactory, fleets: list[Fleet], assignor: str
) -> None:
    broker = start_broker(settings=QUICK)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic("t", PARTITIONS, 1)])["t"].result(20)

    def kind() -> tuple[ConsumerGroupType, ConsumerGroupState]:
        (listed,) = admin.list_consumer_groups().result(20).valid
        return listed.type, listed.state

    fleet = Fleet(broker.bootstrap, assignor)
    fleets.append(fleet)
    for _ in range(3):  # one by one: later generations are assigned from the members' reports of the earlier ones
        fleet.join("classic")
        fleet.settle()
    assert kind() == (ConsumerGroupType.CLASSIC, ConsumerGroupState.STABLE)
    for moved in range(3):
        fleet.replace(0, "consumer")
        fleet.settle()
        assert kind()[0] == ConsumerGroupType.CONSUMER, moved
    for moved in range(3):
        fleet.replace(0, "classic")
        fleet.settle()
        assert kind()[0] == (ConsumerGroupType.CLASSIC if moved == 2 else ConsumerGroupType.CONSUMER), moved
    committed = admin.list_consumer_group_offsets([confluent_kafka.ConsumerGroupTopicPartitions("g")])["g"].result(20)
    assert sorted(each.partition for each in committed.topic_partitions) == list(range(PARTITIONS))
    assert set(fleet.seen) == {b"%d" % number for number in range(fleet.sent)}
