"""Members of a share group take and acknowledge records while nodes die: what may come of it, and what may not.

It has its own cluster, because nodes die.
"""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Iterator

import pytest
from broker_wire import ask, connect, encode_batch, produce
from share_wire import ACCEPT, REJECT, RELEASE, Member, acquired, begin

from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from kraftpy.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from kraftpy.testing import Cluster

pytestmark = [pytest.mark.timeout(400), pytest.mark.long]

LOAD_SECONDS = 40.0
DRAIN_SECONDS = 120.0
DELIVERIES = 10
TOPIC, GROUP = "t", "g"
SETTINGS = {
    "broker.session.timeout.ms": "2500",
    "broker.heartbeat.interval.ms": "300",
    "min.insync.replicas": "2",
    "group.share.record.lock.duration.ms": "3000",
    "group.share.delivery.count.limit": str(DELIVERIES),
    "share.coordinator.write.timeout.ms": "3000",
    "share.coordinator.snapshot.update.records.per.snapshot": "20",
    "share.coordinator.state.topic.prune.interval.ms": "2000",
}


class Story:
    """The answers that all members got, each with the event loop's time that matters for it."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.is_over = threading.Event()
        self.written: set[int] = set()
        self.done: dict[int, float] = {}
        """Offsets that were accepted or rejected, and when that was known."""
        self.maybe: set[int] = set()
        """Offsets in doubt: their acknowledgement was never answered."""
        self.delivered: list[tuple[int, float, int]] = []
        """Offset, when the fetch that brought it was sent, how often it was delivered."""
        self.lock = threading.Lock()
        self.faults: list[BaseException] = []

    def leader(self, chance: random.Random) -> str | None:
        """Ask some node for the address of the partition's leader."""
        node = chance.choice([each for each in self.cluster.nodes if self.cluster.is_running(each)])
        with connect(self.cluster.address(node), 5) as connection:
            request = MetadataRequest(topics=[MetadataRequestTopic(name=TOPIC)])
            found = int(ask(connection, ApiKey.METADATA, 12, request).topics[0].partitions[0].leader_id)
        return self.cluster.address(found) if found > 0 and self.cluster.is_running(found) else None

    def produce(self) -> None:
        """Records, until it is over; those that are known to be written count."""
        chance = random.Random("producer")
        while not self.is_over.is_set():
            try:
                address = self.leader(chance)
                if address is None:
                    continue
                with connect(address, 5) as connection:
                    while not self.is_over.is_set():
                        count = chance.choice((1, 3, 20))
                        batch = encode_batch([(1, None, b"%d" % number, ()) for number in range(count)])
                        answer = produce(connection, TOPIC, batch)
                        if answer.error_code != ErrorCode.NONE:
                            break
                        with self.lock:
                            self.written.update(range(answer.base_offset, answer.base_offset + count))
                        time.sleep(0.02)
            except (OSError, EOFError, IndexError, AssertionError, RuntimeError, KeyError):
                time.sleep(0.2)

    def consume(self, name: str, topic_id: bytes, is_drained: threading.Event) -> None:
        """One member after another, each until its connection or its leader is gone."""
        chance = random.Random(name)
        while not is_drained.is_set():
            try:
                address = self.leader(chance)
                if address is not None:
                    self._be(Member(address, GROUP, topic_id), chance, is_drained)
            except (OSError, EOFError, IndexError, RuntimeError, KeyError):
                time.sleep(0.2)
            except BaseException as error:
                self.faults.append(error)
                raise

    def _be(self, member: Member, chance: random.Random, is_drained: threading.Event) -> None:
        member.connection.settimeout(10)
        try:
            for number in itertools.count():
                if is_drained.is_set():
                    return
                sent_at = time.monotonic()
                response = member.fetch_all(wait_ms=500, max_records=chance.choice((1, 5, 50)))
                parts = [part for topic in response.responses for part in topic.partitions]
                if response.error_code or any(part.error_code for part in parts):
                    return
                taken = [each for part in parts for each in acquired(part)]
                with self.lock:
                    self.delivered += [(offset, sent_at, count) for offset, count in taken]
                self._acknowledge(member, taken, chance)
                if number and chance.random() < 0.02:
                    return  # gone without a word, with what it has
        finally:
            member.vanish()

    def _acknowledge(self, member: Member, taken: list[tuple[int, int]], chance: random.Random) -> None:
        for offset, count in taken:
            if chance.random() < 0.02:
                continue  # forgotten: its lock runs out
            kind = RELEASE if count < 5 and chance.random() < 0.1 else chance.choice((ACCEPT, ACCEPT, ACCEPT, REJECT))
            is_final = kind in (ACCEPT, REJECT)
            error_code = ErrorCode.NETWORK_EXCEPTION
            try:
                error_code = member.acknowledge([(offset, offset, [kind])])
            finally:
                with self.lock:
                    if is_final and error_code == ErrorCode.NONE:
                        self.done[offset] = min(time.monotonic(), self.done.get(offset, float("inf")))
                    elif is_final and error_code != ErrorCode.INVALID_RECORD_STATE:
                        self.maybe.add(offset)


@pytest.fixture(autouse=True)
def _members_are_gone_afterwards() -> Iterator[None]:
    yield
    while Member.there:
        Member.there.pop().vanish()


def test_nothing_is_lost_and_nothing_that_is_done_comes_again() -> None:
    chance = random.Random(20261123)
    with Cluster(settings=SETTINGS, keep_on_failure=True) as cluster:
        with connect(cluster.address(1)) as connection:
            topic = CreatableTopic(name=TOPIC, num_partitions=1, replication_factor=3)
            made = ask(connection, ApiKey.CREATE_TOPICS, 7, CreateTopicsRequest(topics=[topic], timeout_ms=10_000))
            topic_id = bytes(made.topics[0].topic_id)
            begin(connection, GROUP, topic_id, data=cluster.node_directory(1) / "data", is_alone=False)
        cluster.wait_in_sync()
        story, is_drained = Story(cluster), threading.Event()
        threads = [threading.Thread(target=story.produce)]
        threads += [threading.Thread(target=story.consume, args=(name, topic_id, is_drained)) for name in "abc"]
        for thread in threads:
            thread.start()
        try:
            until = time.monotonic() + LOAD_SECONDS
            while time.monotonic() < until:
                node = chance.choice(cluster.nodes)
                is_pause = chance.random() < 0.3
                (cluster.pause if is_pause else cluster.kill)(node)
                time.sleep(chance.choice((0.5, 4.0)))
                (cluster.resume if is_pause else cluster.start)(node)
                cluster.wait_in_sync()
            story.is_over.set()
            until = time.monotonic() + DRAIN_SECONDS
            while story.written - story.done.keys() - story.maybe and time.monotonic() < until and not story.faults:
                time.sleep(0.2)
        finally:
            story.is_over.set()
            is_drained.set()
            for thread in threads:
                thread.join(60)
        assert not story.faults, story.faults
        again = [
            (offset, count) for offset, sent_at, count in story.delivered if sent_at > story.done.get(offset, sent_at)
        ]
        assert not again, "done, and delivered again"
        often = {offset for offset, _, count in story.delivered if count >= DELIVERIES}
        missing = story.written - story.done.keys() - story.maybe - often
        assert not missing, "never delivered, or lost on the way"
        assert len(story.maybe - story.done.keys()) < len(story.done) / 5, "hardly anything was told"
        assert len(story.written) > 100
        assert len(story.done) > 100
