"""The programs in the machines: three brokers; Spark's master, two workers, and drivers.

Workers have Spark, a Java and a bare Python, and nothing of this package: its checkout and its environment are empty
directories there. They have it from the archive that `spark-submit --archives` brings them, made as the page
docs/how-to/spark-cluster.md says.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from confluent_kafka.admin import AdminClient

from kraftpy.client import BlockingAdmin
from kraftpy.pipeline.run import spark_home
from kraftpy.spark.java import find_java
from tests.security.certificates import Certificates
from tests.spark_cluster.machines import Machine, Network, wait_until

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = Path(sys.prefix).resolve()
BARE_PYTHON = Path(sys.base_prefix, "bin", f"python3.{sys.version_info.minor}")
"""The Python that all machines have."""
USER, PASSWORD = "spark", "hidden-password"
MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
BROKERS = 3


class Brokers:
    """Three nodes with a listener for everybody and one for those who log in."""

    def __init__(self, network: Network, directory: Path) -> None:
        self._directory = directory
        self.machines = [network.add(f"broker-{node}") for node in range(1, BROKERS + 1)]
        self.certificates = Certificates(directory)
        self.bootstrap = ",".join(f"{each.host}:9092" for each in self.machines)
        self.secured = ",".join(f"{each.host}:9094" for each in self.machines)

    def start(self) -> None:
        for number in range(BROKERS):
            self._configure(number)
            self.launch(number)
        self.wait()
        with BlockingAdmin(bootstrap_servers=self.bootstrap) as admin:
            admin.set_scram_password(USER, PASSWORD, mechanism="SCRAM-SHA-256")

    def launch(self, number: int) -> None:
        command = [sys.executable, "-m", "kraftpy", "server", str(self._directory / f"broker-{number + 1}.properties")]
        self.machines[number].start(command, {"PYTHONPATH": str(ROOT)})

    def kill(self, number: int) -> None:
        self.machines[number].kill()

    def wait(self) -> None:
        """Until all are there, and no partition lacks a copy."""
        for machine in self.machines:
            assert machine.processes[-1].poll() is None, machine.text()[-2_000:]
        wait_until(self._is_whole, "three brokers with all copies in sync")

    def _is_whole(self) -> bool:
        try:
            found = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0}).list_topics(timeout=5)
        except Exception:
            return False
        copies = [each for topic in found.topics.values() for each in topic.partitions.values()]
        return len(found.brokers) == BROKERS and all(len(each.isrs) == len(each.replicas) for each in copies)

    def _configure(self, number: int) -> None:
        node, host = number + 1, self.machines[number].host
        voters = ",".join(f"{place + 1}@{machine.host}:9093" for place, machine in enumerate(self.machines))
        settings = {
            "process.roles": "broker,controller",
            "node.id": str(node),
            "listeners": f"PLAINTEXT://{host}:9092,CONTROLLER://{host}:9093,SASL_SSL://{host}:9094",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL_SSL:SASL_SSL",
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.voters": voters,
            "kraftpy.quorum.secret": "a secret of the namespaces",
            "log.dirs": str(self._directory / f"broker-{node}"),
            "default.replication.factor": "3",
            "min.insync.replicas": "2",
            "offsets.topic.replication.factor": "3",
            "offsets.topic.num.partitions": "4",
            "transaction.state.log.replication.factor": "3",
            "transaction.state.log.num.partitions": "4",
            "sasl.enabled.mechanisms": "SCRAM-SHA-256",
            **self.certificates.settings(),
            "ssl.keystore.location": str(self.certificates.issue(f"broker-{node}", host)),
        }
        text = "".join(f"{name}={value}\n" for name, value in settings.items())
        (self._directory / f"broker-{node}.properties").write_text(text)

    def login(self, trusted: str) -> dict[str, str]:
        """Options of the source and the sink that log in; `trusted` is the authority's certificate as PEM text."""
        return {
            "kafka.bootstrap.servers": self.secured,
            "kafka.security.protocol": "SASL_SSL",
            "kafka.ssl.truststore.type": "PEM",
            "kafka.ssl.truststore.certificates": trusted,
            "kafka.sasl.mechanism": "SCRAM-SHA-256",
            "kafka.sasl.jaas.config": f'{MODULE} required username="{USER}" password="{PASSWORD}";',
        }


def pack(directory: Path) -> Path:
    """Make the archive for the executors as the page says, or take one that is ready, and return it."""
    if ready := os.environ.get("KRAFTPY_SPARK_ARCHIVE"):
        return Path(ready)
    packages = directory / "packages"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(packages), str(ROOT)]
    subprocess.run([*command, "numpy", "pyarrow"], check=True)
    archive = directory / "packages.tar.gz"
    subprocess.run(["tar", "-czf", str(archive), "-C", str(packages), "."], check=True)
    shutil.rmtree(packages)
    return archive


