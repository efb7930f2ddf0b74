"""Copies the text of every option to the places where an editor or ``help()`` looks for it.

``python -m tests.tools.texts`` writes the copies; tests/test_texts.py compares them. The texts are written once:

* a field's docstring, under the field of a record or of ``Options``; the TypedDicts of keyword arguments and the tables
  of docs/connecting.md and docs/fields.md get a copy,
* tests/tools/parameters.toml, for the parameters of public functions; their docstrings get a copy, in ``Args:``. The
  parameters of a constructor are in the docstring of its class.
"""

from __future__ import annotations

import ast
import functools
import inspect
import re
import textwrap
import tomllib
from collections.abc import Coroutine, Iterator
from pathlib import Path
from types import FunctionType
from typing import NamedTuple

from tests.tools import public_api

ROOT = Path(__file__).parents[2]
WIDTH = 120

VALUES = "natsproto/jetstream/_values/"
COPIES = [
    (VALUES + "config.py", "StreamConfig", VALUES + "arguments.py", "StreamArgs"),
    (VALUES + "config.py", "ConsumerConfig", VALUES + "arguments.py", "ConsumerArgs"),
    (VALUES + "bucket_config.py", "KeyValueConfig", VALUES + "arguments.py", "KeyValueArgs"),
    (VALUES + "bucket_config.py", "ObjectStoreConfig", VALUES + "arguments.py", "ObjectStoreArgs"),
    ("natsproto/_options/options.py", "Options", "natsproto/_options/options.py", "OptionArgs"),
]
"""The file and the class of the fields, and those of the TypedDict that accepts them as keyword arguments."""

POSITIONAL = {"OptionArgs": {"servers"}}
"""Fields that are no keys, as they have a parameter of their own."""

ACCEPTED = {
    "Seconds": "Duration",
    "Strings": "Iterable[str]",
    "Delays": "Iterable[Duration]",
    "Moment": "datetime | None",
}
"""The type that a field of a record accepts, where it holds another one."""


class Field(NamedTuple):
    """An annotated attribute of a class and its docstring."""

    name: str
    annotation: str
    text: str


def fields(kind: ast.ClassDef) -> Iterator[Field]:
    """The public fields of a class."""
    for position, node in enumerate(kind.body):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            annotation = ast.unparse(node.annotation)
            if not node.target.id.startswith("_") and "ClassVar" not in annotation:
                yield Field(node.target.id, annotation, docstring(kind.body[position + 1 : position + 2]))


def docstring(nodes: list[ast.stmt]) -> str:
    """The docstring that these statements begin with, or ""."""
    for node in nodes:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            return " ".join(node.value.value.split())
    return ""


def accepted(annotation: str, dictionary: str) -> str:
    """The type of a keyword argument for a field of this type."""
    if dictionary == "OptionArgs":  # durations are float seconds in Options
        return "float | timedelta" if annotation == "float" else annotation
    if found := re.fullmatch(r"Choice\[\w+, (\w+)\]", annotation):
        return found[1]
    if found := re.fullmatch(r"Many\[(\w+)\]", annotation):
        return f"Iterable[{found[1]}]"
    return ACCEPTED.get(annotation, annotation)


def quoted(text: str, indent: str) -> list[str]:
    """The lines of a docstring."""
    text = text.replace("\\", "\\\\")
    if len(f'{indent}"""{text}"""') <= WIDTH and not text.endswith('"'):
        return [f'{indent}"""{text}"""']
    lines = textwrap.wrap(f'"""{text}', WIDTH - len(indent), break_long_words=False, break_on_hyphens=False)
    return [*(indent + line for line in lines), f'{indent}"""']


def class_of(tree: ast.Module, name: str) -> ast.ClassDef:
    return next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)


def with_keys(source: str, dictionary: str, origin: ast.ClassDef) -> str:
    """A module whose TypedDict has the fields of a class as its keys, with their texts."""
    target = class_of(ast.parse(source), dictionary)
    lines = source.splitlines()
    body: list[str] = []
    for field in fields(origin):
        if field.name not in POSITIONAL.get(dictionary, ()):
            body.append(f"    {field.name}: {accepted(field.annotation, dictionary)}")
            body += quoted(field.text, "    ") if field.text else []
    begin, end = target.body[0].end_lineno, target.end_lineno
    assert begin is not None
    return "\n".join([*lines[:begin], "", *body, *lines[end:], ""])


def with_cells(page: str, origin: ast.ClassDef) -> str:
    """A page whose tables have the texts of the options as their last column."""
    texts = {field.name: field.text.replace("``", "`").replace("|", r"\|") for field in fields(origin)}

    def row(found: re.Match[str]) -> str:
        return f"{found[1]}{texts[found[2]]} |" if found[2] in texts else found[0]

    return re.sub(r"^(\| `(\w+)` \| [^|\n]* \| )[^\n]*\|$", row, page, flags=re.MULTILINE)


