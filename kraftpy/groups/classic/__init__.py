"""Classic groups: members join, a leader assigns, and every change is a new generation.

The group, its two barriers (JoinGroup and SyncGroup) with the timers behind them, and the four requests of members.
"""
