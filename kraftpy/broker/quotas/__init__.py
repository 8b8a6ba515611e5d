"""Holds clients to their quotas: drives `kraftpy.quotas`.

`clients` counts what requests use and makes connections wait, `connections` limits how fast they are created, `hosts`
resolves the names of hosts that have quotas.
"""
