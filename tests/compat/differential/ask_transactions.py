"""Questions about producer ids and transactions, of both versions of the protocol (KIP-98, KIP-890)."""

from __future__ import annotations

from functools import partial
from typing import Any

from both import Both, together
from differ import Differ
from good_and_bad_batches import produced, read_back, rows
from scenario_table import add_scenario, scenario
from side import Side

from kraftpy.protocol.record_batch import encode_batch

MEGABYTE = 1 << 20
STRANGER = 10**12
"""The id of a producer that does not exist."""

Topics = tuple[tuple[str, tuple[int, ...]], ...]


def initializing(
    transactional_id: str | None, timeout_ms: int = 60000, producer_id: Any = -1, epoch: Any = -1
) -> dict[str, Any]:
    return {
        "transactional_id": transactional_id,
        "transaction_timeout_ms": timeout_ms,
        "producer_id": producer_id,
        "producer_epoch": epoch,
    }


def new_producer(differ: Differ, transactional_id: str, version: int) -> tuple[Both, Both]:
    """Return a producer's id and epoch."""
    answer = differ.ask("init_producer_id", initializing(transactional_id), version, compare=False)
    return answer.producer_id, answer.producer_epoch


def _is_complete(transactional_id: str, side: Side) -> bool:
    answer = side.quiet("describe_transactions", {"transactional_ids": [transactional_id]}, 0)
    return not answer.transaction_states[0].transaction_state.startswith("Prepare")


def _init_producer_id(version: int, differ: Differ) -> None:
    for name in (None, "", f"ip{version}", f"{version}{'x' * 299}"):
        told = name and name[:5]
        for timeout in (60000, 0, -1, 1, 900000, 900001, 2**31 - 1):
            body = initializing(name, timeout)
            differ.ask("init_producer_id", body, version, note=f"{told!r} timeout {timeout}")
        for producer_id, epoch in ((STRANGER, 0), (-1, 0), (STRANGER, -1), (-2, -2), (STRANGER, 3)):
            if version >= 3:
                body = initializing(name, 60000, producer_id, epoch)
                note = f"{told!r} producer {producer_id} epoch {epoch}"
                differ.ask("init_producer_id", body, version, note=note)


def _init_producer_id_again(version: int, differ: Differ) -> None:
    def init(name: str, note: str, producer_id: Any = -1, epoch: Any = -1) -> Both:
        return differ.ask("init_producer_id", initializing(name, 60000, producer_id, epoch), version, note=note)

    name = f"ipl{version}"
    init(name, "first")
    last = init(name, "again")
    if version >= 3:
        init(name, "with its epoch", last.producer_id, last.producer_epoch)
        name = f"ipm{version}"
        last = init(name, "other")
        for _ in range(3):
            last = init(name, "bump", last.producer_id, last.producer_epoch)
        before = together(lambda epoch: epoch - 1, last.producer_epoch)
        init(name, "previous epoch retried", last.producer_id, before)
        init(name, "epoch 0", last.producer_id, 0)
        init(name, "epoch 999", last.producer_id, 999)
        init(name, "another producer", STRANGER, 0)


for _version in range(6):
    add_scenario(f"init_producer_id_{_version}", partial(_init_producer_id, _version))
    add_scenario(f"init_producer_id_again_{_version}", partial(_init_producer_id_again, _version))


