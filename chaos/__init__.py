"""Chaos: workloads and faults make a history, and checkers read it.

Nothing here is in the wheel: it runs from the source tree, `python -m chaos`. chaos may import kraftpy, never the
reverse; histories and checkers import neither kraftpy nor a clock, so that a verdict depends on the history alone.
"""
