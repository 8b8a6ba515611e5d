"""A realm of Kerberos of a test's own, with a KDC; and whether this machine has what that takes.

Tests that need one are skipped where it cannot be had. As a program, this says why not, and ends with status 1 then.
"""

from __future__ import annotations

import glob
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

from kraftpy.testing.ports import HOST, ReservedPorts

BOUND_SECONDS = 20.0
_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
_PROGRAMS = ("krb5kdc", "kdb5_util", "kadmin.local", "kinit")


def _missing() -> str | None:
    programs = [each for each in _PROGRAMS if shutil.which(each, path=_PATH) is None]
    if programs:
        return f"{', '.join(programs)} are not installed"
    if not glob.glob("/usr/lib/*/sasl2/libgssapiv2.so*"):
        return "Cyrus SASL's module of GSSAPI, which kcat needs, is not installed"
    return "the library gssapi is not installed" if find_spec("gssapi") is None else None


WHY_NOT = _missing()
"""The reason why no realm can be had; None if one can."""
needs_a_realm = pytest.mark.skipif(WHY_NOT is not None, reason=f"no login by Kerberos is tested: {WHY_NOT}")
REALM = "EXAMPLE.TEST"


class Realm:
    """The realm EXAMPLE.TEST. `environment` leads programs to it."""

    def __init__(self, directory: Path, port: int) -> None:
        self._directory = directory
        self.port = port
        (directory / "krb5.conf").write_text(
            f"""[libdefaults]
 default_realm = {REALM}
 dns_lookup_kdc = false
 dns_lookup_realm = false
 dns_canonicalize_hostname = false
 rdns = false
 qualify_shortname = ""
 udp_preference_limit = 1
[realms]
 {REALM} = {{
  kdc = {HOST}:{port}
 }}
"""
        )
        (directory / "kdc.conf").write_text(
            f"""[kdcdefaults]
 kdc_listen = ""
 kdc_tcp_listen = {HOST}:{port}
[realms]
 {REALM} = {{
  database_name = {directory}/principal
  key_stash_file = {directory}/stash
  acl_file = {directory}/acl
  max_life = 1h
 }}
[logging]
 kdc = FILE:{directory}/kdc.log
"""
        )
        self.environment = {
            "KRB5_CONFIG": str(directory / "krb5.conf"),
            "KRB5_KDC_PROFILE": str(directory / "kdc.conf"),
            "KRB5CCNAME": f"FILE:{directory}/cache",
            "KRB5RCACHENAME": f"file2:{directory}/replays",
        }
        self._run("kdb5_util", "create", "-s", "-r", REALM, "-P", "master")

    def _run(self, program: str, *arguments: str, text: str = "") -> None:
        environment = {**os.environ, **self.environment, "PATH": _PATH}
        done = subprocess.run(
            [program, *arguments],
            input=text, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout

    def add(self, *principals: str) -> None:
        """Add principals, each with a keytab."""
        lines = [
            f"addprinc -randkey {each}\nktadd -k {self.keytab(each)} {each}\n"
            for each in principals
        ]  # fmt: skip
        self._run("kadmin.local", "-r", REALM, text="".join(lines))
        for each in principals:
            assert self.keytab(each).exists()

    def keytab(self, principal: str) -> Path:
        """The file with a principal's keys."""
        return self._directory / f"{principal.replace('/', '-')}.keytab"

    def log_in(self, principal: str, cache: str) -> str:
        """Get a principal's tickets; return the name of the cache that they are in."""
        name = f"FILE:{self._directory}/{cache}"
        self._run("kinit", "-c", name, "-k", "-t", str(self.keytab(principal)), principal)
        return name

    @contextmanager
    def running(self) -> Iterator[None]:
        """Have a KDC."""
        environment = {**os.environ, **self.environment, "PATH": _PATH}
        with (self._directory / "kdc.out").open("wb") as out:
            kdc = subprocess.Popen(["krb5kdc", "-n", "-r", REALM], env=environment, stdout=out, stderr=out)
        try:
            deadline = time.monotonic() + BOUND_SECONDS
            while not self._answers():
                assert kdc.poll() is None, (self._directory / "kdc.out").read_text()
                assert time.monotonic() < deadline, "the KDC does not listen"
                time.sleep(0.02)
            yield
        finally:
            kdc.terminate()
            kdc.wait(BOUND_SECONDS)

    def _answers(self) -> bool:
        try:
            socket.create_connection((HOST, self.port), BOUND_SECONDS).close()
        except ConnectionRefusedError:
            return False
        return True


@contextmanager
def realm(directory: Path) -> Iterator[Realm]:
    """A realm with a KDC that runs."""
    with ReservedPorts() as ports:
        made = Realm(directory, ports.reserve())
        with made.running():
            yield made


if __name__ == "__main__":
    sys.exit(WHY_NOT and f"Logins by Kerberos cannot be tested: {WHY_NOT}.")
