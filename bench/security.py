"""TLS, SASL and quotas beside Apache Kafka: rates, latency, handshakes, processor time, memory, and quotas kept.

The authorizer's decisions are measured in this process, and not beside Kafka's.

    python -m bench.security [--pairs N] [--only NAME ...] [--directory DIR] [--output FILE]

Writes bench/SECURITY.md. Needs a JDK, Maven and a repository that has Apache Kafka. Both brokers run at once, each on
one node with the same listeners, certificate, users and settings, and take turns: a pair is one run on each, and its
ratio is ours divided by Kafka's. The client is confluent-kafka for both. Clients and brokers share the machine.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from bench import machine
from bench.brokers import SMALL_LOGS, Running
from bench.pairs import Runs, ended, in_turn, median, met, options, ratio_of, write_results
from bench.security_load import GROUPS

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests" / "compat")]

from peer_clusters import PeerCluster  # noqa: E402

from kraftpy.broker.security.authorizer import Authorizer  # noqa: E402
from kraftpy.certificates import Authority  # noqa: E402
from kraftpy.client.blocking.facade import BlockingAdmin  # noqa: E402
from kraftpy.metadata.acls import Acls  # noqa: E402
from kraftpy.security.acls import AclBinding, Operation, PatternType, Permission, ResourceType  # noqa: E402
from kraftpy.security.principal import Principal  # noqa: E402

RESULTS = Path(__file__).with_name("SECURITY.md")
HOST = "127.0.0.1"
USERS = {"greedy": "greedy-secret", "polite": "polite-secret"}
LISTENERS = {"TLS": "SSL", "LOGIN": "SASL_PLAINTEXT", "SECURE": "SASL_SSL"}
CONSUMER = ("queued.min.messages=1000000", "queued.max.messages.kbytes=1000000", "fetch.queue.backoff.ms=10")
SMALL_BATCHES = ("batch.size=50000", "max.in.flight=1", "queue.buffering.max.kbytes=1000")
SMALL_FETCHES = (
    "message.max.bytes=100000",
    "fetch.max.bytes=100000",
    "fetch.message.max.bytes=100000",
    "queued.max.messages.kbytes=1000",
)
"""Quotas are judged over the bytes of some seconds, so that one large request must not be many of them."""
RATES = ((200, 800_000), (1000, 200_000))
"""Bytes of a record, and records a run."""
IDLE = 10_000
IDLE_TARGET_KB = {"PLAINTEXT": 20, "TLS": 60}
QUOTA_BYTES = 1_000_000
QUOTA_CONNECTIONS = 40
QUOTA_PERCENTAGE = 20
"""The share of one thread's time."""
QUOTA_MUTATIONS = 10
SETTLE_S, HELD_S = 15.0, 30.0
DECISION_TARGET_US = 2.0
_WARM_UP_S = 12.0
_PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"

Lines = list[str]


@dataclass(frozen=True, slots=True)
class Peer:
    """One broker with its listeners, and the options that its clients need."""

    cluster: PeerCluster
    authority: Path

    def running(self, listener: str) -> Running:
        """Return the broker as found at one listener."""
        port = self.cluster.ports[0] if listener == "PLAINTEXT" else self.cluster.more_ports[listener][0]
        process = psutil.Process(self.cluster.process_id(1))
        return Running(name=self.cluster.kind, bootstrap=f"{HOST}:{port}", process=process)

    def settings(self, listener: str, user: str = "polite") -> list[str]:
        """Return librdkafka's settings for a listener, as name=value."""
        protocol = LISTENERS.get(listener, "PLAINTEXT")
        found = [f"security.protocol={protocol}"]
        if protocol.endswith("SSL"):
            found.append(f"ssl.ca.location={self.authority}")
        if protocol.startswith("SASL"):
            found += ["sasl.mechanism=PLAIN", f"sasl.username={user}", f"sasl.password={USERS[user]}"]
        return found

    def load(self, what: str, listener: str, *arguments: str, more: Sequence[str] = ()) -> dict[str, Any]:
        """Run `bench.load`, which measures rates."""
        return self.running(listener).load(what, *arguments, *options([*self.settings(listener), *more]))

    def secure_load(
        self, what: str, listener: str, *arguments: str, user: str = "polite", more: Sequence[str] = ()
    ) -> subprocess.Popen[str]:
        """Start `bench.security_load`."""
        command = [sys.executable, "-m", "bench.security_load", what, "--bootstrap", self.running(listener).bootstrap]
        command += [*arguments, *options([*self.settings(listener, user), *more])]
        if LISTENERS.get(listener) == "SSL":
            command += ["--authority", str(self.authority)]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def measured(
        self, what: str, listener: str, *arguments: str, user: str = "polite", more: Sequence[str] = ()
    ) -> dict[str, Any]:
        """Run `bench.security_load` to its end; return its figures, and `broker_cpu`."""
        broker = self.running(listener)
        before = broker.cpu_seconds()
        figures = ended(self.secure_load(what, listener, *arguments, user=user, more=more))
        return {**figures, "broker_cpu": broker.cpu_seconds() - before}

    def set_quota(self, entity: dict[str, str], **values: float | None) -> None:
        """Set quotas of an entity."""
        with BlockingAdmin(bootstrap_servers=self.running("PLAINTEXT").bootstrap) as admin:
            admin.alter_client_quotas(entity, values)


