"""The cleaner's process: it dies with its broker, a job is abandoned by killing it, and a failure costs one log."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from pathlib import Path

import pytest
from broker.compacted_topics import (
    CODECS,
    READERS,
    TABLE,
    check_read,
    create,
    is_worker,
    log_bytes,
    produce,
    worker_of,
    workers_of,
)
from compat.clients import AIOKAFKA, CONFLUENT, KAFKA_PYTHON, Message
from confluent_kafka.admin import AdminClient

from kraftpy.broker.storage.cleaning_process import CleaningProcess
from kraftpy.broker.storage.cleaning_worker import Throttle
from kraftpy.testing.cluster import EmbeddedBroker
from tests.waiting import eventually

ROUNDS = int(os.environ.get("KRAFTPY_CLEANER_ROUNDS", "2"))
SETTINGS = {
    "log.cleaner.backoff.ms": "20",
    "log.cleaner.min.cleanable.ratio": "0.01",
    "log.cleaner.io.buffer.size": "65536",
}
SLOW = {**SETTINGS, "log.cleaner.io.max.bytes.per.second": "100000"}


def table(dice: random.Random, count: int, first: int = 0, keys: int = 40) -> list[Message]:
    return [
        Message(b"%d" % number + dice.randbytes(100), b"key %d" % dice.randrange(keys))
        for number in range(first, first + count)
    ]


@pytest.mark.parametrize("seed", range(ROUNDS))
def test_a_broker_killed_in_the_middle_of_cleaning_loses_nothing(tmp_path: Path, seed: int) -> None:
    """Rule 42, for real: SIGKILL at any point; then both clients read the last value of each key."""
    dice = random.Random(seed)
    sent: dict[int, Message] = {}
    settings = {**SETTINGS, "log.cleaner.io.max.bytes.per.second": str(dice.choice([300_000, 3_000_000]))}
    with EmbeddedBroker(tmp_path, settings=settings) as broker:
        create(broker)
        for _ in range(4):
            sent |= produce(broker.bootstrap, table(dice, 700, len(sent)), codec=dice.choice(CODECS))
            pid = broker.pid
            eventually(lambda pid=pid: worker_of(pid) is not None, "it cleans")
            time.sleep(dice.random() * 0.3)  # at any point of its work
            worker = worker_of(pid)
            broker.kill()
            if worker is not None:
                eventually(lambda worker=worker: not is_worker(worker), "the cleaner dies with its broker")
            broker.start()
            check_read(READERS[dice.randrange(2)](broker.bootstrap, len(sent) - 1), sent)
        before = sum(len(message.value or b"") for message in sent.values())
        eventually(lambda: log_bytes(broker) < before / 3, "in the end it is cleaned")
        for read in READERS:
            check_read(read(broker.bootstrap, len(sent) - 1), sent)
        assert "Traceback" not in broker.log_text, broker.log_text
        directory = tmp_path / "logs" / "table-0"
        eventually(lambda: not list(directory.glob("*.swap")), "no interrupted replacement is left behind")


def test_readers_see_the_last_value_of_each_key_while_it_is_cleaned(tmp_path: Path) -> None:
    """Batches of three libraries in every codec, read by two from the beginning, again and again."""
    dice = random.Random(7)
    with EmbeddedBroker(tmp_path, settings={**SETTINGS, "log.cleaner.io.max.bytes.per.second": "400000"}) as broker:
        create(broker)
        messages = table(dice, 3000)
        for number, start in enumerate(range(0, 3000, 100)):
            client = (CONFLUENT, KAFKA_PYTHON, AIOKAFKA)[number % 3]
            client.produce(broker.bootstrap, TABLE, messages[start : start + 100], codec=CODECS[number % 5])
        sent = dict(enumerate(messages))
        reads = 0
        while log_bytes(broker) > 60_000 or not reads:
            check_read(READERS[reads % 2](broker.bootstrap, 2999), sent)
            reads += 1
        for read in READERS:
            found = read(broker.bootstrap, 2999)
            check_read(found, sent)
            assert len(found) < 1500, "old ones are gone"
        assert "Traceback" not in broker.log_text, broker.log_text


def test_a_topic_is_deleted_while_it_is_cleaned(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path, settings=SLOW) as broker:
        create(broker)
        produce(broker.bootstrap, table(random.Random(1), 3000))
        directory = tmp_path / "logs" / "table-0"
        eventually(lambda: bool(list(directory.glob("*.cleaned"))), "it is being cleaned")
        worker = worker_of(broker.pid)
        assert worker is not None
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.delete_topics([TABLE])[TABLE].result(20)
        eventually(lambda: not directory.exists(), "the topic is gone")
        eventually(lambda: not is_worker(worker), "what cleaned it was ended")
        create(broker, "another")
        sent = produce(broker.bootstrap, table(random.Random(2), 300), topic="another")
        check_read(READERS[0](broker.bootstrap, 299, "another"), sent)
        assert "Traceback" not in broker.log_text, broker.log_text


def test_a_cleaner_that_is_killed_is_started_again(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path, settings={**SLOW, "log.cleaner.io.max.bytes.per.second": "500000"}) as broker:
        create(broker)
        sent = produce(broker.bootstrap, table(random.Random(1), 2000))
        for _ in range(3):
            eventually(lambda: worker_of(broker.pid) is not None, "it cleans")
            worker = worker_of(broker.pid)
            if worker is not None:
                os.kill(worker, signal.SIGKILL)
        eventually(lambda: log_bytes(broker) < 60_000, "in the end it is cleaned")
        check_read(READERS[0](broker.bootstrap, 1999), sent)
        assert "Traceback" not in broker.log_text, broker.log_text


def test_a_broker_that_stops_while_it_cleans_complains_of_nothing(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path, settings=SLOW) as broker:
        create(broker)
        produce(broker.bootstrap, table(random.Random(3), 3000))
        pid = broker.pid
        eventually(lambda: worker_of(pid) is not None, "it cleans")
        assert broker.stop() == 0
        assert "never retrieved" not in broker.log_text
        assert "Traceback" not in broker.log_text


def test_a_damaged_log_is_named_once_and_others_are_cleaned(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path, settings={**SETTINGS, "log.cleaner.enable": "false"}) as broker:
        create(broker)
        create(broker, "sound")
        for topic in (TABLE, "sound"):
            produce(broker.bootstrap, table(random.Random(1), 2000), topic=topic)
    segment = min((tmp_path / "logs" / "table-0").glob("*.log"))
    with segment.open("r+b") as file:
        file.seek(segment.stat().st_size // 2)
        byte = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([byte[0] ^ 1]))
    damaged_bytes = sum(file.stat().st_size for file in (tmp_path / "logs" / "table-0").glob("*.log"))
    with EmbeddedBroker(tmp_path, settings=SETTINGS) as broker:
        eventually(lambda: log_bytes(broker, "sound") < 60_000, "the other is cleaned")
        eventually(lambda: "table-0 cannot be compacted" in broker.log_text, "the damage is named")
        produce(broker.bootstrap, table(random.Random(2), 500), topic="sound")
        eventually(lambda: log_bytes(broker, "sound") < 60_000, "and cleaned again")
        assert broker.log_text.count("cannot be compacted") == 1, broker.log_text
        assert log_bytes(broker) == damaged_bytes, "the damaged one was not touched"


def test_a_topic_that_is_not_compacted_starts_no_process(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path, settings=SETTINGS) as broker:
        create(broker, "plain", **{"cleanup.policy": "delete"})
        produce(broker.bootstrap, table(random.Random(1), 500), topic="plain")
        create(broker)
        assert worker_of(broker.pid) is None
        produce(broker.bootstrap, table(random.Random(1), 500))
        eventually(lambda: worker_of(broker.pid) is not None, "the compacted one needs it")


def test_as_many_logs_at_once_as_there_are_threads(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path, settings={**SLOW, "log.cleaner.threads": "2"}) as broker:
        for topic in ("first", "second", "third"):
            create(broker, topic)
            produce(broker.bootstrap, table(random.Random(1), 1500), topic=topic)
        eventually(lambda: len(workers_of(broker.pid)) == 2, "two are cleaned at once")


async def test_ending_one_that_was_never_started_does_nothing() -> None:
    process = CleaningProcess(1.0)
    assert not process.is_running
    await asyncio.wait_for(process.end(), 10)


def test_the_throttle_gives_every_byte_its_time() -> None:
    now, slept = 100.0, []

    def sleep(seconds: float) -> None:
        nonlocal now
        slept.append(seconds)
        now += seconds

    throttle = Throttle(1000.0, lambda: now, sleep)
    for _ in range(5):
        throttle.spend(500)
    assert now == pytest.approx(102.5)
    now += 60  # allowance that was not used is not saved up
    throttle.spend(500)
    assert slept[-1] == pytest.approx(0.5)
