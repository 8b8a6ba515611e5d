"""Idempotent producers over restarts of the broker: every record once, in order, no matter what was in flight."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import confluent_kafka
import kafka
import pytest
from compat.clients import CONFLUENT
from confluent_kafka.admin import AdminClient, NewTopic

from kraftpy.testing.cluster import EmbeddedBroker

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning"),
]

TOPIC = "in-flight"
PARTITIONS = 2
RESTARTS = 2
BOUND_SECONDS = 60.0


class LibrdkafkaProducer:
    """Batches in flight on several partitions, retried by librdkafka for as long as it takes."""

    def __init__(self, bootstrap: str) -> None:
        self.acknowledged = 0
        self.errors: list[object] = []
        self.producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 1,
                "batch.num.messages": 20,
                "reconnect.backoff.max.ms": 200,
                "retry.backoff.max.ms": 200,
            }
        )

    def send(self, partition: int, value: bytes) -> None:
        self.producer.produce(TOPIC, value, partition=partition, on_delivery=self._delivered)
        self.producer.poll(0)

    def _delivered(self, error: object, message: object) -> None:
        if error is None:
            self.acknowledged += 1
        else:
            self.errors.append(error)

    def close(self) -> None:
        assert self.producer.flush(BOUND_SECONDS) == 0


class KafkaPythonProducer:
    """The same through kafka-python."""

    def __init__(self, bootstrap: str) -> None:
        self.acknowledged = 0
        self.errors: list[object] = []
        self.producer = kafka.KafkaProducer(
            bootstrap_servers=bootstrap,
            enable_idempotence=True,
            linger_ms=1,
            batch_size=400,
            reconnect_backoff_max_ms=200,
        )

    def send(self, partition: int, value: bytes) -> None:
        future = self.producer.send(TOPIC, value, partition=partition)
        future.add_callback(self._acknowledge)
        future.add_errback(self.errors.append)

    def _acknowledge(self, _: Any) -> None:
        self.acknowledged += 1

    def close(self) -> None:
        self.producer.flush(timeout=BOUND_SECONDS)
        self.producer.close(timeout=BOUND_SECONDS)


@pytest.mark.parametrize("end", [EmbeddedBroker.stop, EmbeddedBroker.kill], ids=["stopped", "killed"])
@pytest.mark.parametrize("producer_of", [LibrdkafkaProducer, KafkaPythonProducer])
def test_every_record_once_and_in_order(
    tmp_path: Path, producer_of: Callable[[str], Any], end: Callable[[EmbeddedBroker], int]
) -> None:
    with EmbeddedBroker(tmp_path, settings={"offsets.topic.num.partitions": "1"}) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(20)
        producer = producer_of(broker.bootstrap)
        stop = threading.Event()
        sent = [0] * PARTITIONS

        def send() -> None:
            while not stop.is_set():
                for partition in range(PARTITIONS):
                    for _ in range(10):
                        producer.send(partition, b"%d" % sent[partition])
                        sent[partition] += 1
                stop.wait(0.004)

        sending = threading.Thread(target=send)
        sending.start()
        try:
            for _ in range(RESTARTS):
                enough = producer.acknowledged + 500
                deadline = time.monotonic() + BOUND_SECONDS
                while producer.acknowledged < enough:
                    assert time.monotonic() < deadline, "the producer goes on after the restart"
                    assert not producer.errors, producer.errors[:3]
                    time.sleep(0.005)
                end(broker)
                broker.start()
        finally:
            stop.set()
            sending.join(BOUND_SECONDS)
        assert not sending.is_alive(), "the producer takes no more records"
        producer.close()
        assert not producer.errors, producer.errors[:3]
        assert producer.acknowledged == sum(sent)
        found = CONFLUENT.consume(broker.bootstrap, TOPIC, sum(sent))
        for partition in range(PARTITIONS):
            mine = [message for message in found if message.partition == partition]
            assert [message.offset for message in mine] == list(range(sent[partition])), "nothing twice"
            assert [message.value for message in mine] == [b"%d" % i for i in range(sent[partition])]
        assert "Traceback" not in broker.log_text, broker.log_text
