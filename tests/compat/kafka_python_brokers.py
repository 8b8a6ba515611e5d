"""A pytest plugin for kafka-python's own tests of SSL and SASL: our broker is started where they would start a Kafka.

`kafka_python_suite` loads it. It takes the place of `KafkaFixture.instance`, of which these tests need little: an
address, the options of clients, the file of the authority, and the names of topics.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from kafka import KafkaAdminClient
from test.integration.fixtures import KafkaFixture

from kraftpy.testing.cluster import EmbeddedBroker
from kraftpy.testing.ports import HOST, ReservedPorts
from tests.security.certificates import Certificates
from tests.security.listeners import add_users

USER, PASSWORD = "alice", "alice-secret"
_PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"


class OurBroker:
    """A broker with the transport and the mechanism that a test asks for."""

    partitions, replicas = 4, 1
    broker_user, broker_password = USER, PASSWORD
    zookeeper = None
    _enrich_client_params = KafkaFixture._enrich_client_params

    def __init__(self, transport: str, sasl_mechanism: str | None) -> None:
        self.transport, self.sasl_mechanism = transport, sasl_mechanism
        self.sasl_enabled, self.ssl_enabled = sasl_mechanism is not None, transport == "SSL"
        self.child = SimpleNamespace(dump_logs=lambda: None)
        self._directory = tempfile.TemporaryDirectory()
        self._ports = ReservedPorts()
        self.port, setup = self._ports.reserve(), self._ports.reserve()
        self.ssl_dir = self._directory.name
        certificates = Certificates(Path(self.ssl_dir))
        certificates.issue("broker", HOST, "localhost")
        Path(self.ssl_dir, "ca-cert").write_bytes(certificates.trusted.read_bytes())
        settings = {
            "listeners": f"CLIENTS://{HOST}:{self.port},SETUP://{HOST}:{setup}",
            "listener.security.protocol.map": f"CLIENTS:{transport},SETUP:PLAINTEXT",
            "inter.broker.listener.name": "SETUP",
            "num.partitions": str(self.partitions),
            **(certificates.settings() if self.ssl_enabled else {}),
        }
        if sasl_mechanism is not None:
            settings["sasl.enabled.mechanisms"] = sasl_mechanism
        if sasl_mechanism == "PLAIN":
            settings["listener.name.clients.plain.sasl.jaas.config"] = f'{_PLAIN} required user_{USER}="{PASSWORD}";'
        self._broker = EmbeddedBroker(settings=settings)
        self._broker.start()
        if sasl_mechanism is not None:
            add_users(f"{HOST}:{setup}", USER, password=PASSWORD)

    def start(self) -> None:
        """Do nothing: it runs."""

    def bootstrap_server(self) -> str:
        return f"{HOST}:{self.port}"

    def get_topic_names(self) -> list[str]:
        with KafkaAdminClient(**self._enrich_client_params({})) as admin:
            return list(admin.list_topics())

    def close(self) -> None:
        self._broker.stop()
        self._ports.close()
        self._directory.cleanup()


def _instance(node_id: int, *arguments: Any, **options: Any) -> OurBroker:
    return OurBroker(options.get("transport", "PLAINTEXT"), options.get("sasl_mechanism"))


KafkaFixture.instance = _instance
