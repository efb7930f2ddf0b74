"""The API reference of the site: griffe calls ``Reference`` for what it has read, mkdocs the functions for each page.

Owns what of the package a reader sees, and how: without what is for layers on top, with the types that users know,
links from names to their headings, a parameter a line.
"""

from __future__ import annotations

import ast
import builtins
import copy
import dataclasses
import functools
import importlib
import inspect
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

import griffe
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
NAME = re.compile(r"(?<![\w`.\[])(?!JetStream\b)([A-Z][a-z]+(?:[A-Z]\w*)+|NotFound|Unavailable)(?![\w`\](])")
"""A name of several words, as most classes have: in a text it is never a word of the language, but for JetStream."""
EXPANDED = {"connect", "create_stream", "create_consumer", "create_key_value", "create_object_store", "publish"}
"""Functions whose keyword arguments are all listed; others of the same arguments name their TypedDict."""
ALIAS = re.compile(r"[A-Z][a-z]\w+")
WRAPPED = re.compile(r"(\w+)\((?:\w+\.)?(\w+)(?:\[.*\])?\.(\w+)\b.*\)", re.DOTALL)
"""A blocking method: the descriptor, and the class and the method of the asyncio client that it is around."""
BASES = {"Enum", "Mapping", "NamedTuple", "Protocol", "StrEnum", "TypedDict", "datetime"}
"""What a class says that it inherits from, beside Python's own classes and those that have a heading."""
LINKED = re.compile(r'(?<!["\w])[A-Z]\w+(?!")')
STDLIB = ("os", "pathlib", "concurrent.futures", "contextlib", "datetime", "enum", "random", "signal", "socket", "ssl")
STDLIB += ("typing", "collections.abc")
"""The modules of Python whose types are in signatures, the one that documents a type after others that import it."""
CONSTANT = re.compile(r"(?:\w+\.)?[A-Z][A-Z0-9_]+")


@functools.cache
def headings() -> list[str]:
    """The identifiers of what has a heading in the reference."""
    pages = sorted((ROOT / "docs/reference").glob("*.md"))
    return [name for page in pages for name in re.findall(r"^::: (natsproto[\w.]*)$", page.read_text(), re.MULTILINE)]


@functools.cache
def targets() -> dict[str, str]:
    """The classes and types of the reference: the identifier of each by its name, of the more general module first."""
    found: dict[str, str] = {}
    for identifier in headings():
        name = identifier.rpartition(".")[2]
        blocking = identifier.startswith(("natsproto.sync", "natsproto.protocol", "natsproto.otel"))
        if name[0].isupper() and not blocking and identifier.count(".") < found.get(name, "." * 9).count("."):
            found[name] = identifier
    return found


def linked(text: str) -> str:
    """A docstring in which the names of classes are links; code blocks stay."""

    def link(found: re.Match[str]) -> str:
        return f"[{found[1]}][{targets()[found[1]]}]" if found[1] in targets() else found[0]

    blocks = re.split(r"(^::$.*?(?=^\S)|```.*?```)", text, flags=re.DOTALL | re.MULTILINE)
    return "".join(block if number % 2 else NAME.sub(link, block) for number, block in enumerate(blocks))


