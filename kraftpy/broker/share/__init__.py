"""Share groups (KIP-932) on one broker, around `kraftpy.share`.

Share partitions hand records of led partitions out to members, in share sessions. Share coordinators keep the state of
share partitions in `__share_group_state`; the client of this wing reaches them wherever they are.
"""
