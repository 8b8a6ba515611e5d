"""Client options under Kafka's names, with underscores for dots, checked when a client is created.

Each is a typed keyword argument of `Producer`, `Consumer` or `Admin`; these classes define the allowed values and the
defaults. A bad value raises a `ValueError` that begins with the option's name.

Defaults are Kafka's, except `batch_size` (128 KiB: a batch costs this client more than a record does) and `client_id`.
`receive_message_max_bytes` is librdkafka's `receive.message.max.bytes`; Kafka's own clients have no such limit.

Keys and certificates are PEM (KIP-651), in files or in the options themselves. `sasl_username` and `sasl_password` are
librdkafka's; Kafka's `sasl_jaas_config` holds the same. `sasl_oauthbearer_token_provider` is a function that returns a
token; it is called in a thread. With GSSAPI, `sasl_jaas_config` names the cache of tickets or the keytab; without it,
the user's tickets are used. `repr` shows no secrets.

Left out: metrics reporters.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, fields

from kraftpy.client.model import AutoOffsetReset, IsolationLevel
from kraftpy.client.security import PLAINTEXT, Security

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
KNOWN_COMPRESSIONS = ("none", "gzip", "snappy", "lz4", "zstd")
MAX_IN_FLIGHT_IDEMPOTENT = 5
INT32_MAX = 2**31 - 1
DEFAULT_RECEIVE_BYTES = 134_217_728
"""The largest batch that brokers accept by default (100 MiB), with a margin."""


def number(name: str, value: object, *, low: float = 0, high: float = INT32_MAX) -> None:
    """Check that `value` is a number from `low` to `high`. Raises ValueError."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{name} must be a number, not {value!r}")
    if not low <= value <= high:
        raise ValueError(f"{name} must be from {low} to {high}, not {value!r}")


