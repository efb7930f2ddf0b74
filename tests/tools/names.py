"""Names with two meanings, and choices that nest or crowd: a reader has to look twice at them."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping

SAME_ROLE = {"TRANSITIONS"}
"""Constants of several state machines: the table of each."""
PUBLIC_TWICE = {"ClientInfo", "Group", "Operation", "Outbox", "Refused"}
"""Public classes that keep their names, although another module has one of that name."""
MIRRORS = ("natsproto/sync/", "natsproto/compat/")
"""Packages whose classes have the names of others on purpose."""

PLAIN_DECORATORS = {"asynccontextmanager", "cache", "contextmanager", "dataclass", "lru_cache", "wraps"}
"""With any other decorator a function of a test file is given to a runner, as a fixture or a scenario is."""
CASES = ("tests/typing/", "tests/compat/programs/")
"""Folders whose functions are no helpers: cases for type checkers, and whole programs."""
HELPER_FILES = 3
"""In so many files a helper of one name is one that each file had to write again, or a name that says too little."""

MAX_CHOICES = 7
"""The most choices of a statement that takes no more than CROWDED_LINES."""
CROWDED_LINES = 3
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases", "decorator_list")


def constants(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """The constants of a module that others may import, and their values."""
    for node in tree.body:
        if not isinstance(node, (ast.Assign, ast.AnnAssign)) or node.value is None:
            continue
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            pairs: list[tuple[ast.expr, ast.expr]] = [(target, node.value)]
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                pairs = list(zip(target.elts, node.value.elts, strict=True))
            for name, value in pairs:
                if isinstance(name, ast.Name) and re.fullmatch("[A-Z][A-Z0-9_]+", name.id):
                    yield name.id, ast.unparse(value)


def names_with_two_meanings(trees: Mapping[str, ast.Module]) -> list[str]:
    """Constants with two values and classes that are defined twice, one line each."""
    values: dict[str, dict[str, str]] = defaultdict(dict)
    classes: dict[str, set[str]] = defaultdict(set)
    for file, tree in trees.items():
        if file.startswith(MIRRORS):
            continue
        for name, value in constants(tree):
            values[name].setdefault(value, file)
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                classes[node.name].add(file)
    lines = [
        f"{name}: two values, in {' and '.join(found.values())}"
        for name, found in sorted(values.items())
        if len(found) > 1 and name not in SAME_ROLE
    ]
    return lines + [
        f"class {name}: defined in {' and '.join(sorted(files))}"
        for name, files in sorted(classes.items())
        if len(files) > 1 and name not in PUBLIC_TWICE
    ]


def repeated_helpers(trees: Mapping[str, ast.Module]) -> list[str]:
    """Helper functions and classes of tests whose names HELPER_FILES or more files define, one line each."""
    files: dict[str, list[str]] = defaultdict(list)
    for file, tree in trees.items():
        for node in tree.body if not file.startswith(CASES) else ():
            if (
                isinstance(node, _DEFINITIONS)
                and not node.name.startswith(("test_", "Test"))
                and node.name != "main"
                and not any(_decorator(one) not in PLAIN_DECORATORS for one in node.decorator_list)
            ):
                files[node.name].append(file)
    return [
        f"{name}: a helper in {len(found)} files, {', '.join(found)}; move it to tests/kit, or name it for what it does"
        for name, found in sorted(files.items())
        if len(found) >= HELPER_FILES
    ]


def _decorator(node: ast.expr) -> str:
    """The last name of a decorator."""
    return ast.unparse(node.func if isinstance(node, ast.Call) else node).rpartition(".")[2]


def nested_choices(trees: Mapping[str, ast.AST]) -> list[str]:
    """Conditional expressions directly inside of others: write an ``if``."""
    return [
        f"{file}:{node.lineno}: a conditional expression in another one"
        for file, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.IfExp)
        and any(isinstance(part, ast.IfExp) for part in (node.body, node.orelse, node.test))
    ]


def crowded_statements(trees: Mapping[str, ast.AST]) -> list[str]:
    """Statements of a few lines with more than MAX_CHOICES: conditional expressions, ``and``, ``or`` and filters."""
    found = []
    for file, tree in trees.items():
        for node in ast.walk(tree):
            if not isinstance(node, ast.stmt) or isinstance(
                node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
            ):
                continue
            own = list(_own_expressions(node))
            choices = sum(map(_choices, own))
            lines = max((one.end_lineno or 0 for one in own), default=0) - node.lineno + 1
            if choices > MAX_CHOICES and lines <= CROWDED_LINES:
                found.append(f"{file}:{node.lineno}: {choices} choices in {lines} lines, at most {MAX_CHOICES}")
    return found


def _own_expressions(statement: ast.stmt) -> Iterator[ast.expr]:
    """The expressions of a statement, without those of the statements in it."""
    for field, value in ast.iter_fields(statement):
        if field not in _BLOCKS:
            yield from (one for one in (value if isinstance(value, list) else [value]) if isinstance(one, ast.expr))


def _choices(expression: ast.expr) -> int:
    count = 0
    for node in ast.walk(expression):
        if isinstance(node, ast.IfExp):
            count += 1
        elif isinstance(node, ast.BoolOp):
            count += len(node.values) - 1
        elif isinstance(node, ast.comprehension):
            count += len(node.ifs)
    return count
