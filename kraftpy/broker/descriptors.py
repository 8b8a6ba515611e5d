"""Shares out the file descriptors that the process may have (RLIMIT_NOFILE): connections get what is left.

A process out of descriptors can neither write nor sync, so clients must not be able to take the last one. The most that
the node itself needs at once is set aside, and the user of each share keeps within it:

* its own: standard streams, event loop, listeners, monitors, locks, the journal, the links and fetchers to other nodes,
the pipes of the log cleaner, connections that are accepted only to be refused, and spares (`runtime`);
* `cached_files`: the files of partitions (`log.files.FileCache`), some of which may be pinned by transfers;
* `work_files`: files open for one operation: rounds of syncs, logs being opened and closed.

Left out: descriptors that other code in the process takes; the spares cover those.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from kraftpy.config import BrokerConfig

SPARES: Final = 16
ACCEPTED_AT_ONCE: Final = 8
"""Connections a listener accepts at a time; those above a limit are closed three loop iterations later."""
_REFUSED_PER_LISTENER: Final = 4 * ACCEPTED_AT_ONCE
MONITORS: Final = 32
"""Connections of monitors (`metrics.server`)."""
_BASE: Final = 24
_RESERVED: Final = 16
"""Connections beyond the clients' limit, which may still prove to be another broker's (`connection_limits`)."""
_PER_DIRECTORY: Final = 2
_PER_CLEANER_THREAD: Final = 5
_PER_OTHER_NODE: Final = 8
_LEAST_CONNECTIONS: Final = 8
_FEW_NODES: Final = 3


class Descriptors(NamedTuple):
    """How many descriptors each use may hold at once."""

    limit: int
    """The limit of the process."""
    cached_files: int
    pinned_files: int
    """Part of `cached_files`; as many again may be held for files that were deleted while they were pinned."""
    work_files: int
    connections: int
    """Descriptors left for clients; less than 1 if the limit is too low for a node."""
    reserved: int = 0
    """Additional connections, accepted so that other brokers can prove who they are; 0 without other nodes."""


def shares_of(config: BrokerConfig, limit: int) -> Descriptors:
    """Share out the files that a node may open among logs, links and connections."""
    return share_out(
        limit,
        listeners=sum(1 if listener.host else 2 for listener in config.listeners),  # IPv4 and IPv6
        directories=len(config.log_dirs),
        cleaner_threads=config.log_cleaner_threads,
        monitors=0 if config.kraftpy_metrics_listener is None else MONITORS,
        other_nodes=0 if config.is_alone else max(_FEW_NODES, len(config.controller_quorum_voters)),
    )


def share_out(
    limit: int,
    *,
    listeners: int = 1,
    directories: int = 1,
    cleaner_threads: int = 1,
    other_nodes: int = 0,
    monitors: int = 0,
) -> Descriptors:
    """Divide `limit` descriptors for a node with this many listeners, log directories, cleaner threads and peers.

    `monitors` is how many connections monitors may have.
    """
    reserved = _RESERVED if other_nodes else 0
    own = (
        _BASE
        + reserved
        + SPARES
        + _REFUSED_PER_LISTENER * listeners
        + _PER_DIRECTORY * directories
        + _PER_CLEANER_THREAD * cleaner_threads
        + _PER_OTHER_NODE * other_nodes
        + 2 * monitors  # as many may be accepted only to be refused; the listener is in `_BASE`
    )
    cached = max(8, min(limit // 4, 2048))
    pinned = max(1, cached // 8)
    work = max(24, min(limit // 10, 512))
    return Descriptors(limit, cached, pinned, work, limit - own - cached - pinned - work, reserved)


def least_limit(shares: Descriptors) -> int:
    """Return the number of descriptors that would be enough for a node that has too few."""
    missing = _LEAST_CONNECTIONS - shares.connections
    return shares.limit if missing <= 0 else shares.limit + 2 * missing


def are_enough(shares: Descriptors) -> bool:
    """Return whether a node can serve clients with these."""
    return shares.connections >= _LEAST_CONNECTIONS
