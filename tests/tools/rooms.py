"""The rooms of natsproto: its folders, the imports among them, and circles of files and of folders.

``python -m tests.house rooms`` prints them. Every import counts, also those inside functions and under TYPE_CHECKING:
whoever changes a file has to know what it names, whenever Python reads the line.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

FOREIGN_LAYOUT = {"natsproto.compat", "natsproto.compat.nats"}
"""Packages with the folders of nats-py, where ``aio`` and ``js`` import each other; their files form no circle."""

Graph = dict[str, set[str]]


def module_name(file: str) -> str:
    """The dotted name of a file."""
    return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def imported(tree: ast.AST, modules: Iterable[str]) -> Iterator[str]:
    """The modules among these that a file imports, in any place."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield full if full in modules else node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def import_graph(trees: Mapping[str, ast.AST]) -> Graph:
    """The imports among files, given by their names and what they contain."""
    modules = {module_name(file) for file in trees}
    return {
        module_name(file): {name for name in imported(tree, modules) if name in modules} - {module_name(file)}
        for file, tree in trees.items()
    }


def folders_of(graph: Graph) -> dict[str, Graph]:
    """The imports among the files and folders inside each folder, the outermost first."""
    found: dict[str, Graph] = defaultdict(lambda: defaultdict(set))
    for module, imports in graph.items():
        for other in imports:
            mine, theirs = module.split("."), other.split(".")
            depth = next((at for at, pair in enumerate(zip(mine, theirs, strict=False)) if pair[0] != pair[1]), 0)
            if depth:  # a package and a module in it are neighbours nowhere
                found[".".join(mine[:depth])][mine[depth]].add(theirs[depth])
    return found


def circles(graph: Graph) -> list[list[str]]:
    """The groups of nodes that import each other, directly or through others (Tarjan)."""
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found = []

    def visit(node: str) -> None:
        number[node] = lowest[node] = len(number)
        stack.append(node)
        for other in sorted(graph.get(node, ())):
            if other not in number:
                visit(other)
                lowest[node] = min(lowest[node], lowest[other])
            elif other in stack:
                lowest[node] = min(lowest[node], number[other])
        if lowest[node] == number[node]:
            group = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(group) > 1:
                found.append(sorted(group))

    for node in sorted(graph):
        if node not in number:
            visit(node)
    return found


def all_circles(graph: Graph) -> list[str]:
    """The circles of files and of folders, one line each."""
    lines = [f"a circle of {len(group)} files: {', '.join(group)}" for group in circles(graph)]
    for folder, inside in sorted(folders_of(graph).items()):
        if folder not in FOREIGN_LAYOUT:
            lines += [f"a circle in {folder}: {', '.join(group)}" for group in circles(inside)]
    return lines


def entries(folder: Path) -> list[str]:
    """What a listing of a folder shows, without caches."""
    return sorted(path.name for path in folder.iterdir() if path.name not in ("__pycache__", "py.typed"))


def floors(graph: Graph) -> int:
    """How many storeys a graph without circles has."""
    heights: dict[str, int] = {}

    def height(node: str) -> int:
        if node not in heights:
            heights[node] = 0  # ends the search in a circle
            heights[node] = 1 + max((height(other) for other in graph.get(node, ())), default=0)
        return heights[node]

    return max(map(height, graph), default=0)
