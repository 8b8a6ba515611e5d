"""Client listeners: several of them, IPv6, the advertised addresses, and connection limits."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from broker_wire import (
    StartBroker,
    answer,
    ask,
    connect,
    create_topic,
    fetch_request,
    is_closed,
    produce_values,
    serves,
)

from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.frames import encode_request
from kraftpy.protocol.messages.describe_cluster import DescribeClusterRequest
from kraftpy.protocol.messages.find_coordinator import FindCoordinatorRequest
from kraftpy.protocol.messages.metadata import MetadataRequest
from kraftpy.testing.ports import ReservedPorts
from tests.waiting import eventually

ADDRESS = re.compile(r"(\w+)://(\S+?),? ")


@contextlib.contextmanager
def served(directory: Path, *overrides: str) -> Iterator[dict[str, str]]:
    """A server with these settings; the address of each listener, as the first line names it."""
    command = [sys.executable, "-m", "kraftpy", "server", "--override", f"log.dirs={directory / 'logs'}"]
    for override in overrides:
        command += ["--override", override]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=directory)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert "ready" in line, process.stderr and process.stderr.read()
        yield dict(ADDRESS.findall(line))
    finally:
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=30)
        assert process.returncode == 0
        assert "Traceback" not in errors, errors


def told(bootstrap: str) -> set[str]:
    """Collect the addresses that clients learn from every API that returns one."""
    with connect(bootstrap) as connection:
        metadata = ask(connection, ApiKey.METADATA, 9, MetadataRequest(topics=[]))
        cluster = ask(connection, ApiKey.DESCRIBE_CLUSTER, 1, DescribeClusterRequest())
        find = FindCoordinatorRequest(key_type=0, coordinator_keys=["group"])
        coordinator = ask(connection, ApiKey.FIND_COORDINATOR, 4, find).coordinators[0]
        assert coordinator.error_code == ErrorCode.NONE
    brokers = [*metadata.brokers, *cluster.brokers, coordinator]
    return {f"{each.host}:{each.port}" for each in brokers}


def test_each_listener_is_told_its_own_address(tmp_path: Path) -> None:
    with served(
        tmp_path,
        "listeners=INSIDE://127.0.0.1:0,OUTSIDE://127.0.0.1:0",
        "listener.security.protocol.map=INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT",
        "inter.broker.listener.name=INSIDE",
    ) as addresses:
        assert set(addresses) == {"INSIDE", "OUTSIDE"}
        assert addresses["INSIDE"] != addresses["OUTSIDE"]
        for address in addresses.values():
            assert told(address) == {address}


def test_every_interface_with_an_advertised_address(tmp_path: Path, ports: ReservedPorts) -> None:
    port = ports.reserve()
    with served(
        tmp_path,
        f"listeners=PLAINTEXT://0.0.0.0:{port}",
        "advertised.listeners=PLAINTEXT://kafka.example.org:19092",
    ) as addresses:
        assert addresses == {"PLAINTEXT": "kafka.example.org:19092"}
        assert told(f"127.0.0.1:{port}") == {"kafka.example.org:19092"}


def test_an_advertised_port_of_its_own_for_each_listener(tmp_path: Path, ports: ReservedPorts) -> None:
    one, two = ports.reserve(), ports.reserve()
    with served(
        tmp_path,
        f"listeners=A://127.0.0.1:{one},B://127.0.0.1:{two}",
        "advertised.listeners=B://b.example.org:2,A://a.example.org:1",
        "listener.security.protocol.map=A:PLAINTEXT,B:PLAINTEXT",
        "inter.broker.listener.name=A",
    ):
        assert told(f"127.0.0.1:{one}") == {"a.example.org:1"}
        assert told(f"127.0.0.1:{two}") == {"b.example.org:2"}


def test_ipv6(tmp_path: Path) -> None:
    with served(tmp_path, "listeners=PLAINTEXT://[::1]:0") as addresses:
        address = addresses["PLAINTEXT"]
        assert address.startswith("[::1]:")
        serves(address)
        assert told(address) == {address.replace("[", "").replace("]", "")}


def test_a_listener_without_a_host(tmp_path: Path, ports: ReservedPorts) -> None:
    """The broker listens on every interface, of both families, and advertises this machine's name."""
    port = ports.reserve()
    with served(tmp_path, f"listeners=PLAINTEXT://:{port}"):
        serves(f"127.0.0.1:{port}")
        serves(f"[::1]:{port}")
        assert told(f"127.0.0.1:{port}") == {f"{socket.gethostname()}:{port}"}


# --- how many ---


def can_connect(bootstrap: str) -> bool:
    try:
        serves(bootstrap)
    except (EOFError, ConnectionError):
        return False
    return True


@pytest.mark.parametrize("setting", ["max.connections", "max.connections.per.ip"])
def test_connections_above_the_limit_are_closed(start_broker: StartBroker, setting: str) -> None:
    broker = start_broker(settings={setting: "3"})
    with contextlib.ExitStack() as stack:
        open_ones = [stack.enter_context(connect(broker.bootstrap)) for _ in range(3)]
        for connection in open_ones:
            ask(connection, ApiKey.METADATA, 9, MetadataRequest(topics=[]))
        with connect(broker.bootstrap) as one_too_many:
            assert is_closed(one_too_many)
        for connection in open_ones:
            ask(connection, ApiKey.METADATA, 9, MetadataRequest(topics=[]))
        open_ones[0].close()
        eventually(lambda: can_connect(broker.bootstrap))
    assert f"{setting}=3" in broker.log_text


def test_an_idle_connection_is_closed_and_one_that_waits_is_not(start_broker: StartBroker) -> None:
    broker = start_broker(settings={"connections.max.idle.ms": "300"})
    with connect(broker.bootstrap) as idle, connect(broker.bootstrap) as waiting:
        ask(idle, ApiKey.METADATA, 9, MetadataRequest(topics=[]))
        create_topic(waiting, "awaited")
        poll = fetch_request("awaited", 0, max_wait_ms=2**31 - 1)
        waiting.sendall(encode_request(ApiKey.FETCH, 12, 7, "poll", poll))
        assert is_closed(idle)
        with connect(broker.bootstrap) as other:
            assert is_closed(other), "one that never said anything, too"
        with connect(broker.bootstrap) as producing:
            produce_values(producing, "awaited", b"here")
        assert answer(waiting, ApiKey.FETCH, 12).responses[0].partitions[0].high_watermark == 1


def test_descriptors_are_given_back(start_broker: StartBroker) -> None:
    broker = start_broker()
    serves(broker.bootstrap)

    directory = Path(f"/proc/{broker.pid}/fd")
    with contextlib.ExitStack() as stack:
        for _ in range(50):
            ask(stack.enter_context(connect(broker.bootstrap)), ApiKey.METADATA, 9, MetadataRequest(topics=[]))
        during = len(os.listdir(directory))  # all of them, and perhaps what is about to be closed
    eventually(lambda: len(os.listdir(directory)) <= during - 50)
