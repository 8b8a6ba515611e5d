"""Three nodes with mutual TLS whose authority is replaced while they replicate: every new connection proves it.

Keys change by files on two nodes and by settings on the third; then the trust of the old authority ends. A node that
still showed its old certificate on the connections it opens would be refused from then on.

The test has its own cluster, because the settings of its nodes change.
"""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import pytest
import trustme

from kraftpy.client import Admin, NewTopic, ResourceType
from kraftpy.testing import Cluster
from tests.security.certificates import HOST, Certificates
from tests.security.node_links import port_of
from tests.security.wire import BOUND_SECONDS
from tests.waiting import eventually

pytestmark = [pytest.mark.timeout(240)]

LISTENERS = ("controller", "replication")


class Renewing:
    """A cluster with files of its own, and the two authorities."""

    def __init__(self, directory: Path) -> None:
        self.certificates = Certificates(directory)
        self.second = trustme.CA(key_type=trustme.KeyType.ECDSA, organization_name="Second")
        self.directory = directory
        self.trusted = directory / "trusted.pem"
        both = [self.certificates.ca.cert_pem.bytes(), self.second.cert_pem.bytes()]
        self.put(self.trusted, b"".join(both))
        for node in (1, 2, 3):
            self.put(self.file(node), self.keys(node, self.certificates.ca).read_bytes())
        self.looker = self.certificates.issue("looker", "looker", common_name="looker", authority=self.second)
        settings = {
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,REPLICATION:SSL,CONTROLLER:SSL",
            "min.insync.replicas": "2",
            "default.replication.factor": "3",
        }
        own: dict[int, dict[str, str]] = {node: {} for node in (1, 2, 3)}
        for listener in LISTENERS:
            prefix = f"listener.name.{listener}."
            tls = self.certificates.settings(ssl_truststore_location=str(self.trusted), ssl_client_auth="required")
            settings |= {prefix + name: value for name, value in tls.items()}
            for node, given in own.items():
                given[f"{prefix}ssl.keystore.location"] = str(self.file(node))
        self.cluster = Cluster(settings=settings, node_settings=own, keep_on_failure=True)

    def file(self, node: int) -> Path:
        return self.directory / f"own-{node}.pem"

    def keys(self, node: int, authority: trustme.CA) -> Path:
        """New keys of a node, with the same names."""
        return self.certificates.issue(f"new-{node}", HOST, common_name=f"node-{node}", authority=authority)

    @staticmethod
    def put(path: Path, content: bytes) -> None:
        """Replace a file in one step."""
        aside = path.with_suffix(".new")
        aside.write_bytes(content)
        aside.replace(path)

    def issuer_of(self, node: int) -> str:
        """The organization that issued the certificate of a node's controller listener."""
        context = ssl.create_default_context(cafile=str(self.certificates.trusted))
        context.load_verify_locations(cadata=self.second.cert_pem.bytes().decode())
        context.load_cert_chain(self.looker)
        with (
            socket.create_connection((HOST, port_of(self.cluster, node)), BOUND_SECONDS) as plain,
            context.wrap_socket(plain, server_hostname=HOST) as secured,
        ):
            found = secured.getpeercert()
            assert found is not None
            return dict(pair for part in found["issuer"] for pair in part)["organizationName"]  # type: ignore[misc, union-attr]


@pytest.fixture
def renewing(tmp_path: Path) -> Iterator[Renewing]:
    made = Renewing(tmp_path)
    with made.cluster:
        yield made
        for node in made.cluster.nodes:
            assert "Traceback" not in made.cluster.logs(node)


class Producing:
    """Produces records that a majority must have, until it is stopped."""

    def __init__(self, bootstrap: str) -> None:
        self._producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "acks": "all"})
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.errors: list[object] = []

    def _run(self) -> None:
        while not self._is_over.wait(0.02):
            self._producer.produce("replicated", b"x", on_delivery=lambda error, _: self.errors.append(error))
            self._producer.poll(0)

    def __enter__(self) -> Producing:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()
        assert self._producer.flush(2 * BOUND_SECONDS) == 0


async def test_the_authority_is_replaced_while_nodes_replicate(renewing: Renewing) -> None:
    cluster = renewing.cluster
    async with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        await admin.create_topics([NewTopic(name="replicated", num_partitions=3)])
        with Producing(cluster.bootstrap_servers) as producing:
            for node in (1, 2):
                renewing.put(renewing.file(node), renewing.keys(node, renewing.second).read_bytes())
            keys = renewing.keys(3, renewing.second)
            changes: dict[str, str | None] = {
                f"listener.name.{listener}.ssl.keystore.location": str(keys) for listener in LISTENERS
            }
            await admin.alter_configs({(ResourceType.BROKER, "3"): changes})
            eventually(lambda: {renewing.issuer_of(node) for node in (1, 2, 3)} == {"Second"})
            renewing.put(renewing.trusted, renewing.second.cert_pem.bytes())
            for node in (1, 2):  # whose links and fetches the others open again; the third has never been restarted
                cluster.kill(node)
                cluster.start(node)
                cluster.wait_in_sync()
        assert producing.errors
        assert set(producing.errors) == {None}
        await admin.create_topics([NewTopic(name="afterwards", num_partitions=3)])
    for node in (1, 2, 3):
        assert "keeps its certificate" not in cluster.logs(node)
    assert "REPLICATION has a new certificate, of CN=node-3" in cluster.logs(3)
