"""The manifest of docs/how-to/spark-cluster.md: valid by Kubernetes' own schemas, and its parts fit together."""

from __future__ import annotations

import ast
import copy
from pathlib import Path
from typing import Any

import pytest
import trustme
import yaml

from kraftpy.spark.options import parse_stream_options

MANIFEST = Path(__file__).resolve().parents[2] / "docs" / "kubernetes" / "spark-stream.yaml"


def documents() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(MANIFEST.read_text()))


def of_kind(kind: str) -> dict[str, Any]:
    (found,) = (each for each in documents() if each["kind"] == kind)
    return found


def test_kubernetes_accepts_each_document() -> None:
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    version = kubernetes_validate.latest_version()
    for document in documents():
        kubernetes_validate.validate(document, version, strict=True)
    wrong = copy.deepcopy(of_kind("StatefulSet"))
    wrong["spec"]["template"]["spec"]["containers"][0]["imagee"] = "x"
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, version, strict=True)


def test_what_it_names_is_in_it() -> None:
    assert {each["metadata"].get("namespace") for each in documents()} == {"streams"}
    pod = of_kind("StatefulSet")["spec"]["template"]["spec"]
    (driver,) = pod["containers"]
    assert pod["serviceAccountName"] == of_kind("ServiceAccount")["metadata"]["name"]
    assert of_kind("RoleBinding")["roleRef"]["name"] == of_kind("Role")["metadata"]["name"]
    named: dict[str, list[Any]] = {}
    for volume in pod["volumes"]:
        sources = (volume.get(kind, {}) for kind in ("configMap", "secret", "persistentVolumeClaim"))
        named[volume["name"]] = [name for source in sources for name in source.values()]
        assert named[volume["name"]]
    there = {each["metadata"]["name"] for each in documents()}
    assert all(name in there for names in named.values() for name in names)
    assert {mount["name"] for mount in driver["volumeMounts"]} == named.keys()
    variables = {each["name"] for each in driver["env"]}
    used = {part.split(")")[0] for argument in driver["args"] for part in argument.split("$(")[1:]}
    assert used <= variables
    assert any(driver["image"] in argument for argument in driver["args"])
    assert driver["args"][-1] == "/job/job.py"


def test_the_job_s_options_are_options() -> None:
    """The dictionary in the job, with values in place of files and variables, is one that the reader takes."""
    tree = ast.parse(of_kind("ConfigMap")["data"]["job.py"])
    (given,) = (
        node.value for node in ast.walk(tree) if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict)
    )
    names = [ast.literal_eval(key) for key in given.keys if key is not None]
    values = {
        "kafka.bootstrap.servers": "b:9094",
        "kafka.security.protocol": "SASL_SSL",
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.certificates": trustme.CA().cert_pem.bytes().decode(),
        "kafka.sasl.mechanism": "SCRAM-SHA-256",
        "kafka.sasl.jaas.config": (
            'org.apache.kafka.common.security.scram.ScramLoginModule required username="u" password="p";'
        ),
    }
    assert names == list(values)
    options = parse_stream_options({**values, "subscribe": "orders", "startingOffsets": "earliest"})
    assert options.read.warnings == ()
