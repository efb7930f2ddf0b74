"""The page on natsproto.compat says what the code says."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

import natsproto.compat
from tests.compat.differences.table import MISSING, REFUSED, SAFER, WITHOUT_EFFECT, page

pytestmark = pytest.mark.differs("it is about natsproto alone")

PACKAGE = Path(natsproto.compat.__file__).parent
PAGE = (Path(__file__).parents[2] / "docs/compat.md").read_text()


def test_page_lists_every_difference() -> None:
    """``python -m tests.compat.differences.table`` prints what belongs there."""
    assert page() in PAGE


@pytest.mark.parametrize("name", MISSING)
def test_name_that_is_missing_is_one_of_nats_py(name: str) -> None:
    path = name.split(".")
    length = next(length for length in range(len(path), 0, -1) if is_module(".".join(path[:length])))
    found: object = importlib.import_module(".".join(path[:length]))
    for part in path[length:]:
        found = getattr(found, part)


def test_options_without_effect_are_listed() -> None:
    """An argument that its function does not use, and those of ``connect`` that do not reach natsproto."""
    found: set[str] = set()
    for path in sorted((PACKAGE / "nats").rglob("*.py")):
        classes = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.ClassDef)]
        for kind, node in [(owner, member) for owner in classes for member in owner.body]:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and not node.name.startswith("_"):
                used = names_in(*node.body)
                arguments = {argument.arg for argument in node.args.args} - {"self", "cls"}
                if "locals" in used:
                    used = texts_in(PACKAGE / "_options.py") | texts_in(PACKAGE / "_callbacks.py") | used
                found |= {f"{kind.name}.{node.name}({name}=)" for name in arguments - used}
    assert found == set(WITHOUT_EFFECT)


def names_in(*nodes: ast.AST) -> set[str]:
    return {found.id for node in nodes for found in ast.walk(node) if isinstance(found, ast.Name)}


def texts_in(path: Path) -> set[str]:
    return {str(node.value) for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant)}


def is_module(name: str) -> bool:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError:
        return False
    return True


OTHER_REASONS = ("a race in nats-py: ", "untraced: ")


@pytest.mark.parametrize("path", sorted(Path(__file__).parent.glob("test_*.py")), ids=lambda path: path.stem)
def test_marks_of_tests_are_rows(path: Path) -> None:
    """A test that nats-py does not pass says in its mark which difference it shows."""
    functions = [
        node for node in ast.parse(path.read_text()).body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    ]
    marks = [mark for node in functions for mark in node.decorator_list if isinstance(mark, ast.Call)]
    differs = [ast.literal_eval(mark.args[0]) for mark in marks if ast.unparse(mark.func) == "pytest.mark.differs"]
    assert [row for row in differs if row not in SAFER | REFUSED and not row.startswith(OTHER_REASONS)] == []