class SparkMachines:
    """A master, two workers, and a machine for drivers."""

    WORKERS = 2

    def __init__(self, network: Network, directory: Path, archive: Path, *, cores: int = 2) -> None:
        """Have machines for all of them; a worker has so many cores to give."""
        self._directory = directory
        self._cores = str(cores)
        self._java = find_java(os.environ, directory)
        self._archive = archive
        self.shared = directory / "shared"
        """A file system that the driver and the workers have mounted."""
        self.shared.mkdir()
        self.own = directory / "driver"
        """The driver's own directory."""
        self.packages = self.own / "packages"
        """The same packages, for the driver."""
        self.packages.mkdir(parents=True)
        subprocess.run(["tar", "-xzf", str(archive), "-C", str(self.packages)], check=True)
        self._home = directory / "spark"
        self._home.mkdir()
        bare = {
            "sees": {spark_home(): self._home},
            "hides": (ROOT, ENVIRONMENT, self.own, directory / "archive"),
        }
        self.master = network.add("master", **bare)
        self.workers = [network.add(f"worker-{number}", **bare) for number in range(self.WORKERS)]
        self.driver = network.add("driver", sees={spark_home(): self._home})
        self.url = f"spark://{self.master.host}:7077"

    def start(self) -> None:
        master = "org.apache.spark.deploy.master.Master"
        self._spark_class(self.master, master, "--host", self.master.host, "--port", "7077", "--webui-port", "8080")
        for number in range(self.WORKERS):
            self.launch(number)
        wait_until(lambda: self.master.text().count("Registering worker") >= self.WORKERS, "both workers")

    def launch(self, number: int) -> None:
        """Start a worker, in an empty directory as after a power loss of a machine without a disk."""
        worker = self.workers[number]
        work = self._directory / worker.name
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        options = ["--host", worker.host, "--cores", self._cores, "--memory", "2g", "--work-dir", str(work)]
        self._spark_class(worker, "org.apache.spark.deploy.worker.Worker", *options, self.url)

    def _spark_class(self, machine: Machine, name: str, *arguments: str) -> None:
        environment = {**self._environment(machine), "SPARK_DAEMON_MEMORY": "256m", "SPARK_NO_DAEMONIZE": "1"}
        machine.start([str(self._home / "bin" / "spark-class"), name, *arguments], environment)

    def _environment(self, machine: Machine) -> dict[str, str]:
        return {
            "JAVA_HOME": str(self._java.home),
            "SPARK_HOME": str(self._home),
            "SPARK_LOCAL_IP": machine.host,
            "SPARK_LOCAL_DIRS": str(self._directory / f"blocks-{machine.name}"),
        }

    def settings(self, *, with_archive: bool = True) -> dict[str, str]:
        """The settings of a driver: where the cluster is, and what the executors get."""
        found = {
            "spark.master": self.url,
            "spark.driver.host": self.driver.host,
            "spark.driver.bindAddress": self.driver.host,
            "spark.driver.memory": "768m",
            "spark.executor.memory": "512m",
            "spark.executor.cores": self._cores,
            "spark.sql.shuffle.partitions": "2",
            "spark.ui.enabled": "false",
            "spark.network.timeout": "60s",
            "spark.deploy.maxExecutorRetries": "-1",
            "spark.task.maxFailures": "100",
        }
        if with_archive:
            found |= {
                "spark.archives": f"{self._archive}#packages",
                "spark.executorEnv.PYTHONPATH": "packages:../packages",
            }
        return found

    def submit(
        self, arguments: Sequence[str], *, with_archive: bool = True, more: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Run spark-submit in the driver's machine."""
        settings = self.settings(with_archive=with_archive) | dict(more or {})
        options = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
        command = [str(self._home / "bin" / "spark-submit"), *options, *arguments]
        return self.driver.start(command, self.driver_environment(), cwd=self.own)

    def driver_environment(self) -> dict[str, str]:
        """For programs in the driver's machine. Pythons are variables: settings are not looked at everywhere."""
        pythons = {"PYSPARK_DRIVER_PYTHON": str(BARE_PYTHON), "PYSPARK_PYTHON": str(BARE_PYTHON)}
        return {**self._environment(self.driver), **pythons, "PYTHONPATH": str(self.packages), "HOME": str(self.own)}

    def run(self, arguments: Sequence[str], *, seconds: int = 300, with_archive: bool = True) -> int:
        """Run spark-submit to its end, and return its status; a task that fails, fails the job."""
        process = self.submit(arguments, with_archive=with_archive, more={"spark.task.maxFailures": "1"})
        try:
            return process.wait(seconds)
        finally:
            self.driver.kill()

    def kill_executor(self, number: int) -> bool:
        """SIGKILL for an executor of a worker, and its Python; False if there is none."""
        worker = self.workers[number]
        found = worker.pids_of("CoarseGrainedExecutorBackend")
        for pid in found:
            os.kill(pid, signal.SIGKILL)
        return bool(found)
