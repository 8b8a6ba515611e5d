"""The group coordinators of one broker, around `kraftpy.groups`.

Each coordinator is a state machine in a partition of `__consumer_offsets`; this wing feeds it requests, settings and
the cluster's topics, and carries out its effects.
"""
