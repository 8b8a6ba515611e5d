"""Messages new in Apache Kafka 4.4, which other implementations do not have yet: the bytes are those of Kafka itself.

`kafka_4_4_messages.txt` was printed by compat/java_messages/PrintMessages.java, which has the same messages in the same
order.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from wire_samples import OF_KAFKA_4_4

from kraftpy.protocol.messages import api_versions, delete_groups, unregister_controller
from kraftpy.protocol.messages import streams_group_describe as describe
from kraftpy.protocol.messages import streams_group_heartbeat as heartbeat
from kraftpy.protocol.messages import streams_group_topology_description_update as update
from kraftpy.protocol.schema import decode, encode

PRINTED = (Path(__file__).parent / "kafka_4_4_messages.txt").read_text().splitlines()
SAMPLES: list[Any] = [
    api_versions.ApiVersionsRequest(
        client_software_name="a", client_software_version="1", cluster_id="cluster", node_id=3
    ),
    api_versions.ApiVersionsRequest(client_software_name="a", client_software_version="1"),
    delete_groups.DeleteGroupsResponse(
        results=[
            delete_groups.DeletableGroupResult(group_id="g", error_code=134, error_message="why"),
            delete_groups.DeletableGroupResult(group_id="h"),
        ]
    ),
    heartbeat.StreamsGroupHeartbeatRequest(group_id="g", member_id="m", member_epoch=1),
    heartbeat.StreamsGroupHeartbeatResponse(
        member_id="m",
        member_epoch=2,
        heartbeat_interval_ms=3,
        acceptable_recovery_lag=1 << 40,
        task_offset_interval_ms=5,
        topology_description_required=True,
        endpoint_information_epoch=7,
    ),
    describe.StreamsGroupDescribeRequest(group_ids=["g"], include_topology_description=True),
    describe.StreamsGroupDescribeResponse(
        groups=[
            describe.DescribedStreamsGroup(
                group_id="g", group_state="Empty", topology_description_status=1, assignor_name="sticky"
            ),
            describe.DescribedStreamsGroup(
                group_id="h", error_code=69, topology_description=update.TopologyDescription()
            ),
        ]
    ),
    update.StreamsGroupTopologyDescriptionUpdateRequest(
        group_id="g",
        member_id="m",
        topology_epoch=4,
        topology_description=update.TopologyDescription(
            subtopologies=[
                update.TopologyDescriptionSubtopology(
                    subtopology_id="0",
                    nodes=[
                        update.TopologyDescriptionNode(
                            name="source", node_type=1, source_topics=["in"], successors=["sink"]
                        ),
                        update.TopologyDescriptionNode(name="sink", node_type=3, sink_topic="out"),
                    ],
                )
            ],
            global_stores=[
                update.TopologyDescriptionGlobalStore(
                    source=update.TopologyDescriptionNode(name="global", node_type=1),
                    processor=update.TopologyDescriptionNode(name="store", node_type=2, stores=["s"]),
                )
            ],
        ),
    ),
    update.StreamsGroupTopologyDescriptionUpdateResponse(error_code=35, error_message="none"),
    unregister_controller.UnregisterControllerRequest(controller_id=9),
    unregister_controller.UnregisterControllerResponse(error_code=136, error_message=None),
]


@pytest.mark.parametrize(("message", "line"), [*zip(SAMPLES, PRINTED, strict=True)], ids=lambda each: "")
def test_the_bytes_are_those_of_kafka(message: Any, line: str) -> None:
    name, version, data = line.split()
    assert name == type(message).__name__
    assert encode(message, int(version)).hex() == data
    assert decode(type(message), bytes.fromhex(data), int(version)) == message


def test_there_is_one_of_every_new_version() -> None:
    printed = {
        (line.split()[0].removesuffix("Request").removesuffix("Response"), int(line.split()[1])) for line in PRINTED
    }
    assert printed == OF_KAFKA_4_4
