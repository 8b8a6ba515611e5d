"""Which error of a user's is told by AlterUserScramCredentials, which names users as often as it likes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from kraftpy.testing import EmbeddedBroker
from tests.security.wire import Session

SHA_256, UNKNOWN, FOREIGN = 1, 0, 10
TWICE = "A user credential cannot be altered twice in the same request"
NO_MECHANISM = "Unknown SCRAM mechanism"
NO_NAME = "Username must not be empty"
NO_PASSWORD = "Salted password must not be empty"
NOT_THERE = "Attempt to delete a user credential that does not exist"


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with EmbeddedBroker() as broker:
        host, port = broker.bootstrap.split(":")
        session = Session((host, int(port)))
        made = AlterUserScramCredentialsRequest(deletions=[], upsertions=[upsertion("known")])
        session.ask(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, made)
        yield session
        session.close()


def deletion(name: str, mechanism: int = SHA_256) -> ScramCredentialDeletion:
    return ScramCredentialDeletion(name=name, mechanism=mechanism)


def upsertion(name: str, mechanism: int = SHA_256, salted: bytes = b"p" * 32) -> ScramCredentialUpsertion:
    return ScramCredentialUpsertion(
        name=name, mechanism=mechanism, iterations=4096, salt=b"salt", salted_password=salted
    )


@pytest.mark.parametrize(
    ("deletions", "upsertions", "told"),
    [
        ([deletion(""), deletion("")], [upsertion("")], ("", ErrorCode.UNACCEPTABLE_CREDENTIAL, NO_NAME)),
        ([deletion("a", UNKNOWN), deletion("a")], [], ("a", ErrorCode.UNSUPPORTED_SASL_MECHANISM, NO_MECHANISM)),
        ([deletion("a"), deletion("a", UNKNOWN)], [], ("a", ErrorCode.RESOURCE_NOT_FOUND, NOT_THERE)),
        ([deletion("known"), deletion("known", UNKNOWN)], [], ("known", ErrorCode.DUPLICATE_RESOURCE, TWICE)),
        ([], [upsertion("a", FOREIGN), upsertion("a")], ("a", ErrorCode.UNSUPPORTED_SASL_MECHANISM, NO_MECHANISM)),
        ([deletion("a")], [upsertion("a"), upsertion("a")], ("a", ErrorCode.RESOURCE_NOT_FOUND, NOT_THERE)),
        ([deletion("known")], [upsertion("known")], ("known", ErrorCode.DUPLICATE_RESOURCE, TWICE)),
        ([], [upsertion("a"), upsertion("a")], ("a", ErrorCode.DUPLICATE_RESOURCE, TWICE)),
        ([], [upsertion("a", salted=b"")], ("a", ErrorCode.UNACCEPTABLE_CREDENTIAL, NO_PASSWORD)),
        ([deletion("a")], [], ("a", ErrorCode.RESOURCE_NOT_FOUND, NOT_THERE)),
    ],
)  # fmt: skip
def test_the_first_error_of_a_user_is_told(
    session: Session,
    deletions: list[ScramCredentialDeletion],
    upsertions: list[ScramCredentialUpsertion],
    told: tuple[str, ErrorCode, str],
) -> None:
    request = AlterUserScramCredentialsRequest(deletions=deletions, upsertions=upsertions)
    (result,) = session.ask(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, request).results
    assert (result.user, result.error_code, result.error_message) == told
