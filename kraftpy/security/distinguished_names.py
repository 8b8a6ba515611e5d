"""The subject of a certificate as text in Java's form, which Kafka's principals, ACLs and mapping rules use.

Java's form is RFC 2253 as `X500Principal.getName()` writes it: the most specific part first, `=` escaped as well, and
attributes without a short name in RFC 2253 as `1.2.840.113549.1.9.1=#1603612e62`, the DER of the value in hexadecimal.

OpenSSL has verified the certificate, or at least parsed it. It is parsed again here, with bounds: `subject_of` raises
ValueError for bytes that are not a certificate, and takes time proportional to their length.
"""

from __future__ import annotations

from typing import Final, NamedTuple

_SEQUENCE, _SET, _OBJECT_ID, _OCTETS, _VERSION, _EXTENSIONS = 0x30, 0x31, 0x06, 0x04, 0xA0, 0xA3
_ALTERNATIVE_NAMES: Final = "2.5.29.17"
_STRINGS: Final = {0x0C, 0x13, 0x14, 0x16, 0x1B, 0x1E}
"""The tags of UTF8, Printable, T61, IA5, General and BMP strings."""
_SHORT_NAMES: Final = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.25": "DC",
    "0.9.2342.19200300.100.1.1": "UID",
}
_ESCAPED: Final = frozenset(',=+<>#;"\\')
_BLANKS: Final = " \r"
_LONGEST_LENGTH: Final = 4


class _Element(NamedTuple):
    """One DER element: its tag, its content, and its whole encoding."""

    tag: int
    content: bytes
    encoded: bytes


def subject_of(certificate: bytes) -> str:
    """Return the name of the subject of an X.509 certificate in DER; empty for an empty subject. Raises ValueError."""
    fields = _fields(certificate)
    position = 1 if fields and fields[0].tag == _VERSION else 0
    subject = position + 4  # behind the serial number, the algorithm, the issuer and the validity
    if len(fields) <= subject:
        raise ValueError("a certificate without a subject")
    return name_of(fields[subject].encoded)


def alternative_names_of(certificate: bytes) -> frozenset[bytes]:
    """Return the subject's alternative names, hosts and addresses among them, each as its DER. Raises ValueError."""
    for field in _fields(certificate):
        if field.tag != _EXTENSIONS:
            continue
        for extension in _elements(_one(field.content, _SEQUENCE).content):
            parts = _elements(extension.content)
            if len(parts) < 2 or parts[0].tag != _OBJECT_ID or parts[-1].tag != _OCTETS:
                raise ValueError("a malformed extension")
            if _object_id(parts[0].content) == _ALTERNATIVE_NAMES:
                names = _elements(_one(parts[-1].content, _SEQUENCE).content)
                return frozenset(name.encoded for name in names)
    return frozenset()


def _fields(certificate: bytes) -> list[_Element]:
    """Return the fields of a certificate that its authority has signed. Raises ValueError."""
    parts = _elements(_one(certificate, _SEQUENCE).content)  # the signed part, the algorithm and the signature
    return _elements(parts[0].content) if parts and parts[0].tag == _SEQUENCE else []


def name_of(encoded: bytes) -> str:
    """Return the text of an X.500 name in DER. Raises ValueError."""
    parts = []
    for relative_name in reversed(_elements(_one(encoded, _SEQUENCE).content)):
        if relative_name.tag != _SET:
            raise ValueError("a part of a name that is not a set")
        parts.append("+".join(_attribute(each) for each in _elements(relative_name.content)))
    return ",".join(parts)


def _attribute(element: _Element) -> str:
    pair = _elements(element.content)
    if element.tag != _SEQUENCE or len(pair) != 2 or pair[0].tag != _OBJECT_ID:
        raise ValueError("a part of a name that is not an attribute")
    dotted = _object_id(pair[0].content)
    keyword, value = _SHORT_NAMES.get(dotted), pair[1]
    if keyword is None or value.tag not in _STRINGS:
        return f"{keyword or dotted}=#{value.encoded.hex()}"
    return f"{keyword}={_escaped(value.content.decode('utf-8', 'replace'))}"


def _escaped(text: str) -> str:
    """Escape separators, and blanks at both ends."""
    shown = "".join("\\" + letter if letter in _ESCAPED else "\\00" if letter == "\0" else letter for letter in text)
    lead = len(shown) - len(shown.lstrip(_BLANKS))
    if lead == len(shown):
        return "".join("\\" + letter for letter in shown)
    end = len(shown.rstrip(_BLANKS))
    before, after = ("".join("\\" + letter for letter in blanks) for blanks in (shown[:lead], shown[end:]))
    return before + shown[lead:end] + after


def _object_id(content: bytes) -> str:
    if not content or content[-1] & 0x80 or len(content) > 64:
        raise ValueError("an object identifier that does not end")
    numbers, number = [], 0
    for byte in content:
        number = number << 7 | byte & 0x7F
        if not byte & 0x80:
            numbers.append(number)
            number = 0
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:])))


def _one(encoded: bytes, tag: int) -> _Element:
    found = _elements(encoded)
    if len(found) != 1 or found[0].tag != tag:
        raise ValueError("bytes that are not a certificate")
    return found[0]


def _elements(encoded: bytes) -> list[_Element]:
    """Split the content of an element into its elements. Raises ValueError."""
    found, position = [], 0
    while position < len(encoded):
        start = position
        tag = encoded[position]
        if tag & 0x1F == 0x1F or position + 2 > len(encoded):
            raise ValueError("bytes that are not DER")
        length, position = encoded[position + 1], position + 2
        if length & 0x80:
            count = length & 0x7F
            if not 0 < count <= _LONGEST_LENGTH or position + count > len(encoded):
                raise ValueError("bytes that are not DER")
            length, position = int.from_bytes(encoded[position : position + count], "big"), position + count
        if position + length > len(encoded):
            raise ValueError("bytes that end early")
        content = encoded[position : position + length]
        position += length
        found.append(_Element(tag, content, encoded[start:position]))
    return found
