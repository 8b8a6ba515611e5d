"""Clients that hold all of `max.connections` keep no follower out, also on a listener that both share.

It has its own cluster, because clients take all of its connections.
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading

import pytest
from broker_wire import ask, connect
from cutting import ask_node, create, until
from test_posing_as_a_broker import between_brokers

from kraftpy.broker.broker_proof import SOFTWARE
from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages.api_versions import ApiVersionsRequest
from kraftpy.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from kraftpy.testing import Cluster

pytestmark = [pytest.mark.timeout(180)]

MOST = 10


def in_sync(cluster: Cluster, node: int) -> set[int]:
    request = MetadataRequest(topics=[MetadataRequestTopic(name="t")])
    (topic,) = ask_node(cluster, node, ApiKey.METADATA, 9, request).topics
    return set(topic.partitions[0].isr_nodes)


class Crowd:
    """Connections that say nothing: all that a node takes, and one more as soon as it takes one."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._address = host, int(port)
        self._open: list[socket.socket] = []
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._press)

    def __enter__(self) -> Crowd:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()
        for each in self._open:
            each.close()

    def holds(self) -> int:
        return len(self._open)

    def _press(self) -> None:
        while not self._is_over.wait(0.02):
            closed = set(select.select(self._open, [], [], 0)[0]) if self._open else set()
            for each in closed:
                each.close()
            self._open = [each for each in self._open if each not in closed]
            while len(self._open) < MOST + 40:
                try:
                    self._open.append(socket.create_connection(self._address, 5))
                except OSError:
                    break


def test_followers_get_in_while_clients_hold_all_connections() -> None:
    settings = {
        "max.connections": str(MOST),
        "broker.session.timeout.ms": "1500",
        "broker.heartbeat.interval.ms": "300",
    }
    with Cluster(settings=settings) as cluster:
        create(cluster, "t", [1, 2, 3])
        cluster.wait_in_sync()
        cluster.kill(3)
        until(lambda: in_sync(cluster, 2) == {1, 2}, "the dead broker is in sync")
        with Crowd(between_brokers(cluster, 1)) as crowd:
            until(lambda: crowd.holds() >= MOST, "the crowd holds what it may")
            cluster.start(3, wait=False)
            until(lambda: in_sync(cluster, 2) == {1, 2, 3}, "the follower is kept out")
            until(lambda: "max.connections" in cluster.logs(1), "nobody was refused")
            posing = ApiVersionsRequest(client_software_name=SOFTWARE, client_software_version="3.1." + "0" * 64)
            plain = ApiVersionsRequest(client_software_name="x", client_software_version="1")
            for hello in (posing, plain):
                with contextlib.suppress(OSError, EOFError), connect(between_brokers(cluster, 1)) as connection:
                    ask(connection, ApiKey.API_VERSIONS, 3, hello)
                    raise AssertionError("a client was let in beyond max.connections")
        until(
            lambda: ask_node(cluster, 1, ApiKey.API_VERSIONS, 3, plain).error_code == ErrorCode.NONE, "nobody comes in"
        )
