"""A link's login, both ends without a network, and the credentials of a controller that has just started."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kraftpy.broker.metadata.early_credentials import EarlyCredentials
from kraftpy.broker.metadata.link_login import LoginServer, prove
from kraftpy.broker.metadata.link_messages import LinkError, refusal_of_login
from kraftpy.broker.runtime import OsDirectory
from kraftpy.broker.storage.bootstrap import BOOTSTRAP, read_bootstrap
from kraftpy.cli.format import parse_scram
from kraftpy.client.security import Login
from kraftpy.metadata.codec import CodecError, pack
from kraftpy.metadata.commands import FormatCluster, encode_command
from kraftpy.metadata.controller import MetadataStateMachine
from kraftpy.metadata.credentials import ScramChange, SetScramCredentials
from kraftpy.metadata.features import LATEST
from kraftpy.metadata.image import Image
from kraftpy.metadata.journal import Entry
from kraftpy.metadata.quorum_messages import COMMAND
from kraftpy.metadata.submissions import SubmissionId, encode_submission
from kraftpy.security.failures import AuthenticationFailed
from kraftpy.security.principal import Principal
from kraftpy.security.sasl import MechanismServer, PlainServer, SaslServer, ScramExchange
from kraftpy.security.scram import MECHANISMS, ScramCredential, credential_of, salted_password
from kraftpy.types import Millis

NAME, PASSWORD = "node", "correct, =horse é"


def credential(mechanism: str) -> ScramCredential:
    chosen = MECHANISMS[mechanism]
    return credential_of(chosen, salted_password(chosen, PASSWORD, b"salt" * 8, 4096), b"salt" * 8, 4096)


CREDENTIALS = {mechanism: credential(mechanism) for mechanism in MECHANISMS}


def server(*mechanisms: str) -> LoginServer:
    def make(mechanism: str) -> MechanismServer:
        if mechanism == "PLAIN":
            return PlainServer({NAME: PASSWORD})
        found = {NAME: CREDENTIALS[mechanism]}
        return ScramExchange(MECHANISMS[mechanism], found.get, b"secret", "of-the-server")

    return LoginServer(SaslServer(mechanisms or ("PLAIN", *MECHANISMS), make, {}), failure_delay_ms=0)


async def log_in(called: LoginServer, login: Login) -> Principal | None:
    """Run a login; return the name that the called side knows then. Raises LinkError."""
    proved = None

    async def ask(frame: bytes) -> bytes:
        nonlocal proved
        try:
            needed = called.take(frame)
            assert needed is None
            answer, proved = called.answer()
        except AuthenticationFailed as failure:
            return refusal_of_login(str(failure))
        return answer

    await prove(login, "", ask)
    return proved


@pytest.mark.parametrize("mechanism", ["PLAIN", *MECHANISMS])
async def test_a_node_proves_its_name(mechanism: str) -> None:
    right = Login(mechanism=mechanism, username=NAME, password=PASSWORD)
    assert await log_in(server(), right) == Principal("User", NAME)
    for login in (
        Login(mechanism=mechanism, username=NAME, password="guessed"),
        Login(mechanism=mechanism, username="nobody", password=PASSWORD),
    ):
        called = server()
        with pytest.raises(LinkError, match=r"cannot log in as .*SASL_AUTHENTICATION_FAILED"):
            await log_in(called, login)
    with pytest.raises(LinkError, match="is not among SCRAM-SHA-512" if mechanism == "PLAIN" else "is not among PLAIN"):
        await log_in(server("SCRAM-SHA-512" if mechanism == "PLAIN" else "PLAIN"), right)


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"\xc1",
        pack([1]),
        pack({}),
        pack({"token": "text", "done": True}),
        pack({"refused": 1}),
        pack({"done": True}),
    ],
)
async def test_a_malformed_answer_is_a_failure_of_the_login(answer: bytes) -> None:
    async def ask(frame: bytes) -> bytes:
        return answer

    with pytest.raises(LinkError):
        await prove(Login(mechanism="SCRAM-SHA-256", username=NAME, password=PASSWORD), "", ask)


async def test_a_called_side_that_does_not_know_the_password_is_found_out() -> None:
    """SCRAM proves both ends."""

    exchange = ScramExchange(MECHANISMS["SCRAM-SHA-256"], {NAME: CREDENTIALS["SCRAM-SHA-256"]}.get, b"", "nonce")
    number = 0

    async def ask(frame: bytes) -> bytes:
        nonlocal number
        number += 1
        if number == 1:
            called = LoginServer(SaslServer(["SCRAM-SHA-256"], lambda _: exchange, {}), failure_delay_ms=0)
            called.take(frame)
            return called.answer()[0]
        return pack({"token": b"v=Z3Vlc3NlZA==", "done": True})

    with pytest.raises(LinkError):
        await prove(Login(mechanism="SCRAM-SHA-256", username=NAME, password=PASSWORD), "", ask)
    assert number == 2


_VALUES = st.none() | st.booleans() | st.integers(-1, 2**40) | st.binary(max_size=40) | st.text(max_size=40)
_BODIES = st.dictionaries(st.sampled_from(["mechanism", "token", "done", "other"]), _VALUES, max_size=4)


@given(st.lists(st.binary(max_size=60) | _BODIES.map(pack), max_size=4))
def test_whatever_a_caller_sends_is_refused_in_words(frames: list[bytes]) -> None:
    async def receive() -> None:
        called = server()
        for frame in frames:
            with suppress(AuthenticationFailed, LinkError, CodecError):
                called.take(frame)
                _, principal = called.answer()
                assert principal is None

    asyncio.run(receive())


# --- the first moments of a controller ----------------------------------------------------------------


def change(name: str, password: str) -> ScramChange:
    return parse_scram(f"SCRAM-SHA-256=[name={name},password={password}]")


def entry(index: int, *changes: ScramChange, is_submitted: bool = True) -> Entry:
    command = SetScramCredentials(changes=changes, time_ms=Millis(0))
    who = SubmissionId(node_id=1, nonce=b"nonce", sequence=index)
    data = encode_submission(who, command) if is_submitted else encode_command(command)
    return Entry(index=index, term=1, data=COMMAND + data)


def formatted(*changes: ScramChange) -> Image:
    machine = MetadataStateMachine()
    commands = [
        FormatCluster(cluster_id="a", time_ms=Millis(0), features=LATEST, min_insync_replicas=1),
        SetScramCredentials(changes=changes, time_ms=Millis(0)),
    ]
    for index, command in enumerate(commands, 1):
        machine.apply(index, 1, encode_command(command))
    return machine.image


def test_until_its_metadata_are_up_to_date_a_controller_knows_its_snapshot_and_its_journal() -> None:
    first, second, third = change("a", "1"), change("a", "2"), change("b", "3")
    gone = ScramChange(name="c", mechanism=1)
    image = formatted(first, change("c", "4"))
    early = EarlyCredentials((), image, [entry(7, second), entry(8, third, is_submitted=False), entry(9, gone)])

    def known(name: str, *, has_leader: bool, applied: int) -> bytes | None:
        found = early.of(name, 1, image, has_leader=has_leader, applied_index=applied)
        return None if found is None else found.stored_key

    for has_leader, applied in ((False, 6), (True, 6), (True, 8), (False, 9)):
        assert known("a", has_leader=has_leader, applied=applied) == second.stored_key
        assert known("b", has_leader=has_leader, applied=applied) == third.stored_key
        assert known("c", has_leader=has_leader, applied=applied) is None
    assert known("a", has_leader=True, applied=9) == first.stored_key  # the key that the metadata have, and no other
    assert known("b", has_leader=False, applied=9) is None


def test_a_new_cluster_begins_with_what_it_was_formatted_with() -> None:
    initial = change("a", "1")
    early = EarlyCredentials((initial,), Image(), [])
    found = early.of("a", 1, Image(), has_leader=True, applied_index=3)
    assert found is not None
    assert found.stored_key == initial.stored_key
    assert early.of("a", 1, formatted(), has_leader=True, applied_index=3) is None


def test_an_entry_that_cannot_be_read_is_passed_over() -> None:
    early = EarlyCredentials((), Image(), [Entry(index=1, term=1, data=COMMAND + b"\xc1"), entry(2, change("a", "1"))])
    assert early.of("a", 1, Image(), has_leader=False, applied_index=0) is not None


@pytest.mark.parametrize("data", [b"", b"\xc1", pack([2, []]), pack([1, [{"name": 1}]]), pack([1, [3]])])
def test_a_damaged_file_of_first_credentials_is_refused(tmp_path: Any, data: bytes) -> None:
    (tmp_path / BOOTSTRAP).write_bytes(data)
    with pytest.raises(CodecError):
        read_bootstrap(OsDirectory(tmp_path))
