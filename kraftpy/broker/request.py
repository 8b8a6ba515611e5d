"""The context of a request: everything a handler knows besides the message itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from kraftpy.broker.rights import ALL_RIGHTS, Rights
from kraftpy.protocol.apis import ApiKey
from kraftpy.security.principal import ANONYMOUS, Principal

if TYPE_CHECKING:
    from kraftpy.broker.connection import Connection


class RequestQuota(Protocol):
    """Counts one request towards its client's quotas (`broker.quotas`)."""

    def most_fetch_bytes(self) -> int | None:
        """Return the most bytes of records that an answer to Fetch should have; None if there is no such limit."""

    def must_wait_to_fetch(self, count: int) -> bool:
        """Count the bytes of an answer to Fetch; return True if it must be empty, because they are too many."""

    def may_mutate(self, partitions: int, *, strict: bool) -> bool:
        """Count partitions to create or delete; return False, only if `strict`, if there have been too many."""

    def did_not_mutate(self, partitions: int) -> None:
        """Uncount partitions that were not created or deleted after all."""


class RequestContext:
    """The client that sent a request, the request's version, and the connection and listener it arrived on."""

    __slots__ = (
        "api_key", "api_version", "client_host", "client_id", "connection", "is_long", "listener", "quota", "rights",
    )  # fmt: skip

    def __init__(  # by hand: the compiler calls a dataclass's own through the interpreter
        self,
        *,
        api_key: ApiKey,
        api_version: int,
        client_id: str,
        client_host: str,
        listener: str,
        connection: Connection | None = None,
        is_long: bool = False,
        rights: Rights = ALL_RIGHTS,
        quota: RequestQuota | None = None,
    ) -> None:
        self.api_key = api_key
        self.api_version = api_version
        self.client_id = client_id
        self.client_host = client_host
        self.listener = listener
        self.connection = connection
        """The connection it arrived on; None for requests that a broker sends to itself."""
        self.is_long = is_long
        """True if it names so many items that it must be handled in slices (`broker.slices`)."""
        self.rights = rights
        """The sender's rights; without an authorizer, it may do everything."""
        self.quota = quota
        """Counts the request towards quotas; None if it is exempt, or if there are no quotas."""

    @property
    def principal(self) -> Principal:
        """The identity behind the request. A request that a broker sends to itself has none."""
        return ANONYMOUS if self.connection is None else self.connection.principal

    @property
    def is_by_token(self) -> bool:
        """True if the identity was proved by a delegation token."""
        return self.connection is not None and self.connection.is_by_token