class _Producer:
    """Asks as one transactional producer, which writes to the topic "tx"."""

    def __init__(self, differ: Differ, name: str, init_version: int, topic_id: Both) -> None:
        self._differ = differ
        self.name = name
        self._topic_id = topic_id
        self.producer_id, self.epoch = new_producer(differ, name, init_version)

    def describe(self, note: str) -> None:
        body = {"transactional_ids": [self.name]}
        self._differ.ask("describe_transactions", body, 0, note=note)

    def put(
        self,
        version: int,
        sequence: int,
        note: str,
        *,
        epoch: Any = None,
        index: int = 0,
        name: str | None = "",
    ) -> None:
        """Produce one record, by the name of another or of none if that is given."""

        def made(producer_id: int, epoch: int) -> bytes:
            return encode_batch(
                rows(self._differ.now()),
                producer_id=producer_id,
                producer_epoch=epoch,
                base_sequence=sequence,
                is_transactional=True,
            )

        batch = together(made, self.producer_id, self.epoch if epoch is None else epoch)
        who = self.name if name == "" else name
        body = produced("tx", batch, transactional_id=who, topic_id=self._topic_id, index=index)
        self._differ.ask("produce", body, version, note=note)

    def add(
        self,
        version: int,
        note: str,
        *,
        name: str | None = None,
        producer_id: Any = None,
        epoch: Any = None,
        topics: Topics = (("tx", (0,)),),
    ) -> None:
        body = {
            "v3_and_below_transactional_id": self.name if name is None else name,
            "v3_and_below_producer_id": self.producer_id if producer_id is None else producer_id,
            "v3_and_below_producer_epoch": self.epoch if epoch is None else epoch,
            "v3_and_below_topics": [{"name": topic, "partitions": list(indexes)} for topic, indexes in topics],
        }
        self._differ.ask("add_partitions_to_txn", body, version, note=note)

    def end(
        self,
        version: int,
        note: str,
        *,
        commit: bool,
        name: str | None = None,
        producer_id: Any = None,
        epoch: Any = None,
    ) -> Both:
        """End the transaction, and wait until its markers are written."""
        body = {
            "transactional_id": self.name if name is None else name,
            "producer_id": self.producer_id if producer_id is None else producer_id,
            "producer_epoch": self.epoch if epoch is None else epoch,
            "committed": commit,
        }
        answer = self._differ.ask("end_txn", body, version, note=note)
        self._differ.wait("the transaction is complete", partial(_is_complete, self.name))
        return answer

    def read(self, note: str) -> None:
        """Read committed records, and the partition's producers."""
        partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": MEGABYTE}
        topics = [{"topic": "tx", "topic_id": self._topic_id, "partitions": [partition]}]
        body = {"isolation_level": 1, "max_wait_ms": 0, "min_bytes": 0, "max_bytes": MEGABYTE, "topics": topics}
        self._differ.ask("fetch", body, 18, note=f"committed, {note}")
        listed = [{"name": "tx", "partitions": [{"partition_index": 0, "timestamp": -1}]}]
        self._differ.ask("list_offsets", {"isolation_level": 1, "topics": listed}, 7, note=f"stable end, {note}")
        body = {"topics": [{"name": "tx", "partition_indexes": [0]}]}
        self._differ.ask("describe_producers", body, 0, note=note)


def _refused(version: int, differ: Differ) -> None:
    """Ask for what is refused while no transaction is open."""
    producer = _Producer(differ, f"txr{version}", 4, differ.create("tx", 2))
    producer.end(version, "commit of nothing", commit=True)
    producer.end(version, "abort of nothing", commit=False)
    producer.end(version, "unknown id", commit=True, name="tx.none")
    producer.end(version, "empty id", commit=True, name="")
    producer.end(version, "wrong producer", commit=True, producer_id=STRANGER)
    producer.end(version, "wrong epoch", commit=True, epoch=77)
    producer.end(version, "epoch -1", commit=True, epoch=-1)
    producer.add(version, "unknown id", name="tx.none")
    producer.add(version, "empty id", name="")
    producer.add(version, "wrong producer", producer_id=STRANGER)
    producer.add(version, "wrong epoch", epoch=77)
    producer.add(version, "unknown topic", topics=(("no.such", (0,)),))
    producer.add(version, "unknown partitions", topics=(("tx", (9, -1)),))
    producer.add(version, "good and unknown", topics=(("tx", (1,)), ("no.such", (0,))))
    producer.add(version, "internal topic", topics=(("__consumer_offsets", (0,)),))
    producer.add(version, "no topics", topics=())
    producer.add(version, "empty topic", topics=(("", (0,)),))
    producer.describe("after what was refused")


