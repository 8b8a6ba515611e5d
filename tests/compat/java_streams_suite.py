"""A Kafka Streams application with `group.protocol=streams` (KIP-1071) against our broker. Part of `make compat`.

    python tests/compat/java_streams_suite.py        exit status 1 if anything is not as it should be

Needs a JDK, Maven and a repository that has Kafka Streams. `Counting.java` counts words through a repartition topic
into a store with a changelog. Two instances share the tasks; one ends, and the other continues from the changelog.
"""

from __future__ import annotations

import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import confluent_kafka
from confluent_kafka.admin import AdminClient, NewTopic

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from compat.maven import JavaProject  # noqa: E402

from kraftpy.protocol.apis import ApiKey  # noqa: E402
from kraftpy.protocol.messages.streams_group_describe import (  # noqa: E402
    DescribedStreamsGroup,
    StreamsGroupDescribeRequest,
)
from kraftpy.testing.asking import ask  # noqa: E402
from kraftpy.testing.cluster import EmbeddedBroker  # noqa: E402

BOUND_SECONDS = 90.0
APPLICATION = "counting"
PARTITIONS = 3
QUICK = {
    "offsets.topic.num.partitions": "2",
    "group.streams.heartbeat.interval.ms": "1000",
    "group.streams.initial.rebalance.delay.ms": "500",
}


class Application:
    """`Counting`, compiled, and its instances."""

    def __init__(self, scratch: Path, bootstrap: str) -> None:
        project = JavaProject(scratch, HERE / "java" / "streams-pom.xml")
        project.compile([HERE / "java" / "Counting.java"])
        self._path = project.path()
        self._scratch = scratch
        self._bootstrap = bootstrap
        self.instances: list[subprocess.Popen[bytes]] = []

    def start(self) -> subprocess.Popen[bytes]:
        state = self._scratch / f"state-{len(self.instances)}"
        command = ["java", "-Xmx256m", "-cp", self._path, "Counting", self._bootstrap, APPLICATION, str(state)]
        log = (self._scratch / f"{state.name}.log").open("wb")
        with log:
            started = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT)
        self.instances.append(started)
        return started

    def end(self, instance: subprocess.Popen[bytes]) -> None:
        """Make it close its streams, which leaves the group."""
        assert instance.stdin is not None
        instance.stdin.close()
        if instance.wait(BOUND_SECONDS) != 0:
            raise SystemExit("an instance of the application failed")

    def kill(self) -> None:
        for instance in self.instances:
            instance.kill()
            instance.wait()


class Words:
    """The words sent to be counted, and the counts that have come out."""

    def __init__(self, bootstrap: str) -> None:
        self._producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap})
        self._consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": bootstrap, "group.id": "reader", "auto.offset.reset": "earliest"}
        )
        self._consumer.subscribe(["counts"])
        self.sent: Counter[str] = Counter()
        self.counted: dict[str, int] = {}

    def count(self, words: str) -> None:
        """Send them, and wait until all that was ever sent is counted."""
        for word in words.split():
            self.sent[word] += 1
            self._producer.produce("lines", word.encode())
        self._producer.flush(BOUND_SECONDS)
        deadline = time.monotonic() + BOUND_SECONDS
        while self.counted != self.sent:
            if time.monotonic() > deadline:
                raise SystemExit(f"counted {self.counted} of {dict(self.sent)}")
            message = self._consumer.poll(0.5)
            if message is not None and message.error() is None:
                key, value = message.key(), message.value()
                assert key is not None
                assert value is not None
                (self.counted[key.decode()],) = struct.unpack(">q", value)

    def close(self) -> None:
        self._consumer.close()


def described(bootstrap: str) -> DescribedStreamsGroup:
    host, _, port = bootstrap.partition(":")
    request = StreamsGroupDescribeRequest(group_ids=[APPLICATION])
    answer = ask((host, int(port)), ApiKey.STREAMS_GROUP_DESCRIBE, 0, request, timeout=BOUND_SECONDS)
    group: DescribedStreamsGroup = answer.groups[0]
    return group


def tasks(group: DescribedStreamsGroup) -> list[int]:
    """The number of active tasks of each member."""
    return sorted(sum(len(each.partitions) for each in member.assignment.active_tasks) for member in group.members)


def wait_stable(bootstrap: str, wanted: list[int]) -> DescribedStreamsGroup:
    deadline = time.monotonic() + BOUND_SECONDS
    while True:
        group = described(bootstrap)
        if group.group_state == "Stable" and tasks(group) == wanted:
            return group
        if time.monotonic() > deadline:
            raise SystemExit(f"the group is {group.group_state} with {tasks(group)} tasks, wanted are {wanted}")
        time.sleep(0.5)


def check(scratch: Path) -> None:
    with EmbeddedBroker(scratch / "broker", settings=QUICK) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        for future in admin.create_topics([NewTopic(name, PARTITIONS, 1) for name in ("lines", "counts")]).values():
            future.result(20)
        application = Application(scratch, broker.bootstrap)
        words = Words(broker.bootstrap)
        try:
            first = application.start()
            words.count("a b a c " * 20)
            group = wait_stable(broker.bootstrap, [2 * PARTITIONS])
            assert group.topology is not None
            internal = [
                topic.name
                for part in group.topology.subtopologies or []
                for topic in (*part.repartition_source_topics, *part.state_changelog_topics)
            ]
            print(f"one instance has all tasks; the coordinator made {', '.join(internal)}")
            application.start()
            wait_stable(broker.bootstrap, [PARTITIONS, PARTITIONS])
            words.count("a d " * 20)
            print("two instances share them")
            application.end(first)
            wait_stable(broker.bootstrap, [2 * PARTITIONS])
            words.count("a d e " * 20)
            print(f"the second goes on alone, and has counted {dict(words.sent)}")
            application.end(application.instances[1])
        finally:
            application.kill()
            words.close()


def main() -> int:
    with tempfile.TemporaryDirectory() as scratch:
        check(Path(scratch))
    return 0


if __name__ == "__main__":
    sys.exit(main())
