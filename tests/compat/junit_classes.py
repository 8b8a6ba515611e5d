"""The test classes in Kafka's test jars that start a cluster which `junit/src/standins` can take the place of.

A class counts if it, or a class it extends, names one of `MARKS`. Only the head of a class file is read: the constant
pool and the names of the class and of the one it extends (chapter 4 of the Java Virtual Machine Specification).
"""

from __future__ import annotations

import struct
import zipfile
from dataclasses import dataclass
from pathlib import Path

MARKS = frozenset(
    {
        "Lorg/apache/kafka/common/test/api/ClusterTest;",
        "Lorg/apache/kafka/common/test/api/ClusterTests;",
        "Lorg/apache/kafka/common/test/api/ClusterTemplate;",
        "org/apache/kafka/common/test/KafkaClusterTestKit",
        "org/apache/kafka/streams/integration/utils/EmbeddedKafkaCluster",
        "kafka/server/QuorumTestHarness",
    }
)
"""Annotations and classes by which a test asks for a cluster."""

_ABSTRACT, _INTERFACE = 0x0400, 0x0200
_UTF8, _CLASS = 1, 7
_BYTES_OF = {3: 4, 4: 4, 5: 8, 6: 8, 8: 2, 9: 4, 10: 4, 11: 4, 12: 4, 15: 3, 16: 2, 17: 4, 18: 4, 19: 2, 20: 2}
"""For each tag of the constant pool but the two that are read, the length of what follows it."""
_TWO_PLACES = (5, 6)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassFile:
    """The head of a class file. Names are as in the file, with slashes."""

    name: str
    extends: str
    is_abstract: bool
    names: frozenset[str]
    """All strings in the constant pool."""


def read_class(data: bytes) -> ClassFile:
    (entries,) = struct.unpack_from(">H", data, 8)
    texts: dict[int, str] = {}
    classes: dict[int, int] = {}
    at, number = 10, 1
    while number < entries:
        tag = data[at]
        at += 1
        if tag == _UTF8:
            (size,) = struct.unpack_from(">H", data, at)
            texts[number] = data[at + 2 : at + 2 + size].decode("utf-8", "replace")
            at += 2 + size
        elif tag == _CLASS:
            (classes[number],) = struct.unpack_from(">H", data, at)
            at += 2
        else:
            at += _BYTES_OF[tag]
        number += 2 if tag in _TWO_PLACES else 1
    flags, this, extended = struct.unpack_from(">HHH", data, at)
    return ClassFile(
        name=texts[classes[this]],
        extends=texts[classes[extended]] if extended else "",
        is_abstract=bool(flags & (_ABSTRACT | _INTERFACE)),
        names=frozenset(texts.values()),
    )


def cluster_tests(jars: Path) -> list[str]:
    """Return the names of all such classes in the test jars of a directory, with dots, sorted."""
    known: dict[str, ClassFile] = {}
    for jar in sorted(jars.glob("*-test.jar")):
        with zipfile.ZipFile(jar) as opened:
            for name in opened.namelist():
                if name.endswith(".class") and "$" not in name and not name.endswith("-info.class"):
                    found = read_class(opened.read(name))
                    known[found.name] = found
    return sorted(
        found.name.replace("/", ".")
        for found in known.values()
        if found.name.endswith("Test") and not found.is_abstract and _is_marked(found, known)
    )


def _is_marked(found: ClassFile, known: dict[str, ClassFile]) -> bool:
    while not found.names & MARKS:
        if found.extends not in known:
            return False
        found = known[found.extends]
    return True
