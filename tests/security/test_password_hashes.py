"""Passwords kept as hashes of scrypt, and the files that hold them."""

from __future__ import annotations

import pytest

from kraftpy.security import password_hashes
from kraftpy.security.password_hashes import MOST_USERS, hash_of, parse_hash, parse_users

SALT = b"0123456789abcdef"
OF_PASSLIB = "$scrypt$ln=16,r=8,p=1$aM15713r3Xsvxbi31lqr1Q$nFNh2CVHVjNldFVKDHDlm4CbdRSCdEBsjjJxD+iCs5E"
"""From passlib's documentation: the password is "password"."""


def test_a_hash_matches_its_password_alone() -> None:
    made = parse_hash(str(hash_of(b"secret", SALT)))
    assert made == hash_of(b"secret", SALT)
    assert made.matches(b"secret")
    assert not made.matches(b"Secret")
    assert not made.matches(b"")
    assert b"secret" not in repr(made).encode()


def test_the_form_is_passlib_s() -> None:
    assert str(parse_hash(OF_PASSLIB)) == OF_PASSLIB
    with pytest.raises(ValueError, match="more than 64 MiB"):
        parse_hash(OF_PASSLIB.replace("ln=16", "ln=17"))


def test_a_hash_of_passlib_s_is_verified() -> None:
    assert parse_hash(OF_PASSLIB).matches(b"password")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "password",
        "$2y$10$abcdefghijklmnopqrstuuABCDEFGHIJKLMNOPQRSTUVWXYZ01234567",
        OF_PASSLIB.replace("ln=16", "ln=0"),
        OF_PASSLIB.replace("p=1", "p=17"),
        OF_PASSLIB.replace("r=8", "r=999"),
        OF_PASSLIB.replace("ln=16", "ln=99"),
        OF_PASSLIB + "\nx",
        OF_PASSLIB.replace("aM15713r3Xsvxbi31lqr1Q", "aM15713r3Xsvx"),
    ],
)
def test_other_texts_are_refused_and_not_quoted(text: str) -> None:
    with pytest.raises(ValueError) as refused:  # noqa: PT011 - the texts differ
        parse_hash(text)
    assert "nFNh2" not in str(refused.value)


def test_a_file_of_users(monkeypatch: pytest.MonkeyPatch) -> None:
    text = f"# monitors\n\nprometheus:{OF_PASSLIB}\r\ngrafana:{hash_of(b'x', SALT)}\n"
    assert {name: str(each) for name, each in parse_users(text).items()} == {
        "prometheus": OF_PASSLIB,
        "grafana": str(hash_of(b"x", SALT)),
    }
    monkeypatch.setattr(password_hashes, "MOST_USERS", 1)
    with pytest.raises(ValueError, match="more than 1 users"):
        parse_users(text)
    assert MOST_USERS >= 100


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "there is no user"),
        ("# nobody\n", "there is no user"),
        ("prometheus\n", "line 1: expected name:hash"),
        (f":{OF_PASSLIB}", "line 1: expected name:hash"),
        (f"a:{OF_PASSLIB}\na:{OF_PASSLIB}", "line 2: the user occurs twice"),
        ("a:secret", r"line 1: expected \$scrypt"),
    ],
)
def test_a_file_that_cannot_be_used_says_where(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_users(text)
