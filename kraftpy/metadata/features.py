"""Decisions about cluster features and their finalized levels (KIP-584, KIP-1022).

Names and numbers are those of Kafka 4.3, and of 4.4 for `share.version`. A level is supported only if its behavior is
implemented here. The lowest level of `metadata.version` is Kafka's, so that its tools accept the cluster; every cluster
has the latest, and none is lowered.

Eligible leader replicas (KIP-966) are safe only while leaders and controller judge an ISR by the same minimum. While
the feature is enabled, `min.insync.replicas` is set for the cluster, may be set for topics, but not for single brokers.
"""

from __future__ import annotations

from collections.abc import Sequence

from kraftpy.config.settings import whole_number
from kraftpy.metadata.commands import (
    ConfigResourceType,
    FeatureLevel,
    FeatureUpdate,
    FeatureUpdateType,
    FormatCluster,
    UpdateFeatures,
)
from kraftpy.metadata.decision import Decision, FeatureResult, Refused
from kraftpy.metadata.elections import PartitionUpdate, Rules, change_records, next_state
from kraftpy.metadata.image import ELR_FEATURE, MIN_INSYNC_REPLICAS, Image
from kraftpy.metadata.records import ConfigChanged, FeatureChanged, Record
from kraftpy.protocol.errors import ErrorCode

GROUP_FEATURE = "group.version"
METADATA_VERSION = "metadata.version"
KRAFT_VERSION = "kraft.version"
SHARE_FEATURE = "share.version"
DEAD_LETTER_LEVEL = 2
"""The level of `share.version` from which on share groups have dead letter queues."""
STREAMS_FEATURE = "streams.version"
FIRST_METADATA_VERSION = 7
"""Kafka's 3.3-IV3."""
LATEST_METADATA_VERSION = 30
"""Kafka's 4.3-IV0."""

SUPPORTED: dict[str, tuple[int, int]] = {
    ELR_FEATURE: (0, 1),
    GROUP_FEATURE: (0, 1),  # 1: the consumer protocol (KIP-848)
    KRAFT_VERSION: (0, 1),
    METADATA_VERSION: (FIRST_METADATA_VERSION, LATEST_METADATA_VERSION),
    SHARE_FEATURE: (0, 2),  # 1: share groups (KIP-932); 2: their dead letter queues (KIP-1191)
    STREAMS_FEATURE: (0, 1),  # 1: there are streams groups (KIP-1071)
    "transaction.version": (0, 2),  # 2: the epoch rises with every transaction (KIP-890)
}
"""The lowest and highest level of each feature that this version supports."""

LATEST = tuple(FeatureLevel(name=name, level=highest) for name, (_, highest) in SUPPORTED.items() if highest)
"""The features of a newly formatted cluster."""

_NEVER_LOWERED = (METADATA_VERSION, KRAFT_VERSION)


def formatted_features(command: FormatCluster, image: Image) -> list[Record]:
    """Return the feature records of a new cluster. Raises `Refused` if a level is not supported."""
    records: list[Record] = []
    for feature in command.features:
        _check_supported(feature.name, feature.level)
        records.append(FeatureChanged(name=feature.name, level=feature.level))
    if any(feature.name == ELR_FEATURE and feature.level for feature in command.features):
        records += _unify_min_insync_replicas(image, command.min_insync_replicas)
    return records


def update_features(command: UpdateFeatures, image: Image) -> Decision[tuple[FeatureResult, ...]]:
    """Finalize all requested levels, or none: the first refusal becomes the decision's error."""
    records: list[Record] = []
    results = []
    for update in {each.name: each for each in command.updates}.values():  # the last update of a feature counts
        error, message = ErrorCode.NONE, None
        try:
            records += _updated(update, command, image)
        except Refused as refused:
            error, message = refused.error, refused.message
        results.append(FeatureResult(name=update.name, error=error, message=message))
    if failed := next((result for result in results if result.error), None):
        message = f"The update failed for all features since the following feature had an error: {failed.message}"
        return Decision(result=tuple(results), error=failed.error, message=message)
    return Decision(records=() if command.validate_only else tuple(records), result=tuple(results))


