"""Replication of partitions from leaders to followers: pure state machines, without sockets, disks or clocks."""