def whole(name: str, value: object, *, low: int = 0, high: int = INT32_MAX) -> None:
    """Check that `value` is a whole number from `low` to `high`. Raises ValueError."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{name} must be a whole number, not {value!r}")
    number(name, value, low=low, high=high)


def flag(name: str, value: object) -> None:
    """Check that `value` is True or False. Raises ValueError."""
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be True or False, not {value!r}")


def text(name: str, value: object) -> None:
    """Check that `value` is a non-empty string that fits the wire. Raises ValueError."""
    if not isinstance(value, str) or not value or len(value.encode()) > 32_767:
        raise ValueError(f"{name} must be a non-empty string of at most 32767 bytes, not {value!r}")


def one_of(name: str, value: object, allowed: Collection[object]) -> None:
    """Check that `value` is among `allowed`. Raises ValueError."""
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(map(str, allowed))}, not {value!r}")


def parse_bootstrap(servers: str | Iterable[str]) -> tuple[tuple[str, int], ...]:
    """Parse `host:port,host:port` (or a list of them, IPv6 in brackets) into pairs. Raises ValueError."""
    listed = servers.split(",") if isinstance(servers, str) else list(servers)
    addresses = []
    for server in (item.strip() for item in listed):
        if not server:
            continue
        host, colon, port = server.rpartition(":")
        if not colon or not port.isdigit() or not 0 < int(port) < 65_536 or not host:
            raise ValueError(f"bootstrap_servers: {server!r} is not host:port")
        addresses.append((host.removeprefix("[").removesuffix("]"), int(port)))
    if not addresses:
        raise ValueError("bootstrap_servers contains no server")
    return tuple(addresses)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """Options of every client."""

    bootstrap_servers: str | Sequence[str] = "127.0.0.1:9092"
    client_id: str = "kraftpy"
    security_protocol: str = "PLAINTEXT"
    request_timeout_ms: float = 30_000
    retry_backoff_ms: float = 100
    retry_backoff_max_ms: float = 1_000
    reconnect_backoff_ms: float = 50
    reconnect_backoff_max_ms: float = 1_000
    socket_connection_setup_timeout_ms: float = 10_000
    metadata_max_age_ms: float = 300_000
    receive_message_max_bytes: int = DEFAULT_RECEIVE_BYTES  # a fetch may return the bytes it asks for in addition
    default_api_timeout_ms: float = 60_000
    allow_auto_create_topics: bool = True
    ssl_keystore_location: str | None = None
    ssl_keystore_key: str | None = field(default=None, repr=False)
    ssl_keystore_certificate_chain: str | None = field(default=None, repr=False)
    ssl_key_password: str | None = field(default=None, repr=False)
    ssl_truststore_location: str | None = None
    ssl_truststore_certificates: str | None = field(default=None, repr=False)
    ssl_endpoint_identification_algorithm: str = "https"
    sasl_mechanism: str = "PLAIN"
    sasl_username: str | None = None
    sasl_password: str | None = field(default=None, repr=False)
    sasl_jaas_config: str | None = field(default=None, repr=False)
    sasl_kerberos_service_name: str | None = None
    sasl_oauthbearer_token_provider: Callable[[], str] | None = field(default=None, repr=False)
    sasl_oauthbearer_token_endpoint_url: str | None = None
    sasl_oauthbearer_client_credentials_client_id: str | None = None
    sasl_oauthbearer_client_credentials_client_secret: str | None = field(default=None, repr=False)
    sasl_oauthbearer_scope: str | None = None
    sasl_oauthbearer_header_urlencode: bool = False
    sasl_oauthbearer_jwt_retriever_class: str | None = None
    sasl_oauthbearer_assertion_file: str | None = None
    sasl_oauthbearer_assertion_private_key_file: str | None = None
    sasl_oauthbearer_assertion_private_key_passphrase: str | None = field(default=None, repr=False)
    sasl_oauthbearer_assertion_template_file: str | None = None
    sasl_oauthbearer_assertion_algorithm: str = "RS256"
    sasl_oauthbearer_assertion_claim_aud: str | None = None
    sasl_oauthbearer_assertion_claim_iss: str | None = None
    sasl_oauthbearer_assertion_claim_sub: str | None = None
    sasl_oauthbearer_assertion_claim_exp_seconds: int = 300
    sasl_oauthbearer_assertion_claim_nbf_seconds: int = 60
    sasl_oauthbearer_assertion_claim_jti_include: bool = False

    def __post_init__(self) -> None:
        parse_bootstrap(self.bootstrap_servers)
        text("client_id", self.client_id)
        one_of("security_protocol", self.security_protocol, PROTOCOLS)
        for each in fields(ClientOptions):
            if each.name.endswith("_ms"):
                number(each.name, getattr(self, each.name), low=1)
        flag("allow_auto_create_topics", self.allow_auto_create_topics)
        whole("receive_message_max_bytes", self.receive_message_max_bytes, low=1_000)

    @property
    def security(self) -> Security:
        """The TLS and login of the client's connections. Reads files at each access. Raises ValueError."""
        if self.security_protocol == "PLAINTEXT":
            return PLAINTEXT
        from kraftpy.client.login import security_of  # here: most clients need neither TLS nor SASL

        return security_of(self)

    @property
    def addresses(self) -> tuple[tuple[str, int], ...]:
        """The bootstrap servers as pairs of host and port."""
        return parse_bootstrap(self.bootstrap_servers)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerOptions(ClientOptions):
    """Options of a producer."""

    acks: int | str = "all"
    enable_idempotence: bool | None = None  # None: on, unless another option rules it out
    compression_type: str = "none"
    compression_level: int | None = None
    batch_size: int = 131_072
    linger_ms: float = 5
    buffer_memory: int = 33_554_432
    max_request_size: int = 1_048_576
    max_block_ms: float = 60_000
    delivery_timeout_ms: float = 120_000
    retries: int = INT32_MAX
    max_in_flight_requests_per_connection: int = 5
    transactional_id: str | None = None
    transaction_timeout_ms: int = 60_000

    def __post_init__(self) -> None:
        ClientOptions.__post_init__(self)
        one_of("acks", self.acks, ("all", -1, 0, 1, "0", "1", "-1"))
        one_of("compression_type", self.compression_type, KNOWN_COMPRESSIONS)
        whole("batch_size", self.batch_size)
        number("linger_ms", self.linger_ms)
        whole("buffer_memory", self.buffer_memory, low=1, high=2**62)
        whole("max_request_size", self.max_request_size, low=1)
        number("max_block_ms", self.max_block_ms)
        number("delivery_timeout_ms", self.delivery_timeout_ms, low=1)
        whole("retries", self.retries)
        whole("max_in_flight_requests_per_connection", self.max_in_flight_requests_per_connection, low=1)
        if self.compression_level is not None:
            whole("compression_level", self.compression_level, low=-131_072, high=22)
        if self.delivery_timeout_ms < self.linger_ms + self.request_timeout_ms:
            raise ValueError(
                f"delivery_timeout_ms ({self.delivery_timeout_ms}) must be at least linger_ms + request_timeout_ms "
                f"({self.linger_ms + self.request_timeout_ms})"
            )
        whole("transaction_timeout_ms", self.transaction_timeout_ms, low=1)
        if self.transactional_id is not None:
            text("transactional_id", self.transactional_id)
            if not self.idempotent:
                raise ValueError(
                    "transactional_id needs acks='all', retries above 0, max_in_flight_requests_per_connection of at "
                    "most 5, and no enable_idempotence=False"
                )
        if self.enable_idempotence is not None:
            flag("enable_idempotence", self.enable_idempotence)
        if self.enable_idempotence:
            if self.acks_number != -1:
                raise ValueError(f"enable_idempotence needs acks='all', not {self.acks!r}")
            if self.retries == 0:
                raise ValueError("enable_idempotence needs retries above 0")
            if self.max_in_flight_requests_per_connection > MAX_IN_FLIGHT_IDEMPOTENT:
                raise ValueError("enable_idempotence needs max_in_flight_requests_per_connection of at most 5")

    @property
    def acks_number(self) -> int:
        """`acks` as the wire has it: -1 for all."""
        return -1 if self.acks == "all" else int(self.acks)

    @property
    def idempotent(self) -> bool:
        """True if records get sequence numbers."""
        if self.enable_idempotence is not None:
            return self.enable_idempotence
        return (
            self.acks_number == -1
            and self.retries > 0
            and self.max_in_flight_requests_per_connection <= MAX_IN_FLIGHT_IDEMPOTENT
        )


