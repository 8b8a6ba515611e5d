"""The metrics that kafka_exporter has, with its names. Each is shown by one node: sums over all nodes are right."""

EXPORTER_TABLE = """
# Topics and groups (as kafka_exporter)
kafka_brokers gauge
    Number of brokers in the cluster that are not fenced; shown by the active controller alone.
    ! Fewer than you run.
kafka_broker_info gauge id address
    1 for each broker; shown by the active controller alone.
kafka_topic_partitions gauge topic
    Number of partitions of a topic; shown by the leader of its first partition.
kafka_topic_partition_current_offset gauge topic partition
    The offset that a consumer at the end reads next (the high watermark); shown by the leader, as all of these.
kafka_topic_partition_oldest_offset gauge topic partition
    The first offset that can be read.
kafka_topic_partition_leader gauge topic partition
    Id of the broker that leads the partition.
kafka_topic_partition_replicas gauge topic partition
    Number of replicas.
kafka_topic_partition_in_sync_replica gauge topic partition
    Number of replicas in sync.
kafka_topic_partition_leader_is_preferred gauge topic partition
    1 if the first replica leads.
kafka_topic_partition_under_replicated_partition gauge topic partition
    1 if some replica is not in sync.
    ! 1 for longer than a restart takes.
kafka_consumergroup_current_offset gauge consumergroup topic partition
    Offset that a group has committed; shown by the group's coordinator, as all of these.
kafka_consumergroup_current_offset_sum gauge consumergroup topic
    Sum of the offsets that a group has committed in a topic.
kafka_consumergroup_lag gauge consumergroup topic partition
    Records between the committed offset and the end of the partition. The ends of partitions without a replica
    on the coordinator's node are asked for at most every ten seconds, while metrics are scraped.
    ! It grows steadily: the consumers are too slow, or stopped.
kafka_consumergroup_lag_sum gauge consumergroup topic
    Lag of a group over all partitions of a topic.
kafka_consumergroup_members gauge consumergroup
    Number of members of a group.
    ! 0 for a group that should be running.
kafka_consumergroup_lag_seconds gauge consumergroup topic partition
    Age of the oldest record that the group has not committed; 0 without lag. kafka_exporter does not have it. Estimated
    from the ends that this node has seen: at most as far back as it has been watching.
    ! More than your consumers may be late.
"""
