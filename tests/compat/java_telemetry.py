"""Metrics that Apache Kafka's own clients push (KIP-714), and the names of those they keep. Part of `make compat`.

    python tests/compat/java_telemetry.py            exit status 1 if anything is not as it should be
    python tests/compat/java_telemetry.py --names    print the names, as compat/kafka_client_metrics.tsv has them

Needs a JDK, Maven and a repository that has Apache Kafka. A producer and a consumer of either group protocol are asked
for their metrics by a subscription; what they push has to be on the broker's page for Prometheus, under the ids that
the clients know themselves by, and at a collector of OpenTelemetry's. Without a subscription that matches, they push
nothing. The names of their own metrics have to be those that our clients' names are checked against
(`java_client/MetricsPusher.java`).
"""

from __future__ import annotations

import http.server
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from compat.maven import JavaProject  # noqa: E402
from prometheus_client.parser import text_string_to_metric_families as parsed  # noqa: E402

from kraftpy.testing.cluster import EmbeddedBroker  # noqa: E402
from kraftpy.testing.ports import ReservedPorts  # noqa: E402

PRINTS_NAMES = sys.argv[1:] == ["--names"]
NAMES = HERE / "kafka_client_metrics.tsv"
SECONDS = 8
"""How long each pair of clients sends and reads."""
BOUND_SECONDS = 300.0
LIGHT = ("-Xmx256M", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
SUBSCRIPTION = ("metrics=*", "interval.ms=500", "match=client_software_name=apache-kafka-java,client_id=java")
PUSHED = {
    "producer": "kafka_client_producer_record_queue_time_avg",
    "consumer": "kafka_client_consumer_fetch_manager_fetch_latency_avg",
}
"""A metric that each kind of client has to have pushed (KIP-714's standard ones)."""


class Collector(http.server.ThreadingHTTPServer):
    """Counts what is sent to it by OTLP over HTTP."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Request)
        self.bodies: list[bytes] = []
        threading.Thread(target=self.serve_forever, daemon=True).start()


class _Request(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        assert isinstance(self.server, Collector)
        self.server.bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Print nothing."""


class Pusher:
    """`MetricsPusher`, compiled, in a directory."""

    def __init__(self, scratch: Path) -> None:
        project = JavaProject(scratch, HERE / "java_client" / "pom.xml")
        project.compile([HERE / "java_client" / "MetricsPusher.java"])
        self._path = project.path()
        self.ids: dict[str, str] = {}
        self.names: set[str] = set()

    def start(self, bootstrap: str, protocol: str) -> subprocess.Popen[str]:
        words = ["java", *LIGHT, "-cp", self._path, "MetricsPusher", bootstrap, f"group-{protocol}", "pushed", protocol]
        return subprocess.Popen([*words, str(SECONDS)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)

    def end(self, running: subprocess.Popen[str]) -> None:
        """Wait for the process, and take in what it has printed."""
        printed, _ = running.communicate(timeout=BOUND_SECONDS)
        if running.returncode:
            raise SystemExit(f"MetricsPusher ended with {running.returncode}: {printed}")
        for line in printed.splitlines():
            if "\t" in line:
                self.names.add(line)
            else:
                kind, _, instance = line.partition(" ")
                self.ids[kind] = instance


def shown(port: int) -> dict[str, dict[str, str]]:
    """Return the metrics of clients that the broker shows: the labels of the last sample by name and instance."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    return {
        f"{sample.name} {sample.labels['client_instance_id']}": sample.labels
        for family in parsed(text)
        for sample in family.samples
        if sample.name.startswith("kafka_client_") and "client_instance_id" in sample.labels
    }


def tell(line: str) -> None:
    print(line, file=sys.stderr if PRINTS_NAMES else sys.stdout)


def kept_by(broker: EmbeddedBroker, *words: str) -> None:
    command = [sys.executable, "-m", "kraftpy", "config", *words, "--bootstrap-server", broker.bootstrap]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def check_pushed(pusher: Pusher, pages: dict[str, dict[str, str]], protocol: str, found: list[str]) -> None:
    for kind, name in PUSHED.items():
        labels = pages.get(f"{name} {pusher.ids[kind]}")
        if labels is None:
            found.append(f"{protocol}: the broker shows no {name} of {pusher.ids[kind]}")
        elif (labels["client_software_name"], labels["client_id"]) != ("apache-kafka-java", "java"):
            found.append(f"{protocol}: {name} has the labels {labels}")
    names = {key.partition(" ")[0] for key in pages}
    tell(f"{protocol}: {len(names)} metrics of {len({key.partition(' ')[2] for key in pages})} clients are shown")


def check_names(pusher: Pusher, found: list[str]) -> None:
    known = {line for line in NAMES.read_text().splitlines() if not line.startswith("#")}
    odd = sorted(pusher.names ^ known)
    if odd:
        found.append(f"{NAMES.name} differs from what the clients have: {odd[:5]}")
    tell(f"names: {len(pusher.names)} of {len(known)}")


def main() -> int:
    found: list[str] = []
    collector = Collector()
    with tempfile.TemporaryDirectory(prefix="kraftpy-java-") as scratch, ReservedPorts() as ports:
        port = ports.reserve()
        settings = {
            "kraftpy.metrics.listener": f"127.0.0.1:{port}",
            "kraftpy.telemetry.otlp.endpoint": f"http://127.0.0.1:{collector.server_port}/v1/metrics",
        }
        with EmbeddedBroker(settings=settings) as broker:
            pusher = Pusher(Path(scratch))
            kept_by(broker, "alter", "client-metrics:others", "--config", "metrics=*", "--config", "match=client_id=x")
            pusher.end(pusher.start(broker.bootstrap, "classic"))
            if pages := shown(port):
                found.append(f"without a subscription that matches, there are {sorted(pages)[:3]}")
            options = [word for setting in SUBSCRIPTION for word in ("--config", setting)]
            kept_by(broker, "alter", "client-metrics:java", *options)
            for protocol in ("classic", "consumer"):
                pages, running = {}, pusher.start(broker.bootstrap, protocol)
                while running.poll() is None:  # a client's values disappear some time after it has ended
                    pages |= shown(port)
                    time.sleep(0.5)
                pusher.end(running)
                check_pushed(pusher, pages | shown(port), protocol, found)
            if not any(b"org.apache.kafka.producer" in body for body in collector.bodies):
                found.append("the collector was sent nothing")
            tell(f"collector: {len(collector.bodies)} pushes")
    collector.shutdown()
    if PRINTS_NAMES:
        print("\n".join(sorted(pusher.names)))
        return 0
    check_names(pusher, found)
    for line in found[:20]:
        print(line, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
