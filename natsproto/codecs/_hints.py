"""PURE. The annotations of a type: the types of its fields, with the arguments of generics put in.

Owns the reading of type hints. It knows nothing of payloads.
"""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Hashable, Mapping
from typing import Any

Bindings = Mapping[Any, Any]
"""The types that stand for the type variables of a generic."""

_WRAPPERS = tuple(
    getattr(typing, name)
    for name in ("Annotated", "Required", "NotRequired", "ReadOnly", "Final", "ClassVar")
    if hasattr(typing, name)
)


def is_alias(hint: object) -> bool:
    """True for what ``type X = ...`` makes (Python 3.12)."""
    return type(hint).__name__ == "TypeAliasType"


def without_wrappers(hint: Any) -> Any:
    """Return the type in Annotated, Required, Final …, or behind a NewType."""
    while True:
        if typing.get_origin(hint) in _WRAPPERS:
            hint = typing.get_args(hint)[0]
        elif isinstance(hint, typing.NewType):
            hint = hint.__supertype__
        else:
            return hint


def unbound(variable: Any) -> Any:
    """Return what a type variable without an argument stands for: its default, its bound, or anything."""
    has_default = getattr(variable, "has_default", None)
    if has_default is not None and has_default():
        return variable.__default__
    if variable.__constraints__:
        return typing.Union[variable.__constraints__]  # noqa: UP007  # of a tuple
    return object if variable.__bound__ is None else variable.__bound__


def bind(hint: Any, bindings: Bindings) -> Any:
    """Return a type with its type variables replaced. TypeError for kinds of them that have no one type."""
    if isinstance(hint, typing.TypeVar):
        return bindings.get(hint, hint)
    variables = getattr(hint, "__parameters__", ())
    if not variables or (isinstance(hint, type) and typing.get_origin(hint) is None):
        return hint
    return typing.cast("Any", hint)[tuple(bindings.get(variable, variable) for variable in variables)]


def alias_value(alias: Any, arguments: tuple[Any, ...]) -> Any:
    """Return the type that an alias of Python 3.12 stands for."""
    return bind(alias.__value__, dict(zip(alias.__type_params__, arguments, strict=False)))


def field_hints(kind: type[Any], arguments: tuple[Any, ...] = ()) -> dict[str, Any]:
    """Return the types of the fields of a class, with those of its bases; NameError for a name that is nowhere."""
    variables = getattr(kind, "__parameters__", ())
    bindings = dict(zip(variables, arguments, strict=True)) if arguments else {}
    found: dict[str, Any] = {}
    generic_bases = {typing.get_origin(base) or base: base for base in kind.__dict__.get("__orig_bases__", ())}
    bases = (*generic_bases, *(base for base in kind.__bases__ if base not in generic_bases))
    for base in reversed(bases):
        if base is not object and isinstance(base, type) and base not in (typing.Generic, typing.Protocol, dict, tuple):
            given = typing.get_args(generic_bases.get(base))
            found |= field_hints(base, tuple(bind(argument, bindings) for argument in given))
    own = inspect.get_annotations(kind)
    hints = typing.get_type_hints(kind, include_extras=True)
    inherits_all = typing.is_typeddict(kind)  # its annotations include those of its bases
    for name, hint in hints.items():
        if name not in found or (not inherits_all and name in own):
            found[name] = bind(hint, bindings)
    return found


class FieldSpec(typing.NamedTuple):
    """A field to read: its name, its type, and whether it must be there."""

    name: str
    hint: Hashable
    required: bool


def record_fields(kind: type[Any], arguments: tuple[Any, ...]) -> list[FieldSpec]:
    """Return the fields of a dataclass, a TypedDict or a NamedTuple. TypeError for a class that cannot be made of
    them, NameError for a type that cannot be found.
    """
    hints = field_hints(kind, arguments)
    if typing.is_typeddict(kind):
        required: frozenset[str] = getattr(kind, "__required_keys__")  # noqa: B009  # unknown to type[Any]
        return [FieldSpec(name, hint, _is_required(hint, name in required)) for name, hint in hints.items()]
    if not dataclasses.is_dataclass(kind):
        names: tuple[str, ...] = getattr(kind, "_fields")  # noqa: B009  # of a NamedTuple
        defaults: Mapping[str, object] = getattr(kind, "_field_defaults")  # noqa: B009
        return [FieldSpec(name, hints.get(name, object), name not in defaults) for name in names]
    for name, hint in hints.items():
        if isinstance(hint, dataclasses.InitVar):
            raise TypeError(f"{name} is an InitVar, which is not kept")
    missing = dataclasses.MISSING
    return [
        FieldSpec(field.name, hints[field.name], field.default is missing and field.default_factory is missing)
        for field in dataclasses.fields(kind)
        if field.init
    ]


def _is_required(hint: Any, default: bool) -> bool:
    """Return True for a required key. When annotations are strings, the class itself does not know NotRequired."""
    origin = typing.get_origin(hint)
    if origin is typing.Annotated or origin is getattr(typing, "ReadOnly", typing.Annotated):
        return _is_required(typing.get_args(hint)[0], default)
    return origin is typing.Required or (default and origin is not typing.NotRequired)
