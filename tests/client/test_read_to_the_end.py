"""Our readers at the end of transactional topics: they reach it, commit it, and count no more than the records."""

from __future__ import annotations

import asyncio
import secrets

import pytest
from transactional_topics import ENDINGS, write_ending

from kraftpy.audit.counting import count_log, read_columns
from kraftpy.client import Admin, Consumer, NewTopic, ResourceType, ShareConsumer
from kraftpy.client.ranges.reader import RangeReader
from kraftpy.testing.cluster import EmbeddedBroker
from kraftpy.types import TopicPartition

SECONDS = 30.0


@pytest.fixture(params=list(ENDINGS))
def written(kraftpy_server: EmbeddedBroker, request: pytest.FixtureRequest) -> tuple[str, TopicPartition, list[str]]:
    """A broker's address, a partition that ends in one of the ways, and its committed values."""
    topic = f"end-{secrets.token_hex(4)}"

    async def create() -> None:
        async with Admin(bootstrap_servers=kraftpy_server.bootstrap) as admin:
            await admin.create_topics([NewTopic(name=topic, num_partitions=1)])

    asyncio.run(create())
    values = write_ending(kraftpy_server.bootstrap, topic, request.param)
    return kraftpy_server.bootstrap, TopicPartition(topic, 0), values


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
@pytest.mark.parametrize("is_automatic", [False, True])
def test_a_group_s_member_stands_at_the_end_and_commits_it(
    written: tuple[str, TopicPartition, list[str]], protocol: str, is_automatic: bool
) -> None:
    bootstrap, where, values = written
    group = f"{where.topic}-{protocol}"

    async def read() -> None:
        found: list[str] = []
        async with Consumer(
            bootstrap_servers=bootstrap,
            group_id=group,
            group_protocol=protocol,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
            enable_auto_commit=is_automatic,
        ) as consumer:
            consumer.subscribe([where.topic])
            async with asyncio.timeout(SECONDS):
                while where not in consumer.assignment() or consumer.lag(where) != 0:
                    for record in (await consumer.getmany(timeout_ms=100)).get(where, []):
                        found.append((record.value or b"").decode())  # noqa: PERF401
            assert found == values
            end = (await consumer.end_offsets([where]))[where]
            assert await consumer.position(where) == end
            if not is_automatic:
                await consumer.commit()
        async with Admin(bootstrap_servers=bootstrap) as admin:
            committed = await admin.list_group_offsets(group)
            assert committed[where].offset == end

    asyncio.run(read())


def test_ranges_are_read_to_the_end(written: tuple[str, TopicPartition, list[str]]) -> None:
    bootstrap, where, values = written
    with RangeReader(bootstrap, isolation_level="read_committed") as reader:
        end = reader.latest([where])[where]
        for start, wanted in ((0, values), (end - 1, [])):
            assert [chunk.end_offset for chunk in reader.read(where, start, end)][-1] == end
            found: list[str] = []
            for rows in read_columns(reader, where, start, end):
                places = zip(rows.value_starts.tolist(), rows.value_ends.tolist(), strict=True)
                found += [bytes(rows.data[begin:stop]).decode() for begin, stop in places]
            assert found == wanted


def test_an_audit_counts_committed_records_alone(written: tuple[str, TopicPartition, list[str]]) -> None:
    bootstrap, where, values = written
    with RangeReader(bootstrap, isolation_level="read_committed") as reader:
        tallies = count_log(reader, [where.topic], tier="log", window_ms=600_000, now_ms=0)
    assert sum(tally.count for tally in tallies) == len(values)


@pytest.mark.parametrize("isolation_level", ["read_uncommitted", "read_committed"])
def test_a_share_group_that_has_read_all_has_no_lag(
    written: tuple[str, TopicPartition, list[str]], isolation_level: str
) -> None:
    bootstrap, where, values = written
    group = f"{where.topic}-sharing"
    settings = {
        "share.auto.offset.reset": "earliest",
        "share.heartbeat.interval.ms": "200",  # so that assignments do not take their time
        "share.isolation.level": isolation_level,
    }

    async def read() -> None:
        found: list[str] = []
        async with Admin(bootstrap_servers=bootstrap) as admin:
            await admin.alter_configs({(ResourceType.GROUP, group): settings})
            async with (
                ShareConsumer(where.topic, group_id=group, bootstrap_servers=bootstrap) as consumer,
                asyncio.timeout(SECONDS),
            ):
                while (listed := (await admin.list_share_group_offsets(group)).get(where)) is None or listed.lag != 0:
                    found += [(record.value or b"").decode() for record in await consumer.getmany(timeout_ms=100)]
                    await consumer.commit_sync()
        assert [value for value in found if value.isdigit()] == values
        assert isolation_level == "read_uncommitted" or len(found) == len(values)

    asyncio.run(read())
