"""Every metric of a node: its type, its labels, its meaning, and when to worry.

The tables are text (`tables`, `own_table`), as those of the settings (decision 8): a line with the name, the type and
the labels, then the meaning, then lines with `!` that say when to worry. A label with `?` is not on every sample. The
page of the documentation is made from the catalogue, and a test compares it with what nodes show.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from kraftpy.metrics.exporter_table import EXPORTER_TABLE
from kraftpy.metrics.jmx_tables import JMX_TABLE
from kraftpy.metrics.own_table import OWN_TABLE


class Kind(Enum):
    """The type of a metric, as both text formats name it."""

    COUNTER = "counter"
    GAUGE = "gauge"
    SUMMARY = "summary"
    HISTOGRAM = "histogram"


class Meaning(NamedTuple):
    """One metric. `labels` are in their order; `optional` are those that only some samples have."""

    kind: Kind
    labels: tuple[str, ...]
    optional: frozenset[str]
    text: str
    worry: str
    """When to worry; empty if there is no rule."""
    section: str


def parse(table: str) -> dict[str, Meaning]:
    """Parse a table. Raises ValueError for a line that is not in its form, or for a name that is there twice."""
    found: dict[str, Meaning] = {}
    section = name = ""
    for line in table.strip().splitlines():
        if not line.strip():
            continue
        if line.startswith("# "):
            section = line.removeprefix("# ")
        elif not line.startswith(" "):
            name, kind, *marked = line.split()
            if name in found:
                raise ValueError(f"{name} is there twice")
            names = tuple(each.rstrip("?") for each in marked)
            optional = frozenset(each.rstrip("?") for each in marked if each.endswith("?"))
            found[name] = Meaning(Kind(kind), names, optional, "", "", section)
        elif line.lstrip().startswith("!"):
            found[name] = found[name]._replace(worry=_joined(found[name].worry, line.lstrip(" !")))
        else:
            found[name] = found[name]._replace(text=_joined(found[name].text, line.strip()))
    for each, meaning in found.items():
        if not meaning.text or (meaning.kind is Kind.COUNTER) != each.endswith("_total"):
            raise ValueError(f"{each}: a metric has a meaning, and a counter's name ends in _total")
    return found


def _joined(text: str, more: str) -> str:
    return f"{text} {more}" if text else more


CATALOGUE: dict[str, Meaning] = parse(JMX_TABLE) | parse(EXPORTER_TABLE) | parse(OWN_TABLE)
ALIASES: dict[str, str] = {
    name: name.replace("_raftmetrics_", "_raft_metrics_").replace("_raftchannelmetrics_", "_raft_channel_metrics_")
    for name in list(CATALOGUE)
    if name.startswith(("kafka_server_raftmetrics_", "kafka_server_raftchannelmetrics_"))
} | {
    "kafka_server_socket_server_metrics_connection_count": "kafka_server_socketservermetrics_connection_count",
}
"""Metrics that are shown under a second name too, which other rules for the JMX exporter give them."""
CATALOGUE |= {
    other: CATALOGUE[name]._replace(text=f"Another name of {name}.", worry="") for name, other in ALIASES.items()
}
RESERVED = frozenset(name for name in CATALOGUE if not name.startswith("kraftpy_client_metrics_"))
"""Names that no collector may take: all but those of metrics about clients, which a collector shows."""
