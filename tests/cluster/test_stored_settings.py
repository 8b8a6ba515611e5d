"""A stored setting that cannot be used ends none of three nodes, not even the leader of the partition.

It has its own cluster, because a stored setting that cannot be used is put into the metadata for good.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from broker_wire import connect
from share_wire import acquired, begin
from test_share_groups_of_nodes import (
    SETTINGS,
    alive,
    create,
    join,
    leader,
    produce,
)
from test_share_groups_of_nodes import _members_are_gone_afterwards as _members_are_gone_afterwards

from kraftpy.broker.runtime import OsDirectory
from kraftpy.broker.storage.directories import METADATA_DIRECTORY
from kraftpy.metadata import quorum_messages
from kraftpy.metadata.commands import ConfigChange, ConfigOperation, ConfigResourceType, SetConfigs
from kraftpy.metadata.journal import Journal
from kraftpy.metadata.submissions import SubmissionId, encode_submission
from kraftpy.testing import Cluster
from kraftpy.types import Millis

pytestmark = [pytest.mark.timeout(240)]

LONG = "by_duration:P" + "9" * 400 + "D"


def plant(cluster: Cluster, group: str, name: str, value: str) -> None:
    """Write a group's setting that a current version would refuse into all nodes, which are stopped."""
    places = [cluster.node_directory(node) / "data" for node in cluster.nodes]
    ends: list[tuple[int, int, Path]] = []
    for place in places:
        journal = Journal(OsDirectory(place).child(METADATA_DIRECTORY))
        journal.load()
        ends.append((journal.last_term, journal.last_index, place))
        journal.close()
    longest = max(ends)[2]
    journal = Journal(OsDirectory(longest).child(METADATA_DIRECTORY))
    journal.load()
    operation = ConfigOperation(name=name, value=value)
    change = ConfigChange(resource_type=ConfigResourceType.GROUP, resource_name=group, operations=(operation,))
    submission = SubmissionId(node_id=1, nonce=os.urandom(16), sequence=0)
    command = encode_submission(submission, SetConfigs(changes=(change,), time_ms=Millis(0)))
    journal.append(journal.last_term, quorum_messages.COMMAND + command)
    journal.sync()
    journal.close()
    for place in places:
        if place != longest:
            shutil.rmtree(place / METADATA_DIRECTORY)
            shutil.copytree(longest / METADATA_DIRECTORY, place / METADATA_DIRECTORY)


def test_a_duration_that_was_stored_is_survived_by_every_leader() -> None:
    """Row 1 of the attacks: the value made each leader end itself, one after the other, and the topic had none left."""
    with Cluster(settings=SETTINGS, keep_on_failure=True) as cluster:
        topic_id = create(cluster, "t")
        cluster.wait_in_sync()
        for node in cluster.nodes:
            cluster.kill(node)
        plant(cluster, "g", "share.auto.offset.reset", LONG)
        for node in cluster.nodes:
            cluster.start(node, wait=False)
        cluster.wait_ready()
        cluster.wait_in_sync()
        with connect(alive(cluster)) as connection:
            begin(connection, "g", topic_id, data=cluster.node_directory(1) / "data", start=-1, is_alone=False)
        cluster.wait_in_sync()
        member = join(cluster, "t", "g", topic_id)
        assert acquired(member.fetch(wait_ms=200)) == [], "from the latest on, as by default"
        first = leader(cluster, "t")
        assert any("share.auto.offset.reset" in line for line in cluster.logs(first).splitlines()), "it was read"
        produce(cluster, "t", 5)
        cluster.kill(first)
        member = join(cluster, "t", "g", topic_id)
        second = leader(cluster, "t")
        assert second != first
        assert sorted(offset for offset, _ in member.take(5)) == list(range(5))
        cluster.start(first)
        cluster.wait_in_sync()
        assert all(cluster.is_running(node) for node in cluster.nodes)
        assert any("share.auto.offset.reset" in line for line in cluster.logs(second).splitlines()), "it was read again"
