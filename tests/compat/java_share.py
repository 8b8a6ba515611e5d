"""Share groups (KIP-932) in the hands of Apache Kafka's own client: KafkaShareConsumer, Admin. Part of `make compat`.

    python tests/compat/java_share.py       exit status 1 if anything is not as it should be

Needs a JDK, Maven and a repository that has Apache Kafka. Two consumers share a topic of two partitions, accept,
release and reject its records, and each is done with exactly once, those that are rejected in the group's dead letter
queue (KIP-1191); then the group is described, moved, read again from where it was moved to, forgotten and deleted
(`java_client/ShareReader.java`).
"""

from __future__ import annotations

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

from kraftpy.testing.cluster import EmbeddedBroker  # noqa: E402

GROUP, TOPIC, QUEUE = "readers", "shared", "dlq.readers"
RECORDS = 500
QUIET_SECONDS = 20
"""The time a consumer that gets nothing waits for more, a start of Java included."""
BOUND_SECONDS = 300.0
"""When a reader has to be done."""
LOOK_SECONDS = 30
QUICK = {"group.share.heartbeat.interval.ms": "300", "group.share.session.timeout.ms": "6000"}
QUICK["errors.deadletterqueue.auto.create.topics.enable"] = "true"
SETTINGS = (
    "share.auto.offset.reset=earliest",
    f"errors.deadletterqueue.topic.name={QUEUE}",
    "errors.deadletterqueue.copy.record.enable=true",
)
ALTER = ("group", "alter", GROUP, *(word for setting in SETTINGS for word in ("--config", setting)))


class Client:
    """`ShareReader`, compiled, in a directory."""

    def __init__(self, scratch: Path, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        project = JavaProject(scratch, HERE / "java_client" / "pom.xml")
        project.compile([HERE / "java_client" / "ShareReader.java"])
        self._path = project.path()

    def start(self, command: str, *arguments: object) -> subprocess.Popen[str]:
        words = ["java", "-cp", self._path, "ShareReader", command, self._bootstrap, GROUP, *map(str, arguments)]
        return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def lines(self, running: subprocess.Popen[str]) -> list[list[str]]:
        """Wait for the process to end, and return its output, split into words."""
        printed, complaints = running.communicate(timeout=BOUND_SECONDS)
        if running.returncode:
            raise SystemExit(f"{' '.join(map(str, running.args[3:]))}: {printed}{complaints}")  # type: ignore[index]
        return [line.split() for line in printed.splitlines()]

    def run(self, command: str, *arguments: object) -> list[list[str]]:
        return self.lines(self.start(command, *arguments))


def send(bootstrap: str, first: int, end: int) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap})
    for number in range(first, end):
        producer.produce(TOPIC, b"%d" % number, partition=number % 2)
    producer.flush(30)


def check_shared(client: Client, found: list[str]) -> None:
    """Two consumers, until nothing comes any more."""
    running = [client.start("read", TOPIC, QUIET_SECONDS) for _ in range(2)]
    deliveries = [line for each in running for line in client.lines(each)]
    done = Counter(int(number) for number, _, outcome in deliveries if outcome != "release")
    if done != Counter(range(RECORDS)):
        odd = sorted(set(done) ^ set(range(RECORDS))) or [number for number, times in done.items() if times > 1]
        found.append(f"{len(done)} of {RECORDS} records are done with once; not so {odd[:10]}")
    for number, delivery, outcome in deliveries:
        expected = {"7": {("1", "release"), ("2", "accept")}, "9": {("1", "reject")}}.get(number[-1], {("1", "accept")})
        if (delivery, outcome) not in expected:
            found.append(f"record {number}: delivery {delivery} ends with {outcome}")
    print(f"KafkaShareConsumer: {len(deliveries)} deliveries of {len(done)} records to two consumers")


def check_dead_letters(bootstrap: str, found: list[str]) -> None:
    """The rejected records, and no others, with their values and origins."""
    rejected = [number for number in range(RECORDS) if number % 10 == 9]
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "undertaker", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([QUEUE])
    letters: dict[int, dict[str, str]] = {}
    deadline = time.monotonic() + LOOK_SECONDS
    while len(letters) < len(rejected) and time.monotonic() < deadline:
        for message in consumer.consume(100, timeout=1):
            if message.error() is None:
                headers = {name: value.decode() for name, value in message.headers()}
                if letters.setdefault(int(message.value()), headers) is not headers:
                    found.append(f"record {message.value()!r} is in the dead letter queue twice")
    consumer.close()
    if sorted(letters) != rejected:
        found.append(f"the dead letter queue has {sorted(letters)[:20]}")
    for number, headers in letters.items():
        expected = {
            "__dlq.errors.topic": TOPIC,
            "__dlq.errors.partition": str(number % 2),
            "__dlq.errors.offset": str(number // 2),
            "__dlq.errors.group": GROUP,
            "__dlq.errors.delivery.count": "1",
            "__dlq.errors.message": "Offset rejected by client.",
        }
        if headers != expected:
            found.append(f"dead letter {number} has {headers}")
    print(f"dead letter queue: {len(letters)} records")


def check_described(client: Client, expected: list[list[str]], found: list[str]) -> None:
    described = sorted(client.run("describe"))
    if described != sorted(expected):
        found.append(f"described as {described}, not {expected}")
    print(f"Admin: {'; '.join(' '.join(line) for line in described)}")


def main() -> int:
    found: list[str] = []
    group = [["listed", "Share", "Empty"], ["described", "Empty", "0"]]
    with tempfile.TemporaryDirectory(prefix="kraftpy-java-") as scratch, EmbeddedBroker(settings=QUICK) as broker:
        client = Client(Path(scratch), broker.bootstrap)
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_topics([NewTopic(TOPIC, 2, 1)])[TOPIC].result(20)
        alter = [sys.executable, "-m", "kraftpy", *ALTER, "--bootstrap-server", broker.bootstrap]
        subprocess.run(alter, check=True, stdout=subprocess.DEVNULL)
        send(broker.bootstrap, 0, RECORDS)
        check_shared(client, found)
        check_dead_letters(broker.bootstrap, found)
        half = str(RECORDS // 2)
        check_described(client, [*group, [f"{TOPIC}-0", half, "0"], [f"{TOPIC}-1", half, "0"]], found)

        client.run("move", TOPIC, RECORDS // 2 - 10)
        again = sorted(int(line[0]) for line in client.run("read", TOPIC, QUIET_SECONDS) if line[2] != "release")
        if again != list(range(RECORDS - 20, RECORDS, 2)):
            found.append(f"moved back by ten, it reads {again}")
        client.run("forget", TOPIC)
        check_described(client, group, found)
        client.run("delete")
        print(f"Admin: moved, read {len(again)} again, forgotten, deleted")
    for line in found[:20]:
        print(line, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
