"""Enforces client quotas on one broker, around `kraftpy.quotas`.

`clients` measures requests and makes connections wait, `mutations` limits changes of topics, `connections` limits how
fast connections are created, and `hosts` resolves the names of hosts that have quotas.
"""
