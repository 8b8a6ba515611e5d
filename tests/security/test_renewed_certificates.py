"""Certificates that change while a broker runs. Each test has its own broker, whose files it changes."""

from __future__ import annotations

import base64
import os
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.frames import encode_request
from kraftpy.protocol.messages.api_versions import ApiVersionsRequest
from kraftpy.security.distinguished_names import alternative_names_of, subject_of
from kraftpy.testing import EmbeddedBroker
from kraftpy.testing.ports import ReservedPorts
from tests.security.certificates import HOST, Certificates
from tests.security.wire import BOUND_SECONDS
from tests.waiting import eventually

NAMES = Path(__file__).parent / "java_names.tsv"


class Renewing:
    """A broker whose key store is a file of its own, which `put` replaces."""

    def __init__(self, directory: Path, ports: ReservedPorts, **more: str) -> None:
        self.certificates = Certificates(directory)
        self.port = ports.reserve()
        self.file = directory / "keys.pem"
        self.put(self.certificates.issue("first", HOST, "a.example", common_name="broker"))
        settings = {
            "listeners": f"SSL://{HOST}:{self.port}",
            **self.certificates.settings(ssl_keystore_location=str(self.file), **more),
        }
        self.broker = EmbeddedBroker(settings=settings)

    def put(self, keys: Path) -> None:
        """Replace the file in one step, as a tool that renews certificates should."""
        aside = self.file.with_suffix(".new")
        aside.write_bytes(keys.read_bytes())
        aside.replace(self.file)

    def shown(self) -> bytes:
        """The certificate that a client sees now."""
        with (
            socket.create_connection((HOST, self.port), BOUND_SECONDS) as plain,
            self.certificates.client().wrap_socket(plain, server_hostname=HOST) as secured,
        ):
            certificate = secured.getpeercert(binary_form=True)
            assert certificate is not None
            return certificate

    def in_file(self) -> bytes:
        text = self.file.read_text()
        return ssl.PEM_cert_to_DER_cert(text[text.index("-----BEGIN CERTIFICATE-----") :].split("-----END")[0] + END)


END = "-----END CERTIFICATE-----\n"


@pytest.fixture
def ports() -> Iterator[ReservedPorts]:
    with ReservedPorts() as reserved:
        yield reserved


def test_a_renewed_certificate_is_shown_and_others_are_refused(tmp_path: Path, ports: ReservedPorts) -> None:
    made = Renewing(tmp_path, ports)
    issue = made.certificates.issue
    with made.broker, socket.create_connection((HOST, made.port), BOUND_SECONDS) as plain:
        first = made.shown()
        with made.certificates.client().wrap_socket(plain, server_hostname=HOST) as established:
            made.put(issue("second", HOST, "a.example", "b.example", common_name="broker"))
            eventually(lambda: made.shown() == made.in_file())
            second = made.shown()
            assert second != first
            assert "SSL has a new certificate, of" in made.broker.log_text
            refused = {
                issue(
                    "third", HOST, "a.example", "b.example", common_name="other"
                ): "the distinguished name would change",
                issue("fourth", HOST, "a.example", common_name="broker"): "subject alternative names would be lost",
                made.certificates.trusted: "expected one private key in PEM, found 0",
            }
            for keys, message in refused.items():
                made.put(keys)
                eventually(lambda message=message: message in made.broker.log_text)  # type: ignore[misc]
                assert made.shown() == second
            os.unlink(made.file)
            eventually(lambda: "No such file or directory" in made.broker.log_text)
            assert made.shown() == second
            established.sendall(encode_request(ApiKey.API_VERSIONS, 0, 7, "test", ApiVersionsRequest()))
            assert established.recv(8)[4:] == (7).to_bytes(4, "big"), "it is still served"


def test_names_may_change_if_the_settings_say_so(tmp_path: Path, ports: ReservedPorts) -> None:
    made = Renewing(tmp_path, ports, ssl_allow_dn_changes="true", ssl_allow_san_changes="true")
    with made.broker:
        made.put(made.certificates.issue("second", HOST, common_name="other"))
        eventually(lambda: made.shown() == made.in_file())
        assert "CN=other" in subject_of(made.shown())


def test_alternative_names_are_found() -> None:
    leaf = trustme.CA().issue_cert("a.example", "127.0.0.1", "c@d.example", common_name="n")
    certificate = ssl.PEM_cert_to_DER_cert(leaf.cert_chain_pems[0].bytes().decode())
    assert {name[0] & 0x1F: name[2:] for name in alternative_names_of(certificate)} == {
        1: b"c@d.example",
        2: b"a.example",
        7: bytes((127, 0, 0, 1)),
    }
    plain = base64.b64decode(NAMES.read_text().splitlines()[0].split("\t")[1])
    assert alternative_names_of(plain) == frozenset()