class Reference(griffe.Extension):
    """What users need: no special methods, nothing for layers on top, no constructors of what the client creates."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Hide such an object; link the classes in its text; tell of a blocking method which method it calls."""
        words = "" if obj.docstring is None else " ".join(obj.docstring.value.splitlines()[:3])
        copies = obj.name in ("replace", "extra") and obj.path.split(".")[-2] in ("Value", "BaseRecord", "Record")
        member = isinstance(obj.parent, griffe.Class) and _is_enum(obj.parent)
        unexplained = isinstance(obj, griffe.Attribute) and not (obj.docstring or member or _is_field(obj))
        private = obj.name.startswith("_") and not obj.name.startswith("__")
        if copies or unexplained or private or re.search(r"\blayers?\s+on\s+top\b", words):
            obj.public = False
        if obj.docstring is not None:
            obj.docstring.value = linked(obj.docstring.value)
        if isinstance(obj, griffe.Function):
            expanded = obj.name in EXPANDED and not obj.path.startswith("natsproto.otel")
            for parameter in obj.parameters:
                _simplify(parameter, obj.module.path, expanded=expanded)
        obj.labels -= {"class-attribute", "instance-attribute", "module-attribute"}
        if isinstance(obj, griffe.Attribute):
            obj.annotation = _type_of(obj)
        if isinstance(obj, griffe.Attribute) and str(obj.annotation) == "Final":
            obj.annotation = None

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Give blocking methods, which are descriptors around those of the asyncio client, the same arguments.

        Then write each type so that a reader knows it.
        """
        if pkg.name != "natsproto":
            return
        for module in pkg["sync"].modules.values():
            for cls in module.classes.values():
                if cls.is_alias:
                    continue
                for name, attribute in list(cls.members.items()):
                    found = WRAPPED.fullmatch(str(attribute.value)) if isinstance(attribute, griffe.Attribute) else None
                    if found is not None and attribute.docstring is None:
                        cls.members[name] = _blocking_method(attribute, *found.groups())
        known = {pkg.modules_collection[identifier].canonical_path for identifier in headings()}
        objects = list(_objects(pkg))
        aliases = {one.path: one for one in objects if isinstance(one, griffe.Attribute) and _is_alias(one)}
        for path, alias in aliases.items():
            named = griffe.TypeAlias(alias.name, value=alias.value, docstring=alias.docstring, parent=alias.parent)
            alias.parent.members[alias.name] = named
            for other in alias.aliases.values():
                other._target = named
            if path in known:
                objects.append(named)
        unknown = {path: alias.value for path, alias in aliases.items() if path not in known}
        for _ in range(2):  # an alias of an alias
            unknown = {path: _replaced(value, unknown) for path, value in unknown.items()}
        for cls in (one for one in objects if isinstance(one, griffe.Class)):
            _inherit(cls, known)
        for one in _objects(pkg):
            _write_types(one, unknown)

    def on_class(self, *, cls: griffe.Class, **_: Any) -> None:
        """Hide special members, and the constructor of what only natsproto creates, as its class says, or has fields.

        Fields are a list in a record, and where some have no text of their own: that of the class is about them.
        """
        error = ".errors." in cls.path or "NatsError" in map(str, cls.bases)
        made_here = _is_made_here(cls) or (error and cls.name != "ServiceError")
        init = cls.members.get("__init__")
        wrapper = isinstance(init, griffe.Function) and any(one.name == "portal" for one in init.parameters)
        if (made_here or wrapper or cls.name in ("Value", "BaseRecord")) and init is not None:
            del cls.members["__init__"]
        for hidden in [name for name, member in cls.members.items() if member.public is False]:
            del cls.members[hidden]  # an alias of the class would show it
        repeated = {"args", "log_line"} if cls.name != "Event" else set()  # of every error and event
        coroutine = {"send", "throw", "close"} if any("Coroutine" in str(base) for base in cls.bases) else set()
        for special in [
            name
            for name in cls.members
            if (name.startswith("__") and name != "__init__") or name in coroutine or name in repeated
        ]:
            del cls.members[special]
        _list_fields(cls)


def _is_enum(cls: griffe.Class) -> bool:
    return any("Enum" in str(base) for base in cls.bases)


def _is_made_here(cls: griffe.Class) -> bool:
    """True if its text says what creates it."""
    return cls.docstring is not None and "reated by " in " ".join(cls.docstring.value.split())


def _objects(parent: griffe.Module | griffe.Class) -> Iterator[griffe.Object]:
    """Everything that a module or a class defines itself."""
    for one in list(parent.members.values()):
        if not isinstance(one, griffe.Alias):
            yield one
            if isinstance(one, griffe.Module | griffe.Class):
                yield from _objects(one)


def _is_alias(attribute: griffe.Attribute) -> bool:
    """True for a name of a type, whose annotation is then its value, see ``_type_of``."""
    value = attribute.value
    return (
        attribute.annotation is value
        and isinstance(value, griffe.Expr)
        and not isinstance(value, griffe.ExprCall)
        and attribute.parent is not None
        and attribute.parent.is_module
    )


def _list_fields(cls: griffe.Class) -> None:
    """Make the members of an enumeration a list, and the fields of a class that has texts for some at most."""
    if _is_enum(cls):
        text = "" if cls.docstring is None else cls.docstring.value
        members = [one for one in cls.members.values() if isinstance(one, griffe.Attribute)]
        cls.docstring = griffe.Docstring("\n".join([text, "", *map(_member_row, members)]), parent=cls)
        for member in members:
            del cls.members[member.name]
    fields = [
        member
        for member in cls.members.values()
        if isinstance(member, griffe.Attribute)
        and member.annotation is not None
        and str(member.annotation) != "Final"
        and "property" not in member.labels
        and not member.name.startswith("_")
        and not any(word in str(member.annotation) for word in ("ClassVar", "TypeAlias"))
    ]
    settings = cls.name.endswith(("Args", "Config", "Options"))  # those are read one by one, and linked
    plain = not any(isinstance(member, griffe.Function) for member in cls.members.values())
    if fields and not settings and (plain or any(field.docstring is None for field in fields)):
        text = "" if cls.docstring is None else cls.docstring.value
        rows = [_row(field.name, f": {_short(field.annotation)}", field) for field in fields]
        cls.docstring = griffe.Docstring("\n".join([text, "", "**Fields:**", "", *rows]), parent=cls)
        for field in fields:
            del cls.members[field.name]


def _inherit(cls: griffe.Class, known: set[str]) -> None:
    """Show what a class has from a base without a heading: with the types that it gives it, and no constructor."""
    for base in cls.mro():
        if base.canonical_path not in known and _is_made_here(cls):
            base.members.pop("__init__", None)
    for base in cls.bases:
        extended = cls.module.members.get(str(base))
        if isinstance(extended, griffe.Class) and "TypedDict" in map(str, extended.bases):
            cls.members = {**{name: copy.copy(key) for name, key in extended.members.items()}, **cls.members}
            cls.bases = extended.bases
        if not isinstance(base, griffe.ExprSubscript) or base.canonical_path in known:
            continue
        generic = cls.modules_collection.get_member(base.canonical_path) if "natsproto" in base.canonical_path else None
        if generic is None:
            continue
        names = [one for parent in generic.bases if str(parent).startswith("Generic") for one in _arguments(parent)]
        given = dict(zip([name.canonical_path for name in names], _arguments(base), strict=False))
        for name, member in generic.members.items():
            if name not in cls.members and name[0] != "_" and isinstance(member, griffe.Attribute | griffe.Function):
                own = copy.copy(member)
                own.parent = cls
                own.lineno = (own.lineno or 0) - 10_000  # before what the class adds
                if isinstance(own, griffe.Function):
                    own.parameters = griffe.Parameters(*map(copy.copy, own.parameters))
                _write_types(own, given)
                cls.members[name] = own


def _arguments(subscript: griffe.ExprSubscript) -> list[griffe.Expr]:
    """What stands in the brackets of a type."""
    return list(subscript.slice.elements) if isinstance(subscript.slice, griffe.ExprTuple) else [subscript.slice]


def _write_types(one: griffe.Object, values: Mapping[str, griffe.Expr]) -> None:
    """Replace names by their values in the types of a function, an attribute or a type."""
    if isinstance(one, griffe.Function):
        for function in (one, *(one.overloads or ())):
            function.returns = _replaced(function.returns, values)
            for parameter in function.parameters:
                parameter.annotation = _replaced(parameter.annotation, values)
    elif isinstance(one, griffe.Attribute):
        one.annotation = _replaced(one.annotation, values)
    elif isinstance(one, griffe.TypeAlias):
        one.value = _replaced(one.value, values)


def _replaced(part: Any, values: Mapping[str, griffe.Expr]) -> Any:
    """A part of a type in which names are replaced by their values."""
    if isinstance(part, list | tuple):
        return type(part)(_replaced(one, values) for one in part)
    if isinstance(part, griffe.ExprName | griffe.ExprAttribute):
        return values.get(part.canonical_path, part)
    if not isinstance(part, griffe.Expr):
        return part
    value = values.get(part.canonical_path) if isinstance(part, griffe.ExprSubscript) else None
    names = dict.fromkeys(one.canonical_path for one in value.iterate() if _is_variable(one)) if value else {}
    if names:
        return _replaced(value, dict(zip(names, _replaced(_arguments(part), values), strict=True)))
    fields = {field.name: _replaced(getattr(part, field.name), values) for field in dataclasses.fields(part)}
    return dataclasses.replace(part, **fields)


def _is_variable(part: object) -> bool:
    return isinstance(part, griffe.ExprName) and re.fullmatch(r"[A-Z](_\w+)?", part.name) is not None


def _simplify(parameter: griffe.Parameter, module: str, *, expanded: bool) -> None:
    """The TypedDict of keyword arguments that are not all listed, and the value of a default that has a name."""
    annotation = parameter.annotation
    if not expanded and isinstance(annotation, griffe.ExprSubscript) and str(annotation.left) == "Unpack":
        parameter.annotation = annotation.slice
    if parameter.default is not None and CONSTANT.fullmatch(str(parameter.default)):
        value: object = importlib.import_module(module)
        for name in str(parameter.default).split("."):
            value = getattr(value, name, None)
        if isinstance(value, (int, float, str)):
            parameter.default = repr(str(value) if isinstance(value, str) else value)


def _type_of(attribute: griffe.Attribute) -> griffe.Expr | str | None:
    """The types that a reader knows: what an alias stands for, and the type of a field's plain values."""
    annotation = attribute.annotation
    if str(annotation).endswith("TypeAlias") or (
        annotation is None
        and attribute.value is not None
        and ALIAS.fullmatch(attribute.name)
        and attribute.parent.is_module
    ):
        return attribute.value
    if isinstance(annotation, griffe.ExprSubscript) and str(annotation.left).endswith("Choice"):
        return annotation.slice.elements[0]  # type: ignore[union-attr]
    short = _short(annotation)
    return annotation if annotation is None or short == str(annotation) else _type(short, attribute.parent)