def with_tables(page: str) -> str:
    """A page whose marks are followed by the table of the fields of a class."""

    def table(found: re.Match[str]) -> str:
        file = next(file for file, kind, *_ in COPIES if kind == found[1])
        rows = [f"<!-- {found[1]} -->", "", "| field | value | meaning |", "|---|---|---|"]
        for field in fields(class_of(ast.parse((ROOT / file).read_text()), found[1])):
            values = accepted(field.annotation, "").removesuffix(" | None").removesuffix("Like")
            text = field.text.replace("``", "`").replace("|", r"\|")
            rows.append(f"| `{field.name}` | `{values}` | {text} |")
        return "\n".join([*rows, ""])

    return re.sub(r"<!-- (\w+) -->\n(?:\n(?:\|.*\n)+)?", table, page)


@functools.cache
def public_classes() -> tuple[ast.ClassDef, ...]:
    """The public classes that users read about, wherever they are defined."""
    public = {
        name
        for module in public_api.public_modules()
        if not module.__name__.startswith(UNDOCUMENTED)
        for name in public_api.names(module)
        if inspect.isclass(getattr(module, name))
    }
    package = ROOT / "natsproto"
    paths = sorted(package.rglob("*.py"))
    paths = [path for path in paths if path.relative_to(package).parts[0] not in ("compat", "sync")]
    return tuple(
        node
        for path in paths
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef) and node.name in public
    )


def public_fields() -> Iterator[tuple[str, str, Field]]:
    """The name of a public class, its text, and each of its fields."""
    for kind in public_classes():
        for field in fields(kind):
            yield kind.name, docstring(kind.body[:1]), field


def public_members() -> Iterator[tuple[str, str]]:
    """The members of public enumerations, with their texts."""
    for kind in public_classes():
        if any("Enum" in ast.unparse(base) for base in kind.bases):
            for position, node in enumerate(kind.body):
                if isinstance(node, ast.Assign):
                    yield (
                        f"{kind.name}.{ast.unparse(node.targets[0])}",
                        docstring(kind.body[position + 1 : position + 2]),
                    )


# ---------------------------------------------------------------- parameters

UNDOCUMENTED = ("natsproto.protocol", "natsproto.compat")
"""Modules that are experimental, or have the API of another library."""

BY_FIELDS = {"Value", "Protocol", "BaseRecord", "Enum", "tuple"}
"""Bases of classes whose fields are the arguments of the constructor."""


class Function(NamedTuple):
    """A public function: where it is, and the names of its parameters with their stars."""

    file: str
    owner: str
    name: str
    parameters: tuple[str, ...]


@functools.cache
def described_functions() -> tuple[Function, ...]:
    """The public functions and methods that have parameters, each once."""
    found: dict[Function, None] = {}
    for module in public_api.public_modules():
        if not module.__name__.startswith(UNDOCUMENTED):
            for name in public_api.names(module):
                found.update(dict.fromkeys(_functions_of(getattr(module, name))))
    return tuple(found)


def _functions_of(value: object) -> Iterator[Function]:
    if inspect.isfunction(value):
        yield from _function(value, "")
    for base in value.__mro__ if inspect.isclass(value) else ():
        if base.__module__.startswith(UNDOCUMENTED) and base.__name__ not in ("Message", "Headers"):
            continue
        for name, member in vars(base).items():
            function = getattr(member, "__func__", member)
            made = name == "__init__" and _is_made_by_users(value) and _is_made_by_users(base)
            named = not name.startswith("_") and name not in dir(Coroutine)
            if inspect.isfunction(function) and (made or named or name == "__call__"):
                yield from _function(function, base.__name__)


def _is_made_by_users(kind: object) -> bool:
    assert inspect.isclass(kind)
    return not public_api._is_created(kind) and not BY_FIELDS & {base.__name__ for base in kind.__mro__}


def _function(value: FunctionType, owner: str) -> Iterator[Function]:
    function = inspect.unwrap(value)
    path = Path(inspect.getfile(function))
    if not path.is_relative_to(ROOT / "natsproto") or function.__name__ == "replace":  # its arguments are the fields
        return
    signature = inspect.signature(function)
    signature = getattr(vars(function).get("__signature__"), "plain", signature)
    stars: dict[object, str] = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    names = [stars.get(one.kind, "") + one.name for one in signature.parameters.values()]
    names = [name for name in names if name not in ("self", "cls", "wrapper", "*args")]
    file = str(path.relative_to(ROOT))
    if names and function.__qualname__.split(".")[-2:] == [*[owner][: bool(owner)], function.__name__]:
        yield Function(file, owner, function.__name__, tuple(names))