@contextlib.contextmanager
def peers(under: Path) -> Iterator[tuple[Peer, Peer]]:
    """Run our broker and Kafka."""
    with tempfile.TemporaryDirectory(prefix="bench-security-", dir=under) as scratch, contextlib.ExitStack() as stack:
        authority = Authority("bench")
        trusted, keys = Path(scratch, "ca.pem"), Path(scratch, "keys.pem")
        trusted.write_text(authority.own.certificate)
        keys.touch(mode=0o600)
        keys.write_text(authority.issue("broker", ["localhost", HOST]).store)
        users = " ".join(f'user_{name}="{password}"' for name, password in USERS.items())
        settings = {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(keys),
            "sasl.enabled.mechanisms": "PLAIN",
            "security.inter.broker.protocol": "PLAINTEXT",
            **SMALL_LOGS,
            "max.connections": "19000",
            **{
                f"listener.name.{name.lower()}.plain.sasl.jaas.config": f"{_PLAIN} required {users};"
                for name, protocol in LISTENERS.items()
                if protocol.startswith("SASL")
            },
        }
        found = []
        for kind in ("kraftpy", "kafka"):
            cluster = PeerCluster(kind, 1, settings, listeners=LISTENERS)  # type: ignore[arg-type]
            stack.callback(cluster.stop)
            cluster.start()
            found.append(Peer(cluster, trusted))
        yield found[0], found[1]


def _row(name: str, runs: Runs, key: str, form: str, target: Callable[[float], bool]) -> str:
    ratio = ratio_of(runs, key)
    values = " | ".join(format(median(side, key), form) for side in runs)
    return f"| {name} | {values} | **{ratio:.2f}** | {met(target(ratio))} |"


def rates(sides: tuple[Peer, Peer], arguments: argparse.Namespace) -> Lines:
    """Compare producing and consuming in batches, plain and over SASL_SSL."""
    for listener in ("PLAINTEXT", "SECURE"):
        for peer in sides:
            until = time.monotonic() + _WARM_UP_S
            while time.monotonic() < until:
                peer.load("produce", listener, "--topics", "warm-up", "--count", "100000")
                peer.load("consume", listener, "--topics", "warm-up", more=CONSUMER)
    rows = []
    for size, count in RATES:
        for listener in ("PLAINTEXT", "SECURE"):
            name = f"{LISTENERS.get(listener, 'PLAINTEXT')}, {size} B"
            written, read = f"written-{listener}-{size}", f"read-{listener}-{size}"
            amount = ("--count", str(count), "--size", str(size))
            for peer in sides:
                peer.load("produce", "PLAINTEXT", "--topics", read, "--partitions", "4", *amount)

            def produced(peer: Peer) -> dict[str, Any]:
                return _per_gb(peer.load("produce", listener, "--topics", written, *amount))  # noqa: B023

            def consumed(peer: Peer) -> dict[str, Any]:
                return _per_gb(peer.load("consume", listener, "--topics", read, more=CONSUMER))  # noqa: B023

            for what, run in (("produce", produced), ("consume", consumed)):
                runs = in_turn(arguments.pairs, sides, run)
                ratio, cpu = ratio_of(runs, "rate"), ratio_of(runs, "cpu_per_gb")
                target = "" if listener == "PLAINTEXT" else met(ratio >= 1.0)
                rows.append(
                    f"| {what}, {name} | {median(runs[0], 'rate'):,.0f} | {median(runs[1], 'rate'):,.0f} | "
                    f"**{ratio:.2f}** | {target} | {median(runs[0], 'cpu_per_gb'):.1f} | "
                    f"{median(runs[1], 'cpu_per_gb'):.1f} | {cpu:.2f} |"
                )
                print(rows[-1], file=sys.stderr, flush=True)
    return [
        "## Rates",
        "",
        "Records in batches as librdkafka makes them by default, 4 partitions. Target over SASL_SSL: 1.0 of Kafka's "
        "rate.",
        "",
        "| | ours, records/s | Kafka's | ratio | target | ours, CPU s a GB | Kafka's | ratio |",
        "|---|--:|--:|--:|---|--:|--:|--:|",
        *rows,
    ]


