"""Checks if this machine lets a test mount file systems: root may, in most places."""

from __future__ import annotations

import os
import shutil
import subprocess


def _can_mount() -> bool:
    if os.geteuid() != 0 or shutil.which("unshare") is None or shutil.which("mkfs.ext4") is None:
        return False
    script = (
        "d=$(mktemp -d) && truncate -s 8M $d/image && mkfs.ext4 -q -F $d/image && mkdir $d/m "
        "&& mount -o loop $d/image $d/m && umount $d/m && rm -r $d"
    )
    return subprocess.run(["unshare", "--mount", "sh", "-c", script], stderr=subprocess.DEVNULL).returncode == 0


CAN_MOUNT = _can_mount()
