"""Diagnosis: what a cluster does, and why something does not get on, from what any Kafka cluster tells its clients.

- `observing`: looks at a group and its partitions for a few seconds, through the admin client
- `group_causes`: the causes that such an observation shows; a pure function
- `lag_ages`: the age of what a group has not read, and whether there is anything to read
- `sampling`: samples of a cluster, and the rates between two of them

`kraftpy group explain` and `kraftpy top` print them, and the console shows them.
"""