for _version in range(4):
    add_scenario(f"transactions_refused_{_version}", partial(_refused, _version))


def _life_of_a_transaction(version: int, differ: Differ) -> None:
    producer = _Producer(differ, f"tx{version}", 4, differ.create("tx", 2))
    commit = version % 2 == 1
    producer.describe("empty")
    if version < 12:
        producer.put(version, 0, "before the partition was added")
    producer.add(3, "partition 0")
    producer.put(version, 0, "first")
    producer.put(version, 0, "duplicate")
    producer.put(version, 1, "second")
    producer.put(version, 5, "gap")
    producer.put(version, 2, "wrong epoch", epoch=5)
    producer.put(version, 2, "other transactional id", name="tx.none")
    producer.put(version, 0, "other partition", index=1)
    producer.put(version, 2, "without transactional id", name=None)
    producer.describe("ongoing")
    producer.read("ongoing")
    if version == 12:
        body = initializing(producer.name, 60000, producer.producer_id, producer.epoch)
        differ.ask("init_producer_id", body, 4, note="while ongoing")
    producer.end(3, "end", commit=commit)
    producer.end(3, "end again", commit=commit)
    producer.end(3, "end the other way", commit=not commit)
    producer.put(version, 2, "after the end")
    producer.describe("after the end")
    producer.read("after the end")


for _version in (3, 7, 9, 11, 12, 13):
    add_scenario(f"life_of_a_transaction_{_version}", partial(_life_of_a_transaction, _version))


@scenario
def transactions_of_version_2(differ: Differ) -> None:
    """Partitions are added by producing to them, and the epoch goes up with each end."""
    producer = _Producer(differ, "tv2", 5, differ.create("tx", 2))
    for _ in range(2):
        producer.end(4, "commit of nothing, old version", commit=True)
    after_abort = producer.end(5, "abort of nothing", commit=False).producer_epoch
    producer.put(12, 0, "old epoch")
    producer.put(12, 0, "first", epoch=after_abort)
    after_commit = producer.end(5, "commit", commit=True, epoch=after_abort).producer_epoch
    producer.end(5, "commit retried", commit=True, epoch=after_abort)
    producer.end(5, "abort after commit", commit=False, epoch=after_abort)
    producer.end(5, "commit of nothing", commit=True, epoch=after_commit)
    producer.end(5, "abort of nothing after a commit", commit=False, epoch=after_commit)
    producer.describe("then")
    producer.read("then")


FILTERS: dict[str, dict[str, Any]] = {
    "all": {},
    "state": {"state_filters": ["Empty"]},
    "unknown state": {"state_filters": ["Nope"]},
    "both": {"state_filters": ["Nope", "CompleteCommit"]},
    "lower": {"state_filters": ["empty"]},
    "empty state": {"state_filters": [""]},
    "unknown producer": {"producer_id_filters": [987654]},
    "negative producer": {"producer_id_filters": [-1]},
    "duration 0": {"duration_filter": 0},
    "duration large": {"duration_filter": 10**9},
    "duration -5": {"duration_filter": -5},
    "pattern": {"transactional_id_pattern": "lt.*"},
    "pattern of a part": {"transactional_id_pattern": "lt"},
    "empty pattern": {"transactional_id_pattern": ""},
    "bad pattern": {"transactional_id_pattern": "["},
    "pattern of Java": {"transactional_id_pattern": "(?i)LT\\d"},
    "possessive pattern": {"transactional_id_pattern": "t.++"},
}


