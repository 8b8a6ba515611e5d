"""A run on real processes: the proxy for packets, names and addresses, clocks, reading of replicas, rounds of faults.

The run itself is tested if root may have namespaces on this machine (tests/conftest.py reports at the end if not).
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from click.testing import CliRunner
from namespacing import WHY_NOT
from rich.console import Console

from chaos.__main__ import main
from chaos.availability import by_kind, outages
from chaos.generator import GroupCalls, GroupOptions, LogCalls, LogOptions
from chaos.history import FAULT, HEAL, History, HistoryWriter, Op, Type, read
from chaos.live import ROUND, drawn
from chaos.nemesis import Fault, Kind, Plan
from chaos.progress import Progress
from chaos.replica_logs import read_node
from chaos.running import command_of
from chaos.terminal import unavailability
from chaos.worlds.administrator import wait_until_serving
from chaos.worlds.disks import AFTER_SYNC, AT_ONCE, Disk, corruptible, damaged, flip, unmount
from chaos.worlds.places import Place, free_subnet, run_of
from chaos.worlds.proxy import ACCEPT, DROP, Impairment, PacketQueue, binding, packets, verdict
from kraftpy.log import layout
from kraftpy.protocol.record_batch import BatchBuilder, ControlType, encode_control_batch

# --- the proxy --------------------------------------------------------------------------------------------------------


def test_packets_are_late_and_in_order() -> None:
    queue = PacketQueue(Random(1))
    queue.impairment = Impairment(delay_ms=100, jitter_ms=60)
    for packet in range(200):
        assert queue.arrived(packet, packet * 0.001) is None
    assert queue.due(0.04) == []
    found = queue.due(0.2)
    assert found
    assert found + queue.due(10.0) == list(range(200))
    assert queue.next_at() is None


def test_each_packet_is_lost_with_its_chance() -> None:
    queue = PacketQueue(Random(1))
    queue.impairment = Impairment(loss=0.2)
    lost = sum(queue.arrived(packet, 0.0) == DROP for packet in range(10_000))
    assert 1_800 < lost < 2_200
    assert len(queue.due(0.0)) == 10_000 - lost


def test_without_impairment_a_packet_passes_at_once() -> None:
    queue = PacketQueue(Random(1))
    assert queue.arrived(7, 5.0) is None
    assert queue.due(5.0) == [7]


def _told(packet: int) -> bytes:
    """Return a packet as the kernel reports it: first an attribute that was not requested, then the header."""
    mark = struct.pack("=HH", 8, 3) + b"\0\0\0\1"
    header = struct.pack("=HH", 11, 1) + struct.pack(">IHB", packet, 0x0800, 1) + b"\0"
    body = struct.pack(">BBH", 2, 0, 1) + mark + header
    return struct.pack("=IHHII", 16 + len(body), 3 << 8, 0, 0, 0) + body


def test_the_kernels_messages_are_read() -> None:
    answer = struct.pack("=IHHIIi", 20, 2, 0, 0, 0, 0)
    assert list(packets(_told(5) + answer + _told(1 << 31))) == [5, 1 << 31]
    assert list(packets(b"\0" * 40)) == []
    assert list(packets(_told(5)[:10])) == []


def test_the_kernel_is_told_in_its_own_form() -> None:
    assert verdict(1, 5, ACCEPT).hex() == "20000000010301000000000000000000000000010c0002000000000100000005"
    bind, copy, _ = binding(1)
    assert bind.hex() == "1c00000002030100000000000000000000000001080001000100" + "0002"
    assert copy[-12:].hex() == "090002000000000001000000"  # 9 bytes, padded


# --- names, addresses, clocks -----------------------------------------------------------------------------------------


def test_names_fit_the_kernel_and_tell_whose_they_are() -> None:
    place = Place(run=4_194_304, subnet=7)
    assert len(place.cable()) <= 15
    names = [place.cable(), place.switch, place.namespace(3), place.directory.name]
    assert {run_of(name) for name in names} == {4_194_304}
    assert [run_of(name) for name in ("eth0", "kraftpy-chaos-x", "kch", "docker0")] == [None] * 4


def test_every_node_has_a_cable_to_the_switch() -> None:
    laid = [" ".join(arguments) for arguments in Place(run=9, subnet=7).laying([1, 2, 3])]
    for node in (1, 2, 3):
        assert f"-n kraftpy-chaos-9-{node} addr add 198.18.7.{node}/24 dev eth0" in laid
        assert f"-n kraftpy-chaos-9-switch link set node{node} master switch up" in laid
    assert "addr add 198.18.7.254/24 dev kch9" in laid


def test_a_subnet_in_use_is_passed_over() -> None:
    assert free_subnet("2: eth0    inet 10.0.0.2/24 brd", 5) == 5
    assert free_subnet("7: kch1    inet 198.18.5.254/24\n8: kch2    inet 198.18.6.254/24", 5) == 7
    assert free_subnet("7: kch1    inet 198.18.249.254/24", 249) == 0


def test_a_skewed_clock_leaves_the_monotonic_one_alone(tmp_path: Path) -> None:
    script = (
        "import sys, time, pathlib; from chaos.worlds.skewed import set_skew, skew; file = pathlib.Path(sys.argv[1]);"
        "set_skew(file, 0); skew(file); wall, steady = time.time_ns(), time.monotonic_ns(); set_skew(file, -3_600_000);"
        "time.sleep(0.01); print((time.time_ns() - wall) // 10**9, (time.monotonic_ns() - steady) // 10**9,"
        "round(time.time() - time.time_ns() / 1e9))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "clock")], capture_output=True, text=True, check=True
    )
    wall, steady, between = map(int, done.stdout.split())
    assert -3601 <= wall <= -3500
    assert 0 <= steady < 100
    assert between == 0


# --- replicas on the disk ---------------------------------------------------------------------------------------------


def _batch(base_offset: int, epoch: int, *values: int) -> bytes:
    builder = BatchBuilder()
    for value in values:
        builder.append(1_700_000_000_000, None, str(value).encode())
    data = bytearray(builder.build())
    data[:8] = struct.pack(">q", base_offset)  # neither is in the CRC
    data[12:16] = struct.pack(">i", epoch)
    return bytes(data)


def _node(directory: Path) -> Path:
    """A log directory with one partition: three batches, the last in a segment of its own."""
    partition = directory / "t0-1"
    partition.mkdir(parents=True)
    (partition / layout.file_name(0, layout.LOG)).write_bytes(_batch(0, 1, 10, 11) + _batch(2, 2, 12))
    (partition / layout.file_name(3, layout.LOG)).write_bytes(_batch(3, 2, 13))
    (partition / layout.LEADER_EPOCHS).write_bytes(layout.encode_entries([(1, 0), (2, 2)]))
    (directory / layout.HIGH_WATERMARKS).write_bytes(layout.encode_entries([("t0", 1, 4)]))
    return directory


def test_a_replica_is_read_from_its_files(tmp_path: Path) -> None:
    (reading,) = read_node(_node(tmp_path), 3, ["t0-0", "t0-1"])
    assert reading.damage is None
    value = reading.value
    assert [batch[:3] for batch in value["batches"]] == [[0, 1, 1], [2, 2, 2], [3, 3, 2]]
    assert value["records"] == [[0, 10], [1, 11], [2, 12], [3, 13]]
    assert value["epochs"] == [[1, 0], [2, 2]]
    assert (value["node"], value["key"]) == (3, "t0-1")
    assert (value["log_start"], value["high_watermark"], value["log_end"]) == (0, 4, 4)


def test_the_marker_of_a_transaction_is_read_from_its_file(tmp_path: Path) -> None:
    of = {"timestamp": 1, "producer_id": 7, "producer_epoch": 2, "coordinator_epoch": 0}
    marker = encode_control_batch(ControlType.COMMIT, **of, base_offset=4, leader_epoch=2)
    data = _node(tmp_path)
    with (data / "t0-1" / layout.file_name(3, layout.LOG)).open("ab") as segment:
        segment.write(marker)
    (reading,) = read_node(data, 3, ["t0-1"])
    assert reading.damage is None
    assert reading.value["transactional"] == [[4, 7, 2, "commit"]]
    assert reading.value["records"][-1] == [3, 13]


def test_a_flipped_bit_is_found(tmp_path: Path) -> None:
    data = _node(tmp_path)
    (sealed,) = corruptible(data, "sealed segment")
    (active,) = corruptible(data, "active segment")
    assert (sealed.name, active.name) == ("00000000000000000000.log", "00000000000000000003.log")
    assert list(corruptible(data, "quorum journal")) == []
    before = sealed.read_bytes()
    chance = Random(3)
    flip(sealed, chance)
    changed = [(old ^ new).bit_count() for old, new in zip(before, sealed.read_bytes(), strict=True)]
    assert sum(changed) == 1
    (reading,) = read_node(data, 3, ["t0-1"])
    assert reading.damage is not None
    assert damaged(data, 3) == ["t0-1"]


def test_a_leader_epoch_that_no_checksum_covers_is_found(tmp_path: Path) -> None:
    data = _node(tmp_path)
    assert damaged(data, 3) == []
    first = data / "t0-1" / layout.file_name(0, layout.LOG)
    content = bytearray(first.read_bytes())
    content[12] ^= 0x40
    first.write_bytes(content)
    assert damaged(data, 3) == ["t0-1"]


# --- the run ----------------------------------------------------------------------------------------------------------


def _plan() -> Plan:
    return Plan(kinds=tuple(kind for kind in Kind if kind is not Kind.SEVERAL), duration_ms=3_600_000)


def test_rounds_have_faults_of_their_own_that_the_seed_gives_again() -> None:
    first, second = drawn(8, 0, _plan(), 0, 100), drawn(8, 1, _plan(), ROUND, 100)
    assert [fault.id for fault in (*first, *second)] == list(range(2 * ROUND))
    assert first == drawn(8, 0, _plan(), 0, 100)
    assert [fault.kind for fault in first] != [fault.kind for fault in second]
    parts = [(fault.id, part.id) for fault in (*first, *second) for part in fault.settings.get("parts", ())]
    assert parts
    assert all(whole == part for whole, part in parts)
    assert len(drawn(8, 2, _plan(), 0, 3)) == 3


def test_two_workloads_of_one_history_have_topics_of_their_own() -> None:
    logs = LogCalls(1, LogOptions(topics="t"))
    group = GroupCalls(1, GroupOptions(topics="g", clients=5, members=3))
    sent = [call for call in (logs.call(9) for _ in range(100)) if call is not None and call.f == "send"]
    assert sent
    assert all(call.value[0][1].startswith("t") for call in sent)
    assert all(key.startswith("g") for key in group.keys)
    looked = group.call(3)
    assert looked is not None
    assert "g" in json.dumps(looked.value)


def test_progress_says_what_goes_on() -> None:
    progress = Progress(faults=40, minutes=None, each_seconds=12.0)
    sink = io.StringIO()
    recorder = HistoryWriter(sink, lambda op: progress.observe(op, op.time / 1e9))
    for number in range(20):
        recorder.invoke(number * 10**8, 0, "send", [["send", "t0-0", number]])
        recorder.complete(number * 10**8, 0, Type.OK, [["send", "t0-0", [number, number]]])
    fault = Fault(id=0, kind=Kind.KILL, target="one", lasts_ms=2000)
    op = recorder.note(2 * 10**9, "nemesis", FAULT, {**fault.as_value(), "nodes": [2]})
    assert "kill one on [2] for 2.0 s" in str(progress.told(op))
    line = str(progress.line())
    assert "1 of 40 faults" in line
    assert "kill one on [2]" in line
    assert "20 ok" in line
    assert "10 send/s" in line
    assert "8 min left" in line
    recorder.note(3 * 10**9, "nemesis", HEAL, {"id": 0})
    assert "no fault" in str(progress.line())
    assert len(read(sink.getvalue().splitlines(keepends=True))) == 42


def test_unavailability_is_a_table(tmp_path: Path) -> None:
    ops: list[Op] = []
    sink = io.StringIO()
    recorder = HistoryWriter(sink, ops.append)
    for number in range(200):
        at = number * 10**8
        if number == 100:
            recorder.note(at, "nemesis", FAULT, {**Fault(id=0, kind=Kind.KILL, lasts_ms=1000).as_value(), "nodes": [1]})
        if number == 110:
            recorder.note(at, "nemesis", HEAL, {"id": 0})
        if not 100 <= number < 105:
            recorder.invoke(at, 0, "send", [["send", "t0-0", number]])
            recorder.complete(at, 0, Type.OK, [["send", "t0-0", [number, number]]])
    console = Console(file=io.StringIO(), width=120)
    console.print(unavailability(by_kind(outages(History(ops)))))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "kill" in text
    assert "500 / 500 / 500" in text
    (tmp_path / "history.jsonl").write_text(sink.getvalue(), encoding="utf-8")
    done = CliRunner().invoke(main, ["cost", "--markdown", *[str(tmp_path / "history.jsonl")] * 2])
    assert done.exit_code == 0
    assert "| kill | 2 | 500 / 500 / 500 |" in done.output
    done = CliRunner().invoke(main, ["cost", str(tmp_path / "history.jsonl")])
    assert "500 / 500 / 500" in done.output


def test_a_run_says_how_long_it_is_to_be() -> None:
    done = CliRunner().invoke(main, ["run"])
    assert done.exit_code == 2
    assert "--faults" in done.output
    done = CliRunner().invoke(main, ["run", "--faults", "1", "--setting", "nonsense"])
    assert done.exit_code == 2
    assert "NAME=VALUE" in done.output


@pytest.mark.parametrize(("user", "told"), [(1000, "namespaces need root"), (0, "apt-get install iptables util-linux")])
def test_a_machine_that_cannot_is_told_why_in_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, user: int, told: str
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: user)
    monkeypatch.setattr("shutil.which", lambda name: None if name in ("iptables", "nsenter") else f"/bin/{name}")
    done = CliRunner().invoke(main, ["run", "--faults", "1", "--out", str(tmp_path)])
    assert done.exit_code == 1
    (line,) = [line for line in done.output.splitlines() if line.startswith("Error: ")]
    assert told in line


def test_the_line_that_repeats_a_run() -> None:
    assert command_of("namespaces", 3, 40, None, 3) == "python -m chaos run --world namespaces --seed 3 --faults 40"
    assert command_of("docker", 3, 40, None, 3, flags=["--transactions"]).endswith("--faults 40 --transactions")
    assert command_of("docker", 3, 40, None, 3, calm=2.5, rate=4.0).endswith("--faults 40 --calm 2.5 --rate 4")
    assert command_of("namespaces", 3, None, 2.5, 5, ("kill", "pause"), ("min.insync.replicas=1",)).endswith(
        "--seed 3 --minutes 2.5 --nodes 5 --kind kill --kind pause --setting min.insync.replicas=1"
    )


if WHY_NOT is None:
    BOUND_SECONDS = 60.0

    def _run(tmp_path: Path, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "chaos", "run", "--world", "namespaces", "--out", str(tmp_path / "run")]
        return subprocess.Popen([*command, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def _left_of(run: int) -> list[str]:
        listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout.split()
        places = [*listed, *os.listdir("/run"), *os.listdir("/sys/class/net")]
        return [name for name in places if run_of(name) == run]

    @pytest.fixture
    def disk(tmp_path: Path) -> Iterator[Disk]:
        disk = Disk(tmp_path / "image", tmp_path / "mounted")
        disk.make()
        yield disk
        disk.set_slow(0)
        unmount(disk.mounted)

    def test_a_power_failure_takes_what_was_not_synced(disk: Disk) -> None:
        synced, not_synced = disk.data / "synced", disk.data / "not-synced"
        for file in (synced, not_synced):
            with file.open("wb") as opened:
                opened.write(b"x" * 100_000)
                if file is synced:
                    opened.flush()
                    os.fsync(opened.fileno())
        disk.shut_down(AT_ONCE)
        disk.mount_again()
        assert synced.read_bytes() == b"x" * 100_000
        assert not not_synced.exists() or not_synced.read_bytes() != b"x" * 100_000

    def test_a_disk_that_fails_keeps_what_it_had(disk: Disk) -> None:
        file = disk.data / "file"
        with file.open("wb") as opened:
            opened.write(b"x" * 100_000)
            opened.flush()
            disk.shut_down(AFTER_SYNC)
            with pytest.raises(OSError, match="Input/output error"):
                os.fsync(opened.fileno())
        disk.mount_again()
        assert file.read_bytes() == b"x" * 100_000

    def test_a_full_disk_is_full_until_it_is_emptied(disk: Disk) -> None:
        disk.fill()
        with pytest.raises(OSError, match="No space left"):
            (disk.data / "file").write_bytes(b"x" * 100_000)
        disk.empty()
        (disk.data / "file").write_bytes(b"x" * 100_000)

    def test_a_slow_disk_has_writers_wait(disk: Disk) -> None:
        disk.set_slow(100)
        waited, deadline = 0.0, time.monotonic() + BOUND_SECONDS
        while waited < 0.05:
            began = time.monotonic()
            assert began < deadline
            (disk.data / "file").write_bytes(b"x")
            waited = time.monotonic() - began
        disk.set_slow(0)
        (disk.data / "file").write_bytes(b"x")

    @pytest.mark.long
    @pytest.mark.timeout(400)
    def test_real_processes_under_faults(tmp_path: Path) -> None:
        kinds = [word for kind in ("kill", "partition", "slow", "disk-full") for word in ("--kind", kind)]
        run = _run(tmp_path, "--faults", "3", "--seed", "5", "--transactions", "--queue", *kinds)
        output, _ = run.communicate(timeout=380)
        assert run.returncode == 0, output
        with (tmp_path / "run" / "history.jsonl").open(encoding="utf-8") as lines:
            history = History(read(lines))
        assert sum(op.f == FAULT for op in history.ops) == 3
        assert sum(op.f == "send" and op.type is Type.OK for op in history.completions) > 100
        assert {op.value["node"] for op in history.completed("replica")} == {1, 2, 3}
        for f in ("txn", "process", "acquire", "acknowledge"):
            assert any(op.type is Type.OK and op.value for op in history.completed(f)), f
        assert len(list(history.notes("drained"))) == 1
        assert "again: python -m chaos run" in output
        assert "again" in (tmp_path / "run" / "report.html").read_text(encoding="utf-8") or output
        assert _left_of(run.pid) == []

    @pytest.mark.long
    @pytest.mark.timeout(200)
    def test_what_a_killed_run_leaves_the_next_one_removes(tmp_path: Path) -> None:
        run = _run(tmp_path, "--faults", "1", "--kind", "slow-disk")
        history = tmp_path / "run" / "history.jsonl"
        deadline = time.monotonic() + BOUND_SECONDS
        while not history.exists() or not history.read_text(encoding="utf-8"):
            assert time.monotonic() < deadline
            assert run.poll() is None
            time.sleep(0.1)
        run.send_signal(signal.SIGKILL)
        run.communicate()
        assert f"kraftpy-chaos-{run.pid}" in _left_of(run.pid)
        again = _run(tmp_path, "--faults", "1", "--kind", "create-topic")
        output, _ = again.communicate(timeout=180)
        assert again.returncode == 0, output
        assert _left_of(run.pid) == []
        assert _left_of(again.pid) == []


async def test_nobody_waits_for_a_node_that_is_stopped_meanwhile_to_serve() -> None:
    class Two:
        asked = 0

        async def answering(self) -> set[int]:
            self.asked += 1
            return set() if self.asked < 3 else {2}

    world = Two()
    async with asyncio.timeout(30.0):
        await wait_until_serving(world, [1, 2], lambda node: node == 2 or world.asked < 2, 600.0)  # type: ignore[arg-type]
    assert world.asked == 3
