"""Copies the text of every option to the places where an editor or ``help()`` looks for it.

``python -m tests.texts`` writes the copies; tests/test_texts.py compares them. The texts are written once:

* a field's docstring, under the field of a record or of ``Options``; the TypedDicts of keyword arguments and the tables
  of docs/connecting.md get a copy,
* tests/parameters.toml, for parameters that several functions have; their docstrings get a copy in ``Args:``. The text
  of any other parameter is written there, in the docstring of its function.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
WIDTH = 120

JETSTREAM = "natsproto/jetstream/"
COPIES = [
    (JETSTREAM + "_config.py", "StreamConfig", JETSTREAM + "_arguments.py", "StreamArgs"),
    (JETSTREAM + "_config.py", "ConsumerConfig", JETSTREAM + "_arguments.py", "ConsumerArgs"),
    (JETSTREAM + "_bucket_config.py", "KeyValueConfig", JETSTREAM + "_arguments.py", "KeyValueArgs"),
    (JETSTREAM + "_bucket_config.py", "ObjectStoreConfig", JETSTREAM + "_arguments.py", "ObjectStoreArgs"),
    ("natsproto/_options.py", "Options", "natsproto/_options.py", "OptionArgs"),
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
        return "Seconds" if annotation == "float" else annotation
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


def outdated() -> dict[Path, str]:
    """The files whose copies differ from the texts, with what they should hold."""
    found: dict[Path, str] = {}
    for origin, kind, file, dictionary in COPIES:
        path = ROOT / file
        source = found.get(path) or path.read_text()
        found[path] = with_keys(source, dictionary, class_of(ast.parse((ROOT / origin).read_text()), kind))
    options = class_of(ast.parse((ROOT / "natsproto/_options.py").read_text()), "Options")
    page = ROOT / "docs/connecting.md"
    found[page] = with_cells(page.read_text(), options)
    return {path: text for path, text in found.items() if text != path.read_text()}


if __name__ == "__main__":
    for path, text in outdated().items():
        path.write_text(text)
        print(path.relative_to(ROOT))
