"""The public API as text: every public module with the names, signatures and fields that users may rely on.

``python -m tests.tools.public_api`` writes it to tests/tools/public_api.txt; tests/test_public_api.py compares
the file with the code. A change of it is a change for users: it belongs into CHANGELOG.md.

A module is public when no part of its name begins with an underscore; its names are those of its ``__all__``, or what
it defines itself. A name that several modules offer is described where it comes first and named in the others. A class
lists what its bases lack; private bases of several classes come last. The wire protocol is experimental: names only.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import importlib
import inspect
import os
import pkgutil
import re
import typing
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType, ModuleType
from typing import TypeGuard

import natsproto

SNAPSHOT = Path(__file__).with_suffix(".txt")

_SPECIAL = (
    *("__init__", "__call__", "__await__", "__enter__", "__aenter__", "__bool__", "__bytes__", "__str__", "__int__"),
    *("__iter__", "__next__", "__aiter__", "__anext__", "__len__", "__contains__", "__getitem__", "__setitem__"),
    *("__delitem__", "__float__", "__lt__", "__sub__"),
)
"""Methods with underscores that are part of what a class offers."""

_GUESSES = "natsproto._help.guesses"
_HINTS = ("natsproto._help.async_hints", _GUESSES)
"""Where methods are that only tell what is missing."""

_EXPERIMENTAL = "natsproto.protocol"
"""Its names are listed, and nothing about them is promised."""

_CONSTANT = str | bytes | int | float


def public_modules() -> list[ModuleType]:
    """natsproto first, the others in the order of their names."""
    found = [info.name for info in pkgutil.walk_packages(natsproto.__path__, "natsproto.")]
    public = (name for name in found if not any(part.startswith("_") for part in name.split(".")))
    names = sorted(name for name in public if not name.startswith("natsproto.compat.nats"))  # it is nats-py's API
    return [natsproto, *(importlib.import_module(name) for name in names)]


def describe() -> str:
    """The whole text."""
    seen: dict[int, str] = {}
    arguments: dict[str, type[object]] = {}
    lines: list[str] = []
    for module in public_modules():
        if module.__name__.startswith(f"{_EXPERIMENTAL}."):
            continue
        lines += ["", f"# {module.__name__}", ""]
        for name in names(module):
            value = getattr(module, name)
            position = f"{module.__name__}.{name}"
            if _is_described(value) and id(value) in seen:
                lines.append(f"{name} = {seen[id(value)]}")
            elif module.__name__ == _EXPERIMENTAL:
                lines.append(name)
            else:
                seen[id(value)] = position
                lines += _described(name, value, arguments)
    lines += ["", "# private bases of several classes", ""]
    for kind in sorted(shared(), key=lambda kind: kind.__name__):
        lines += _class(kind.__name__, kind, arguments)
    for name, kind in sorted(arguments.items()):
        if kind not in nameable():
            lines += ["", f"# keyword arguments: {name}", "", *_fields(kind, "")]
    return "\n".join(lines).strip() + "\n"


def names(module: ModuleType) -> list[str]:
    """The public names of a module."""
    listed: list[str] | None = getattr(module, "__all__", None)
    if listed is not None:
        return sorted(listed)
    return sorted(
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and name != "TYPE_CHECKING"
        and (isinstance(value, _CONSTANT) or (_is_described(value) and value.__module__ == module.__name__))
    )


def _is_described(value: object) -> TypeGuard[type[object] | FunctionType]:
    return inspect.isclass(value) or inspect.isfunction(value)


def _described(name: str, value: object, arguments: dict[str, type[object]]) -> list[str]:
    if inspect.isclass(value):
        return list(_class(name, value, arguments))
    if inspect.isfunction(value):
        return [_function(name, value, arguments)]
    if isinstance(value, _CONSTANT) and name != "__version__":
        return [f"{name}: {type(value).__name__} = {value!r}"]
    return [f"{name}: {type(value).__name__}"]


def _class(name: str, kind: type[object], arguments: dict[str, type[object]]) -> Iterator[str]:
    hidden = (object, *(base for base in kind.__bases__ if base.__module__ in _HINTS))
    bases = ", ".join(base.__name__ for base in kind.__bases__ if base not in hidden)
    yield f"class {name}({bases})" if bases else f"class {name}"
    if issubclass(kind, enum.Enum):
        yield from (f"    {member.name} = {_plain(member.value)}" for member in kind)
        return
    yield from _fields(kind, "    ")
    members: dict[str, object] = {}
    for base in _own(kind):
        members.update(vars(base))
    made = dataclasses.is_dataclass(kind) or any(base.__name__ in ("Value", "Protocol") for base in kind.__mro__)
    foreign = {member for base in kind.__mro__ if _is_foreign(base) for member in vars(base)}
    for member, value in sorted(members.items()):
        if member == "__init__" and (made or _is_created(kind)):
            continue  # its fields say it, or only natsproto calls it
        if member in foreign and member not in ("__init__", "__await__"):
            continue
        if not member.startswith("_") or (member in _SPECIAL and getattr(value, "__module__", "") != _GUESSES):
            yield from (f"    {line}" for line in _member(member, value, arguments))


def _is_created(kind: type[object]) -> bool:
    """True if only natsproto creates objects of the class, whose constructor is no promise then."""
    if kind.__module__.startswith("natsproto.sync.") or "reated by " in " ".join((kind.__doc__ or "").split()):
        return True
    return issubclass(kind, natsproto.NatsError) and kind is not natsproto.errors.ServiceError


def _is_foreign(kind: type[object]) -> bool:
    return not kind.__module__.startswith("natsproto") and kind is not object


def _own(kind: type[object]) -> list[type[object]]:
    """A class and those of its bases that belong to it alone; bases first."""
    elsewhere = {above for base in kind.__mro__[1:] if base in nameable() | shared() for above in base.__mro__}
    ours = [base for base in kind.__mro__ if not _is_foreign(base) and base.__module__ not in _HINTS]
    return [base for base in reversed(ours) if base not in elsewhere]


@functools.cache
def shared() -> frozenset[type[object]]:
    """The bases with public members that users cannot name and that several of their classes have."""
    bases = [
        base
        for kind in typing.cast("frozenset[type[object]]", nameable())
        for base in kind.__mro__[1:]
        if base not in nameable() and base.__module__.startswith("natsproto") and base.__module__ not in _HINTS
    ]
    return frozenset(base for base in bases if bases.count(base) > 1)


@functools.cache
def nameable() -> frozenset[object]:
    """The classes that users can import from a public module."""
    return frozenset(
        value
        for module in public_modules()
        for value in (getattr(module, name) for name in names(module))
        if inspect.isclass(value)
    )


def _member(name: str, value: object, arguments: dict[str, type[object]]) -> Iterator[str]:
    if isinstance(value, property | functools.cached_property):
        getter = value.fget if isinstance(value, property) else value.func
        settable = isinstance(value, property) and value.fset is not None
        kind = typing.cast("dict[str, object]", getattr(getter, "__annotations__", {})).get("return", "")
        yield f"{name}: {_annotation(kind)} [{'settable ' if settable else ''}property]"
    elif isinstance(value, staticmethod | classmethod):
        yield f"@{type(value).__name__} {_function(name, value.__func__, arguments)}"
    elif inspect.isfunction(value):
        yield _function(name, value, arguments)
    elif inspect.ismemberdescriptor(value) and name not in inspect.get_annotations(value.__objclass__):
        yield name


def _function(name: str, value: object, arguments: dict[str, type[object]]) -> str:
    assert callable(value)
    signature = inspect.signature(value)
    signature = getattr(vars(value).get("__signature__"), "plain", signature)
    parameters = [_parameter(one) for one in signature.parameters.values()]
    for position, kind in _separators(list(signature.parameters.values())):
        parameters.insert(position, kind)
    for annotation in getattr(value, "__annotations__", {}).values():
        for word in re.findall(r"Unpack\[(\w+)\]", str(annotation)):
            arguments[word] = _resolved(value, word)
    inner = inspect.unwrap(value) if getattr(value, "__globals__", {}).get("__name__") == _GUESSES else value
    wait = "async " if inspect.iscoroutinefunction(inner) or inspect.isasyncgenfunction(inner) else ""
    returned = signature.return_annotation
    arrow = "" if returned is inspect.Signature.empty else f" -> {_annotation(returned)}"
    return f"{wait}{name}({', '.join(parameters)}){arrow}"


def _resolved(function: object, name: str) -> type[object]:
    scope = inspect.unwrap(typing.cast("typing.Any", function)).__globals__
    if name in scope:
        return typing.cast("type[object]", scope[name])
    found = re.search(  # imported for type checkers only
        rf"from (natsproto[\w.]*) import [^(\n]*\b{name}\b",
        inspect.getsource(inspect.getmodule(inspect.unwrap(typing.cast("typing.Any", function)))),  # type: ignore[arg-type]
    )
    assert found, f"{name} of {function}"
    return typing.cast("type[object]", getattr(importlib.import_module(found[1]), name))


def _separators(parameters: list[inspect.Parameter]) -> Iterator[tuple[int, str]]:
    """Where / and * stand; the later one first, so that inserting moves nothing."""
    kinds = [parameter.kind for parameter in parameters]
    if inspect.Parameter.KEYWORD_ONLY in kinds and inspect.Parameter.VAR_POSITIONAL not in kinds:
        yield kinds.index(inspect.Parameter.KEYWORD_ONLY), "*"
    if inspect.Parameter.POSITIONAL_ONLY in kinds:
        yield kinds.count(inspect.Parameter.POSITIONAL_ONLY), "/"


def _parameter(one: inspect.Parameter) -> str:
    stars = "*" * (one.kind is one.VAR_POSITIONAL) or "**" * (one.kind is one.VAR_KEYWORD)
    kind = "" if one.annotation is inspect.Parameter.empty else f": {_annotation(one.annotation)}"
    default = "" if one.default is inspect.Parameter.empty else f" = {_plain(one.default)}"
    return f"{stars}{one.name}{kind}{default}"


def _fields(kind: type[object], indent: str) -> Iterator[str]:
    """The annotated attributes of a class and of its hidden bases, with their defaults."""
    known = {one.name: one for one in dataclasses.fields(kind)} if dataclasses.is_dataclass(kind) else {}
    for base in _own(kind):
        for name, annotation in inspect.get_annotations(base).items():
            if name.startswith("_") or "ClassVar" in str(annotation) or annotation == "Final":
                continue
            default = known[name].default if name in known else inspect.getattr_static(kind, name, dataclasses.MISSING)
            default = getattr(default, "default", default)  # of an option, beside its rule
            shown = (
                "" if default is dataclasses.MISSING or inspect.isdatadescriptor(default) else f" = {_plain(default)}"
            )
            yield f"{indent}{name}: {_annotation(annotation)}{shown}"


def _annotation(value: object) -> str:
    text = value if isinstance(value, str) else getattr(value, "__forward_arg__", None) or _plain(value)
    return re.sub(r"\b(?:natsproto|typing|collections)(?:\.\w+)*\.(?=\w)", "", text)


def _plain(value: object) -> str:
    """The same text on every Python and in every run."""
    if value is os.environ:
        return "os.environ"
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    if inspect.isclass(value) or inspect.isroutine(value):
        return value.__name__
    if isinstance(value, frozenset | set):
        return f"{{{', '.join(sorted(map(_plain, value)))}}}"
    text = re.sub(r" at 0x[0-9a-f]+", "", repr(value))
    return re.sub(r"\b(?:natsproto|typing|collections)(?:\.\w+)*\.(?=\w)", "", text)


if __name__ == "__main__":
    SNAPSHOT.write_text(describe(), encoding="utf-8")
