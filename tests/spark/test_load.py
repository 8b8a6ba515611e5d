"""Incremental loads into Parquet, Delta and Iceberg: each record once, also if a load dies."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog.sql import SqlCatalog

from kraftpy.spark import load as loading
from kraftpy.spark.load import Batch, LoadConflict, Loaded, LoadOptions, Table, load
from kraftpy.spark.load_delta import LoadedDeltaTable
from kraftpy.spark.load_iceberg import LoadedIcebergTable
from kraftpy.spark.load_parquet import ParquetTable
from kraftpy.spark.load_tasks import LoadedRange, LoadTask, TimeUnit
from kraftpy.spark.offsets import DataLossError
from kraftpy.testing.cluster import EmbeddedBroker
from kraftpy.types import TopicPartition

pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # the catalog's SQLite connections
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

Filler = Callable[..., str]
HOUR = 3_600_000
JULY_4 = round(datetime(2013, 7, 4, 10, tzinfo=UTC).timestamp() * 1000)


class Kind(Protocol):
    """A kind of table: how a load opens it, and how its readers do."""

    def open(self, name: str = "l") -> Table: ...

    def rows(self) -> list[dict[str, Any]]: ...


class Parquet:
    def __init__(self, root: Path) -> None:
        self.root = root / "table"

    def open(self, name: str = "l") -> Table:
        return ParquetTable(self.root, name)

    def rows(self) -> list[dict[str, Any]]:
        if not self.root.exists():
            return []
        dataset = ds.dataset(self.root, format="parquet", partitioning="hive")
        rows: list[dict[str, Any]] = dataset.to_table().to_pylist()
        return rows


class Delta:
    def __init__(self, root: Path) -> None:
        self.root = root / "table"

    def open(self, name: str = "l") -> Table:
        return LoadedDeltaTable(self.root, name, TimeUnit.DAY)

    def rows(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = DeltaTable(str(self.root)).to_pyarrow_table().to_pylist()
        return rows


class Iceberg:
    def __init__(self, root: Path) -> None:
        self.catalog = SqlCatalog("c", uri=f"sqlite:///{root}/catalog.db", warehouse=f"file://{root}/warehouse")

    def open(self, name: str = "l") -> Table:
        return LoadedIcebergTable(self.catalog, "events.records", name, TimeUnit.DAY)

    def rows(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self.catalog.load_table("events.records").scan().to_arrow().to_pylist()
        return rows


@pytest.fixture(params=[Parquet, Delta, Iceberg])
def kind(request: pytest.FixtureRequest, tmp_path: Path) -> Kind:
    made: Kind = request.param(tmp_path)
    return made


def numbered(first: int, last: int, *, partitions: int = 2) -> list[dict[str, Any]]:
    """Records `first` to `last`, one an hour from the morning of 4 July 2013 on."""
    return [
        {
            "key": f"k{n}".encode() if n % 3 else None,
            "value": str(n).encode(),
            "partition": n % partitions,
            "timestamp": JULY_4 + n * HOUR,
            "headers": [("n", str(n).encode())] if n % 5 == 0 else [],
        }
        for n in range(first, last)
    ]


def more(server: EmbeddedBroker, topic: str, records: Sequence[dict[str, Any]]) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": server.bootstrap})
    for record in records:
        producer.produce(topic, **record)
    assert producer.flush(30) == 0


def options(server: EmbeddedBroker, topic: str, **others: Any) -> LoadOptions:
    return LoadOptions(bootstrap_servers=server.bootstrap, topics=(topic,), **others)


def numbers(kind: Kind) -> list[int]:
    return sorted(int(row["value"]) for row in kind.rows())


def test_a_load_takes_what_is_new(kind: Kind, topic_of: Filler, kraftpy_server: EmbeddedBroker) -> None:
    topic = topic_of(numbered(0, 40), partitions=2)
    [first] = load(options(kraftpy_server, topic), kind.open())
    assert (first.batch_id, first.rows) == (0, 40)
    assert load(options(kraftpy_server, topic), kind.open()) == []
    more(kraftpy_server, topic, numbered(40, 50))
    [second] = load(options(kraftpy_server, topic), kind.open())
    assert (second.batch_id, second.rows) == (1, 10)
    assert second.next_offsets == {TopicPartition(topic, 0): 25, TopicPartition(topic, 1): 25}
    assert numbers(kind) == list(range(50))


def test_all_of_a_record_is_loaded(kind: Kind, topic_of: Filler, kraftpy_server: EmbeddedBroker) -> None:
    topic = topic_of(numbered(0, 20), partitions=2)
    load(options(kraftpy_server, topic), kind.open())
    for row in kind.rows():
        n = int(row["value"])
        assert row["key"] == (f"k{n}".encode() if n % 3 else None)
        assert (row["topic"], row["partition"], row["offset"], row["timestampType"]) == (topic, n % 2, n // 2, 0)
        assert row["timestamp"].timestamp() * 1000 == JULY_4 + n * HOUR
        assert (row["headers"] or []) == ([{"key": "n", "value": str(n).encode()}] if n % 5 == 0 else [])
        if "event_day" in row:
            assert str(row["event_day"]) == ("2013-07-04" if n < 14 else "2013-07-05")


def test_a_load_in_several_batches(kind: Kind, topic_of: Filler, kraftpy_server: EmbeddedBroker) -> None:
    topic = topic_of(numbered(0, 25), partitions=2)
    batches = load(options(kraftpy_server, topic, max_records_per_partition=5), kind.open())
    assert [(batch.batch_id, batch.rows) for batch in batches] == [(0, 10), (1, 10), (2, 5)]
    assert numbers(kind) == list(range(25))


class Died(Exception):
    """Ends a load at the place that a test has chosen."""


def test_a_load_that_dies_before_its_commit_left_nothing(
    kind: Kind, topic_of: Filler, kraftpy_server: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = topic_of(numbered(0, 10), partitions=2)
    load(options(kraftpy_server, topic), kind.open())
    more(kraftpy_server, topic, numbered(10, 30))
    table = kind.open()

    def die(batch: Batch) -> None:
        assert batch.rows == 20
        raise Died

    monkeypatch.setattr(table, "commit", die)
    with pytest.raises(Died):
        load(options(kraftpy_server, topic), table)
    assert numbers(kind) == list(range(10))
    [batch] = load(options(kraftpy_server, topic), kind.open())
    assert (batch.batch_id, batch.rows) == (1, 20)
    assert numbers(kind) == list(range(30))


def test_a_task_that_dies_is_loaded_by_the_next_load(
    kind: Kind, topic_of: Filler, kraftpy_server: EmbeddedBroker
) -> None:
    topic = topic_of(numbered(0, 30), partitions=2)

    def one_dies(work: Callable[[LoadTask], LoadedRange], tasks: Sequence[LoadTask]) -> list[LoadedRange]:
        work(tasks[0])
        raise Died

    with pytest.raises(Died):
        load(options(kraftpy_server, topic), kind.open(), run_tasks=one_dies)
    load(options(kraftpy_server, topic), kind.open())
    assert numbers(kind) == list(range(30))


def test_of_two_loads_at_once_one_commits(kind: Kind, topic_of: Filler, kraftpy_server: EmbeddedBroker) -> None:
    topic = topic_of(numbered(0, 10), partitions=2)
    kind.open()

    def and_another_load(work: Callable[[LoadTask], LoadedRange], tasks: Sequence[LoadTask]) -> list[LoadedRange]:
        done = [work(task) for task in tasks]
        [batch] = load(options(kraftpy_server, topic), kind.open())
        assert batch.batch_id == 0
        return done

    with pytest.raises(LoadConflict):
        load(options(kraftpy_server, topic), kind.open(), run_tasks=and_another_load)
    assert load(options(kraftpy_server, topic), kind.open()) == []
    assert numbers(kind) == list(range(10))


def test_loads_of_two_names_fill_one_table(kind: Kind, topic_of: Filler, kraftpy_server: EmbeddedBroker) -> None:
    one, other = topic_of(numbered(0, 5)[:1]), topic_of([])
    more(kraftpy_server, other, [{"value": b"100", "timestamp": JULY_4}])
    load(options(kraftpy_server, one), kind.open("one"))
    load(options(kraftpy_server, other), kind.open("other"))
    assert load(options(kraftpy_server, one), kind.open("one")) == []
    assert numbers(kind) == [0, 100]


def test_counts_of_the_audit_are_told_again(kind: Kind, topic_of: Filler, kraftpy_server: EmbeddedBroker) -> None:
    topic = topic_of(numbered(0, 4), partitions=2)
    told: list[Loaded] = []
    load(options(kraftpy_server, topic, window_ms=2 * HOUR), kind.open(), on_loaded=told.append)
    load(options(kraftpy_server, topic), kind.open(), on_loaded=told.append)
    assert [each.counts for each in told] == [{(topic, JULY_4): 2, (topic, JULY_4 + 2 * HOUR): 2}] * 2
    assert [each.batch_id for each in told] == [0, 0]


def test_aborted_records_are_passed_over(kind: Kind, topic_of: Filler, kraftpy_server: EmbeddedBroker) -> None:
    from confluent_kafka import Producer

    topic = topic_of(numbered(0, 2, partitions=1))
    producer = Producer({"bootstrap.servers": kraftpy_server.bootstrap, "transactional.id": topic})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"aborted")
    producer.flush(30)
    load(options(kraftpy_server, topic), kind.open())
    producer.abort_transaction(30)
    [batch] = load(options(kraftpy_server, topic), kind.open())
    assert (batch.rows, batch.next_offsets) == (0, {TopicPartition(topic, 0): 4})
    assert load(options(kraftpy_server, topic), kind.open()) == []
    assert numbers(kind) == [0, 1]


def test_records_deleted_before_they_were_loaded(kind: Kind, topic_of: Filler, kraftpy_server: EmbeddedBroker) -> None:
    from confluent_kafka import TopicPartition as Where
    from confluent_kafka.admin import AdminClient

    topic = topic_of(numbered(0, 5, partitions=1))
    load(options(kraftpy_server, topic), kind.open())
    more(kraftpy_server, topic, numbered(5, 10, partitions=1))
    admin = AdminClient({"bootstrap.servers": kraftpy_server.bootstrap})
    for future in admin.delete_records([Where(topic, 0, 7)]).values():
        future.result(30)
    with pytest.raises(DataLossError, match=rf"{topic}-0 was loaded up to 5; its log now holds 7 to 10"):
        load(options(kraftpy_server, topic), kind.open())
    load(options(kraftpy_server, topic, fail_on_data_loss=False), kind.open())
    assert numbers(kind) == [0, 1, 2, 3, 4, 7, 8, 9]


# --- what is particular to one kind -----------------------------------------------------------------------------------


def test_a_parquet_load_that_dies_while_it_moves_files_is_finished(
    topic_of: Filler, kraftpy_server: EmbeddedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = Parquet(tmp_path)
    topic = topic_of(numbered(0, 40), partitions=2)
    replace, moved = Path.replace, 0

    def replace_or_die(self: Path, target: Path) -> Path:
        nonlocal moved
        moved += 1
        if moved == 2:
            raise Died
        return replace(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", replace_or_die)
        with pytest.raises(Died):
            load(options(kraftpy_server, topic), kind.open())
    assert 0 < len(kind.rows()) < 40
    assert load(options(kraftpy_server, topic), kind.open()) == []
    assert numbers(kind) == list(range(40))
    assert not list((tmp_path / "table" / "_kraftpy_load").rglob("staging/*"))


def test_hours_and_records_without_a_time(topic_of: Filler, kraftpy_server: EmbeddedBroker, tmp_path: Path) -> None:
    from kraftpy.client import BlockingProducer

    topic = topic_of(numbered(0, 3, partitions=1))
    with BlockingProducer(bootstrap_servers=kraftpy_server.bootstrap) as producer:
        producer.send(topic, b"3", timestamp_ms=-1)
    kind = Parquet(tmp_path)
    told: list[Loaded] = []
    load(options(kraftpy_server, topic, time_unit=TimeUnit.HOUR), kind.open(), on_loaded=told.append)
    directories = sorted(path.name for path in kind.root.iterdir() if not path.name.startswith("_"))
    assert directories == [f"event_hour=2013-07-04-{hour}" for hour in (10, 11, 12)] + ["event_hour=none"]
    assert [row["timestamp"] for row in kind.rows() if row["value"] == b"3"] == [None]
    assert told[0].counts[topic, -1] == 1


def test_many_days_make_many_files_few_at_a_time(
    topic_of: Filler, kraftpy_server: EmbeddedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kraftpy.spark.load_tasks.MAX_OPEN_FILES", 3)
    days = [{"value": f"{n}".encode(), "timestamp": JULY_4 + n % 8 * 24 * HOUR} for n in range(40)]
    topic = topic_of(days)
    kind = Parquet(tmp_path)
    load(options(kraftpy_server, topic), kind.open())
    assert numbers(kind) == list(range(40))
    assert len({row["event_day"] for row in kind.rows()}) == 8


def test_delta_keeps_offsets_in_the_tables_state(
    topic_of: Filler, kraftpy_server: EmbeddedBroker, tmp_path: Path
) -> None:
    kind = Delta(tmp_path)
    topic = topic_of(numbered(0, 10), partitions=2)
    load(options(kraftpy_server, topic, max_records_per_partition=3), kind.open())
    table = DeltaTable(str(kind.root))
    assert table.version() == 2, "the table's creation, and one version for each batch"
    assert table.transaction_version("kraftpy-load/l") == 1
    assert table.transaction_version(f"kraftpy-load/l/{topic}/0") == 5
    about = json.loads(table.history(1)[0]["kraftpy.load"])
    assert (about["batch_id"], about["next_offsets"]) == (1, {topic: {"0": 5, "1": 5}})


def test_an_iceberg_table_put_back_is_loaded_again(
    topic_of: Filler, kraftpy_server: EmbeddedBroker, tmp_path: Path
) -> None:
    kind = Iceberg(tmp_path)
    topic = topic_of(numbered(0, 4), partitions=2)
    load(options(kraftpy_server, topic), kind.open())
    table = kind.catalog.load_table("events.records")
    snapshot = table.current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    assert json.loads(snapshot.summary.additional_properties["kraftpy.load.l"])["batch_id"] == 0
    more(kraftpy_server, topic, numbered(4, 8))
    load(options(kraftpy_server, topic), kind.open())
    table.refresh().manage_snapshots().rollback_to_snapshot(snapshot.snapshot_id).commit()
    assert kind.open().loaded([]).batch_id == 0
    assert numbers(kind) == [0, 1, 2, 3]
    load(options(kraftpy_server, topic), kind.open())
    assert numbers(kind) == list(range(8))


def test_an_iceberg_table_whose_snapshots_expired_goes_on(
    topic_of: Filler, kraftpy_server: EmbeddedBroker, tmp_path: Path
) -> None:
    kind = Iceberg(tmp_path)
    topic = topic_of(numbered(0, 4), partitions=2)
    load(options(kraftpy_server, topic), kind.open())
    table = kind.catalog.load_table("events.records")
    ours = table.current_snapshot()
    assert ours is not None
    load(options(kraftpy_server, topic_of([{"value": b"4", "timestamp": JULY_4}])), kind.open("another"))
    table.refresh().maintenance.expire_snapshots().by_id(ours.snapshot_id).commit()
    assert load(options(kraftpy_server, topic), kind.open()) == []


def test_a_delta_table_of_other_columns_is_refused(tmp_path: Path) -> None:
    import pyarrow as pa
    from deltalake import write_deltalake

    write_deltalake(str(tmp_path / "table"), pa.table({"a": [1]}))
    with pytest.raises(ValueError, match=r"the table's columns are a, not key, value"):
        Delta(tmp_path).open()


def test_tables_keep_offsets_and_counts_as_text() -> None:
    offsets = {TopicPartition("b", 1): 2, TopicPartition("a", 10): 1, TopicPartition("a", 2): 0}
    assert loading.offsets_from_json(json.loads(json.dumps(loading.offsets_to_json(offsets)))) == offsets
    counts = {("a", -1): 3, ("a", 600_000): 4}
    assert loading.counts_from_json(json.loads(json.dumps(loading.counts_to_json(counts)))) == counts
