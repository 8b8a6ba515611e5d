"""Tells if this machine lets a test have network namespaces: root may, if iptables is installed."""

from __future__ import annotations

from mounting import CAN_MOUNT

from chaos.worlds.namespaces import missing

WHY_NOT = missing() if CAN_MOUNT else "no file system can be mounted here"
"""The reason why not; None if it does."""
