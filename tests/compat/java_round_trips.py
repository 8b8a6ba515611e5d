"""Apache Kafka's own client in one JVM that takes one login after the other (`java_client/RoundTrips.java`)."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from compat.maven import JavaProject
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key

HERE: Final = Path(__file__).resolve().parent
BOUND_SECONDS: Final = 60.0
LIGHT: Final = ("-Xmx256M", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
REFUSED: Final = "SaslAuthenticationException"


class JavaClient:
    """A JVM with Kafka's client; ends with the `with` block."""

    def __init__(self, scratch: Path, krb5_conf: str | None) -> None:
        self._scratch = scratch
        project = JavaProject(HERE.parents[1] / "build" / "compat-tools", HERE / "tools" / "pom.xml")
        project.compile([HERE / "java_client" / "RoundTrips.java"], "round-trips")
        hosts = scratch / "hosts"
        hosts.touch()
        # With no name of the broker's address, the client asks for a ticket for the address, as other clients do.
        words = ["java", *LIGHT, f"-Djdk.net.hosts.file={hosts}"]
        if krb5_conf is not None:
            words.append(f"-Djava.security.krb5.conf={krb5_conf}")
        self._output = (scratch / "java.out").open("w", encoding="utf-8")
        self._process = subprocess.Popen(
            [*words, "-cp", project.path(), "RoundTrips"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._output, text=True,
        )  # fmt: skip

    def __enter__(self) -> JavaClient:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate(timeout=BOUND_SECONDS)  # its commands end, and so does it
        self._output.close()

    def admit(self, settings: Mapping[str, str], topic: str) -> None:
        """Write a record, read it, list its topic."""
        said = self._ask("admit", settings, topic)
        assert said == "ok", said

    def refuse(self, settings: Mapping[str, str], topic: str) -> None:
        """Have Admin, the producer and the consumer refused at the login."""
        said = self._ask("refuse", settings, topic)
        assert said.split() == [REFUSED] * 3, said

    def _ask(self, command: str, settings: Mapping[str, str], topic: str) -> str:
        file = self._scratch / "client.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()), encoding="utf-8")
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{command} {topic} {file}\n")
        self._process.stdin.flush()
        return self._process.stdout.readline().strip() or Path(self._output.name).read_text(encoding="utf-8")


def key_store(own: Path, scratch: Path) -> Path:
    """Return a copy of a file with a key and its certificate in which the key is as Java reads it: PKCS #8."""
    text = own.read_bytes()
    key = load_pem_private_key(text, None).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    copy = scratch / f"java-{own.name}"
    copy.write_bytes(key + text[text.index(b"-----BEGIN CERTIFICATE") :])
    return copy
