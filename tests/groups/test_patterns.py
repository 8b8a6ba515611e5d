"""Regular expressions of clients: what they mean, and what they may cost."""

from __future__ import annotations

import pytest

from kraftpy.groups.patterns import FAILED_COMPILE_UNITS, MAX_CHARACTERS, Pattern, PatternError, shown

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


@pytest.mark.parametrize(
    "regex",
    [
        "(((((){1000}){1000}){1000}){1000})",  # empty, so that its size alone does not stop it
        "((((a){1000}){1000}){1000}){1000}",
        "(a{1000}){1000}",
        "((a{100}){100}){100}",
        r"\pL{1000}",
        "a" * (MAX_CHARACTERS + 1),
        "[a-z\u00e9-\u4e00]{999}" * 3,
    ],
)
def test_what_would_cost_too_much_is_refused(regex: str) -> None:
    with pytest.raises(PatternError) as refused:
        Pattern(regex)
    assert len(str(refused.value)) < 300


def test_a_repetition_with_more_digits_than_python_converts_is_an_ordinary_expression() -> None:
    """RE2 takes a brace that is no repetition as it is written; Python refuses to convert 5,000 digits."""
    regex = "a{" + "9" * 5_000 + "}"
    assert Pattern(regex).matches(regex)
    assert len(shown(regex)) < 200


@pytest.mark.parametrize("regex", ["(a+)+b", "(a|a)*b", "(.*)*x", "(a?){500}a{500}", ".*[ab].{200}"])
def test_what_it_costs_is_counted_before_it_is_matched(regex: str) -> None:
    pattern = Pattern(regex)
    assert 0 < pattern.compile_units <= FAILED_COMPILE_UNITS
    longest = "a" * 249
    assert 0 < pattern.units("a") <= pattern.units(longest) < 2_000
    assert pattern.matches(longest) is (regex == ".*[ab].{200}")


def test_names_and_expressions_that_are_no_text_match_nothing() -> None:
    assert not Pattern(".*").matches("\ud800")
    with pytest.raises(PatternError):
        Pattern("\ud800")


def test_the_library_keeps_no_expression() -> None:
    import re2

    for number in range(200):
        Pattern(f"topic-{number}.*")
    assert re2._Regexp._make.cache_info().currsize == 0
