"""The cluster, agreed: topics, partitions, configs, brokers, producer ids, as a state machine without I/O."""