def _per_gb(figures: dict[str, Any]) -> dict[str, Any]:
    gigabytes = figures["mb_per_s"] * figures["seconds"] / 1e3
    return {**figures, "cpu_per_gb": figures["broker_cpu"] / gigabytes}


def single_requests(sides: tuple[Peer, Peer], arguments: argparse.Namespace) -> Lines:
    """Compare one record after the other."""
    rows = []
    for listener in ("PLAINTEXT", "SECURE"):
        topic = f"single-{listener}"
        for peer in sides:  # Kafka reaches its speed after some 100,000 requests
            peer.measured("latency", listener, "--topic", topic, "--seconds", "15")
        runs = in_turn(
            arguments.pairs,
            sides,
            lambda peer: _per_request(peer.measured("latency", listener, "--topic", topic, "--seconds", "6")),  # noqa: B023
        )
        for name, key in (("p50", "p50_us"), ("p99", "p99_us"), ("broker's CPU", "cpu_us")):
            values = " | ".join(f"{median(side, key):.0f} us" for side in runs)
            rows.append(f"| {LISTENERS.get(listener, listener)}, {name} | {values} | **{ratio_of(runs, key):.2f}** |")
            print(rows[-1], file=sys.stderr, flush=True)
    return [
        "## One record after the other",
        "",
        "200 B, acks=1, the next once the last is acknowledged.",
        "",
        "| | ours | Kafka's | ratio |",
        "|---|--:|--:|--:|",
        *rows,
    ]


def _per_request(figures: dict[str, Any]) -> dict[str, Any]:
    return {**figures, "cpu_us": figures["broker_cpu"] / figures["requests"] * 1e6}


def handshakes(sides: tuple[Peer, Peer], arguments: argparse.Namespace) -> Lines:
    """Compare TLS handshakes."""

    def run(peer: Peer) -> dict[str, Any]:
        found = peer.measured("handshakes", "TLS", "--seconds", "6")
        return {**found, "cpu_ms": found["broker_cpu"] / found["count"] * 1e3}

    for peer in sides:
        run(peer)
    runs = in_turn(arguments.pairs, sides, run)
    return [
        "## Handshakes",
        "",
        "TLS 1.3, P-256, a new session each, then one ApiVersions request; four threads of one client.",
        "",
        "| | ours | Kafka's | ratio | |",
        "|---|--:|--:|--:|---|",
        _row("connections a second", runs, "per_s", ",.0f", lambda ratio: ratio >= 1.0),
        _row("broker's CPU, ms each", runs, "cpu_ms", ".2f", lambda ratio: ratio <= 1.0),
    ]


def idle_connections(sides: tuple[Peer, Peer], arguments: argparse.Namespace) -> Lines:
    """Measure the memory of connections at rest."""
    rows = []
    for listener, target in IDLE_TARGET_KB.items():
        cells = []
        for peer in sides:
            process = peer.running(listener).process
            peer.measured("handshakes", listener, "--seconds", "2")
            before = process.memory_info().rss
            load = peer.secure_load("connections", listener, "--count", str(IDLE))
            assert load.stdout is not None
            opened = json.loads(load.stdout.readline() or "{}").get("count")
            if opened != IDLE:
                raise RuntimeError(f"{opened} connections of {IDLE}")
            time.sleep(2)  # for what handshakes leave behind to be freed
            cells.append((process.memory_info().rss - before) / IDLE / 1e3)
            load.communicate()
        protocol = LISTENERS.get(listener, listener)
        rows.append(f"| {protocol} | {cells[0]:.1f} KB | {cells[1]:.1f} KB | < {target} KB: {met(cells[0] < target)} |")
        print(rows[-1], file=sys.stderr, flush=True)
    return [
        f"## {IDLE:,} idle connections",
        "",
        "Growth of the resident memory, a connection; each has asked for the versions once. A JVM's heap is reserved "
        "beforehand, so its growth says less.",
        "",
        "| | ours | Kafka's | target |",
        "|---|--:|--:|---|",
        *rows,
    ]


