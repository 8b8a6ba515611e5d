"""A node's report to the cluster after an unclean stop: which disks it has, and what had been synced on them."""

from __future__ import annotations

from pathlib import Path

import pytest

from kraftpy.broker.runtime import OsDirectory, SystemClock
from kraftpy.broker.storage.directories import DirectoryError, LogDirectories
from kraftpy.config import BrokerConfig
from kraftpy.log import layout
from kraftpy.metadata.commands import SyncedReplicas
from kraftpy.types import TopicId

ONE, TWO = TopicId(b"1" * 16), TopicId(b"2" * 16)


def opened(*paths: Path, accounts: bool = True, process: bytes = b"p" * 16) -> LogDirectories:
    """The log directories as one process has them that was killed."""
    settings = {"node.id": "1", "log.dirs": ",".join(map(str, paths))}
    directories = LogDirectories(BrokerConfig.of(settings), SystemClock())
    directories.open()
    directories.adopt("a-cluster")
    directories.begin(process)
    if accounts:
        directories.account()
    directories.close(-1, is_clean=False)
    return directories


def keep(path: Path, name: str, topic_id: TopicId, *, is_synced: bool) -> None:
    (path / name).mkdir()
    layout.write_partition_metadata(OsDirectory(path / name), layout.PartitionMetadata(topic_id, is_synced))


def test_what_was_synced_before_it_was_acknowledged(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    opened(one, other)
    keep(one, "a-0", ONE, is_synced=True)
    keep(other, "a-3", ONE, is_synced=True)
    keep(one, "a-1", ONE, is_synced=False)
    keep(one, "b-7", TWO, is_synced=True)
    for path in (one, other):  # which of the two counts is not known yet
        keep(path, "b-8", TWO, is_synced=True)
    keep(one, "b-9", TWO, is_synced=True)
    (one / "b-9" / layout.PARTITION_METADATA).write_bytes(b"damaged")
    (one / "c-0").mkdir()
    expected = (SyncedReplicas(topic_id=ONE, partitions=(0, 3)), SyncedReplicas(topic_id=TWO, partitions=(7,)))
    assert opened(one, other).synced_replicas() == expected


def test_nothing_where_a_directory_is_new_or_missing(tmp_path: Path) -> None:
    one, other, third = tmp_path / "one", tmp_path / "other", tmp_path / "third"
    opened(one, other)
    keep(one, "a-0", ONE, is_synced=True)
    assert opened(one, other, third, accounts=False).synced_replicas() == ()
    assert opened(one).synced_replicas() == ()
    assert opened(one).synced_replicas() != (), "once the cluster was told"


def test_each_process_leaves_its_name_before_it_registers(tmp_path: Path) -> None:
    names = [bytes([number]) * 16 for number in range(100)]
    for number, name in enumerate(names):
        before = opened(tmp_path, process=name).previous_incarnation_ids
        assert before == tuple(names[max(0, number - 64) : number])
    assert layout.read_meta_properties(OsDirectory(tmp_path))["cluster.id"] == "a-cluster"  # type: ignore[index]


def test_names_that_are_none(tmp_path: Path) -> None:
    opened(tmp_path)
    properties = layout.read_meta_properties(OsDirectory(tmp_path))
    assert properties is not None
    layout.write_meta_properties(OsDirectory(tmp_path), {**properties, "kraftpy.incarnation.ids": "xyz"})
    with pytest.raises(DirectoryError, match=r"kraftpy\.incarnation\.ids"):
        opened(tmp_path)
