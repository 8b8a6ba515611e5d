"""Copying a partition from its leader to its followers: pure state machines, without sockets, disks or clocks."""
