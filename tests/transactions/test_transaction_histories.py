"""Random histories: producers that take over and continue, lost answers and records, brokers that die anywhere.

The world checks after every step what must hold at each (`transaction_world`). At the end everything heals: then every
transaction is finished, one way or the other, and every producer can go on.
"""

from __future__ import annotations

import random

import pytest
from transaction_world import World

from kraftpy.protocol.errors import ErrorCode
from kraftpy.transactions.config import TransactionConfig
from kraftpy.transactions.events import AddPartitions, EndTransaction, InitProducerId
from kraftpy.transactions.transaction import AT_REST, PREPARED, State
from kraftpy.types import TopicPartition

NAMES = ("t", "u")
PARTITIONS = [TopicPartition(topic, number) for topic in "ab" for number in range(2)]
FAILURES = (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NOT_LEADER_OR_FOLLOWER)


class History(World):
    """Producers, each with what it was given last, and what it believes became of its transactions."""

    def __init__(self, seed: int) -> None:
        super().__init__(TransactionConfig(transactional_id_expiration_ms=10_000_000))
        self.random = random.Random(seed)
        self.hold = True
        self.version = self.random.choice((0, 2))
        self.known: dict[int, tuple[str, int, int]] = {}  # a producer: its transactional id, producer id, epoch
        self.asked: dict[int, int] = {}  # request -> producer
        self.acked_commits: list[tuple[str, int, int]] = []

    def act(self) -> None:
        producer = self.random.randrange(4)
        name, producer_id, epoch = self.known.get(producer, (NAMES[producer % 2], -1, -1))
        match self.random.randrange(12):
            case 0 | 1:
                goes_on = self.random.random() < 0.4
                command = InitProducerId(
                    transactional_id=name,
                    timeout_ms=60_000,
                    producer_id=producer_id if goes_on else -1,
                    producer_epoch=epoch if goes_on else -1,
                )
                self.asked[self.request(command)] = producer
            case 2 | 3 | 4:
                chosen = frozenset(self.random.sample(PARTITIONS, self.random.randint(1, 3)))
                self.request(
                    AddPartitions(
                        transactional_id=name,
                        producer_id=producer_id,
                        producer_epoch=epoch,
                        partitions=chosen,
                        client_version=self.version,
                    )
                )
            case 5 | 6:
                request_id = self.request(
                    EndTransaction(
                        transactional_id=name,
                        producer_id=producer_id,
                        producer_epoch=epoch,
                        is_commit=self.random.random() < 0.7,
                        client_version=self.version,
                    )
                )
                self.asked[request_id] = producer
            case 7 | 8 if self.held:
                failed = self.random.random() < 0.15
                self.appended(self.held[0].token, self.random.choice(FAILURES) if failed else ErrorCode.NONE)
            case 9 if self.wanted:
                wanted = self.wanted[self.random.choice(sorted(self.wanted))]
                some = self.random.sample(sorted(wanted.partitions), self.random.randint(1, len(wanted.partitions)))
                self.written(wanted.transactional_id, frozenset(some))
            case 10:
                self.tick(self.now + self.random.choice((1, 1_000, 30_000, 70_000)))
            case 11 if self.random.random() < 0.3:
                self.reload(lose_held=self.random.random() < 0.5)
        self.hear()
        self.check()

    def hear(self) -> None:
        """Producers take in the answers, except those lost on the way."""
        for request_id, producer in list(self.asked.items()):
            if (result := self.answers.get(request_id)) is None:
                continue
            del self.asked[request_id]
            command = self.requests[request_id]
            if result.error_code is ErrorCode.NONE and isinstance(command, EndTransaction) and command.is_commit:
                self.acked_commits.append((command.transactional_id, command.producer_id, command.producer_epoch))
            if result.producer_id >= 0 and self.random.random() < 0.9:
                self.known[producer] = (command.transactional_id, result.producer_id, result.producer_epoch)

    def heal(self) -> None:
        self.hold = False
        for _ in range(20):
            while self.held:
                self.appended(self.held[0].token)
            for name, transaction in list(self.coordinator.transactions.items()):
                if transaction.state in PREPARED and transaction.unmarked:
                    self.written(name)
            self.tick(self.now + 20_000)
            self.check()


@pytest.mark.parametrize("seed", range(60))
def test_everything_ends_one_way_or_the_other(seed: int) -> None:
    history = History(seed)
    for _ in range(200):
        history.act()
    history.heal()
    for name, value in history.coordinator.durable().items():
        assert value.state in AT_REST, (name, value)
        epoch, is_new = value.producer_epoch, history.request(InitProducerId(transactional_id=name, timeout_ms=1000))
        assert history.answers[is_new].error_code is ErrorCode.NONE
        assert history.answers[is_new].producer_epoch == epoch + 1
    history.check()


def test_the_histories_get_everywhere() -> None:
    """Commits are answered, brokers die between the decision and its end, and the timeouts have something to do."""
    states: set[State] = set()
    commits = 0
    for seed in range(20):
        history = History(seed)
        for _ in range(200):
            history.act()
            states |= {value.state for value in history.stored().values()}
        commits += len(history.acked_commits)
    assert states == set(State) - {State.DEAD, State.PREPARE_EPOCH_FENCE}
    assert commits > 10


@pytest.mark.parametrize("seed", range(20))
def test_a_commit_that_was_answered_is_never_an_abort(seed: int) -> None:
    history = History(seed)
    for _ in range(200):
        acked = len(history.acked_commits)
        history.act()
        for name, producer_id, epoch in history.acked_commits[acked:]:
            stored = history.stored().get(name)
            ended_epochs = (epoch, epoch + 1)
            if stored is None or stored.producer_id != producer_id or stored.producer_epoch not in ended_epochs:
                continue
            assert stored.state not in (State.PREPARE_ABORT, State.COMPLETE_ABORT), (stored, epoch)
