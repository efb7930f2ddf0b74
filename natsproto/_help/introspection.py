"""Texts, signatures and annotations as ``help()``, ``inspect``, ``get_type_hints`` and notebooks show them.

The text of a class includes those under its fields, signatures list the keys of a TypedDict, and annotations can be
evaluated although their modules are imported late. Nothing is read or imported before somebody looks.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterable, Iterator, KeysView, Mapping
from contextlib import suppress
from functools import cached_property
from importlib import import_module
from inspect import Parameter, Signature, cleandoc, get_annotations, getsource, unwrap
from itertools import pairwise
from types import FunctionType, MappingProxyType
from typing import Any

MAX_HTML_CHARS = 200
"""Characters of a value in a table of a notebook."""


def html_table(title: str, rows: Iterable[tuple[str, object]]) -> str:
    """Return a small table of names and values for a notebook. All of it is escaped; long values are cut."""
    from html import escape  # notebooks alone need it

    cells = ((name, value if isinstance(value, str) else repr(value)) for name, value in rows)
    lines = (
        f"<tr><th>{escape(name)}</th><td>{escape(text[:MAX_HTML_CHARS])}{'…' * (len(text) > MAX_HTML_CHARS)}</td></tr>"
        for name, text in cells
    )
    return f"<table><caption>{escape(title)}</caption>{''.join(lines)}</table>"


class DocWithFields:
    """The docstring of a class with the texts under its fields, in the place of ``__doc__``."""

    __slots__ = ("_text",)

    def __init__(self, text: str | None) -> None:
        self._text = text

    def __get__(self, instance: object, owner: type[object]) -> str | None:
        texts = field_texts(owner)
        if not texts:
            return self._text
        rows = (f"    {name}: {' '.join(text.split())}" for name, text in texts.items())
        return "\n".join([cleandoc(self._text or ""), "", "Attributes:", *rows])


def field_texts(kind: type[object]) -> dict[str, str]:
    """Return the docstrings under the fields of a class and its bases, by field; empty where there is no source."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if base.__module__.startswith("natsproto."):
            with suppress(OSError):
                found.update(_texts_in(getsource(base)))
    return found


def _texts_in(source: str) -> Iterator[tuple[str, str]]:
    (kind,) = ast.parse(source).body
    statements = kind.body if isinstance(kind, ast.ClassDef) else []
    for field, text in pairwise(statements):
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(field.target, ast.Name):
            value = text.value.value if isinstance(text.value, ast.Constant) else None
            if isinstance(value, str):
                yield field.target.id, cleandoc(value)


def import_late_types(module: str) -> None:
    """Make the annotations of a module's functions evaluable: reading them runs its imports for type checkers."""
    scope = vars(sys.modules[module])
    for value in [one for one in scope.values() if getattr(one, "__module__", "") == module]:
        for function in vars(value).values() if isinstance(value, type) else (value,):
            function = getattr(function, "__func__", function)
            if isinstance(function, FunctionType) and function.__annotations__:
                function.__annotations__ = _LateTypes(scope, function.__annotations__)


class _LateTypes(dict[str, Any]):
    """The annotations of a function, for which names are missing in the scope of its module until they are read."""

    def __init__(self, scope: dict[str, Any], annotations: dict[str, Any]) -> None:
        super().__init__(annotations)
        self._scope = scope

    def __iter__(self) -> Iterator[str]:
        """Called by ``dict(annotations)``, which is how frameworks and the standard library read them."""
        if (name := self._scope["__name__"]) not in _EVALUABLE:
            _EVALUABLE.add(name)
            _import_for_type_checkers(self._scope)
        return super().__iter__()

    def keys(self) -> KeysView[str]:  # type: ignore[override]
        """See ``__iter__``."""
        return KeysView(self)

    def like(self, annotations: dict[str, Any]) -> _LateTypes:
        """Return other annotations of the same scope."""
        return _LateTypes(self._scope, annotations)


_EVALUABLE: set[str] = set()
"""The modules whose imports for type checkers have been run."""


def _import_for_type_checkers(scope: dict[str, Any]) -> None:
    """Run the imports in the module's ``if TYPE_CHECKING:``, except those of packages that are not installed."""
    for block in ast.parse(getsource(sys.modules[scope["__name__"]])).body:
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING":
            for statement in block.body:
                if isinstance(statement, ast.Import | ast.ImportFrom):
                    with suppress(ImportError):
                        scope.update(_imported(statement))


def _imported(statement: ast.Import | ast.ImportFrom) -> dict[str, object]:
    if isinstance(statement, ast.ImportFrom):
        module = import_module(statement.module or "")
        return {alias.asname or alias.name: getattr(module, alias.name) for alias in statement.names}
    return {alias.asname or alias.name: import_module(alias.name) for alias in statement.names}


def name_fields(kind: type, modules: Mapping[str, str]) -> None:
    """Make help() and completion show the names behind ``**fields: Unpack[Args]`` of a class's methods.

    ``modules`` has the module of each such TypedDict; it is imported when a signature is read.
    """
    for method in (one for base in kind.__mro__ for one in vars(base).values() if isinstance(one, FunctionType)):
        for annotation in method.__annotations__.values():
            if str(annotation)[:7] == "Unpack[" and (where := modules.get(annotation[7:-1])):
                method.__dict__["__signature__"] = FullSignature(method, where, annotation[7:-1])


def annotations_like(method: Callable[..., object], annotations: dict[str, Any]) -> dict[str, Any]:
    """Return the annotations of a function around this one, which can be evaluated as its own are."""
    own = method.__annotations__
    return own.like(annotations) if isinstance(own, _LateTypes) else annotations


class LateSignature(Signature):
    """A signature that is made when somebody looks at it."""

    def __init__(self, make: Callable[[], Signature]) -> None:
        self._make = make

    @cached_property
    def full(self) -> Signature:
        """The signature."""
        return self._make()

    @property
    def parameters(self) -> MappingProxyType[str, Parameter]:
        """See Signature."""
        return self.full.parameters

    @property
    def return_annotation(self) -> Any:
        """See Signature."""
        return self.full.return_annotation

    def __reduce__(self) -> Any:
        """Copied and pickled as a plain one."""
        return self.full.__reduce__()

    def replace(self, **changes: Any) -> Signature:  # type: ignore[override]
        """See Signature."""
        return self.full.replace(**changes)


class FullSignature(LateSignature):
    """The signature of a method with the keys of a TypedDict in place of its last parameter; a default of ``...`` means
    that the configuration or the server decides.
    """

    def __init__(self, method: FunctionType, where: str, arguments: str) -> None:
        super().__init__(self._with_keys)
        self._method, self._where, self._arguments = method, where, arguments

    @cached_property
    def plain(self) -> Signature:
        """The signature as it is written."""
        method = unwrap(self._method)
        copied = FunctionType(method.__code__, method.__globals__, method.__name__, method.__defaults__)
        copied.__kwdefaults__, copied.__annotations__ = method.__kwdefaults__, method.__annotations__
        return Signature.from_callable(copied)

    def _with_keys(self) -> Signature:
        *own, _ = self.plain.parameters.values()
        fields: dict[str, Any] = get_annotations(getattr(import_module(self._where), self._arguments))
        keys = [
            Parameter(name, Parameter.KEYWORD_ONLY, default=..., annotation=getattr(kind, "__forward_arg__", kind))
            for name, kind in fields.items()
            if name not in self.plain.parameters
        ]
        return self.plain.replace(parameters=[*own, *keys])
