"""Tools for users' tests: a broker, a cluster, and in-memory files for code that stores files.

The names are loaded when first used: pytest loads this package, for its plugin, at each start.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kraftpy.testing.async_cluster import AsyncCluster
    from kraftpy.testing.chaos import Chaos
    from kraftpy.testing.cluster import EmbeddedBroker
    from kraftpy.testing.faults import Fault
    from kraftpy.testing.nodes import Cluster
    from kraftpy.testing.server_process import BrokerDied

__all__ = ["AsyncCluster", "BrokerDied", "Chaos", "Cluster", "EmbeddedBroker", "Fault"]

_WHERE = {
    "AsyncCluster": "kraftpy.testing.async_cluster",
    "BrokerDied": "kraftpy.testing.server_process",
    "Chaos": "kraftpy.testing.chaos",
    "Cluster": "kraftpy.testing.nodes",
    "EmbeddedBroker": "kraftpy.testing.cluster",
    "Fault": "kraftpy.testing.faults",
}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_WHERE[name]), name)
