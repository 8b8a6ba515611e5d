"""Spark's standalone mode on machines of its own, against three brokers on others: run by `make test-spark-cluster`.

KRAFTPY_SPARK_KILLS says how many executors, drivers, workers and brokers are killed, in turn.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from kraftpy.demo.flights import to_event
from kraftpy.demo.windows import from_silver, from_table, from_topic, same
from kraftpy.pipeline.project import create
from tests.spark_cluster.machines import Network, missing, wait_until
from tests.spark_cluster.stands import BARE_PYTHON, ENVIRONMENT, PASSWORD, ROOT, USER, Brokers, SparkMachines, pack

HERE = Path(__file__).resolve().parent
KILLS = int(os.environ.get("KRAFTPY_SPARK_KILLS", "50"))
SEED = int(os.environ.get("KRAFTPY_SPARK_SEED", "1"))
KINDS = ("executor", "driver", "worker", "broker")
ROWS_PER_S = 200
LOGGING = """\
rootLogger.level = info
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex
logger.requests.name = org.apache.spark.sql.connect.service.SparkConnectExecutionManager
logger.requests.level = warn
"""
"""As by default, but for what the page says of secrets: the server's log would have whole requests."""

pytestmark = [pytest.mark.timeout(900), pytest.mark.skipif(missing() is not None, reason=str(missing()))]


@pytest.fixture(scope="module")
def network(request: pytest.FixtureRequest) -> Iterator[Network]:
    """Machines with a directory of their own: others tidy up pytest's while fifty kills take their half an hour."""
    directory = Path(tempfile.mkdtemp(prefix="kraftpy-spark-"))
    failed_before = request.session.testsfailed
    with Network(directory) as network:
        yield network
    if request.session.testsfailed == failed_before:
        shutil.rmtree(directory)
    else:
        print(f"logs and data are in {directory}", flush=True)


@pytest.fixture(scope="module")
def brokers(network: Network) -> Brokers:
    brokers = Brokers(network, network.directory)
    brokers.start()
    return brokers


@pytest.fixture(scope="module")
def spark(network: Network, brokers: Brokers) -> SparkMachines:
    (network.directory / "archive").mkdir()
    archive = pack(network.directory / "archive")
    spark = SparkMachines(network, network.directory, archive)
    spark.start()
    return spark


def new_topic(brokers: Brokers, name: str, partitions: int) -> str:
    admin = AdminClient({"bootstrap.servers": brokers.bootstrap})
    admin.create_topics([NewTopic(name, partitions, 3)])[name].result(60)
    return name


def fill(brokers: Brokers, topic: str, values: list[bytes]) -> None:
    producer = Producer({"bootstrap.servers": brokers.bootstrap, "enable.idempotence": True})
    for value in values:
        producer.produce(topic, value)
        producer.poll(0)
    assert producer.flush(60) == 0


def test_workers_know_nothing_of_the_package(spark: SparkMachines, brokers: Brokers) -> None:
    """Without the archive the same job fails, which shows that nothing else brings the package to them."""
    (worker,) = spark.workers[:1]
    probe = worker.start([str(BARE_PYTHON), "-c", "import kraftpy"], {})
    assert probe.wait(60) == 1
    assert "No module named 'kraftpy'" in worker.text()


def test_batches_and_loads(spark: SparkMachines, brokers: Brokers) -> None:
    topic = new_topic(brokers, "batches", 4)
    fill(brokers, topic, [b"%d" % n for n in range(5_000)])
    arguments = [str(HERE / "batch_job.py"), brokers.bootstrap, topic, str(spark.shared), "5000"]
    assert spark.run(arguments, with_archive=False) != 0
    assert spark.run(arguments) == 0, spark.driver.text()[-3000:]
    told = spark.driver.text()
    assert "read 5000 rows" in told
    assert "loaded 5000 rows" in told


