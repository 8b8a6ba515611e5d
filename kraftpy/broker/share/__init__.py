"""Share groups (KIP-932) on one broker, around `kraftpy.share`.

Share partitions hand out records of the partitions this broker leads, in share sessions. Share coordinators keep the
state of share partitions in `__share_group_state`; `coordinator_client` reaches them on any broker.
"""