def _type(text: str, scope: griffe.Module | griffe.Class) -> griffe.Expr | None:
    """A type, as it would be in this scope, or is in Python."""
    paths = {name: path.rpartition(".")[0] for name, path in python_types().items()}
    known = {name: griffe.ExprName(name, module) for name, module in paths.items()}
    return _replaced(griffe.get_expression(ast.parse(text, mode="eval").body, parent=scope), known)


def _blocking_method(
    attribute: griffe.Attribute, wrapper: str, owner: str, method: str
) -> griffe.Attribute | griffe.Function:
    """A method with the arguments of the one that it calls, and a reference to that."""
    owner = "PullConsumer" if owner == "Consumer" else owner  # its base, which no page describes by itself
    text = f"`{owner}.{method}`"
    called = None
    if owner in targets():
        text = f"[{text}][{targets()[owner]}.{method}]"
        called = attribute.package.modules_collection[targets()[owner]].all_members.get(method)
    if not isinstance(called, (griffe.Function, griffe.Alias)) or not called.is_function:
        made: griffe.Attribute | griffe.Function = attribute
    else:
        returns = called.returns if wrapper in ("blocking", "blocking_ack") else _returned(attribute)
        made = griffe.Function(attribute.name, parameters=called.parameters, returns=returns, parent=attribute.parent)
    made.docstring = griffe.Docstring(f"Blocks; see {text} of the asyncio client.", parent=made)
    return made