@functools.cache
def parameter_texts() -> dict[str, str]:
    return tomllib.loads((ROOT / "tests/tools/parameters.toml").read_text())


def key_of(function: Function, parameter: str) -> str:
    """The most particular key of a parameter's text, or "" without a text."""
    name = parameter.lstrip("*")
    where = [f"{function.owner}.{function.name}.{name}", f"{function.name}.{name}", f"{function.owner}.{name}", name]
    if function.file.startswith("natsproto/sync/"):
        where = [*(f"sync.{key}" for key in where), *where]
    return next((key for key in where if key in parameter_texts()), "")


def arguments(function: Function, indent: str) -> list[str]:
    """The lines of the section ``Args:``."""
    lines = [f"{indent}Args:"]
    for parameter in function.parameters:
        text = parameter_texts()[key_of(function, parameter)].replace("`", "``")
        lines += textwrap.wrap(
            f"{parameter}: {text}",
            WIDTH,
            initial_indent=f"{indent}    ",
            subsequent_indent=f"{indent}        ",
            break_long_words=False,
            break_on_hyphens=False,
        )
    return lines


def with_arguments(source: str, file: str) -> str:
    """A module whose public functions have the texts of their parameters in their docstrings."""
    lines = source.splitlines()
    tree = ast.parse(source)
    edits: list[tuple[int, int, list[str]]] = []
    for function in described_functions():
        if function.file == file:
            node = _docstring_of(tree, function)
            begin, end = node.lineno - 1, node.end_lineno or node.lineno
            indent = " " * node.col_offset
            edits.append((begin, end, _section(lines[begin:end], arguments(function, indent), indent)))
    for begin, end, new in sorted(edits, reverse=True):
        lines[begin:end] = new
    return "\n".join([*lines, ""])


def _section(docstring: list[str], section: list[str], indent: str) -> list[str]:
    """A docstring with another section ``Args:`` at its end."""
    text = [line.rstrip() for line in docstring]
    text[-1] = text[-1].removesuffix('"""').rstrip()
    if f"{indent}Args:" in text:
        text = text[: text.index(f"{indent}Args:")]
    while not text[-1].strip():
        text.pop()
    return [*text, "", *section, f'{indent}"""']


def _docstring_of(tree: ast.Module, function: Function) -> ast.Constant:
    body = class_of(tree, function.owner).body if function.owner else tree.body
    if function.name != "__init__":
        body = [
            node
            for node in body
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == function.name
        ][-1].body
    first = body[0]
    assert isinstance(first, ast.Expr), function
    assert isinstance(first.value, ast.Constant), function
    return first.value


def without_text() -> list[str]:
    """The parameters of public functions that have no text."""
    return [
        f"{function.owner}.{function.name}.{parameter}"
        for function in described_functions()
        for parameter in function.parameters
        if not key_of(function, parameter)
    ]


def unused_keys() -> set[str]:
    """The texts that no function uses."""
    used = {key_of(function, parameter) for function in described_functions() for parameter in function.parameters}
    return parameter_texts().keys() - used


FILLERS = frozenset(
    re.findall(
        r"\w+",
        "a an the of to for in on at by with and or is are be it its that this which whose as from if not no none all "
        "any only than then there these those",
    )
)


def new_words(text: str, names: str) -> set[str]:
    """The words of a text that are neither fillers nor parts of the names that a reader has in view anyway."""
    known = {word.lower() for name in re.split(r"[\W_]+", names) for word in [name, *re.findall(r"[A-Z][a-z]+", name)]}
    known |= {f"{word}s" for word in known} | {word.removesuffix("s") for word in known}
    return set(re.findall(r"[a-z]+", text.lower())) - FILLERS - known


# ---------------------------------------------------------------- all copies


def outdated() -> dict[Path, str]:
    """The files whose copies differ from the texts, with what they should hold."""
    found: dict[Path, str] = {}
    for origin, kind, file, dictionary in COPIES:
        path = ROOT / file
        source = found.get(path) or path.read_text()
        found[path] = with_keys(source, dictionary, class_of(ast.parse((ROOT / origin).read_text()), kind))
    for file in sorted({function.file for function in described_functions()}):
        path = ROOT / file
        found[path] = with_arguments(found.get(path) or path.read_text(), file)
    options = class_of(ast.parse((ROOT / "natsproto/_options/options.py").read_text()), "Options")
    page = ROOT / "docs/connecting.md"
    found[page] = with_cells(page.read_text(), options)
    found[ROOT / "docs/fields.md"] = with_tables((ROOT / "docs/fields.md").read_text())
    return {path: text for path, text in found.items() if text != path.read_text()}


if __name__ == "__main__":
    for path, text in outdated().items():
        path.write_text(text)
        print(path.relative_to(ROOT))
