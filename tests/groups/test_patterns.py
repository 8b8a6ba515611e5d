"""Regular expressions for names of topics. What is expected here is what RE2 1.1 (google-re2) answered."""

from __future__ import annotations

import pytest

from kraftpy.groups.patterns import MAX_DEPTH, Pattern, PatternError

MATCHES = [
    ("orders", "orders", True),
    ("orders", "orders2", False),
    ("order", "orders", False),
    ("^orders$", "orders", True),
    ("orders|payments", "payments", True),
    ("(orders|payments)[.]eu", "orders.eu", True),
    (r"orders\..*", "orders.eu", True),
    (r"orders\..*", "orders-eu", False),
    ("orders.?eu", "orders-eu", True),
    ("[a-c]+", "abcabc", True),
    ("[^a-c]+", "abd", False),
    ("[]a]", "a", True),
    (r"[a\-z]+", "a-z", True),
    (r"[\w-]+", "foo-bar_1", True),
    ("[[:alpha:]]+[[:digit:]]", "topic1", True),
    ("[[:^digit:]]+", "topic1", False),
    (r"\pL+\p{Nd}", "topic1", True),
    (r"\P{Lu}+", "Topic", False),
    (r"(?i)\p{Lu}+", "Topic", True),
    (r"\d{2,3}", "12", True),
    (r"\d{2,3}", "1234", False),
    (r"a{2}", "aa", True),
    (r"a{,2}", "aa", False),
    ("a*?b+?", "aabb", True),
    ("(?i)ORDERS", "orders", True),
    ("(?i:OR)DERS", "orders", False),
    ("(?i:OR)ders", "orders", True),
    ("(?-i)orders", "Orders", False),
    ("((?i)a)b", "AB", False),
    ("(?P<region>eu|us)[.]orders", "us.orders", True),
    (r"\bfoo\b[.]\bbar\b", "foo.bar", True),
    (r"foo\B.*", "foo.bar", False),
    (r"\Qa.b\E", "a.b", True),
    (r"\Qa.b\E", "axb", False),
    (r"\x41\x{62}\143", "Abc", True),
    (r"\Aorders\z", "orders", True),
    ("", "", True),
    ("", "a", False),
    ("(a|)+b", "aab", True),
    ("(?s:.)+", "any-thing_1.2", True),
    ("__.*", "__consumer_offsets", True),
]

REFUSED = [
    "(",
    ")",
    "a)",
    "[a",
    "[b-a]",
    "*",
    "a**",
    "a{2,1}",
    "a{1001}",
    r"\1",
    r"(a)\1",
    "(?=a)",
    "(?!a)",
    "(?<=a)b",
    "(?<!a)b",
    r"\8",
    r"\y",
    "(?z)",
    "(?P<>a)",
    "[[:nothing:]]",
    r"\p{Nothing}",
    "a\\",
    r"\x{110000}",
]


@pytest.mark.parametrize(("regex", "name", "matches"), MATCHES)
def test_a_name_matches_as_a_whole(regex: str, name: str, matches: bool) -> None:
    assert Pattern(regex).matches(name) is matches


@pytest.mark.parametrize("regex", REFUSED)
def test_what_cannot_be_read_is_refused(regex: str) -> None:
    with pytest.raises(PatternError):
        Pattern(regex)


@pytest.mark.parametrize("regex", ["(" * (MAX_DEPTH + 1), "(a{1000}){1000}", "((a{100}){100}){100}", "[a-z]{999}" * 3])
def test_what_would_cost_too_much_is_refused(regex: str) -> None:
    with pytest.raises(PatternError):
        Pattern(regex)


@pytest.mark.parametrize("regex", ["(a+)+b", "(a|a)*b", "(.*)*x", "(a?){500}a{500}"])
def test_what_keeps_a_backtracking_engine_busy_for_ever_takes_steps_in_the_length_of_the_name(regex: str) -> None:
    pattern = Pattern(regex)
    pattern.matches("a" * 249)
    assert len(pattern._steps) <= 249
