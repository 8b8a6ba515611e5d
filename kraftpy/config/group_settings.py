"""The settings of single groups, under Kafka's names, and the broker settings that give their defaults and bounds.

The table has the form of `broker_settings`. The first word of a name is the type of group it applies to.
"""

from __future__ import annotations

from typing import NamedTuple

GROUP_TABLE = """
consumer.assignment.interval.ms                  int      1000 0..
    Least time between two assignments of the consumer group.
consumer.heartbeat.interval.ms                   int      5000 1..
    Heartbeat interval given to the members of the consumer group.
consumer.session.timeout.ms                      int      45000 1..
    Timeout to detect failures of the consumer group's members.
errors.deadletterqueue.copy.record.enable        boolean  false
    Whether a record of a dead letter queue has the key and the value of the record that was given up.
errors.deadletterqueue.topic.name                string   ""
    The topic for records that a share group gives up: its dead letter queue. Empty for none.
share.assignment.interval.ms                     int      1000 0..
    Least time between two assignments of the share group.
share.auto.offset.reset                          string   latest
    The initial offset of a share group: latest, earliest, or by_duration: followed by a duration such as PT1H.
share.delivery.count.limit                       int      5 2..
    Maximum number of delivery attempts for a record.
share.heartbeat.interval.ms                      int      5000 1..
    Heartbeat interval given to the members of the share group.
share.isolation.level                            string   read_uncommitted {read_uncommitted,read_committed}
    Isolation level of the share group: read_uncommitted includes records of open and aborted transactions.
share.partition.max.record.locks                 int      2000 100..
    Maximum number of record locks per share partition.
share.record.lock.duration.ms                    int      30000 1000..
    Acquisition lock duration of records delivered to a consumer.
share.renew.acknowledge.enable                   boolean  true
    Whether a consumer may renew the acquisition lock of a record.
share.session.timeout.ms                         int      45000 1..
    Timeout to detect failures of the share group's members.
streams.assignment.interval.ms                   int      1000 0..
    Least time between two assignments of the streams group.
streams.heartbeat.interval.ms                    int      5000 1..
    Heartbeat interval given to the members of the streams group.
streams.initial.rebalance.delay.ms               int      3000 0..
    Time that an empty streams group waits for more members before its first assignment.
streams.num.standby.replicas                     int      0 0..
    Number of standby replicas for each stateful task.
streams.session.timeout.ms                       int      45000 1..
    Timeout to detect failures of the streams group's members.
"""


class BrokerBounds(NamedTuple):
    """The broker settings behind a group setting: its default, and the bounds of a group's override."""

    default: str
    least: str | None = None
    most: str | None = None


BROKER_SETTINGS_BEHIND = {
    "consumer.assignment.interval.ms": BrokerBounds(
        "group.consumer.assignment.interval.ms",
        "group.consumer.min.assignment.interval.ms",
        "group.consumer.max.assignment.interval.ms",
    ),
    "consumer.heartbeat.interval.ms": BrokerBounds(
        "group.consumer.heartbeat.interval.ms",
        "group.consumer.min.heartbeat.interval.ms",
        "group.consumer.max.heartbeat.interval.ms",
    ),
    "consumer.session.timeout.ms": BrokerBounds(
        "group.consumer.session.timeout.ms",
        "group.consumer.min.session.timeout.ms",
        "group.consumer.max.session.timeout.ms",
    ),
    "share.assignment.interval.ms": BrokerBounds(
        "group.share.assignment.interval.ms",
        "group.share.min.assignment.interval.ms",
        "group.share.max.assignment.interval.ms",
    ),
    "share.delivery.count.limit": BrokerBounds(
        "group.share.delivery.count.limit",
        "group.share.min.delivery.count.limit",
        "group.share.max.delivery.count.limit",
    ),
    "share.heartbeat.interval.ms": BrokerBounds(
        "group.share.heartbeat.interval.ms",
        "group.share.min.heartbeat.interval.ms",
        "group.share.max.heartbeat.interval.ms",
    ),
    "share.partition.max.record.locks": BrokerBounds(
        "group.share.partition.max.record.locks",
        "group.share.min.partition.max.record.locks",
        "group.share.max.partition.max.record.locks",
    ),
    "share.record.lock.duration.ms": BrokerBounds(
        "group.share.record.lock.duration.ms",
        "group.share.min.record.lock.duration.ms",
        "group.share.max.record.lock.duration.ms",
    ),
    "share.session.timeout.ms": BrokerBounds(
        "group.share.session.timeout.ms",
        "group.share.min.session.timeout.ms",
        "group.share.max.session.timeout.ms",
    ),
    "streams.assignment.interval.ms": BrokerBounds(
        "group.streams.assignment.interval.ms",
        "group.streams.min.assignment.interval.ms",
        "group.streams.max.assignment.interval.ms",
    ),
    "streams.heartbeat.interval.ms": BrokerBounds(
        "group.streams.heartbeat.interval.ms",
        "group.streams.min.heartbeat.interval.ms",
        "group.streams.max.heartbeat.interval.ms",
    ),
    "streams.initial.rebalance.delay.ms": BrokerBounds("group.streams.initial.rebalance.delay.ms"),
    "streams.num.standby.replicas": BrokerBounds(
        "group.streams.num.standby.replicas", most="group.streams.max.standby.replicas"
    ),
    "streams.session.timeout.ms": BrokerBounds(
        "group.streams.session.timeout.ms",
        "group.streams.min.session.timeout.ms",
        "group.streams.max.session.timeout.ms",
    ),
}
"""By name of the group's setting; a setting that is not here has its default from the table, and no bounds."""
