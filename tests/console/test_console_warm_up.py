"""A console prepares its pages before the first request, which then compiles and imports nothing."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest

from kraftpy.client import Admin, NewTopic, Producer, TopicPartition
from kraftpy.console.access import answers
from kraftpy.console.app import ROUTES
from kraftpy.console.reading import Reader, Wanted
from kraftpy.console.rendering import environment
from kraftpy.console.routing import Change
from kraftpy.testing.cluster import EmbeddedBroker

TOPIC = "console.warm-up"


@pytest.fixture
async def topic(admin: Admin, kraftpy_server: EmbeddedBroker) -> str:
    """A topic with a record, and a group with an offset in it."""
    if TOPIC not in await admin.list_topics():
        await admin.create_topics([NewTopic(name=TOPIC, num_partitions=1, replication_factor=1)])
        async with Producer(bootstrap_servers=kraftpy_server.bootstrap, transactional_id=TOPIC) as producer:
            await producer.init_transactions()
            async with producer.transaction():
                await producer.send_and_wait(TOPIC, b'{"a": 1}', key=b"k")
        await admin.alter_group_offsets(TOPIC, {TopicPartition(TOPIC, 0): 1})
    return TOPIC


async def test_the_first_request_of_no_page_compiles_or_imports_anything(
    topic: str, kraftpy_server: EmbeddedBroker, tmp_path: Path
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "report.html").write_text("<title>A run</title>")
    queries = {
        "/broker": {"id": "1"},
        "/topic": {"name": topic},
        "/topic/records": {"name": topic, "before": "end"},
        "/messages": {"topic": topic},
        "/messages/tail": {"topic": topic, "at": "0:0"},
        "/messages/download": {"topic": topic},
        "/messages/new": {"topic": topic},
        "/message": {"topic": topic, "partition": "0", "offset": "0"},
        "/message/raw": {"topic": topic, "partition": "0", "offset": "0", "part": "value"},
        "/group": {"id": topic},
        "/group/explain": {"id": topic, "seconds": "0"},
        "/group/reset": {"id": topic, "to": "earliest"},
        "/transaction": {"id": topic},
        "/transactions/hanging": {"topic": topic},
        "/books": {"audit": topic},
        "/chaos/report": {"run": "run"},
    }
    program = Path(__file__).with_name("first_requests.py")
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(program), kraftpy_server.bootstrap, str(tmp_path), json.dumps(queries),
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    output, _ = await process.communicate()
    assert process.returncode == 0
    told = json.loads(output)
    prepared = told.pop("warm_up")["templates"]
    assert set(prepared) == {*environment().list_templates(), *answers._TEMPLATES.list_templates()}
    assert set(told) == {each.path for each in ROUTES if not isinstance(each, Change)}
    for path, first in told.items():
        assert first == {"status": 200, "templates": [], "modules": []}, path


async def test_a_read_waits_for_no_metadata(topic: str, kraftpy_server: EmbeddedBroker) -> None:
    """Its consumer would look again after its back-off, which is longer here than the read may take."""
    place = TopicPartition(topic, 0)
    wanted = Wanted(begin={place: 0}, end={place: 1}, most_seconds=5.0)
    reader = Reader({"bootstrap_servers": kraftpy_server.bootstrap, "retry_backoff_ms": 30_000})
    found = await reader.read(wanted)
    assert (len(found.records), found.stopped_by) == (1, "")