@scenario
def list_transactions(differ: Differ) -> None:
    topic_id = differ.create("tx", 2)
    _Producer(differ, "lt1", 4, topic_id)
    done, ongoing = (_Producer(differ, name, 4, topic_id) for name in ("lt2", "lt3"))
    for producer in (done, ongoing):
        producer.add(3, "for a list")
    done.end(3, "for a list", commit=True)
    filters = {**FILTERS, "producer": {"producer_id_filters": [done.producer_id]}}
    for version in range(3):
        for note, told in filters.items():
            if ("pattern" in note and version < 2) or ("duration" in note and version < 1):
                continue
            body = {"state_filters": [], "producer_id_filters": [], **told}
            differ.ask("list_transactions", body, version, note=note)
    for names in ([], [""], ["lt1", "lt1"], ["tx.none"], ["lt2"], ["lt3"]):
        differ.ask("describe_transactions", {"transactional_ids": names}, 0, note=str(names))
    ongoing.end(3, "after the list", commit=False)


def _verified(version: int, differ: Differ) -> None:
    """Ask as brokers do, which verify what was added (from version 4 on)."""
    differ.create("ap", 2)
    a, b = new_producer(differ, f"apa{version}", 5), new_producer(differ, f"apb{version}", 5)

    def one(name: str, producer: tuple[Any, Any], topics: Topics = (("ap", (0,)),), *, verify: bool) -> dict[str, Any]:
        return {
            "transactional_id": name,
            "producer_id": producer[0],
            "producer_epoch": producer[1],
            "verify_only": verify,
            "topics": [{"name": topic, "partitions": list(indexes)} for topic, indexes in topics],
        }

    of_a, of_b = f"apa{version}", f"apb{version}"
    two_partitions: Topics = (("ap", (0, 1)),)
    unknown_topic: Topics = (("no.such", (0,)),)
    for note, transactions in {
        "none": [],
        "verify not added": [one(of_a, a, verify=True)],
        "unknown": [one("ap.none", (5, 0), verify=False)],
        "verify unknown": [one("ap.none", (5, 0), verify=True)],
        "add": [one(of_a, a, verify=False)],
        "verify added": [one(of_a, a, verify=True)],
        "verify other partition": [one(of_a, a, two_partitions, verify=True)],
        "two": [one(of_a, a, verify=False), one(of_b, b, verify=False)],
        "one bad": [one(of_a, (a[0], 9), verify=False), one(of_b, b, verify=False)],
        "twice": [one(of_a, a, verify=False)] * 2,
        "unknown topic": [one(of_a, a, unknown_topic, verify=False)],
        "verify unknown topic": [one(of_a, a, unknown_topic, verify=True)],
        "verify wrong epoch": [one(of_a, (a[0], 9), verify=True)],
        "verify wrong producer": [one(of_a, (STRANGER, a[1]), verify=True)],
    }.items():
        differ.ask("add_partitions_to_txn", {"transactions": transactions}, version, note=note)


for _version in (4, 5):
    add_scenario(f"partitions_verified_{_version}", partial(_verified, _version))


class _Committer:
    """Asks as a producer that commits a group's offsets in its transaction."""

    def __init__(self, differ: Differ, version: int) -> None:
        self._differ = differ
        self._version = version
        self.group = f"tog{version}"
        self.name = f"to{version}"
        self.producer_id, self.epoch = new_producer(differ, self.name, 4 if version < 5 else 5)

    def commit(
        self, note: str, positions: tuple[tuple[int, int], ...] = ((0, 5),), topic: str = "to", **more: Any
    ) -> None:
        partitions = [{"partition_index": index, "committed_offset": offset} for index, offset in positions]
        body = {
            "transactional_id": self.name,
            "group_id": self.group,
            "producer_id": self.producer_id,
            "producer_epoch": self.epoch,
            "generation_id": -1,
            "member_id": "",
            "topics": [{"name": topic, "partitions": partitions}],
            **more,
        }
        self._differ.ask("txn_offset_commit", body, self._version, note=note)

    def add(self, note: str, **more: Any) -> None:
        body = {
            "transactional_id": self.name,
            "producer_id": self.producer_id,
            "producer_epoch": self.epoch,
            "group_id": self.group,
            **more,
        }
        self._differ.ask("add_offsets_to_txn", body, min(self._version, 4), note=note)

    def fetch(self, note: str, *, eventually: bool = False) -> None:
        topics = [{"name": "to", "partition_indexes": [0]}]
        for stable in (False, True):
            body = {"groups": [{"group_id": self.group, "topics": topics}], "require_stable": stable}
            self._differ.ask("offset_fetch", body, 9, note=f"{note}, stable {stable}", eventually=eventually)