def quotas_held(sides: tuple[Peer, Peer], arguments: argparse.Namespace) -> Lines:
    """Measure the rates of clients that want more than their quotas."""
    long = ("--settle", str(SETTLE_S), "--seconds", str(HELD_S))
    rows = []
    user = {"user": "greedy"}

    def row(name: str, quota: float, unit: str, run: Callable[[Peer], float]) -> None:
        cells = [run(peer) / quota for peer in sides]
        target = f"within 5 %: {met(abs(cells[0] - 1) <= 0.05)}"
        rows.append(f"| {name} | {quota:,.0f} {unit} | {cells[0]:.3f} | {cells[1]:.3f} | {target} |")
        print(rows[-1], file=sys.stderr, flush=True)

    def producing(peer: Peer) -> float:
        peer.set_quota(user, producer_byte_rate=QUOTA_BYTES)
        try:
            arguments = ("--topic", "greedy", "--size", "1000", *long)
            found = peer.measured("greedy", "SECURE", *arguments, user="greedy", more=SMALL_BATCHES)
        finally:
            peer.set_quota(user, producer_byte_rate=None)
        return float(found["bytes_per_s"])

    def consuming(peer: Peer) -> float:
        peer.load("produce", "PLAINTEXT", "--topics", "reading", "--partitions", "4", "--count", "50000")
        peer.set_quota(user, consumer_byte_rate=QUOTA_BYTES)
        try:
            arguments = ("--topic", "reading", *long)
            found = peer.measured("reading", "SECURE", *arguments, user="greedy", more=SMALL_FETCHES)
        finally:
            peer.set_quota(user, consumer_byte_rate=None)
        return float(found["bytes_per_s"])

    def connecting(peer: Peer) -> float:
        address = {"ip": HOST}
        peer.set_quota(address, connection_creation_rate=QUOTA_CONNECTIONS)
        try:
            peer.measured("handshakes", "TLS", "--seconds", str(SETTLE_S))
            found = peer.measured("handshakes", "TLS", "--seconds", str(HELD_S))
        finally:
            time.sleep(2)  # longer than a refused connection is held
            peer.set_quota(address, connection_creation_rate=None)
        return float(found["per_s"])

    def asking(peer: Peer) -> float:
        other = ("--other", f"polite:{USERS['polite']}")
        peer.measured("requests", "SECURE", *other, "--seconds", str(SETTLE_S), user="greedy")  # to warm up
        peer.set_quota(user, request_percentage=QUOTA_PERCENTAGE)
        try:
            found = peer.measured("requests", "SECURE", *other, *long, user="greedy")
        finally:
            peer.set_quota(user, request_percentage=None)
        return float(found["busy"]) * 100

    def changing(peer: Peer) -> float:
        peer.set_quota(user, controller_mutation_rate=QUOTA_MUTATIONS)
        try:
            found = peer.measured("mutations", "SECURE", "--topic", "changing", *long, user="greedy")
        finally:
            peer.set_quota(user, controller_mutation_rate=None)
        return float(found["per_s"])

    row("producer_byte_rate", QUOTA_BYTES, "B/s", producing)
    row("consumer_byte_rate", QUOTA_BYTES, "B/s", consuming)
    row("request_percentage", QUOTA_PERCENTAGE, "%", asking)
    row("controller_mutation_rate", QUOTA_MUTATIONS, "/s", changing)
    row("connection_creation_rate", QUOTA_CONNECTIONS, "/s", connecting)
    return [
        "## Quotas",
        "",
        f"The share of its quota that a client gets which wants far more, over {HELD_S:.0f} seconds, {SETTLE_S:.0f} "
        "seconds after it began; over SASL_SSL, connections over TLS. `request_percentage`: a client asks for the "
        f"coordinators of {GROUPS} groups, and again as soon as the time is over that the answer told it to wait; the "
        "share of the time from questions to their answers, each less the round trip of an empty question of another "
        "user in between: what is left is the broker's work on it. `controller_mutation_rate`: topics of one partition "
        "created and deleted, in versions of the requests in which what is beyond the quota is refused (KIP-599).",
        "",
        "| quota | | ours | Kafka's | target |",
        "|---|--:|--:|--:|---|",
        *rows,
    ]


