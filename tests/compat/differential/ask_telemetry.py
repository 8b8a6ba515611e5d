"""Questions about metrics of clients (KIP-714). Kafka answers them without a plug-in too, though it advertises neither.

Nothing here waits for a push interval: what is asked twice is asked too early, or after a change.
"""

from __future__ import annotations

import gzip
from typing import Any

from ask_configs import DELETE, METRICS, SET, altered, described
from differ import Differ
from scenario_table import scenario
from side import Side

DYNAMIC = 7
"""The source of settings of client metrics."""
ZERO, ONE = bytes(16), bytes(15) + b"\x01"
SUBSCRIPTIONS: tuple[dict[str, str], ...] = (
    {"metrics": "*", "interval.ms": "100"},
    {"metrics": "org.apache.kafka.producer.,org.apache.kafka.consumer.fetch,a,b,Aa,BB", "interval.ms": "60000"},
    {"interval.ms": "3600000"},
    {"interval.ms": "700000", "metrics": "c"},
    {"metrics": ",".join(f"m.{number * number * 7919}.x" for number in range(13))},
    {"metrics": ",".join(f"m.{number * number * 7919}.x" for number in range(40))},
    {"metrics": "d", "match": "client_id=.*"},
    {"metrics": "d", "match": "client_id=dif.*,client_source_address=127\\.0\\.0\\.1"},
    {"metrics": "d", "match": "client_id=nobody"},
    {"metrics": "d", "match": "client_software_name=.*"},
    {"metrics": "d", "match": "client_source_port=[0-9]+,client_instance_id=[A-Za-z0-9_-]{22}"},
)


def _instance(number: int) -> bytes:
    return (0x1234567890ABCDEF * (number + 1) % (1 << 64)).to_bytes(8, "big") + bytes([number % 256]) * 8


def _subscribe(differ: Differ, name: str, settings: dict[str, str]) -> None:
    changes = [(key, SET, value) for key, value in settings.items()]
    differ.ask("incremental_alter_configs", altered(METRICS, name, *changes, validate=False), 1, note=f"set {name}")
    _wait(differ, name, settings)


def _unsubscribe(differ: Differ, name: str) -> None:
    changes = [(key, DELETE, None) for key in ("metrics", "interval.ms", "match")]
    differ.ask("incremental_alter_configs", altered(METRICS, name, *changes, validate=False), 1, note=f"unset {name}")
    _wait(differ, name, {})


def _wait(differ: Differ, name: str, settings: dict[str, str]) -> None:
    """Wait until the brokers that are asked, which are not the controllers, know it too."""

    def is_known(side: Side) -> bool:
        answer = side.quiet("describe_configs", described(METRICS, name, None), 4)
        found = {each.name: each.value for each in answer.results[0].configs if each.config_source == DYNAMIC}
        return found == settings

    differ.wait(f"{name} is known", is_known)


def _asked(differ: Differ, instance: bytes, note: str, **how: Any) -> Any:
    body = {"client_instance_id": instance}
    return differ.ask("get_telemetry_subscriptions", body, note=note, **how)


@scenario
def telemetry_subscriptions(differ: Differ) -> None:
    """Each alone, then all that are left together: intervals, prefixes and their order, and the subscription ids."""
    number = 0
    for name, settings in enumerate(SUBSCRIPTIONS):
        _subscribe(differ, f"tel-{name}", settings)
        _asked(differ, _instance(number := number + 1), f"with {name}", client=f"tel{number}")
        _unsubscribe(differ, f"tel-{name}")
    for name, settings in enumerate(SUBSCRIPTIONS[1:]):
        _subscribe(differ, f"tel-{name}", settings)
        _asked(differ, _instance(number := number + 1), f"up to {name}", client=f"tel{number}")
    for name in range(len(SUBSCRIPTIONS)):
        _unsubscribe(differ, f"tel-{name}")


@scenario
def telemetry_too_early(differ: Differ) -> None:
    instance = _instance(100)
    for note in ("first", "again", "and again"):
        _asked(differ, instance, note, client="tel-early")
    for version, note in ((ONE, "one"), (b"\xff" * 16, "all ones")):
        _asked(differ, version, note, client=f"tel-{note}")


@scenario
def telemetry_pushes(differ: Differ) -> None:
    """One instance a push, since each may push once: compressions, sizes, ids, and the errors of all of them."""
    cases: dict[str, dict[str, Any]] = {
        "nothing": {},
        "no subscription": {"subscription_id": 12345},
        "the zero id": {"client_instance_id": ZERO},
        "the reserved id": {"client_instance_id": ONE},
        "not gzip": {"metrics": b"nonsense", "compression_type": 1},
        "gzip": {"metrics": gzip.compress(b""), "compression_type": 1},
        "too large once unpacked": {"metrics": gzip.compress(bytes(1 << 21)), "compression_type": 1},
        "too large": {"metrics": bytes((1 << 20) + 1)},
        "largest": {"compression_type": 0},
        **{f"compression {codec}": {"compression_type": codec} for codec in (-1, 0, 1, 2, 3, 4, 5, 127)},
    }
    for number, (note, changes) in enumerate(cases.items()):
        instance = _instance(200 + number)
        found = _asked(differ, instance, f"before {note}", client=f"tel-push{number}")
        body = {
            "client_instance_id": instance,
            "subscription_id": found.subscription_id,
            "terminating": False,
            "compression_type": 0,
            "metrics": b"",
            **changes,
        }
        for time in ("first", "second"):
            differ.ask("push_telemetry", body, note=f"{note}, {time}", client=f"tel-push{number}")
        last = {**body, "terminating": True}
        for time in ("last", "after the last"):
            differ.ask("push_telemetry", last, note=f"{note}, {time}", client=f"tel-push{number}")
        _asked(differ, instance, f"after {note}", client=f"tel-push{number}")
