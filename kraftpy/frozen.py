"""A frozen dataclass decorator that is cheap to apply.

A broker has hundreds of such classes, for settings, commands, records, decisions, events and effects, and each start
makes all of those that it imports.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, FrozenInstanceError, dataclass
from operator import attrgetter
from typing import Any, Final, TypeVar, dataclass_transform

_T = TypeVar("_T")

COMPILED_AFTER: Final = 100
"""The number of instances after which compiling a class's own initializer pays off."""

_made: dict[type, int] = {}


@dataclass_transform(kw_only_default=True, frozen_default=True)
def frozen(cls: type[_T]) -> type[_T]:
    """Apply the parts of `@dataclass(frozen=True, slots=True, kw_only=True)` that these classes use.

    `@dataclass` compiles six methods for each class, which takes half a millisecond. These classes share their methods,
    and are a little slower to create and compare. A class with many instances (such as the partitions of a large topic)
    gets its own initializer later. Use `@dataclass` for a class with `__post_init__` or an order.
    """
    if cls.__doc__ is None:
        cls.__doc__ = cls.__name__  # or `dataclass` would write a signature there, which takes longer than all the rest
    made: Any = dataclass(init=False, repr=False, eq=False, slots=True, kw_only=True)(cls)
    names = [name for name, field in made.__dataclass_fields__.items() if field.compare]
    made._values_of = staticmethod(attrgetter(*names) if names else _no_values)
    for name, method in _FROZEN_METHODS.items():
        setattr(made, name, method)
    return made  # type: ignore[no-any-return]


def _no_values(_self: object) -> tuple[()]:
    return ()


def _init(self: Any, **given: Any) -> None:
    cls = type(self)
    _made[cls] = _made.get(cls, 0) + 1
    if _made[cls] == COMPILED_AFTER:
        cls.__init__ = _compiled(cls)
    for name, field in self.__dataclass_fields__.items():
        if name in given:
            value = given.pop(name)
        elif field.default is not MISSING:
            value = field.default
        elif field.default_factory is not MISSING:
            value = field.default_factory()
        else:
            raise TypeError(f"{type(self).__name__} needs {name}")
        object.__setattr__(self, name, value)
    if given:
        raise TypeError(f"{type(self).__name__} has no {', '.join(given)}")


def _compiled(cls: Any) -> Callable[..., None]:
    """Compile an initializer that does what `_init` does for this class, several times faster."""
    parameters, body = [], []
    names: dict[str, object] = {"_set": object.__setattr__, "_MISSING": MISSING}
    for name, field in cls.__dataclass_fields__.items():
        value = name
        if field.default is not MISSING:
            names[f"_default_{name}"] = field.default
            parameters.append(f"{name}=_default_{name}")
        elif field.default_factory is not MISSING:
            names[f"_factory_{name}"] = field.default_factory
            parameters.append(f"{name}=_MISSING")
            value = f"_factory_{name}() if {name} is _MISSING else {name}"
        else:
            parameters.append(name)
        body.append(f" _set(self, {name!r}, {value})")
    keywords = f", *, {', '.join(parameters)}" if parameters else ""
    made: dict[str, Any] = {}
    exec("\n".join([f"def __init__(self{keywords}):", *(body or [" pass"])]), names, made)
    return made["__init__"]  # type: ignore[no-any-return]


def _eq(self: Any, other: Any) -> bool:
    return self._values_of(self) == self._values_of(other) if type(other) is type(self) else NotImplemented


def _hash(self: Any) -> int:
    return hash(self._values_of(self))


def _repr(self: Any) -> str:
    fields = self.__dataclass_fields__.items()
    shown = ", ".join(f"{name}={getattr(self, name)!r}" for name, field in fields if field.repr)
    return f"{type(self).__qualname__}({shown})"


def _refuse(self: Any, name: str, value: object = None) -> None:
    raise FrozenInstanceError(f"cannot change {name!r}")


def _get_state(self: Any) -> list[Any]:
    return [getattr(self, name) for name in self.__dataclass_fields__]


def _set_state(self: Any, state: list[Any]) -> None:
    for name, value in zip(self.__dataclass_fields__, state, strict=True):
        object.__setattr__(self, name, value)


_FROZEN_METHODS: dict[str, Callable[..., Any]] = {
    "__init__": _init,
    "__eq__": _eq,
    "__hash__": _hash,
    "__repr__": _repr,
    "__setattr__": _refuse,
    "__delattr__": _refuse,
    "__getstate__": _get_state,
    "__setstate__": _set_state,
}
