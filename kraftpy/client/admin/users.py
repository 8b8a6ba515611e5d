"""The admin client's calls about users: their SCRAM credentials (KIP-554).

A password is salted and hashed here, and not sent. The salted hash is as good as the password to an eavesdropper, so
use TLS.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterable, Sequence
from typing import Any, Final

from kraftpy.client.admin.base import AdminBase
from kraftpy.client.admin.messages import check
from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages import alter_user_scram_credentials as altering
from kraftpy.protocol.messages import describe_user_scram_credentials as describing
from kraftpy.security.scram import LEAST_ITERATIONS, MECHANISMS, SALT_BYTES, Mechanism, salted_password

_NAMES: Final = {mechanism.code: mechanism.name for mechanism in MECHANISMS.values()}


class UserAdmin(AdminBase):
    """Admin calls about users."""

    async def describe_scram_users(self, names: Iterable[str] = ()) -> dict[str, dict[str, int]]:
        """Return the iterations of users' credentials by mechanism, of all users by default.

        Raises KafkaError (RESOURCE_NOT_FOUND) for a user without credentials.
        """
        users = [describing.UserName(name=name) for name in names]
        request = describing.DescribeUserScramCredentialsRequest(users=users or None)
        answer = await self._ask(None, ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, request, _check_description)
        return {
            result.user: {
                _NAMES.get(info.mechanism, str(info.mechanism)): info.iterations for info in result.credential_infos
            }
            for result in answer.results
        }

    async def set_scram_password(
        self, name: str, password: str, *, mechanism: str = "SCRAM-SHA-512", iterations: int = LEAST_ITERATIONS
    ) -> None:
        """Set a user's password for a mechanism. Creates the user if it does not exist."""
        chosen, salt = _mechanism(mechanism), secrets.token_bytes(SALT_BYTES)
        salted = await asyncio.to_thread(salted_password, chosen, password, salt, iterations)
        upsertion = altering.ScramCredentialUpsertion(
            name=name, mechanism=chosen.code, iterations=iterations, salt=salt, salted_password=salted
        )
        await self._alter_scram(upsertions=[upsertion])

    async def delete_scram_passwords(self, name: str, mechanisms: Iterable[str]) -> None:
        """Delete a user's credentials for these mechanisms. Raises KafkaError (RESOURCE_NOT_FOUND)."""
        for mechanism in mechanisms:
            deletion = altering.ScramCredentialDeletion(name=name, mechanism=_mechanism(mechanism).code)
            await self._alter_scram(deletions=[deletion])

    async def _alter_scram(
        self,
        *,
        deletions: Sequence[altering.ScramCredentialDeletion] = (),
        upsertions: Sequence[altering.ScramCredentialUpsertion] = (),
    ) -> None:
        request = altering.AlterUserScramCredentialsRequest(deletions=list(deletions), upsertions=list(upsertions))
        answer = await self._ask_controller(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, request)
        for result in answer.results:
            check(result.error_code, f"user {result.user}", result.error_message)


def _mechanism(name: str) -> Mechanism:
    if name not in MECHANISMS:
        raise ValueError(f"mechanism must be one of {', '.join(MECHANISMS)}, not {name!r}")
    return MECHANISMS[name]


def _check_description(answer: Any) -> None:
    check(answer.error_code, "users", answer.error_message)
    for result in answer.results:
        if result.error_code != ErrorCode.NONE:
            check(result.error_code, f"user {result.user}", result.error_message)