def _returned(method: griffe.Attribute) -> griffe.Expr | None:
    """What a blocking method returns that makes a blocking object of what it gets; None where Python does not know."""
    owner = method.parent
    assert owner is not None
    cls = getattr(importlib.import_module(owner.module.path), owner.name)
    returned = inspect.signature(getattr(cls, method.name)).return_annotation
    if returned is inspect.Signature.empty:
        return None
    plain = isinstance(returned, type) and not get_args(returned)
    return _type(returned.__name__ if plain else _short(returned).replace("'", ""), owner)


def _row(name: str, more: str, field: griffe.Attribute) -> str:
    """A field or a member in a list: its name, its type or value, and its text if it has one."""
    text = "" if field.docstring is None else f": {' '.join(field.docstring.value.split())}"
    return f"* <code>{name}{LINKED.sub(_type_link, more)}</code>{text}"


def _member_row(member: griffe.Attribute) -> str:
    """A member of an enumeration, with its value if programs may know it."""
    value = str(member.value).replace("'", '"')
    return _row(member.name, "" if value == "auto()" else f" = {value}", member)


@functools.cache
def python_types() -> dict[str, str]:
    """The types of Python by their names."""
    return {
        name: f"{module}.{name}"
        for module in STDLIB
        for name in dir(importlib.import_module(module))
        if name[0].isupper() or module in ("datetime", "socket")
    }