class Traffic:
    """Numbers into one topic, and a reader of committed records of the other."""

    def __init__(self, brokers: Brokers, source: str, target: str) -> None:
        self.produced = 0
        self.seen: Counter[int] = Counter()
        self._brokers, self._source, self._target = brokers, source, target
        self._is_over = threading.Event()
        self._producing = threading.Thread(target=self._produce)
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._is_read = threading.Event()

    def start(self) -> None:
        self._producing.start()
        self._reading.start()

    def end(self) -> None:
        """Produce no more; everything that was is acknowledged."""
        self._is_over.set()
        self._producing.join(120)
        assert not self._producing.is_alive()

    def twice(self) -> dict[int, int]:
        """The rows that have come more than once until now."""
        return {number: count for number, count in list(self.seen.items()) if count != 1}

    def close(self) -> None:
        self._is_read.set()
        self._reading.join(60)

    def _produce(self) -> None:
        servers = {"bootstrap.servers": self._brokers.bootstrap}
        producer = Producer({**servers, "enable.idempotence": True, "delivery.timeout.ms": 300_000})
        failed: list[object] = []
        while not self._is_over.wait(0.1):
            for _ in range(ROWS_PER_S // 10):
                producer.produce(
                    self._source,
                    b"%d" % self.produced,
                    on_delivery=lambda error, _: failed.append(error) if error else None,
                )
                self.produced += 1
            producer.poll(0)
        assert producer.flush(300) == 0
        assert failed == []

    def _read(self) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": self._brokers.bootstrap,
                "group.id": "judge",
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        consumer.subscribe([self._target])
        while not self._is_read.is_set():
            for message in consumer.consume(1_000, 0.5):
                if message.error() is None:
                    self.seen[int(message.value() or b"")] += 1
        consumer.close()


@pytest.mark.timeout(900 + 400 * KILLS)
def test_every_row_once_whatever_is_killed(spark: SparkMachines, brokers: Brokers) -> None:
    source, target = new_topic(brokers, "killed-in", 6), new_topic(brokers, "killed-out", 3)
    traffic = Traffic(brokers, source, target)
    dice = random.Random(SEED)
    arguments = [str(HERE / "stream_job.py"), brokers.bootstrap, source, target, str(spark.own / "checkpoint")]
    driver = spark.submit(arguments)

    def goes_on(since: int) -> bool:
        assert driver.poll() is None, f"the driver ended with {driver.returncode}:\n{spark.driver.text()[-3000:]}"
        return max(traffic.seen, default=-1) > since

    traffic.start()
    try:
        wait_until(lambda: goes_on(0), "the first rows")
        for kill in range(KILLS):
            kind = KINDS[kill % len(KINDS)]
            number = dice.randrange(spark.WORKERS)
            time.sleep(dice.uniform(0, 3))
            began = time.monotonic()
            match kind:
                case "executor":
                    wait_until(lambda which=number: spark.kill_executor(which), "an executor to kill")
                case "driver":
                    spark.driver.kill()
                    driver = spark.submit(arguments)
                case "worker":
                    spark.workers[number].kill()
                    time.sleep(dice.uniform(0, 5))
                    spark.launch(number)
                case "broker":
                    number = dice.randrange(len(brokers.machines))
                    brokers.kill(number)
                    time.sleep(dice.uniform(0, 5))
                    brokers.launch(number)
            wait_until(lambda since=traffic.produced: goes_on(since), f"rows after a kill of {kind} {number}", 400)
            if kind == "broker":
                brokers.wait()
            took = time.monotonic() - began
            print(f"kill {kill + 1}, {kind} {number}: rows again after {took:.1f} s, {len(traffic.seen)}", flush=True)
            assert traffic.twice() == {}
        traffic.end()
        wait_until(lambda: len(traffic.seen) >= traffic.produced, "the last rows", 400)
        time.sleep(5)  # for rows that would come twice
    finally:
        traffic._is_over.set()
        traffic.close()
        spark.driver.kill()
    twice, lost = traffic.twice(), set(range(traffic.produced)) - set(traffic.seen)
    print(f"{traffic.produced} rows, {KILLS} kills, seed {SEED}: {len(lost)} lost, {len(twice)} doubled", flush=True)
    assert twice == {}
    assert sorted(traffic.seen) == list(range(traffic.produced))


def test_spark_connect_logged_in(spark: SparkMachines, brokers: Brokers) -> None:
    source, target = new_topic(brokers, "connect-in", 3), new_topic(brokers, "connect-out", 3)
    options = spark.shared / "options.json"
    options.write_text(json.dumps(brokers.login(brokers.certificates.trusted.read_text())))
    server = ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]
    quiet = spark.own / "log4j2.properties"
    quiet.write_text(LOGGING)
    more = {
        "spark.connect.grpc.binding.address": spark.driver.host,
        "spark.connect.grpc.binding.port": "15002",
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={quiet.as_uri()}",
    }
    process = spark.submit(server, more=more)
    try:
        wait_until(lambda: "Spark Connect server started" in spark.driver.text() or process.poll(), "the server")
        remote = f"sc://{spark.driver.host}:15002"
        rows = ["3000"]
        client = [sys.executable, str(HERE / "connect_job.py"), remote, str(options), source, target]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        checkpoint = [str(spark.own / "connect-checkpoint")]
        done = subprocess.run(
            [*client, *checkpoint, *rows], env=environment, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stdout + done.stderr[-3000:] + spark.driver.text()[-3000:]
        assert "moved them exactly once" in done.stdout
        assert PASSWORD not in done.stdout + done.stderr + spark.driver.text()
    finally:
        spark.driver.kill()


def test_the_demo_s_pipeline_logged_in(spark: SparkMachines, brokers: Brokers) -> None:
    """A declarative pipeline with state, in two runs; its tables and state are on the shared file system."""
    flights, delays = new_topic(brokers, "flights", 3), new_topic(brokers, "delays", 3)
    config = spark.shared / "client.properties"
    login = brokers.login("").items()
    lines = [f"{name.removeprefix('kafka.')}={value}" for name, value in login if "truststore.certificates" not in name]
    trusted = spark.shared / "ca.pem"
    trusted.write_text(brokers.certificates.trusted.read_text())
    config.write_text("\n".join([*lines, f"ssl.truststore.location={trusted}", ""]))
    create(
        "flights_pipeline",
        spark.shared,
        bootstrap_servers=brokers.secured,
        source_topic=flights,
        target_topic=delays,
        command_config=config,
        transformations=files("kraftpy.demo") / "transformations",
    )
    place = spark.shared / "flights_pipeline"
    with (place / "conf" / "spark-defaults.conf").open("a") as defaults:
        settings = spark.settings()
        del settings["spark.master"]
        for name, value in settings.items():
            defaults.write(f"{name} {value}\n")
    events = [to_event(row) for row in _flights(2_000)]
    for half in (events[:1_000], events[1_000:]):
        producer = Producer({"bootstrap.servers": brokers.bootstrap, "enable.idempotence": True})
        for event in half:
            producer.produce(flights, event.value, event.key, timestamp=event.time_ms)
        assert producer.flush(60) == 0
        command = [str(BARE_PYTHON), "-m", "kraftpy", "pipeline", "run", "--project", str(place), "--master", spark.url]
        packages = f"{spark.packages}:{next(ENVIRONMENT.glob('lib/python*/site-packages'))}"  # with pandas and grpc
        process = spark.driver.start(command, {**spark.driver_environment(), "PYTHONPATH": packages})
        try:
            assert process.wait(400) == 0, spark.driver.text()[-3000:]
        finally:
            spark.driver.kill()
    silver = place / "tables" / "silver"
    expected, still_open = from_silver(silver)
    windows = from_topic(brokers.bootstrap, delays)
    assert len(windows) == len(set(windows)) == len(expected) > 20
    assert same(windows, expected) == same(from_table(place / "tables" / "counts"), expected) == len(expected)
    assert sum(each.flights for each in windows) + still_open == 2_000
    assert PASSWORD not in spark.driver.text()
    assert USER in config.read_text()


def _flights(count: int) -> list[dict[str, str]]:
    """Rows of the demo's table, one every three minutes."""
    rows = []
    for n in range(count):
        minute = n * 3
        day, hour = 1 + minute // 1440, minute // 60 % 24
        rows.append(
            {
                "carrier": "AA",
                "flight": str(n),
                "tailnum": f"N{n % 50}",
                "origin": ("JFK", "LGA", "EWR")[n % 3],
                "dest": "LAX",
                "dep_delay": str(n % 40 - 5),
                "minute": str(minute % 60),
                "time_hour": f"2013-01-{day:02}T{hour:02}:00:00Z",
            }
        )
    return rows
