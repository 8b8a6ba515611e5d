"""The source and the sink over SASL_SSL, with options named as for Spark's own connector; on a cluster of its own.

It is their own cluster because the others' has no listener with SASL.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from kraftpy.client import BlockingAdmin
from kraftpy.testing import EmbeddedBroker
from kraftpy.testing.ports import ReservedPorts
from tests.security.certificates import HOST, Certificates

MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
PASSWORD = "hidden-password"


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    certificates = Certificates(tmp_path_factory.mktemp("certificates"))
    with ReservedPorts() as ports:
        plain, secured = ports.reserve(), ports.reserve()
        settings = {
            "listeners": f"PLAINTEXT://{HOST}:{plain},SASL_SSL://{HOST}:{secured}",
            "sasl.enabled.mechanisms": "SCRAM-SHA-256",
            **certificates.settings(),
        }
        with EmbeddedBroker(settings=settings):
            with BlockingAdmin(bootstrap_servers=f"{HOST}:{plain}") as admin:
                admin.set_scram_password("spark", PASSWORD, mechanism="SCRAM-SHA-256")
            yield {
                "kafka.bootstrap.servers": f"{HOST}:{secured}",
                "kafka.security.protocol": "SASL_SSL",
                "kafka.ssl.truststore.type": "PEM",
                "kafka.ssl.truststore.location": str(certificates.trusted),
                "kafka.sasl.mechanism": "SCRAM-SHA-256",
                "kafka.sasl.jaas.config": f'{MODULE} required username="spark" password="{PASSWORD}";',
            }


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
def test_rows_are_written_and_read(spark: Any, options: dict[str, str], delivery: str, capfd: Any) -> None:
    topic = f"secured-{delivery}"
    rows = spark.range(100).selectExpr("cast(id as string) as value")
    sink = {**options, "topic": topic, "delivery": delivery, "auditTopic": f"{topic}-audit"}
    rows.write.format("kraftpy").options(**sink).mode("append").save()
    read = spark.read.format("kraftpy").options(**options, subscribe=topic).load()
    found = sorted(int(row.value) for row in read.selectExpr("cast(value as string) as value").collect())
    assert found == list(range(100))
    counted = spark.read.format("kraftpy").options(**options, subscribe=f"{topic}-audit").load()
    assert counted.count() > 0
    read.explain(extended=True)
    assert PASSWORD not in capfd.readouterr().out


def test_a_wrong_password_is_told(spark: Any, options: dict[str, str]) -> None:
    wrong = {**options, "kafka.sasl.jaas.config": options["kafka.sasl.jaas.config"].replace(PASSWORD, "other-one")}
    with pytest.raises(Exception, match="invalid credentials with SASL mechanism SCRAM-SHA-256") as failed:
        spark.read.format("kraftpy").options(**wrong, subscribe="secured").load().count()
    assert "other-one" not in str(failed.value)
