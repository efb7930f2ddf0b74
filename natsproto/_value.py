"""Frozen values: classes of named fields.

A dataclass would do the same, but compiles six methods for each class at import: 0.5 ms a class, half of the time of
``import natsproto``. This base has one set of methods for all; type checkers see a dataclass (PEP 681).
"""

from __future__ import annotations

from collections.abc import Iterable
from inspect import get_annotations
from typing import Any, ClassVar, Self, dataclass_transform

from natsproto._help.introspection import DocWithFields, html_table


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """``; did you mean 'ping_interval'?``, for an error about a similar unknown name, else an empty string."""
    from difflib import get_close_matches  # takes a millisecond to import

    near = get_close_matches(name, known, 1)
    return f"; did you mean {near[0]!r}?" if near else ""


@dataclass_transform(kw_only_default=True, frozen_default=True)
class Value:
    """Base of frozen values. The annotations of a subclass and its bases are the fields, with their defaults.

    Create values with keyword arguments; TypeError for a missing or unknown one. Values are equal when class and fields
    are.
    """

    _fields: ClassVar[tuple[str, ...]] = ()
    _known: ClassVar[frozenset[str]] = frozenset()
    _required: ClassVar[frozenset[str]] = frozenset()
    _checked: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        own = [
            name
            for name, kind in get_annotations(cls).items()
            if not name.startswith("_") and not str(kind).startswith("ClassVar")
        ]
        cls._fields = tuple(dict.fromkeys((*cls._fields, *own)))
        cls._known = frozenset(cls._fields)
        cls._required = frozenset(name for name in cls._fields if not hasattr(cls, name))
        cls._checked = cls._check is not Value._check
        cls.__doc__ = DocWithFields(cls.__doc__)  # type: ignore[assignment]

    def __init__(self, *unnamed: object, **given: object) -> None:
        if unnamed:
            example = f", such as {self._fields[0]}=..." if self._fields else ""
            raise TypeError(f"{type(self).__name__} takes keyword arguments only{example}")
        names = given.keys()
        if names != self._known and not self._required <= names <= self._known:
            missing = ", ".join(sorted(self._required - given.keys()))
            unknown = [f"{name!r}{did_you_mean(name, self._known)}" for name in sorted(given.keys() - self._known)]
            problems = [f"needs {missing}"] * bool(missing) + [f"has no field {one}" for one in unknown]
            raise TypeError(f"{type(self).__name__} {', '.join(problems)}")
        self.__dict__.update(given)
        if self._checked:
            self._check()

    def _check(self) -> None:
        """Check the fields, or set derived ones through __dict__."""

    def replace(self, **changed: Any) -> Self:
        """Return a copy with some fields changed."""
        return type(self)(**{**self._values(), **changed})

    def _values(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self._fields}

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} is frozen: make a changed copy instead of setting {name}")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{type(self).__name__} is frozen: {name} cannot be deleted")

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self._values() == other._values()

    def __hash__(self) -> int:
        return hash((type(self), *self._values().values()))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self._values().items())})"

    def _repr_html_(self) -> str | None:
        """A table of the fields in a notebook; None, for its repr, where a class has a repr of its own."""
        if type(self).__repr__ is not Value.__repr__:
            return None
        return html_table(type(self).__name__, self._values().items())
