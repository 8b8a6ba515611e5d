"""The group coordinators of one broker, around `kraftpy.groups`.

Each coordinator is a state machine for one partition of `__consumer_offsets`. This wing feeds it requests, settings and
the cluster's topics, and carries out its effects.
"""
