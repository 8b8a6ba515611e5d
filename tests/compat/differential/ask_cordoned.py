"""Questions about cordoned log directories (KIP-1066): which may be, and what a broker refuses if all of them are."""

from __future__ import annotations

from ask_configs import BROKER, altered, described
from differ import Differ
from scenario_table import scenario

SETTING = "cordoned.log.dirs"
SET, DELETE, APPEND, SUBTRACT = range(4)


@scenario
def directories_that_may_be_cordoned(differ: Differ) -> None:
    own = differ.own(lambda side: side.cluster.data_directory(1))
    cases = {
        "none": "",
        "blanks": "  ",
        "a comma": ",",
        "all": "*",
        "its own": own,
        "its own and a comma": differ.own(lambda side: side.cluster.data_directory(1) + ","),
        "all and its own": differ.own(lambda side: "*," + side.cluster.data_directory(1)),
        "an unknown one": "/no/such",
        "a relative one": "relative",
        "its own and an unknown one": differ.own(lambda side: side.cluster.data_directory(1) + ",/no/such"),
    }
    for note, value in cases.items():
        for broker in ("1", ""):
            for operation in (SET, APPEND, SUBTRACT):
                body = altered(BROKER, broker, (SETTING, operation, value))
                differ.ask("incremental_alter_configs", body, 1, note=f"{operation} {note} of broker {broker!r}")
            resource = {
                "resource_type": BROKER,
                "resource_name": broker,
                "configs": [{"name": SETTING, "value": value}],
            }
            body = {"resources": [resource], "validate_only": True}
            differ.ask("alter_configs", body, 2, note=f"{note} of broker {broker!r}")


def described_now(differ: Differ, note: str) -> None:
    """Ask for the setting, which Kafka's broker takes over after it has answered the change."""
    body = described(BROKER, "1", [SETTING], include_synonyms=True)
    differ.ask("describe_configs", body, 4, note=note, eventually=True)


@scenario
def a_broker_with_every_directory_cordoned(differ: Differ) -> None:
    differ.create("cd")
    own = differ.own(lambda side: side.cluster.data_directory(1))
    for note, value in (("its own", own), ("all", "*")):
        differ.ask(
            "incremental_alter_configs", altered(BROKER, "1", (SETTING, SET, value), validate=False), 1, note=note
        )
        described_now(differ, note)
        body = {"topics": [{"topic": "cd", "partitions": [0]}]}
        differ.each_version("describe_log_dirs", body, note)
        topic = {"name": "cd2", "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
        new = {"topics": [topic], "timeout_ms": 10000, "validate_only": True}
        differ.ask("create_topics", new, 7, note=note, eventually=True)
        grown = {
            "topics": [{"name": "cd", "count": 2, "assignments": None}],
            "timeout_ms": 10000,
            "validate_only": True,
        }
        differ.ask("create_partitions", grown, 3, note=note)
        grown_to = {"name": "cd", "count": 2, "assignments": [{"broker_ids": [1]}]}
        differ.ask("create_partitions", {**grown, "topics": [grown_to]}, 3, note=f"{note}, assigned")
        more = {**topic, "replication_factor": 2}
        differ.ask("create_topics", {**new, "topics": [more]}, 7, note=f"{note}, two replicas")
        assigned = {**topic, "num_partitions": -1, "replication_factor": -1}
        assigned["assignments"] = [{"partition_index": 0, "broker_ids": [1]}]
        differ.ask("create_topics", {**new, "topics": [assigned]}, 7, note=f"{note}, assigned")
        for name, partition in (("cd", 0), ("cd", 9), ("no.such", 0)):
            body = {"dirs": [{"path": own, "topics": [{"name": name, "partitions": [partition]}]}]}
            differ.ask("alter_replica_log_dirs", body, 2, note=f"{note} {name} {partition}")
    for operation, value in ((SET, ""), (DELETE, None)):
        body = altered(BROKER, "1", (SETTING, operation, value), validate=False)
        differ.ask("incremental_alter_configs", body, 1, note=f"none: {operation}")
        described_now(differ, f"none: {operation}")
        differ.ask("create_topics", new, 7, note=f"none: {operation}", eventually=True)
