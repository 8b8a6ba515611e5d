"""Rules that shorten names of Kerberos principals, compared with recordings of Kafka 4.3.1, and odd rules.

`java_kerberos_names.tsv`: rules, a principal, and the name that `KerberosShortNamer` returned in the realm REALM (`=`),
or whether it refused the principal (`!name`) or the rules (`!rule`).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kraftpy.security.kerberos_names import KerberosName, parse_kerberos_name, parse_kerberos_rules

JAVA = (Path(__file__).parent / "java_kerberos_names.tsv").read_text(encoding="utf-8").splitlines()
APPS = (r"RULE:[1:$1](App\..*)s/App\.(.*)/$1/g", r"RULE:[2:$1](App\..*)s/App\.(.*)/$1/g", "DEFAULT")
LOWER = (
    "RULE:[1:$1]/L",
    "RULE:[2:$1](Test.*)s/ABC///L",
    "RULE:[2:$1](ABC.*)s/ABC/XYZ/g/L",
    r"RULE:[2:$1](App\..*)s/App\.(.*)/$1/g/L",
    "RULE:[2:$1]/L",
    "DEFAULT",
)
WRONG_WHEN_APPLIED = ("RULE:[1:$2]", "RULE:[1:$]", "RULE:[1:$1]s/a/$9/", r"RULE:[1:$1]s/a/\//")
UPPER = tuple(rule[:-1] + "U" if rule.endswith("/L") else rule for rule in LOWER)


def by_rules() -> Iterator[tuple[str, list[tuple[str, str]]]]:
    rows = [line.split("\t") for line in JAVA]
    for rules in dict.fromkeys(row[0] for row in rows):
        yield rules, [(principal, expected) for given, principal, expected in rows if given == rules]


@pytest.mark.parametrize(("rules", "cases"), list(by_rules()))
def test_a_principal_is_mapped_as_by_kafka(rules: str, cases: list[tuple[str, str]]) -> None:
    """Two differences: an empty name is refused; a rule that Kafka finds wrong at its first use fails at the start."""
    assert cases
    try:
        parsed = parse_kerberos_rules(rules.split(",") if rules else [])
    except ValueError:
        assert {expected for _, expected in cases} <= {"!rule"} or rules in WRONG_WHEN_APPLIED
        return
    for principal, expected in cases:
        try:
            found = f"={parsed.apply(principal, 'REALM')}"
        except ValueError:
            found = "!name"
        assert found == ("!name" if expected == "=" else expected), principal


@pytest.mark.parametrize(
    ("rules", "principal", "short"),
    [
        ((), "alice@REALM", "alice"),
        (("DEFAULT",), "kafka/broker1.example.org@REALM", "kafka"),
        (APPS, "App.service-name/example.com@REALM", "service-name"),
        (APPS, "App.service-name@REALM", "service-name"),
        (APPS, "user/host@REALM", "user"),
        (LOWER, "User@REALM", "user"),
        (LOWER, "TestABC/host@FOO.COM", "test"),
        (LOWER, "ABC_User_ABC/host@FOO.COM", "xyz_user_xyz"),
        (LOWER, "App.SERVICE-name/example.com@REALM", "service-name"),
        (LOWER, "User/root@REALM", "user"),
        (UPPER, "User@REALM", "USER"),
        (UPPER, "ABC_User_ABC/host@FOO.COM", "XYZ_USER_XYZ"),
        (("RULE:[1:$1@$0](.*@MYDOMAIN.COM)s/@.*//", "DEFAULT"), "user@MYDOMAIN.COM", "user"),
        (("RULE:[1:$1@$0](.*@MYDOMAIN.COM)s/@.*//", "DEFAULT"), "user@REALM", "user"),
        (("RULE:[2:$1-$2-$0]",), "a/b@REALM", "a-b-REALM"),
        (("RULE:[1:fixed]",), "a@REALM", "fixed"),
        (("RULE:[1:$1]s/a/b/",), "aaa@REALM", "baa"),
        (("RULE:[1:$1]s/a/b/g",), "aaa@REALM", "bbb"),
        (("RULE:[1:$1](a.*)", "RULE:[1:x$1]"), "ba@REALM", "xba"),  # the whole has to match
    ],
)
def test_a_principal_gets_a_short_name(rules: tuple[str, ...], principal: str, short: str) -> None:
    assert parse_kerberos_rules(rules).apply(principal, "REALM") == short


@pytest.mark.parametrize(
    ("rules", "principal", "reason"),
    [
        (("DEFAULT",), "alice@OTHER", "No rules apply to alice@OTHER, rules [DEFAULT]"),
        (("DEFAULT",), "alice@realm", "No rules apply"),
        (("DEFAULT",), "a/b/c@REALM", "Malformed Kerberos name"),
        (("DEFAULT",), r"a\@b@REALM", "Malformed Kerberos name"),
        (("DEFAULT",), "alice", "Malformed Kerberos name"),
        (("DEFAULT",), "@REALM", "Non-simple name"),
        (("RULE:[1:$1]",), "a/b@REALM", "No rules apply"),
        (("RULE:[1:$1@$0]", "DEFAULT"), "a@REALM", "Non-simple name a@REALM after auth_to_local rule RULE:[1:$1@$0]"),
        (("RULE:[2:$1/$2]", "DEFAULT"), "a/b@REALM", "Non-simple name a/b"),
        (("RULE:[1:$1]s/.*//",), "a@REALM", "Non-simple name"),
    ],
)
def test_a_principal_without_a_short_name_is_refused(rules: tuple[str, ...], principal: str, reason: str) -> None:
    with pytest.raises(ValueError) as refused:  # noqa: PT011 - the text is compared
        parse_kerberos_rules(rules).apply(principal, "REALM")
    assert reason in str(refused.value)


@pytest.mark.parametrize(
    "rule",
    [
        "default", "DEFAUL", "DEFAULT/L", "DEFAULT/g", "rule:[1:$1]", "rule:[1:$1]/L/U", "RULE:[1:$1]/LU",
        "RULE:[1:$1/L",
        "RULE:[1:$1]/l", "RULE:[2:$1](ABC.*)s/ABC/XYZ/L/g", "RULE:[:$1]", "RULE:[1:$2]", "RULE:[1:$]", "RULE:[1:$1](*)",
        "RULE:[1:$1]s/*/b/", "RULE:[1:$1]s/a/$9/", r"RULE:[1:$1](a(?=b))", "RULE:[1:$99999999999999999999]", "",
    ],
)  # fmt: skip
def test_a_wrong_rule_is_refused_at_the_start(rule: str) -> None:
    with pytest.raises(ValueError, match=r"^Invalid rule: "):
        parse_kerberos_rules([rule])


def test_a_name_has_parts() -> None:
    assert parse_kerberos_name("kafka/host@REALM") == KerberosName("kafka", "host", "REALM")
    assert parse_kerberos_name("alice@REALM") == KerberosName("alice", None, "REALM")


@given(st.text(), st.text("RULE:[12:$01](.*)s/a/b/gLUDFT", max_size=40))
def test_any_text_is_a_rule_or_a_refusal(principal: str, rule: str) -> None:
    """Rules come from operators and names from clients; neither raises any other error."""
    try:
        rules = parse_kerberos_rules([rule])
        short = rules.apply(principal, "REALM")
    except ValueError:
        return
    assert short
    assert "/" not in short
    assert "@" not in short


def test_a_long_name_takes_no_long_time() -> None:
    """A backtracking engine such as Java's would take years."""
    rules = parse_kerberos_rules(["RULE:[1:$1]s/(a+)+$/x/"])
    assert rules.apply("a" * 5_000 + "b@REALM", "REALM") == "a" * 5_000 + "b"
