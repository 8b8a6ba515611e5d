"""The consumer: records out of topics, alone or as a member of a group.

The fetcher reads ahead from the leaders, the buffer hands records out and counts positions, and a membership, one state
machine for each of the two group protocols, says which partitions are assigned.
"""
