"""For type checkers alone: a broker satisfies the protocol of every module of handlers. Nothing imports this module."""

from kraftpy.broker.broker import Broker
from kraftpy.broker.handlers import (
    acls,
    cluster,
    configs,
    delegation_tokens,
    fetch,
    groups,
    leaders,
    log_dirs,
    offsets,
    own_requests,
    pieces,
    produce,
    producers,
    quorum,
    quotas,
    replica_fetch,
    security,
    share,
    share_groups,
    share_state,
    streams_groups,
    telemetry,
    topics,
    transactions,
)
from kraftpy.broker.handlers import (
    metadata as metadata_handlers,
)

_acls: type[acls.Broker] = Broker
_cluster: type[cluster.Broker] = Broker
_configs: type[configs.Broker] = Broker
_delegation_tokens: type[delegation_tokens.Broker] = Broker
_fetch: type[fetch.Broker] = Broker
_groups: type[groups.Broker] = Broker
_leaders: type[leaders.Broker] = Broker
_log_dirs: type[log_dirs.Broker] = Broker
_metadata: type[metadata_handlers.Broker] = Broker
_offsets: type[offsets.Broker] = Broker
_own_requests: type[own_requests.Broker] = Broker
_pieces: type[pieces.Broker] = Broker
_produce: type[produce.Broker] = Broker
_producers: type[producers.Broker] = Broker
_quorum: type[quorum.Broker] = Broker
_quotas: type[quotas.Broker] = Broker
_replica_fetch: type[replica_fetch.Broker] = Broker
_security: type[security.Broker] = Broker
_share: type[share.Broker] = Broker
_share_groups: type[share_groups.Broker] = Broker
_share_state: type[share_state.Broker] = Broker
_streams_groups: type[streams_groups.Broker] = Broker
_telemetry: type[telemetry.Broker] = Broker
_topics: type[topics.Broker] = Broker
_transactions: type[transactions.Broker] = Broker
