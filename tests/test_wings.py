"""A capability is a wing: it can be removed, with its imports at its doors, and the rest of natsproto still works."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.tools import house, rooms


class Wing(NamedTuple):
    """The files and folders of a capability, and the modules outside that import them: its doors."""

    paths: tuple[str, ...]
    doors: tuple[str, ...] = ()

    def has(self, module: str) -> bool:
        """True for a module of this wing."""
        names = [rooms.module_name(f"natsproto/{path}") for path in self.paths]
        return any(module == name or module.startswith(f"{name}.") for name in names)


WINGS = {
    "answers in parts": Wing(
        ("service/_stream_endpoint.py", "service/_stream_request.py", "service/_stream_state.py"),
        ("_client", "service", "service._service", "typed"),
    ),
    "auth": Wing(("auth",)),
    "command line": Wing(("_cli", "__main__.py")),
    "compat": Wing(("compat",)),
    "cut-off servers": Wing(("_core/cut_off.py", "_core/cut_off_watch.py"), ("_core.connection",)),
    "groups": Wing(("jetstream/groups", "sync/_groups.py"), ("sync", "sync._jetstream")),
    "health": Wing(("health.py",), ("_client",)),
    "otel": Wing(("otel",)),
    "outbox": Wing(("outbox",)),
    "processor": Wing(("processor",)),
    "spark": Wing(("spark",)),
    "subjects": Wing(("subjects.py",)),
    "system": Wing(("system.py", "account_events.py"), ("_client", "sync._admin", "typing")),
    "testing": Wing(("testing",), ("_cli._operations",)),
    "tracing": Wing(("tracing.py",), ("_client",)),
}
"""Each capability that nothing else is made of. A new one has one door, or two with the blocking client's."""

REMOVABLE = sorted({*WINGS} - {"answers in parts", "cut-off servers", "system"})
"""The others are removed with lines of code at their doors, and not with imports alone."""

IMPORT_ALL = """\
import pkgutil, natsproto
for one in pkgutil.walk_packages(natsproto.__path__, "natsproto.", onerror=None):
    if not one.name.startswith(("natsproto.__main__", "natsproto.spark.")):  # a program; an optional package
        __import__(one.name)
print(natsproto.__file__)
"""


def closed_door(source: str, wing: Wing) -> str:
    """The source of a door without its imports of the wing; their names are None."""
    lines = source.splitlines()
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.ImportFrom) or not node.module:
            continue
        names = [one for one in node.names if wing.has(node.module) or wing.has(f"{node.module}.{one.name}")]
        if names:
            assert len(names) == len(node.names), f"an import of a wing and of something else: {ast.unparse(node)}"
            lines[node.lineno - 1 : node.end_lineno] = [""] * ((node.end_lineno or node.lineno) - node.lineno + 1)
            targets = " = ".join(one.asname or one.name for one in names)
            lines[node.lineno - 1] = f"{' ' * node.col_offset}{targets} = None"
    return "\n".join(lines)


@pytest.mark.parametrize("name", WINGS)
def test_doors_of_a_wing(name: str) -> None:
    wing = WINGS[name]
    graph = house.import_graph()
    doors = {module for module, others in graph.items() if not wing.has(module) and any(map(wing.has, others))}
    assert doors == {f"natsproto.{door}" for door in wing.doors}
    assert len(doors) <= 4


@pytest.mark.slow
@pytest.mark.parametrize("name", REMOVABLE)
def test_the_rest_works_without_a_wing(name: str, tmp_path: Path) -> None:
    wing = WINGS[name]
    copy = tmp_path / "natsproto"
    shutil.copytree(house.ROOT / "natsproto", copy, ignore=shutil.ignore_patterns("__pycache__"))
    for path in wing.paths:
        shutil.rmtree(copy / path) if (copy / path).is_dir() else (copy / path).unlink()
    for door in wing.doors:
        place = copy / door.replace(".", "/")
        file = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
        file.write_text(closed_door(file.read_text(), wing))
    done = subprocess.run([sys.executable, "-c", IMPORT_ALL], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).parent == copy