def _updated(update: FeatureUpdate, command: UpdateFeatures, image: Image) -> list[Record]:
    before = image.feature_level(update.name)
    if update.upgrade_type not in list(FeatureUpdateType):
        raise _invalid(update.name, update.level, "The controller does not support the given upgrade type.")
    _check_supported(update.name, update.level)
    is_upgrade = update.upgrade_type == FeatureUpdateType.UPGRADE
    if update.level < before:
        if is_upgrade:
            raise _invalid(
                update.name,
                update.level,
                "Can't downgrade the version of this feature without setting the upgrade type to either safe or unsafe "
                "downgrade.",
            )
        if update.name in _NEVER_LOWERED:
            raise _invalid(
                update.name,
                update.level,
                "Refusing to perform the requested downgrade because it might delete metadata information.",
            )
    if update.level > before and not is_upgrade:
        raise _invalid(update.name, update.level, "Can't downgrade to a newer version.")
    if update.level == before:
        return []
    records: list[Record] = [FeatureChanged(name=update.name, level=update.level)]
    if update.name == ELR_FEATURE and update.level:
        minimum = whole_number(image.controller_defaults.get(MIN_INSYNC_REPLICAS), command.min_insync_replicas)
        records += _unify_min_insync_replicas(image, minimum)
        records += _with_elr(records, image)
    elif update.name == ELR_FEATURE:
        records += _without_elr(image)
    return records


def _check_supported(name: str, level: int) -> None:
    if level < 0:
        raise _invalid(name, level, "A feature version cannot be less than 0.")
    if name not in SUPPORTED:
        reason = f"Feature {name} not found." if level == 0 else "Local controller does not support this feature."
        raise _invalid(name, level, reason)
    lowest, highest = SUPPORTED[name]
    if not lowest <= level <= highest:
        raise _invalid(name, level, f"Local controller only supports versions {lowest}-{highest}")


def _invalid(name: str, level: int, reason: str) -> Refused:
    return Refused(ErrorCode.INVALID_UPDATE_VERSION, f"Invalid update version {level} for feature {name}. {reason}")


def _unify_min_insync_replicas(image: Image, minimum: int) -> list[Record]:
    """Return the changes that set min.insync.replicas for the cluster and remove it from single brokers."""
    records: list[Record] = [
        ConfigChanged(
            resource_type=ConfigResourceType.BROKER,
            resource_name=str(broker.broker_id),
            name=MIN_INSYNC_REPLICAS,
            value=None,
        )
        for broker in image.brokers()
        if MIN_INSYNC_REPLICAS in image.configs(ConfigResourceType.BROKER, str(broker.broker_id))
    ]
    if MIN_INSYNC_REPLICAS not in image.cluster_configs():
        records.append(
            ConfigChanged(
                resource_type=ConfigResourceType.BROKER,
                resource_name="",
                name=MIN_INSYNC_REPLICAS,
                value=str(max(1, minimum)),
            )
        )
    return records


def _with_elr(decided: Sequence[Record], image: Image) -> list[Record]:
    """Take fenced and offline replicas out of ISRs: with the feature enabled, the last member may leave too."""
    cluster = dict(image.cluster_configs())
    for record in decided:
        if isinstance(record, ConfigChanged) and record.resource_name == "" and record.value is not None:
            cluster[record.name] = record.value
    rules = Rules(image, cluster_configs=cluster, has_elr=True)
    records: list[Record] = []
    for topic, number, partition in image.partitions():
        usable = rules.unfenced.difference(partition.offline_replicas)
        update = PartitionUpdate(isr=tuple(member for member in partition.isr if member in usable))
        records += change_records(topic, number, partition, next_state(topic.name, partition, update, rules))
    return records


def _without_elr(image: Image) -> list[Record]:
    """Make eligible leader replicas the ISR of partitions whose ISR is empty: they hold all committed records.

    Raises `Refused` if no replica of a partition is known to hold them.
    """
    rules = Rules(image, has_elr=False)
    records: list[Record] = []
    for topic, number, partition in image.partitions():
        eligible = partition.eligible_leader_replicas
        usable = tuple(replica for replica in eligible if replica not in partition.offline_replicas)
        isr = partition.isr or usable or eligible
        if not isr:
            raise Refused(
                ErrorCode.INVALID_UPDATE_VERSION,
                f"No replica is known to hold all records of {topic.name}-{number}; elect a leader first.",
            )
        records += change_records(
            topic, number, partition, next_state(topic.name, partition, PartitionUpdate(isr=isr), rules)
        )
    return records
