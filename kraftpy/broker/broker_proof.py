"""Proves to another broker that a connection is a broker's, on a listener that clients use too.

A follower's fetch acknowledges records, and share coordinators accept states from brokers, so a claim to be a broker
must be proved (CVE-2018-1288): a broker's id and epoch are numbers that anyone can learn. The incarnation id that a
broker registers with is 16 random bytes, which travel over links and are never shown to a client. A broker that
connects to another names itself in its first request, ApiVersions: `client_software_name` is `SOFTWARE`, and
`client_software_version` holds its id, its epoch and a keyed hash of both, of its incarnation id and of the broker that
it connects to. The key is derived from the cluster's secret. The proof costs no extra request, and is checked once per
connection.

Invariant: a connection counts as a broker's for as long as the image has that broker at that epoch, and no longer; the
broker itself opens another connection when its epoch changes.

Left out: protection from eavesdroppers (traffic between brokers is not encrypted).
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from functools import lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple, Protocol

from kraftpy.metadata.image import Image
from kraftpy.types import BrokerId

if TYPE_CHECKING:
    from kraftpy.broker.connection import Connection
    from kraftpy.broker.request import RequestContext


class Metadata(Protocol):
    """Metadata that one can wait for."""

    async def wait_for(self, condition: Callable[[], bool], timeout_ms: int) -> bool:
        """Wait until a condition on the metadata holds; return False on timeout."""


class Broker(Protocol):
    """The part of a broker that `who_asks` needs."""

    @property
    def proof(self) -> BrokerProof:
        """Verifies that a connection belongs to a broker."""

    @property
    def metadata(self) -> Metadata:
        """The broker's copy of the metadata, which may lag a moment behind."""


SOFTWARE = "kraftpy-broker"
_HASH_BYTES = 32
_MAX_CLAIM = 150
_CLAIMS_KEPT = 64
_METADATA_WAIT_MS = 500


class Identity(NamedTuple):
    """A broker and the epoch of its registration."""

    broker_id: int
    broker_epoch: int


class BrokerProof:
    """The proofs that this broker sends, and the check of those that it receives."""

    def __init__(
        self,
        node_id: int,
        *,
        image: Callable[[], Image],
        broker_epoch: Callable[[], int],
        incarnation_id: bytes,
        key: Callable[[], bytes],
    ) -> None:
        """`key` returns 32 bytes that every node of the cluster has."""
        self._node_id = node_id
        self._image = image
        self._broker_epoch = broker_epoch
        self._incarnation_id = incarnation_id
        self._key = key

    def software_for(self, other: BrokerId) -> tuple[str, str]:
        """Return the software name and version to send `other` in ApiVersions; the version carries the proof."""
        own = Identity(self._node_id, self._broker_epoch())
        return SOFTWARE, f"{own.broker_id}.{max(own.broker_epoch, 0)}.{self._hash(own, self._incarnation_id, other)}"

    def _hash(self, who: Identity, incarnation_id: bytes, to: int) -> str:
        content = b"%d %d %d %b" % (who.broker_id, who.broker_epoch, to, incarnation_id)
        return blake2b(content, key=self._key(), digest_size=_HASH_BYTES).hexdigest()

    def proved(self, connection: Connection | None) -> Identity | None:
        """Return the broker at the other end, according to the current metadata; None if it has proved nothing."""
        claimed = None if connection is None else claim_of(connection)
        if connection is None or claimed is None:
            return None
        who, digest = claimed
        broker = self._image().broker(BrokerId(who.broker_id))
        if broker is None or broker.broker_epoch != who.broker_epoch:
            return None
        if connection.proved_broker != who:
            if not hmac.compare_digest(digest, self._hash(who, broker.incarnation_id, self._node_id)):
                return None
            connection.proved_broker = who
        return who

    def may_come(self, connection: Connection | None) -> bool:
        """Return whether the other end claims an epoch newer than the metadata here, which may be a moment behind."""
        claimed = None if connection is None else claim_of(connection)
        if claimed is None:
            return False
        broker = self._image().broker(BrokerId(claimed[0].broker_id))
        return broker is None or broker.broker_epoch < claimed[0].broker_epoch


async def who_asks(broker: Broker, context: RequestContext) -> Identity | None:
    """Return the broker that has proved to be at the other end of a request's connection, or None.

    A broker that registered just now is held until the metadata here, which may be a moment behind, include it.
    """
    proof, connection = broker.proof, context.connection
    found = proof.proved(connection)
    if found is None and proof.may_come(connection):
        await broker.metadata.wait_for(lambda: not proof.may_come(connection), _METADATA_WAIT_MS)
        found = proof.proved(connection)
    return found


def claim_of(connection: Connection) -> tuple[Identity, str] | None:
    """Return the identity that the other end claims, and its proof. Neither is checked yet."""
    return _parsed(connection.broker_claim[:_MAX_CLAIM])


@lru_cache(maxsize=_CLAIMS_KEPT)
def _parsed(claim: str) -> tuple[Identity, str] | None:
    parts = claim.split(".")
    if len(parts) != 3 or not all(part.isascii() and part.isdecimal() and len(part) < 20 for part in parts[:2]):
        return None
    return Identity(int(parts[0]), int(parts[1])), parts[2]