_CLASSIC_ONLY = ("partition_assignment_strategy", "session_timeout_ms", "heartbeat_interval_ms")
"""Options that only the classic group protocol has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerOptions(ClientOptions):
    """Options of a consumer."""

    group_id: str | None = None
    group_instance_id: str | None = None
    group_protocol: str = "classic"
    group_remote_assignor: str | None = None
    client_rack: str = ""
    partition_assignment_strategy: Sequence[str] = ("range", "cooperative-sticky")
    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 3_000
    max_poll_interval_ms: int = 300_000
    max_poll_records: int = 500
    enable_auto_commit: bool = True
    auto_commit_interval_ms: float = 5_000
    auto_offset_reset: str = "latest"
    isolation_level: str = "read_uncommitted"
    fetch_min_bytes: int = 1
    fetch_max_bytes: int = 52_428_800
    fetch_max_wait_ms: int = 500
    max_partition_fetch_bytes: int = 1_048_576
    check_crcs: bool = True
    exclude_internal_topics: bool = True
    allow_auto_create_topics: bool = False

    def __post_init__(self) -> None:
        from kraftpy.client.assignors import ASSIGNORS

        ClientOptions.__post_init__(self)
        for name in ("group_id", "group_instance_id"):
            value = getattr(self, name)
            if value is not None:
                text(name, value)
        one_of("group_protocol", self.group_protocol, ("classic", "consumer"))
        if self.group_protocol == "consumer":
            for field in fields(ConsumerOptions):
                if field.name in _CLASSIC_ONLY and getattr(self, field.name) != field.default:
                    raise ValueError(
                        f"{field.name} cannot be set with group_protocol='consumer': the broker decides it"
                    )
        elif self.group_remote_assignor is not None:
            raise ValueError("group_remote_assignor needs group_protocol='consumer'")
        strategies = self.partition_assignment_strategy
        if isinstance(strategies, str) or not strategies:
            raise ValueError(f"partition_assignment_strategy must be a list of names, not {strategies!r}")
        for strategy in strategies:
            one_of("partition_assignment_strategy", strategy, tuple(ASSIGNORS))
        whole("session_timeout_ms", self.session_timeout_ms, low=1)
        whole("heartbeat_interval_ms", self.heartbeat_interval_ms, low=1)
        whole("max_poll_interval_ms", self.max_poll_interval_ms, low=1)
        whole("max_poll_records", self.max_poll_records, low=1)
        number("auto_commit_interval_ms", self.auto_commit_interval_ms)
        one_of("auto_offset_reset", self.auto_offset_reset, tuple(reset.value for reset in AutoOffsetReset))
        one_of("isolation_level", self.isolation_level, ("read_uncommitted", "read_committed"))
        for name in ("fetch_min_bytes", "fetch_max_bytes", "fetch_max_wait_ms", "max_partition_fetch_bytes"):
            whole(name, getattr(self, name))
        for name in ("enable_auto_commit", "check_crcs", "exclude_internal_topics"):
            flag(name, getattr(self, name))
        if self.group_id is not None and self.heartbeat_interval_ms >= self.session_timeout_ms:
            raise ValueError(
                f"heartbeat_interval_ms ({self.heartbeat_interval_ms}) must be below session_timeout_ms "
                f"({self.session_timeout_ms})"
            )

    @property
    def isolation(self) -> IsolationLevel:
        """`isolation_level` as the wire has it."""
        return IsolationLevel[self.isolation_level.upper()]

    @property
    def reset(self) -> AutoOffsetReset:
        """`auto_offset_reset` as an enum."""
        return AutoOffsetReset(self.auto_offset_reset)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareConsumerOptions(ClientOptions):
    """Options of a share consumer. A share group's starting point and isolation level are settings of the group."""

    group_id: str
    client_rack: str = ""
    share_acknowledgement_mode: str = "implicit"
    share_acquire_mode: str = "batch_optimized"
    max_poll_records: int = 500
    fetch_min_bytes: int = 1
    fetch_max_bytes: int = 52_428_800
    fetch_max_wait_ms: int = 500
    check_crcs: bool = True
    allow_auto_create_topics: bool = False

    def __post_init__(self) -> None:
        ClientOptions.__post_init__(self)
        text("group_id", self.group_id)
        one_of("share_acknowledgement_mode", self.share_acknowledgement_mode, ("implicit", "explicit"))
        one_of("share_acquire_mode", self.share_acquire_mode, ("batch_optimized", "record_limit"))
        whole("max_poll_records", self.max_poll_records, low=1)
        for name in ("fetch_min_bytes", "fetch_max_bytes", "fetch_max_wait_ms"):
            whole(name, getattr(self, name))
        flag("check_crcs", self.check_crcs)

    @property
    def is_explicit(self) -> bool:
        """True if the application acknowledges every record itself."""
        return self.share_acknowledgement_mode == "explicit"

    @property
    def acquire_mode(self) -> int:
        """`share_acquire_mode` as the wire has it."""
        return 1 if self.share_acquire_mode == "record_limit" else 0
