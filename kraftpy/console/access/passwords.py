"""Tries a user's name and password at the cluster: by a login over SASL, as any of its clients would.

The console has no users of its own: everyone whom the cluster lets in may sign in. A login that the cluster refuses
raises `WrongPassword`; any other problem, such as no broker, no such mechanism, or too many logins, `Unavailable`.

Bounds: names of `MOST_NAME_BYTES` and passwords of `MOST_PASSWORD_BYTES`, without control characters; `MOST_AT_ONCE`
logins at the same time, each for `MOST_SECONDS`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any, Final, Protocol

from kraftpy.client.connection import BrokerUnreachable, Connection
from kraftpy.client.options import ClientOptions
from kraftpy.client.runtime import RealRuntime
from kraftpy.protocol.errors import ErrorCode, KafkaError

logger = logging.getLogger(__name__)

MOST_NAME_BYTES: Final = 255
MOST_PASSWORD_BYTES: Final = 1_024
MOST_AT_ONCE: Final = 8
MOST_SECONDS: Final = 10.0


class WrongPassword(Exception):
    """The cluster does not accept the name and password."""


class Unavailable(Exception):
    """Nobody could be asked whether a user is who they say. The message is for the user."""


class PasswordCheck(Protocol):
    """Tries names and passwords."""

    async def check(self, name: str, password: str) -> None:
        """Return if the name and password are right. Raises WrongPassword or Unavailable."""
        ...

    def client_options(self, name: str, password: str) -> Mapping[str, Any]:
        """Return the options with which a client acts as the user."""
        ...


class ClusterPasswords:
    """Tries passwords at one cluster. `options` are those of a client whose protocol is SASL_PLAINTEXT or SASL_SSL."""

    def __init__(self, options: Mapping[str, Any], mechanism: str) -> None:
        self._options = {
            name: value
            for name, value in options.items()
            if name in ("bootstrap_servers", "security_protocol") or name.startswith("ssl_")
        }
        self._mechanism = mechanism
        self._running = 0

    def client_options(self, name: str, password: str) -> Mapping[str, Any]:
        """Return the options with which a client acts as the user."""
        login = {"sasl_mechanism": self._mechanism, "sasl_username": name, "sasl_password": password}
        return {**self._options, **login}

    async def check(self, name: str, password: str) -> None:
        """Log in as the user, and close the connection. Raises WrongPassword or Unavailable."""
        if not _may_be(name, MOST_NAME_BYTES) or not _may_be(password, MOST_PASSWORD_BYTES):
            raise WrongPassword
        if self._running >= MOST_AT_ONCE:
            raise Unavailable("Too many people are signing in. Try again in a moment.")
        self._running += 1
        try:
            async with asyncio.timeout(MOST_SECONDS):
                await self._log_in(ClientOptions(client_id="kraftpy-console", **self.client_options(name, password)))
        except TimeoutError:
            raise Unavailable("The cluster did not answer in time.") from None
        finally:
            self._running -= 1

    async def _log_in(self, options: ClientOptions) -> None:
        security = await asyncio.to_thread(lambda: options.security)
        last: KafkaError | None = None
        for host, port in options.addresses:
            try:
                connection = await Connection.open(
                    RealRuntime(),
                    host,
                    port,
                    client_id=options.client_id,
                    request_timeout_ms=MOST_SECONDS * 1000,
                    setup_timeout_ms=MOST_SECONDS * 1000,
                    security=security,
                )
            except BrokerUnreachable as error:
                last = error
                continue
            except KafkaError as error:
                if error.code is ErrorCode.SASL_AUTHENTICATION_FAILED and not isinstance(error.__cause__, OSError):
                    raise WrongPassword from None
                last = error
                break
            connection.close()
            await connection.wait_closed()
            return
        logger.warning("nobody can sign in to the console: %s", last)
        raise Unavailable("The cluster cannot be asked. The console's log says why.")


def _may_be(text: str, most_bytes: int) -> bool:
    return 0 < len(text.encode(errors="replace")) <= most_bytes and text.isprintable()
