"""The names that Confluent's rules for the JMX exporter give the same metrics: `/metrics?rules=confluent` shows them.

These rules (confluentinc/jmx-monitoring-stacks, `kafka_broker.yml`) keep Kafka's own name of a rate (`bytesinpersec`)
for its counter, percentages without an underscore, and labels in small letters. Metrics that they name as the other
rules do are shown as they are. A counter's name then lacks `_total`, so OpenMetrics, which demands it, gets it as
unknown.
"""

from __future__ import annotations

import re
from typing import Final

_PER_SECOND: Final = (
    "kafka_server_brokertopicmetrics_",
    "kafka_server_replicamanager_isr",
    "kafka_server_replicamanager_failedisrupdates",
    "kafka_network_requestmetrics_requests_",
    "kafka_network_requestmetrics_errors_",
    "kafka_controller_controllerstats_",
)
_LABEL: Final = re.compile(r'([A-Za-z_]+)(="(?:[^"\\]|\\.)*")')
"""A label and its value, which may hold anything."""
_OTHERS: Final = {
    "kafka_network_socketserver_networkprocessoravgidle_percent": (
        "kafka_network_socketserver_networkprocessoravgidlepercent"
    ),
    "kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent": (
        "kafka_server_kafkarequesthandlerpool_requesthandleravgidlepercent_oneminuterate"
    ),
}


def confluent_name(name: str) -> str:
    """Return the name that Confluent's rules give a metric."""
    if name.endswith("_total") and name.startswith(_PER_SECOND):
        return name.removesuffix("_total") + "persec"
    return _OTHERS.get(name, name)


def confluent_line(line: str, name: str, other: str) -> str:
    """Return a line of a metric under its other name, with the names of labels in small letters."""
    line = other + line[len(name) :]
    return _LABEL.sub(lambda found: found[1].lower() + found[2], line)
