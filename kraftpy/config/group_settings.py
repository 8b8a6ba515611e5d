"""The settings of single groups, under Kafka's names, and the broker settings that give their defaults and bounds.

The form of the table is that of `broker_settings`. Which kind of group a setting concerns is its first word.

Left out: the intervals between assignments (KIP-1263): assignments are made at once.
"""

from __future__ import annotations

from typing import NamedTuple

GROUP_TABLE = """
consumer.heartbeat.interval.ms                   int      5000 1..
    How often a member of the consumer group shall send a heartbeat.
consumer.session.timeout.ms                      int      45000 1..
    How long a member of the consumer group may be silent.
share.auto.offset.reset                          string   latest
    Where a share group begins to read: latest, earliest, or by_duration: and a span like PT1H.
share.delivery.count.limit                       int      5 2..
    Times a record is delivered to the share group.
share.heartbeat.interval.ms                      int      5000 1..
    How often a member of the share group shall send a heartbeat.
share.isolation.level                            string   read_uncommitted {read_uncommitted,read_committed}
    Whether the share group reads records of transactions that are not committed.
share.partition.max.record.locks                 int      2000 100..
    Records of a partition that may be under way to members of the share group at once.
share.record.lock.duration.ms                    int      30000 1000..
    How long a record is locked for the consumer that fetched it.
share.renew.acknowledge.enable                   boolean  true
    Whether a consumer may have the lock of a record begin anew.
share.session.timeout.ms                         int      45000 1..
    How long a member of the share group may be silent.
streams.heartbeat.interval.ms                    int      5000 1..
    How often a member of the streams group shall send a heartbeat.
streams.initial.rebalance.delay.ms               int      3000 0..
    How long an empty streams group waits for further members before its first assignment.
streams.num.standby.replicas                     int      0 0..
    Standby tasks of each task with state.
streams.session.timeout.ms                       int      45000 1..
    How long a member of the streams group may be silent.
"""


class Behind(NamedTuple):
    """The broker settings behind one of a group: its default, and what the group's own may not fall below or exceed."""

    default: str
    least: str | None = None
    most: str | None = None


BROKER_SETTINGS_BEHIND = {
    "consumer.heartbeat.interval.ms": Behind(
        "group.consumer.heartbeat.interval.ms",
        "group.consumer.min.heartbeat.interval.ms",
        "group.consumer.max.heartbeat.interval.ms",
    ),
    "consumer.session.timeout.ms": Behind(
        "group.consumer.session.timeout.ms",
        "group.consumer.min.session.timeout.ms",
        "group.consumer.max.session.timeout.ms",
    ),
    "share.delivery.count.limit": Behind(
        "group.share.delivery.count.limit",
        "group.share.min.delivery.count.limit",
        "group.share.max.delivery.count.limit",
    ),
    "share.heartbeat.interval.ms": Behind(
        "group.share.heartbeat.interval.ms",
        "group.share.min.heartbeat.interval.ms",
        "group.share.max.heartbeat.interval.ms",
    ),
    "share.partition.max.record.locks": Behind(
        "group.share.partition.max.record.locks",
        "group.share.min.partition.max.record.locks",
        "group.share.max.partition.max.record.locks",
    ),
    "share.record.lock.duration.ms": Behind(
        "group.share.record.lock.duration.ms",
        "group.share.min.record.lock.duration.ms",
        "group.share.max.record.lock.duration.ms",
    ),
    "share.session.timeout.ms": Behind(
        "group.share.session.timeout.ms",
        "group.share.min.session.timeout.ms",
        "group.share.max.session.timeout.ms",
    ),
    "streams.heartbeat.interval.ms": Behind(
        "group.streams.heartbeat.interval.ms",
        "group.streams.min.heartbeat.interval.ms",
        "group.streams.max.heartbeat.interval.ms",
    ),
    "streams.initial.rebalance.delay.ms": Behind("group.streams.initial.rebalance.delay.ms"),
    "streams.num.standby.replicas": Behind(
        "group.streams.num.standby.replicas", most="group.streams.max.standby.replicas"
    ),
    "streams.session.timeout.ms": Behind(
        "group.streams.session.timeout.ms",
        "group.streams.min.session.timeout.ms",
        "group.streams.max.session.timeout.ms",
    ),
}
"""By name of the group's setting; a setting that is not here has its default from the table, and no bounds."""
