"""One Spark session for all tests here, and topics filled by a client that is not ours."""

from __future__ import annotations

import os
import uuid
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from session_of_tests import spark_session

from kraftpy.spark.java import find_java
from kraftpy.testing.cluster import EmbeddedBroker

Filler = Callable[..., str]


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    scratch = tmp_path_factory.mktemp("spark")
    java = find_java(os.environ, scratch)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # py4j leaves its sockets to the garbage collector
        with spark_session(java, scratch) as session:
            yield session


@pytest.fixture
def topic_of(kraftpy_server: EmbeddedBroker) -> Filler:
    """Create a topic and fill it by confluent-kafka: `topic_of(records, partitions=1, **producer settings)`.

    A record is a dict of arguments of `Producer.produce`; records without a partition go to partition 0.
    """
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    def fill(
        records: Sequence[dict[str, Any]],
        *,
        partitions: int = 1,
        config: dict[str, str] | None = None,
        name: str = "",
        **settings: str,
    ) -> str:
        topic = name or f"spark-{uuid.uuid4().hex[:10]}"
        servers = {"bootstrap.servers": kraftpy_server.bootstrap}
        kept = {"retention.ms": "-1", **(config or {})}  # many records here are of 1970
        new = NewTopic(topic, num_partitions=partitions, replication_factor=1, config=kept)
        admin = AdminClient(servers)  # it must outlive its futures
        admin.create_topics([new])[topic].result(30)
        producer = Producer({**servers, **{key.replace("_", "."): value for key, value in settings.items()}})
        errors: list[Any] = []
        for record in records:
            producer.produce(topic, **{"partition": 0, **record}, on_delivery=lambda error, _: errors.append(error))
        assert producer.flush(30) == 0
        assert errors == [None] * len(records)
        return topic

    return fill
