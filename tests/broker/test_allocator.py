"""A broker's process keeps the memory that answers have freed, unless its environment says otherwise."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Mapping

import pytest

ANSWERS = 50
PAGES = 4 << 20 >> 12
"""The pages of an answer of four partitions."""
FAULTS = f"""
import resource
from kraftpy.broker.allocator import keep_freed_memory
keep_freed_memory()
def answer():
    return [bytes([1]) * (1 << 20) for partition in range(4)]
for _ in range(5):
    answer()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range({ANSWERS}):
    answer()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries are left alone")


def pages_made(environment: Mapping[str, str]) -> int:
    """The pages that the answers took from the system."""
    command = [sys.executable, "-c", FAULTS]
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=True)
    return int(done.stdout)


def test_memory_is_kept() -> None:
    assert pages_made({}) < PAGES, "of fifty answers, less than one of new memory"


@pytest.mark.parametrize(
    "setting", ["MALLOC_TRIM_THRESHOLD_=131072", "GLIBC_TUNABLES=glibc.malloc.trim_threshold=131072"]
)
def test_an_administrator_s_setting_holds(setting: str) -> None:
    name, _, value = setting.partition("=")
    assert pages_made({name: value}) > ANSWERS * PAGES // 2
