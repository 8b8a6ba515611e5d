"""The image's variables for TLS and SASL, its health check on secured listeners, and docker/compose.secure.yaml.

Its node is its own cluster, started as the image starts it.
"""

from __future__ import annotations

import os
import re
import select
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from kraftpy.cli import cli
from kraftpy.cli.container import stores
from kraftpy.config import ConfigError
from kraftpy.config.sources import load
from tests.security.certificates import HOST, Certificates

SECONDS = 60.0
COMPOSE = Path(__file__).resolve().parents[2] / "docker" / "compose.secure.yaml"
TLS = {"KAFKA_ADVERTISED_LISTENERS": "SSL://a.example:9093"}


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


def test_the_image_s_names_of_stores_and_of_the_key_s_password_are_known(tmp_path: Path) -> None:
    for name, text in {"keys.pem": "", "ca.pem": "", "key.txt": "of the key\n"}.items():
        (tmp_path / name).write_text(text)
    named = {
        "KAFKA_SSL_KEYSTORE_FILENAME": "keys.pem",
        "KAFKA_SSL_TRUSTSTORE_FILENAME": "ca.pem",
        "KAFKA_SSL_KEY_CREDENTIALS": "key.txt",
    }
    found = {
        "KAFKA_SSL_KEYSTORE_LOCATION": str(tmp_path / "keys.pem"),
        "KAFKA_SSL_TRUSTSTORE_LOCATION": str(tmp_path / "ca.pem"),
        "KAFKA_SSL_KEY_PASSWORD": "of the key",
    }
    assert stores({**TLS, **named}, "", tmp_path) == found
    of_map = {"KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": "IN:PLAINTEXT,OUT:SASL_SSL"}
    assert stores({**of_map, **named}, "", tmp_path) == found
    assert stores(named, "listener.security.protocol.map=OUT:SSL", tmp_path) == found
    assert stores({"KAFKA_ADVERTISED_LISTENERS": "PLAINTEXT://:9092", **named}, "", tmp_path) == {}
    for missing in named:
        with pytest.raises(ConfigError, match=r"none\.pem file does not exist"):
            stores({**TLS, **named, missing: "none.pem"}, "", tmp_path)


def test_a_store_of_java_is_refused_with_its_password(tmp_path: Path) -> None:
    (tmp_path / "keys.jks").write_text("")
    (tmp_path / "store.txt").write_text("secret\n")
    named = {"KAFKA_SSL_KEYSTORE_FILENAME": "keys.jks", "KAFKA_SSL_KEYSTORE_CREDENTIALS": "store.txt"}
    environment = {**TLS, "KAFKA_LISTENERS": "SSL://:9093", **named, **stores({**TLS, **named}, "", tmp_path)}
    with pytest.raises(ConfigError, match="JKS is not supported: only PEM is") as refused:
        load(None, environment)
    assert "secret" not in str(refused.value)


def test_a_node_with_tls_and_sasl_starts_and_is_healthy(certificates: Certificates, tmp_path: Path) -> None:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("KAFKA_", "KRAFTPY_"))}
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    environment = {
        **kept,
        "KAFKA_LISTENERS": f"CLIENTS://{HOST}:0",
        "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": "CLIENTS:SASL_SSL",
        "KAFKA_LOG_DIRS": str(tmp_path / "data"),
        "KAFKA_LISTENER_NAME_CLIENTS_SSL_KEYSTORE_LOCATION": str(certificates.broker),
        "KAFKA_LISTENER_NAME_CLIENTS_SSL_KEYSTORE_TYPE": "PEM",
        "KAFKA_SSL_TRUSTSTORE_LOCATION": str(certificates.trusted),
        "KAFKA_SSL_TRUSTSTORE_TYPE": "PEM",
        "KAFKA_SASL_ENABLED_MECHANISMS": "PLAIN,SCRAM-SHA-256",
        "KAFKA_LISTENER_NAME_CLIENTS_PLAIN_SASL_JAAS_CONFIG": f'{module} required user_a="b";',
    }
    command = [sys.executable, "-m", "kraftpy.cli.container"]
    running = subprocess.Popen(
        [*command, "run"], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert running.stdout is not None
        assert select.select([running.stdout], [], [], SECONDS)[0], "no ready line"
        line = running.stdout.readline()
        address = re.search(r"CLIENTS://([\d.]+:\d+)", line)
        assert address, (line, running.communicate())
        there = {**environment, "KAFKA_LISTENERS": f"CLIENTS://{address[1]}"}
        assert healthy(there).returncode == 0
    finally:
        running.terminate()
        _, err = running.communicate(timeout=SECONDS)
    assert running.returncode == 0
    assert err == ""
    gone = healthy(there)
    assert gone.returncode == 1
    assert f"cannot connect to {address[1]}" in gone.stderr


def healthy(environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kraftpy.cli.container", "healthy"]
    return subprocess.run(command, env=environment, timeout=SECONDS, check=False, capture_output=True, text=True)


def test_the_secure_compose_file_fits_what_init_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its settings are those of `kraftpy init`, without a warning, and every file that it mounts is there."""
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(cli, ["init", "secure", "--nodes", "3", "--secure"]).exit_code == 0
    services = yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))["services"]
    assert list(services) == ["kafka1", "kafka2", "kafka3"]
    for number, service in enumerate(services.values(), 1):
        secrets = tmp_path / f"secrets-{number}"
        secrets.mkdir()
        for source, inside, *_ in (volume.split(":") for volume in service["volumes"]):
            assert (tmp_path / source).exists(), source
            if inside.startswith("/etc/kafka/secrets/"):
                (secrets / Path(inside).name).write_bytes((tmp_path / source).read_bytes())
        environment = {name: str(value).replace("$$", "$") for name, value in service["environment"].items()}
        loaded = load(None, {**environment, **stores(environment, "", secrets)})
        assert (loaded.warnings, loaded.notes) == ([], [])
        written = load((tmp_path / "secure" / f"node-{number}" / "server.properties").read_text()).config
        for ours, theirs in zip(loaded.config.secured, written.secured, strict=True):
            assert (ours.listener, ours.protocol, ours.proves_clients) == (
                theirs.listener,
                theirs.protocol,
                theirs.proves_clients,
            )
            assert ours.tls is not None
            assert theirs.tls is not None
            name = f"CN=node-{number},O=kraftpy"
            if ours.sasl is None:
                assert ours.tls.principal_rules.apply(name) == theirs.tls.principal_rules.apply(name)
        port = loaded.config.advertised_listeners[0].port
        assert port == written.listeners[0].port
        assert service["ports"] == [f"127.0.0.1:{port}:9092"]