def _txn_offsets(version: int, differ: Differ) -> None:
    differ.create("to", 1)
    committer = _Committer(differ, version)
    commit, add = committer.commit, committer.add
    commit("before AddOffsets")
    add("unknown id", transactional_id="to.none")
    add("empty id", transactional_id="")
    add("wrong producer", producer_id=STRANGER)
    add("wrong epoch", producer_epoch=77)
    add("empty group", group_id="")
    add("right")
    commit("epoch before", producer_epoch=together(lambda epoch: epoch - 1, committer.epoch))
    commit("epoch ahead", producer_epoch=77)
    commit("other id", transactional_id="to.none")
    commit("empty group", group_id="")
    commit("unknown topic", topic="no.such")
    commit("unknown partitions", ((9, 1), (-1, 1)))
    commit("negative offset", ((0, -1),))
    commit("no partitions", ())
    commit("right")
    if version >= 3:
        commit("generation of nobody", generation_id=3)
        commit("member of nobody", member_id="x", generation_id=1)
        commit("member, no generation", member_id="x")
        commit("instance of nobody", group_instance_id="i")
    committer.fetch("pending")
    differ.ask("delete_groups", {"groups_names": [committer.group]}, 2, note="with pending offsets")
    topics = [{"name": "to", "partitions": [{"partition_index": 0}]}]
    differ.ask("offset_delete", {"group_id": committer.group, "topics": topics}, 0, note="with pending offsets")
    body = {
        "transactional_id": committer.name,
        "producer_id": committer.producer_id,
        "producer_epoch": committer.epoch,
        "committed": True,
    }
    differ.ask("end_txn", body, 3, note="commit")
    differ.wait("the transaction is complete", partial(_is_complete, committer.name))
    committer.fetch("after commit", eventually=True)


for _version in range(6):
    add_scenario(f"txn_offsets_{_version}", partial(_txn_offsets, _version))


def marking(producer_id: int, epoch: int = 0, topics: Topics = (("wm", (0,)),), **more: Any) -> dict[str, Any]:
    return {
        "producer_id": producer_id,
        "producer_epoch": epoch,
        "transaction_result": False,
        "coordinator_epoch": 0,
        "transaction_version": 0,
        "topics": [{"name": name, "partition_indexes": list(indexes)} for name, indexes in topics],
        **more,
    }


def _markers(version: int, differ: Differ) -> None:
    topic_id = differ.create("wm", 1)
    first = 10**12
    for note, markers in {
        "none": [],
        "unknown producer": [marking(first)],
        "again": [marking(first)],
        "older epoch": [marking(first, -1)],
        "unknown topic": [marking(first, topics=(("no.such", (0,)),))],
        "unknown partitions": [marking(first, topics=(("wm", (9, -1)),))],
        "no topics": [marking(first, topics=())],
        "two": [marking(first + 80), marking(first + 90)],
        "coordinator epoch -1": [marking(first + 100, coordinator_epoch=-1)],
        "negative producer": [marking(-1)],
        "version 2": [marking(first + 110, transaction_version=2)],
        "version 9": [marking(first + 120, transaction_version=9)],
        "producer twice": [marking(first + 130), marking(first + 130)],
    }.items():
        differ.ask("write_txn_markers", {"markers": markers}, version, note=note)
    read_back(differ, "wm", topic_id)


for _version in (1, 2):
    add_scenario(f"markers_{_version}", partial(_markers, _version))
