"""SASL requests in the wrong place (17, 36), and SCRAM credentials: Describe- and AlterUserScramCredentials (50, 51).

While a client logs in, `security.authentication` answers SaslHandshake and SaslAuthenticate. They get here on a
listener without SASL, or after a login whose session does not expire. KIP-152, KIP-368.

Credentials are in the metadata (KIP-554). A password never gets here: the client salts and hashes it, the handler
derives a server's credential from that, and only the credential is stored. Credentials share the limit of all settings
(`config_room`).
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Protocol

from kraftpy.metadata.credentials import (
    NOTHING_TO_DELETE,
    ScramChange,
    ScramResult,
    SetScramCredentials,
    credential_bytes,
)
from kraftpy.protocol.errors import ErrorCode, KafkaError, shortened
from kraftpy.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from kraftpy.protocol.messages.describe_user_scram_credentials import (
    CredentialInfo,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)
from kraftpy.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from kraftpy.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from kraftpy.security.scram import LEAST_ITERATIONS, MECHANISMS, MOST_ITERATIONS, credential_of

if TYPE_CHECKING:
    from kraftpy.broker.handlers.services import HasConfigRoom, HasMetadata
    from kraftpy.broker.request import RequestContext
    from kraftpy.broker.services import HasClock, HasImage, HasSlices

    class Broker(HasClock, HasConfigRoom, HasImage, HasMetadata, HasSlices, Protocol):
        """The part of a broker that these handlers need."""


_BY_CODE = {mechanism.code: mechanism for mechanism in MECHANISMS.values()}
_MOST_SALT_BYTES = 1024
AT_ONCE = 500
"""The most credentials in one command: some 10 ms on every node."""
LONGEST_NAME = 1024
"""Longest user name with credentials, in characters; Kafka has no limit."""


async def sasl_handshake(
    broker: object, request: SaslHandshakeRequest, context: RequestContext
) -> SaslHandshakeResponse:
    """Refuse: the client has authenticated already, or the listener has no SASL."""
    return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)


async def sasl_authenticate(
    broker: object, request: SaslAuthenticateRequest, context: RequestContext
) -> SaslAuthenticateResponse:
    """Refuse: no authentication is in progress."""
    return SaslAuthenticateResponse(
        error_code=ErrorCode.ILLEGAL_SASL_STATE,
        error_message="SaslAuthenticate request received after successful authentication",
    )


async def describe_user_scram_credentials(
    broker: Broker, request: DescribeUserScramCredentialsRequest, context: RequestContext
) -> DescribeUserScramCredentialsResponse:
    """Return the mechanisms and iterations of users: of all users for null or an empty list."""
    credentials = broker.image.credentials
    times_named = Counter([user.name for user in request.users or ()] or credentials.users())
    response = DescribeUserScramCredentialsResponse(error_message="")  # as in Kafka, also for each user
    async for names in broker.slices.pieces(list(times_named)):
        for name in names:
            answer = DescribeUserScramCredentialsResult(user=name, error_message="")
            iterations = credentials.iterations(name)
            if times_named[name] > 1:
                answer.error_code = ErrorCode.DUPLICATE_RESOURCE
                answer.error_message = shortened(
                    f"Cannot describe SCRAM credentials for the same user twice in a single request: {name}"
                )
            elif not iterations:
                answer.error_code = ErrorCode.RESOURCE_NOT_FOUND
                answer.error_message = shortened(f"Attempt to describe a user credential that does not exist: {name}")
            answer.credential_infos = [
                CredentialInfo(mechanism=mechanism, iterations=count)
                for mechanism, count in iterations.items()
                if not answer.error_code
            ]
            response.results.append(answer)
    return response


async def alter_user_scram_credentials(
    broker: Broker, request: AlterUserScramCredentialsRequest, context: RequestContext
) -> AlterUserScramCredentialsResponse:
    """Create, replace and delete credentials. Users named twice are refused; the others are changed.

    As in Kafka, a user's first error is the answer: one whose first change is invalid, or deletes nothing, does not
    count as named twice.
    """
    wanted: list[ScramCredentialDeletion | ScramCredentialUpsertion] = [*request.deletions, *request.upsertions]
    results: dict[str, ScramResult] = {}
    sound: dict[str, ScramChange] = {}
    async for some in broker.slices.pieces(wanted):
        for each in some:
            if each.name in results and each.name not in sound:
                continue
            try:
                if (earlier := sound.pop(each.name, None)) is not None:
                    raise _twice(broker, earlier)
                sound[each.name] = _change(each)
                results[each.name] = ScramResult(name=each.name)
            except KafkaError as error:
                results[each.name] = ScramResult(name=each.name, error=error.code, message=error.message)
    changes = list(sound.values())
    for start in range(0, len(changes), AT_ONCE):
        await broker.slices.breathe(AT_ONCE)
        results.update((result.name, result) for result in await _set(broker, changes[start : start + AT_ONCE]))
    return AlterUserScramCredentialsResponse(
        results=[
            AlterUserScramCredentialsResult(
                user=result.name, error_code=result.error, error_message=shortened(result.message)
            )
            for result in results.values()
        ]
    )


async def _set(broker: Broker, changes: list[ScramChange]) -> tuple[ScramResult, ...]:
    """Submit changes as one command; return their results."""
    added = sum(credential_bytes(change) for change in changes if change.iterations)
    try:
        with broker.config_room.held(added):
            command = SetScramCredentials(changes=tuple(changes), time_ms=broker.clock.now())
            decision = await broker.metadata.submit(command)
        return decision.result or ()
    except KafkaError as error:
        return tuple(ScramResult(name=each.name, error=error.code, message=error.message) for each in changes)


def _twice(broker: Broker, first: ScramChange) -> KafkaError:
    """Return the error of a user that is named twice: for a deletion that has nothing to delete, it is that."""
    if not first.iterations and broker.image.credentials.of(first.name, first.mechanism) is None:
        return KafkaError(ErrorCode.RESOURCE_NOT_FOUND, NOTHING_TO_DELETE)
    message = "A user credential cannot be altered twice in the same request"
    return KafkaError(ErrorCode.DUPLICATE_RESOURCE, message)


def _change(wanted: ScramCredentialDeletion | ScramCredentialUpsertion) -> ScramChange:
    """Return the change to make. Raises KafkaError, in Kafka's words if Kafka refuses the change too."""
    if not wanted.name:
        raise KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")
    mechanism = _BY_CODE.get(wanted.mechanism)
    if mechanism is None:
        raise KafkaError(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")
    if isinstance(wanted, ScramCredentialDeletion):
        return ScramChange(name=wanted.name, mechanism=mechanism.code)
    if wanted.iterations < LEAST_ITERATIONS:
        raise KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too few iterations")
    if wanted.iterations > MOST_ITERATIONS:
        raise KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too many iterations")
    if len(wanted.name) > LONGEST_NAME:
        raise KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, f"Username must not exceed {LONGEST_NAME} characters")
    if len(wanted.salt) > _MOST_SALT_BYTES or len(wanted.salted_password) > _MOST_SALT_BYTES:
        message = f"Salt and salted password must not exceed {_MOST_SALT_BYTES} bytes"
        raise KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, message)
    if not wanted.salted_password:
        raise KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Salted password must not be empty")
    made = credential_of(mechanism, wanted.salted_password, wanted.salt, wanted.iterations)
    return ScramChange(
        name=wanted.name,
        mechanism=mechanism.code,
        iterations=made.iterations,
        salt=made.salt,
        stored_key=made.stored_key,
        server_key=made.server_key,
    )