def _type_link(found: re.Match[str]) -> str:
    """A type in a list as a link, if it is one that the reference or Python's documentation explains."""
    target = targets().get(found[0]) or python_types().get(found[0])
    return f'<autoref identifier="{target}" optional>{found[0]}</autoref>' if target else found[0]


def _is_field(attribute: griffe.Attribute) -> bool:
    """True if objects have it, and for a blocking method: not for what all objects of a class share."""
    shared = "class-attribute" in attribute.labels and "instance-attribute" not in attribute.labels
    return attribute.annotation is not None and (not shared or str(attribute.annotation) == "Final")


def _short(annotation: object) -> str:
    """A type as a reader needs it: that of the plain values, without the module."""
    text = re.sub(r"\b(?:\w+\.)+(?=\w)", "", str(annotation))
    text = re.sub(r"Choice\[(\w+), \w+\]", r"\1", re.sub(r"Many\[(\w+)\]", r"tuple[\1, ...]", text))
    names = {
        "Seconds": "float",
        "Moment": "Timestamp | None",
        "Strings": "tuple[str, ...]",
        "Delays": "tuple[float, ...]",
    }
    return names.get(text, text)


def on_config(config: MkDocsConfig) -> None:
    """Types of Python lead to its documentation."""
    for name in python_types().values():
        address = f"https://docs.python.org/3/library/{name.rpartition('.')[0]}.html#{name}"
        config.plugins["autorefs"].register_url(name, address)  # type: ignore[attr-defined]


def on_post_page(output: str, page: Page, **_: Any) -> str:
    """A page of the reference: one parameter a line, and without the empty lines and titles of the templates."""
    if not page.file.src_uri.startswith("reference/"):
        return output
    parts = re.split(r"(<pre\b.*?</pre>)", output, flags=re.DOTALL)
    for number, part in enumerate(parts):
        if number % 2:
            part = re.sub(r'<span (?:title="[^"]*"|class="p")>([^<]*)</span>', r"\1", part)
            parts[number] = "\n".join(_one_each(line) for line in part.split("\n"))
        else:
            part = re.sub(r",?\s*default:\s*<code>\.\.\.</code>", "", part)  # the server decides: the text says it
            part = re.sub(r"(<b><code>\*.*?),\s*default:\s*<code>(?:\{\}|\(\))</code>", r"\1", part, flags=re.DOTALL)
            part = re.sub(r"</code>\s*\n\s*\)", "</code>)", part)
            part = re.sub(r"Bases: (<code>.*?</code>)</p>", _bases, part)
            parts[number] = re.sub(r"\s*\n\s*", "\n", part)
    return re.sub(r'<a class="autorefs [^"]*"(?: title="[^"]*")?', '<a class="autorefs"', "".join(parts))


def _bases(found: re.Match[str]) -> str:
    """What a class inherits from, without what is no concern of a reader."""
    codes = re.findall(r"<code>.*?</code>", found[1])
    names = [re.sub(r"<[^>]*>", "", code).partition("[")[0] for code in codes]
    kept = [
        code
        for code, name in zip(codes, names, strict=True)
        if name in BASES or hasattr(builtins, name) or (code.startswith("<code><a ") and "docs.python.org" not in code)
    ]
    return f"Bases: {', '.join(kept)}</p>" if kept else "</p>"


def _one_each(line: str) -> str:
    """The parameters of a signature that share a line, each in its own."""
    indent = line[: len(line) - len(line.lstrip())]
    depth = 0
    parts = re.split(r'(<span class="s\d?">.*?</span>|<[^>]*>|[\[\](),])', line) if indent else [line]
    for number, part in enumerate(parts):
        depth += (part in "[(" and part != "") - (part in "])" and part != "")
        if part == "," and depth == 0 and parts[number + 1].startswith(" "):
            parts[number : number + 2] = [",", f"\n{indent}{parts[number + 1].lstrip()}"]
    return "".join(parts)
