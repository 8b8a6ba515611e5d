"""The demo's steps on a few thousand events: the replay while a node is gone, the group; and the whole of it.

The test in which a node dies has its own cluster.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import re
import signal
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from rich.console import Console

from kraftpy.audit.interceptor import AuditInterceptor
from kraftpy.demo import run
from kraftpy.demo.console import take_picture
from kraftpy.demo.consume import consume
from kraftpy.demo.flights import Event, NoInputError
from kraftpy.demo.interrupts import run_async, termination_as_interrupt
from kraftpy.demo.outage import Meter
from kraftpy.demo.replay import create_topic, records_in_log
from kraftpy.demo.run import CLUSTER_SETTINGS, TOPIC, replay_with, tell
from kraftpy.demo.tiers import DAY_MS, TIERS, books, records_at
from kraftpy.demo.windows import Window, from_silver, from_table, from_topic
from kraftpy.testing import Cluster

COUNT = 6000
AIRPORTS = ("EWR", "JFK", "LGA")


def flight(number: int) -> Event:
    """One a minute, from each airport in turn, `number % 60` minutes late; of each tenth the aircraft is not known."""
    row = {
        "carrier": "EV",
        "flight": number,
        "tailnum": f"N{number % 100}" if number % 10 else None,
        "origin": AIRPORTS[number % 3],
        "dest": "BOS",
        "dep_time": 517,
        "dep_delay": number % 60 if number % 7 else None,
    }
    key = f"N{number % 100}".encode() if number % 10 else None
    return Event(time_ms=1_357_000_000_000 + number * 60_000, key=key, value=json.dumps(row).encode())


EVENTS = [flight(number) for number in range(COUNT)]


async def test_a_meter_is_waited_for() -> None:
    meter = Meter()
    await meter.reach(0)
    meter.advance(2)
    await meter.reach(2)


@pytest.mark.timeout(300)
async def test_nothing_is_lost_or_double_where_a_node_dies(tmp_path: Path) -> None:
    with Cluster(brokers=3, settings=CLUSTER_SETTINGS) as cluster:
        servers = cluster.bootstrap_servers
        await create_topic(servers, TOPIC, 4)
        seen: list[int] = []
        counting = AuditInterceptor(bootstrap_servers=servers, tier="producer", window_ms=DAY_MS)
        with counting:
            acknowledged, outage = await replay_with(cluster, EVENTS, counting, seen.append, is_hit=True)
        assert acknowledged == sum(seen) == COUNT
        assert outage is not None
        assert COUNT // 3 <= outage.killed_at <= outage.back_at
        assert outage.back_at >= 2 * (COUNT // 3)
        assert cluster.is_running(outage.node)
        assert await records_in_log(servers, TOPIC) == COUNT
        kept = books(servers, TOPIC, tmp_path / "nothing")
        assert [records_at(kept, tier) for tier in TIERS] == [COUNT, COUNT, 0]

        consumed: list[int] = []
        found = await consume(servers, TOPIC, "readers", members=2, expected=COUNT, advance=consumed.append)
        assert (found.records, found.distinct_records, sum(consumed)) == (COUNT, COUNT, COUNT)
        assert [len(member.partitions) for member in found.members] == [2, 2]


def test_a_signal_cancels_what_runs_and_is_an_interrupt() -> None:
    said: list[str] = []

    async def work() -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.sleep(30)
            said.append("not cancelled")
        finally:
            said.append("ended in order")

    before = signal.getsignal(signal.SIGTERM)
    with termination_as_interrupt(), pytest.raises(KeyboardInterrupt):
        run_async(work())
    assert said == ["ended in order"]
    assert signal.getsignal(signal.SIGTERM) is before


def test_what_no_demo_wrote_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "cluster").mkdir()
    (tmp_path / "cluster" / "thesis.txt").write_text("years of work")
    with pytest.raises(NoInputError, match="has files that the demo did not write"):
        tell(tmp_path, EVENTS, Console(file=io.StringIO()))
    assert (tmp_path / "cluster" / "thesis.txt").read_text() == "years of work"


def test_what_is_missing_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "_NEEDED", ("pyspark", "a_module_that_is_not_there"))
    said = io.StringIO()
    handler = signal.getsignal(signal.SIGTERM)
    assert run.run(tmp_path / "out", Console(file=said, width=200)) == 1
    assert "not installed: a_module_that_is_not_there; pip install 'kraftpy[demo]'" in said.getvalue()
    assert signal.getsignal(signal.SIGTERM) is handler
    assert not (tmp_path / "out").exists()


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_the_whole_story_and_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def told() -> tuple[int, str]:
        said = io.StringIO()
        return tell(tmp_path, EVENTS, Console(file=said, width=200)), said.getvalue()

    pages: dict[str, str] = {}
    taken: list[bool] = []

    def looked(url: str, picture: Path) -> bool:
        """Look at the page as well: the nodes still run."""
        with urllib.request.urlopen(url, timeout=60) as page:
            pages[url] = page.read().decode()
        taken.append(take_picture(url, picture))
        return taken[-1]

    with monkeypatch.context() as patched:
        patched.setattr(run, "take_picture", looked)
        status, said = told()
    assert status == 0, said
    assert "it balances" in said
    address = re.search(r"watch them in a browser while this runs: (http://\S+)\n", said)
    assert address is not None, said
    nodes = re.search(r"three nodes on (\S+);", said)
    assert nodes is not None
    assert nodes[1] in pages[address[1]]
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(address[1], timeout=5)
    screen = tmp_path / "console.png"
    assert [screen.exists(), f"the console:     {screen}\n" in said] == taken * 2  # False without Chromium
    assert "was killed after" in said
    tables = tmp_path / "flights-pipeline" / "tables"
    wanted, still_open = from_silver(tables / "silver")
    assert sorted(from_table(tables / "counts")) == sorted(wanted)
    assert sum(window.flights for window in wanted) + still_open == COUNT * 9 // 10
    assert (tmp_path / "delays.png").exists()

    def with_one_twice(bootstrap: str, topic: str) -> list[Window]:
        windows = from_topic(bootstrap, topic)
        return [*windows, windows[0]]

    monkeypatch.setattr(run, "from_topic", with_one_twice)
    status, said = told()  # begins with nothing of the first
    assert status == 1, said
    assert "it does NOT balance" in said
    assert sum(window.flights for window in from_silver(tables / "silver")[0]) + still_open == COUNT * 9 // 10
