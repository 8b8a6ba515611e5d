"""Comparison of a page in bench/ with what its script writes now, whatever was measured."""

from __future__ import annotations

import re

_NUMBER = re.compile(r"[+-]?\d[\d,.]*")
_MACHINE = slice(4, 8)


def without_figures(text: str) -> list[str]:
    """The lines, with N for each number and without those about the machine."""
    lines = [line for line in text.splitlines() if not line.startswith("- idle processors ")]  # virtual machines alone
    assert all(line.startswith("- ") for line in lines[_MACHINE])
    del lines[_MACHINE]
    return [_NUMBER.sub("N", line).replace("missed", "met") for line in lines]
