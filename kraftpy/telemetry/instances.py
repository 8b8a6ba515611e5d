"""The client instances that push metrics: a state machine with the rules of Kafka's ClientMetricsManager (KIP-714).

A client first asks for its subscription, then pushes once per interval. It may push at any time after it has asked, as
clients vary their first interval; a push that ends its connection (`terminating`) may come early too, but only one. The
answer to a client that asks or pushes too early is THROTTLING_QUOTA_EXCEEDED, unless its subscription has changed,
which starts its state anew.

Invariants: at most `MAX_INSTANCES` are known; beyond that, the one that was silent for longest is forgotten. An
instance is also forgotten when its connection ends, and after three intervals of silence (a minute at least). A client
that was forgotten is not refused: it starts anew.

Time is an argument: milliseconds of a clock that never goes back. Refusals are `KafkaError`s.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from typing import Final

from kraftpy.protocol.compression import Compression
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.telemetry.subscriptions import Client, Requested, Subscription, requested_of

MAX_INSTANCES: Final = 16_384
"""As in Kafka: clients per broker."""
MAX_SUBSCRIPTIONS: Final = 1_000
"""Subscriptions that have an effect, which bounds what it costs to find those of a client."""
LEAST_EXPIRY_MS: Final = 60_000
INTERVALS_UNTIL_EXPIRY: Final = 3
ACCEPTED: Final = (Compression.ZSTD, Compression.LZ4, Compression.GZIP, Compression.SNAPPY)
"""The codecs that clients are told of, preferred ones first. Metrics that are not compressed are accepted as well."""
RESERVED_IDS: Final = frozenset({bytes(16), bytes(15) + b"\x01"})
"""Ids that no client instance has."""
_NEVER: Final = -(1 << 62)
_RETRIED_AT_ONCE: Final = frozenset({ErrorCode.UNKNOWN_SUBSCRIPTION_ID, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE})
"""Errors after which a client asks for its subscription again without waiting."""


class Instance:
    """One client instance, with what it is asked for."""

    __slots__ = (
        "asked_at",
        "client",
        "expires_at",
        "is_terminating",
        "last_error",
        "pushed_at",
        "requested",
        "version",
    )

    def __init__(self, client: Client, requested: Requested, version: int) -> None:
        self.client = client
        self.requested = requested
        self.version = version
        """The version of the subscriptions that `requested` was computed from."""
        self.asked_at = self.pushed_at = _NEVER
        self.expires_at = _NEVER
        self.is_terminating = False
        self.last_error = ErrorCode.NONE

    def may_ask(self, now: int) -> bool:
        """Return whether the interval is over since it last asked or pushed; if so, note that it asks now."""
        if now - max(self.asked_at, self.pushed_at) < self.requested.interval_ms:
            return False
        self.asked_at = now
        return True

    def may_push(self, now: int) -> bool:
        """Return whether it has asked since its last push, or the interval is over; if so, note that it pushes now."""
        if self.asked_at <= self.pushed_at and now - self.pushed_at < self.requested.interval_ms:
            return False
        self.pushed_at = now
        return True


class Counts:
    """How often things happened since the node started."""

    def __init__(self) -> None:
        self.throttled = self.unknown_subscriptions = self.pushes = self.unreadable = 0


class Instances:
    """Every client instance that this broker knows, and the subscriptions."""

    def __init__(self, new_id: Callable[[], bytes]) -> None:
        self._new_id = new_id
        self._instances: OrderedDict[bytes, Instance] = OrderedDict()
        self._of_connection: dict[Hashable, bytes] = {}
        self._subscriptions: dict[str, Subscription] = {}
        self._version = 0
        self.counts = Counts()

    def __len__(self) -> int:
        return len(self._instances)

    def subscribe(self, name: str, settings: Mapping[str, str]) -> Subscription | None:
        """Set, change or, without settings, remove a subscription; return it, or None if there is none now."""
        if not settings:
            if self._subscriptions.pop(name, None) is not None:
                self._version += 1
            return None
        if name not in self._subscriptions and len(self._subscriptions) >= MAX_SUBSCRIPTIONS:
            return None
        subscription = self._subscriptions[name] = Subscription(settings)
        self._version += 1
        return subscription

    @property
    def subscription_names(self) -> list[str]:
        """The names of all subscriptions."""
        return list(self._subscriptions)

    def ask(self, instance_id: bytes, client: Client, connection: Hashable, now: int) -> tuple[bytes, Requested]:
        """Return the id of a client instance, a new one for the zero id, and what it is asked for."""
        if instance_id == bytes(16):
            instance_id = self._fresh_id()
        instance = self._instance(instance_id, client, connection, now)
        if not instance.may_ask(now) and instance.last_error not in _RETRIED_AT_ONCE:
            self.counts.throttled += 1
            raise _too_early(instance_id)
        instance.last_error = ErrorCode.NONE
        return instance_id, instance.requested

    def push(
        self,
        instance_id: bytes,
        client: Client,
        connection: Hashable,
        now: int,
        *,
        subscription_id: int,
        is_terminating: bool,
        compression: int,
        size: int,
        most_bytes: int,
    ) -> Instance:
        """Return the instance whose metrics, of `size` bytes, may be taken. Call `pushed` once it is known if they
        could be read.
        """
        if instance_id in RESERVED_IDS:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"Invalid request from the client [{shown(instance_id)}], invalid client id"
            )
        instance = self._instance(instance_id, client, connection, now)
        self.counts.pushes += 1
        try:
            if instance.is_terminating:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST,
                    f"Client [{shown(instance_id)}] sent the previous request with state terminating to TRUE",
                )
            if not instance.may_push(now) and not is_terminating:
                self.counts.throttled += 1
                raise _too_early(instance_id)
            if subscription_id != instance.requested.subscription_id:
                self.counts.unknown_subscriptions += 1
                raise KafkaError(
                    ErrorCode.UNKNOWN_SUBSCRIPTION_ID,
                    f"Unknown client subscription id for the client [{shown(instance_id)}]",
                )
            if not 0 <= compression <= Compression.ZSTD:
                raise KafkaError(
                    ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
                    f"Unknown compression type [{compression}] is received in telemetry request from "
                    f"[{shown(instance_id)}]",
                )
            if size > most_bytes:
                raise KafkaError(
                    ErrorCode.TELEMETRY_TOO_LARGE,
                    f"Telemetry request from [{shown(instance_id)}] is larger than the maximum allowed size "
                    f"[{most_bytes}]",
                )
        except KafkaError as error:
            instance.last_error = error.code
            raise
        finally:
            instance.is_terminating = is_terminating
        return instance

    def pushed(self, instance: Instance, *, was_readable: bool) -> None:
        """Note whether the metrics that an instance pushed could be read."""
        instance.last_error = ErrorCode.NONE if was_readable else ErrorCode.INVALID_RECORD
        self.counts.unreadable += not was_readable

    def disconnected(self, connection: Hashable) -> None:
        """Forget the instance whose connection has ended, if there is one."""
        instance_id = self._of_connection.pop(connection, None)
        if instance_id is not None:
            self._instances.pop(instance_id, None)

    def expire(self, now: int) -> None:
        """Forget the instances that have been silent for too long."""
        for instance_id in [each for each, instance in self._instances.items() if instance.expires_at <= now]:
            del self._instances[instance_id]

    def _fresh_id(self) -> bytes:
        while (instance_id := self._new_id()) in self._instances or instance_id in RESERVED_IDS:
            pass
        return instance_id

    def _instance(self, instance_id: bytes, client: Client, connection: Hashable, now: int) -> Instance:
        """Return an instance, anew if the subscriptions have changed since; it does not expire for a while."""
        instance = self._instances.get(instance_id)
        if instance is None or instance.version < self._version:
            known = client if instance is None else instance.client
            requested = requested_of(known, instance_id, self._subscriptions)
            instance = self._instances[instance_id] = Instance(known, requested, self._version)
            self._of_connection[connection] = instance_id
        self._instances.move_to_end(instance_id)
        if len(self._instances) > MAX_INSTANCES:
            self._instances.popitem(last=False)
        instance.expires_at = now + expiry_ms(instance.requested.interval_ms)
        return instance


def expiry_ms(interval_ms: int) -> int:
    """Return the time without a request after which an instance with that push interval is forgotten."""
    return max(LEAST_EXPIRY_MS, INTERVALS_UNTIL_EXPIRY * interval_ms)


def shown(instance_id: bytes) -> str:
    """Return a client instance id as Kafka shows it: URL-safe base64 without padding."""
    return urlsafe_b64encode(instance_id).decode("ascii").rstrip("=")


def _too_early(instance_id: bytes) -> KafkaError:
    return KafkaError(
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
        f"Request from the client [{shown(instance_id)}] arrived before the next push interval time",
    )