def polite_tenant(sides: tuple[Peer, Peer], arguments: argparse.Namespace) -> Lines:
    """Measure a polite client alone, beside a greedy one, and beside one with a quota."""
    peer_rows: dict[str, Lines] = {"alone": [], "beside a greedy one": [], "beside a greedy one with a quota": []}
    polite = ("--topic", "polite", "--seconds", "15")
    for peer in sides:
        for name, cells in peer_rows.items():
            load = None
            peer.set_quota({"user": "greedy"}, producer_byte_rate=QUOTA_BYTES if "quota" in name else None)
            if name != "alone":
                load = peer.secure_load(
                    "greedy", "SECURE", "--topic", "greedy", "--size", "1000", "--seconds", "25", user="greedy"
                )
                time.sleep(5)  # beyond the greedy one's first burst
            found = peer.measured("paced", "SECURE", *polite)
            if load is not None:
                ended(load)
            peer.set_quota({"user": "greedy"}, producer_byte_rate=None)
            cells.append(f"{found['p50_us'] / 1e3:.2f} | {found['p99_us'] / 1e3:.2f}")
    return [
        "## A polite tenant beside a greedy one",
        "",
        "One record of 200 B each 10 ms, acks=1, over SASL_SSL: ms until its acknowledgement. The greedy one sends "
        f"records of 1 KB as fast as it can; its quota is {QUOTA_BYTES / 1e6:.0f} MB/s.",
        "",
        "| | ours, p50 | p99 | Kafka's, p50 | p99 |",
        "|---|--:|--:|--:|--:|",
        *(f"| {name} | {' | '.join(cells)} |" for name, cells in peer_rows.items()),
    ]


def decisions(sides: tuple[Peer, Peer], arguments: argparse.Namespace) -> Lines:
    """Measure the authorizer's decisions about 100 users and 100 topics by 1,000 ACLs."""
    users = [Principal("User", f"user-{number}") for number in range(100)]
    acls = Acls(
        tuple(
            AclBinding(
                resource_type=ResourceType.TOPIC,
                name=f"topic-{user}" if kind < 5 else f"topic-{user}-{kind}",
                pattern_type=PatternType.PREFIXED if kind % 5 == 4 else PatternType.LITERAL,
                principal=str(users[(user + kind) % 100]),
                operation=Operation.READ if kind % 2 else Operation.WRITE,
                permission=Permission.DENY if kind == 3 else Permission.ALLOW,
            )
            for user in range(100)
            for kind in range(10)
        )
    )
    questions = [(user, f"topic-{topic}") for user in users for topic in range(100)]

    def run(is_cached: bool) -> float:
        authorizer = Authorizer(lambda: acls, super_users=frozenset(), allow_everyone_if_no_acl_found=False)
        for _ in range(2 if is_cached else 1):
            began = time.perf_counter()
            for user, topic in questions:
                authorizer.is_allowed(user, HOST, Operation.READ, ResourceType.TOPIC, topic)
            seconds = time.perf_counter() - began
        return seconds / len(questions) * 1e6

    cached, new = (statistics.median(run(is_cached) for _ in range(arguments.pairs)) for is_cached in (True, False))
    target = f"< {DECISION_TARGET_US:.0f} us: {met(cached < DECISION_TARGET_US)}"
    return [
        "## Decisions of the authorizer",
        "",
        f"Whether a user may read a topic, by {len(list(acls)):,} ACLs; {len(questions):,} questions, each asked once "
        "before, or new, as all are once an ACL has changed.",
        "",
        "| | ours | target |",
        "|---|--:|---|",
        f"| asked before | {cached:.2f} us | {target} |",
        f"| new | {new:.2f} us | |",
    ]


SECTIONS: dict[str, Callable[[tuple[Peer, Peer], argparse.Namespace], Lines]] = {
    "rates": rates,
    "single": single_requests,
    "handshakes": handshakes,
    "idle": idle_connections,
    "quotas": quotas_held,
    "tenants": polite_tenant,
    "decisions": decisions,
}


def main() -> int:
    """Run the requested sections and write the file."""
    parser = argparse.ArgumentParser(prog="python -m bench.security", description="security, into bench/SECURITY.md")
    parser.add_argument("--pairs", type=int, default=5, help="runs of each broker for a ratio (default 5)")
    parser.add_argument("--only", nargs="+", choices=sorted(SECTIONS), help="run only these sections")
    parser.add_argument("--directory", type=Path, default=Path(tempfile.gettempdir()), help="directory for the data")
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    load_before = machine.load_average()
    lines: Lines = []
    with peers(arguments.directory) as sides:
        for name, section in SECTIONS.items():
            if arguments.only is None or name in arguments.only:
                print(f"{name} ...", file=sys.stderr, flush=True)
                lines += ["", *section(sides, arguments)]
                print("\n".join(lines[-12:]), file=sys.stderr, flush=True)
    write_results(
        arguments.output,
        "The cost of security",
        "bench-security",
        lines,
        directory=arguments.directory,
        load_before=load_before,
        pairs=arguments.pairs,
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
