"""The cheap decorator of frozen data classes behaves as `@dataclass(frozen=True, slots=True, kw_only=True)` does."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, dataclass, field, fields, is_dataclass, replace
from typing import Any

import pytest

from kraftpy import frozen
from kraftpy.metadata.records import PartitionCreated


@frozen.frozen
class Cheap:
    """A class as there are many."""

    name: str
    numbers: tuple[int, ...] = ()
    secret: str = field(default="", repr=False)
    found: list[int] = field(default_factory=list)
    written: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Usual:
    """Its counterpart."""

    name: str
    numbers: tuple[int, ...] = ()
    secret: str = field(default="", repr=False)
    found: list[int] = field(default_factory=list)
    written: str = field(default="", compare=False)


@frozen.frozen
class Empty:
    """A class without fields."""


@frozen.frozen
class Key:
    topic: str
    number: int
    source: str = field(default="", compare=False)


def test_a_class_of_many_objects_gets_an_initializer_of_its_own() -> None:
    @frozen.frozen
    class Example:
        name: str
        number: int = 7

    first = Example(name="a")
    assert Example.__init__ is frozen._init
    for _ in range(frozen.COMPILED_AFTER):
        last = Example(name="a")
    assert Example.__init__ is not frozen._init
    assert (last.name, last.number) == ("a", 7)
    assert last == first
    assert Example(name="b", number=1).number == 1
    with pytest.raises(TypeError):
        Example()  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        Example(name="a", other=1)  # type: ignore[call-arg]
    assert PartitionCreated.__dataclass_fields__  # the records of partitions are such classes
    assert Empty() == Empty()
    assert [Empty() for _ in range(frozen.COMPILED_AFTER)][-1] == Empty()


@pytest.mark.parametrize("kind", [Cheap, Usual])
def test_it_is_a_data_class(kind: Callable[..., Any]) -> None:
    made = kind(name="a", secret="hidden")
    assert is_dataclass(made)
    assert [each.name for each in fields(made)] == ["name", "numbers", "secret", "found", "written"]
    assert replace(made, numbers=(1, 2)) == kind(name="a", numbers=(1, 2), secret="hidden")
    assert repr(made).partition("(")[2] == "name='a', numbers=(), found=[], written='')"
    assert made == replace(made, written="elsewhere")
    assert made != kind(name="b", secret="hidden")
    assert made != (Usual if kind is Cheap else Cheap)(name="a", secret="hidden")
    assert kind(name="a").found is not kind(name="a").found
    assert not hasattr(made, "__dict__")
    for copied in (pickle.loads(pickle.dumps(made)), copy.copy(made), copy.deepcopy(made)):
        assert copied == made
    with pytest.raises(FrozenInstanceError):
        made.name = "b"
    with pytest.raises(FrozenInstanceError):
        del made.name


def test_its_values_make_its_hash() -> None:
    assert {Key(topic="t", number=1): "found"}[Key(topic="t", number=1)] == "found"
    assert hash(Key(topic="t", number=1, source="here")) == hash(Key(topic="t", number=1))
    assert len({Key(topic="t", number=number % 2) for number in range(4)}) == 2
    assert hash(Empty()) == hash(Empty())


def test_a_class_without_a_docstring_has_its_name_as_one() -> None:
    assert Key.__doc__ == "Key"
