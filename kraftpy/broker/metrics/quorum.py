"""The controller and the metadata quorum, as this node sees them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from kraftpy.broker.metadata.voter import Voter
from kraftpy.metadata.records import PartitionChanged, Record
from kraftpy.metrics.families import Page, labels

if TYPE_CHECKING:
    from kraftpy.broker.metrics.loop_watch import LoopWatch
    from kraftpy.broker.metrics.node import Node

_CONTROLLER: Final = "kafka_controller_kafkacontroller_"
_RAFT: Final = "kafka_server_raftmetrics_"
_CHANNEL: Final = "kafka_server_raftchannelmetrics_"


class QuorumWatch:
    """Counts what happens in the metadata from now on."""

    def __init__(self) -> None:
        self.new_leaders = 0
        self.unclean_elections = 0
        self._last_leader: tuple[int | None, int] = (None, -1)
        self._recovering: dict[tuple[bytes, int], int] = {}
        """The leader epochs of unclean elections whose leaders have not reported yet."""

    def look(self, leader: int | None, term: int) -> None:
        """Note who leads the quorum now."""
        if leader is not None and (leader, term) != self._last_leader:
            self._last_leader = (leader, term)
            self.new_leaders += 1

    def follow(self, records: Sequence[Record] | None) -> None:
        """Count the unclean elections among changes of the metadata."""
        for record in records or ():
            if isinstance(record, PartitionChanged):
                key = (record.topic_id, record.partition)
                if not record.is_recovering:
                    self._recovering.pop(key, None)
                elif self._recovering.get(key) != record.leader_epoch:
                    self._recovering[key] = record.leader_epoch
                    self.unclean_elections += 1


def controller(node: Node, page: Page, watch: QuorumWatch) -> Iterator[None]:
    """Add the cluster as a controller sees it."""
    if not node.config.is_controller:
        return
    image = node.image
    brokers = image.brokers()
    fenced = sum(each.fenced for each in brokers)
    offline = unpreferred = partitions = 0
    for _, _, partition in image.partitions():
        partitions += 1
        offline += not partition.has_leader
        unpreferred += partition.leader != partition.preferred_leader
        if not partitions % 1000:
            yield
    watch.look(node.metadata.leader_id, node.metadata.leader_epoch)
    for name, value in {
        "activecontrollercount": int(node.metadata.is_leader),
        "offlinepartitionscount": offline,
        "preferredreplicaimbalancecount": unpreferred,
        "globaltopiccount": len(image.topics()),
        "globalpartitioncount": partitions,
        "activebrokercount": len(brokers) - fenced,
        "fencedbrokercount": fenced,
        "metadataerrorcount": node.metadata.unusable_entries,
        "lastappliedrecordoffset": node.metadata.applied_index,
        "newactivecontrollerscount": watch.new_leaders,
    }.items():
        page.add(f"{_CONTROLLER}{name}", value)
    source = node.metadata.source
    if isinstance(source, Voter) and source.quorum is not None:
        page.add(f"{_CONTROLLER}lastcommittedrecordoffset", source.quorum.commit_index)
    page.add("kafka_controller_controllerstats_uncleanleaderelections_total", watch.unclean_elections)


def quorum(node: Node, page: Page, watch: LoopWatch) -> Iterator[None]:
    """Add this node's part in the quorum, and its journal."""
    yield
    metadata = node.metadata
    source = metadata.source
    if source is None:
        return
    leader = source.leader_id
    state, committed, last = "observer", metadata.applied_index, metadata.applied_index
    if isinstance(source, Voter):
        raft = source.quorum
        state = "unattached"
        if raft is not None:
            if raft.is_leader:
                state = "leader"
            elif raft.is_voter:
                state = "candidate" if leader is None else "follower"
            else:
                state = "observer"
            committed, last = raft.commit_index, raft.last_index
    journal = source.journal
    page.add(f"{_RAFT}current_leader", -1 if leader is None else leader)
    page.add(f"{_RAFT}current_epoch", source.term)
    page.add(f"{_RAFT}current_state", 1, labels(current_state=state))
    page.add(f"{_RAFT}high_watermark", committed)
    page.add(f"{_RAFT}log_end_offset", last)
    page.add(f"{_RAFT}number_of_voters", len(metadata.voters))
    rate = watch.entries_per_second
    page.add(f"{_RAFT}append_records_rate", rate if metadata.is_leader else 0)
    page.add(f"{_RAFT}fetch_records_rate", 0 if metadata.is_leader else rate)
    page.add(f"{_RAFT}commit_latency_avg", watch.commit_latency_avg_ms)
    page.add(f"{_RAFT}commit_latency_max", watch.commit_latency_max_ms)
    if journal is not None:
        voted_for = journal.voted_for
        page.add(f"{_RAFT}current_vote", int(voted_for) if voted_for is not None and voted_for.isdecimal() else -1)
        page.add(f"{_RAFT}log_end_epoch", journal.last_term)
        page.add("kraftpy_metadata_journal_entries", journal.last_index - journal.first_index + 1)
        page.add("kraftpy_metadata_journal_bytes", journal.size_bytes)
        page.add("kraftpy_metadata_journal_unsynced_entries", max(0, journal.last_index - journal.durable_index))
    if node.links is not None:
        counts = node.links.counts
        page.add(f"{_CHANNEL}outgoing_byte_total", counts.sent_bytes)
        page.add(f"{_CHANNEL}incoming_byte_total", counts.received_bytes)
        page.add(f"{_CHANNEL}request_total", counts.sent)
        page.add(f"{_CHANNEL}response_total", counts.received)
    page.add("kraftpy_metadata_applied_index", metadata.applied_index)
    page.add("kraftpy_metadata_acted_index", metadata.acted_index)
