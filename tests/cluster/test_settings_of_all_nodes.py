"""Settings for all brokers are in force on every node, controllers too, while connections stay open.

The test has its own cluster, since it changes the settings of all nodes.
"""

from __future__ import annotations

from typing import Any

import pytest
from broker_wire import ask, connect, produce
from waiting import eventually

from kraftpy.client import BlockingAdmin, NewTopic, ResourceType
from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages.describe_cluster import DescribeClusterRequest
from kraftpy.protocol.record_batch import encode_batch
from kraftpy.testing import Cluster

pytestmark = [pytest.mark.timeout(180)]

CONTROLLERS = 2
ALL = (ResourceType.BROKER, "")
LISTENER = "listener.name.controller.max.connections"


def test_every_node_follows_a_setting_of_all() -> None:
    with (
        Cluster(brokers=2, controllers=1, can_partition=False, keep_on_failure=True) as cluster,
        BlockingAdmin(bootstrap_servers=cluster.bootstrap_servers) as admin,
    ):
        admin.create_topics([NewTopic(name=f"of-{node}", replica_assignment={0: [node]}) for node in (1, 2)])
        opened = {node: connect(cluster.address(node)) for node in (1, 2)}
        controller = connect(cluster.bootstrap_controllers)
        batch = encode_batch([(0, b"key", b"v" * 2_000, ())])

        def answers() -> list[int]:
            return [produce(opened[node], f"of-{node}", batch).error_code for node in (1, 2)]

        def is_served(connection: Any) -> bool:
            request = DescribeClusterRequest(endpoint_type=CONTROLLERS)
            return bool(ask(connection, ApiKey.DESCRIBE_CLUSTER, 1, request).error_code == ErrorCode.NONE)

        def may_connect() -> bool:
            try:
                with connect(cluster.bootstrap_controllers) as other:
                    return is_served(other)
            except (OSError, EOFError):
                return False

        eventually(lambda: answers() == [ErrorCode.NONE] * 2, "both topics are led")
        assert is_served(controller)
        assert may_connect()
        admin.alter_configs({ALL: {"message.max.bytes": "1000", LISTENER: "1"}})
        eventually(lambda: answers() == [ErrorCode.MESSAGE_TOO_LARGE] * 2, "both brokers follow")
        eventually(lambda: not may_connect(), "the controller follows")
        assert is_served(controller)
        admin.alter_configs({ALL: {"message.max.bytes": None, LISTENER: None}})
        eventually(lambda: answers() == [ErrorCode.NONE] * 2, "both brokers follow")
        eventually(may_connect, "the controller follows")
        assert is_served(controller)
        for connection in (*opened.values(), controller):
            connection.close()
