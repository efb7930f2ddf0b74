"""The page on security names tests that exist, and one guarantee is checked on the source."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs/security.md").read_text()


def test_every_test_it_names_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", PAGE))
    written = {
        name for path in (ROOT / "tests").rglob("test_*.py") for name in re.findall(r"def (test_\w+)", path.read_text())
    }
    assert len(named) > 40
    assert named - written == set()


def test_every_promise_names_a_test() -> None:
    table = PAGE.partition("| guarantee | proved by |\n|---|---|\n")[2].partition("\n\n")[0]
    assert [row for row in table.splitlines() if "`test_" not in row] == []


def test_no_data_is_ever_run() -> None:
    """Neither unpickled nor evaluated; nor is a shell asked. The test server's process is the only one started."""
    unwanted = {"pickle", "marshal", "shelve", "eval", "exec", "compile", "__import__", "system", "popen"}
    found: list[str] = []
    for path in (ROOT / "natsproto").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names: set[str | None] = set()
            if isinstance(node, ast.Import):
                names = {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                names = {node.module}
            elif isinstance(node, ast.Call):
                function = node.func
                if isinstance(function, ast.Name):
                    names = {function.id}
                elif isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
                    names = {function.attr} if function.value.id in ("os", "builtins") else set()
            found += [f"{path.name}: {name}" for name in names & unwanted]
    assert found == []
