"""Ids and names of nothing but blanks: those that Kafka refuses, and no others."""

from __future__ import annotations

import pytest

from kraftpy.groups.member_errors import is_blank


@pytest.mark.parametrize("text", ["", " ", "\t\n", "\0", "\x1f \x01"])
def test_what_java_trims_is_blank(text: str) -> None:
    assert is_blank(text)


@pytest.mark.parametrize("text", ["a", "\0a\0", "\x7f", "\u00a0", "\u2028", "\u3000"])
def test_other_spaces_are_names(text: str) -> None:
    assert not is_blank(text)
