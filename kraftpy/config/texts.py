"""Decodes files that people write: properties, plans, secrets.

Some editors and systems put a byte order mark before UTF-8; as part of the first name it would make that name unknown.
It is dropped at the beginning of every line, since files are also concatenated. UTF-16 and UTF-32, which some editors
call "Unicode", are refused with a hint: read as Latin-1 they would give nonsense, not an error.
"""

from __future__ import annotations

from kraftpy.config.settings import ConfigError

_MARK = "\ufeff"
_WIDE_MARKS = (
    (b"\xff\xfe\x00\x00", "UTF-32"),
    (b"\x00\x00\xfe\xff", "UTF-32"),
    (b"\xff\xfe", "UTF-16"),
    (b"\xfe\xff", "UTF-16"),
)


def text_of(data: bytes, file_name: str, *, or_latin_1: bool = False) -> str:
    """Decode a file's UTF-8, without byte order marks. Raises ConfigError with a one-line message.

    With `or_latin_1`, bytes that are not UTF-8 are read as Latin-1, in which Java writes properties files.
    """
    for mark, encoding in _WIDE_MARKS:
        if data.startswith(mark):
            raise ConfigError(f"{file_name} is encoded in {encoding}: save it as UTF-8")
    if 0 in data:
        raise ConfigError(f"{file_name} has NUL bytes, as text in UTF-16 has: save it as UTF-8")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        if not or_latin_1:
            raise ConfigError(f"{file_name} is not UTF-8: {error.reason} at byte {error.start}") from None
        return data.decode("latin-1")
    if _MARK in text:
        text = text.removeprefix(_MARK).replace("\n" + _MARK, "\n")
    return text
