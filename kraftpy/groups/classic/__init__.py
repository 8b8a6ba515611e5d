"""Classic groups: members join, a leader assigns, and every change starts a new generation.

The group, its two barriers (JoinGroup and SyncGroup) with their timers, and the four requests that members send.
"""
