"""The state of classes: which of their attributes change after construction, with those of what they are made of."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Set

FROZEN = {"Value", "Record", "NamedTuple", "Protocol", "Enum", "StrEnum"} | {
    *("IntEnum", "Flag", "TypedDict", "Options", "Exception")
}
"""Base classes of what does not change once it is made, and of what has no state."""

CONTAINERS = {"list", "dict", "set", "deque", "bytearray", "defaultdict"} | {
    *("OrderedDict", "Counter", "WeakSet", "WeakValueDictionary")
}


class Class:
    """The attributes of a class that change after construction."""

    def __init__(self, file: str, node: ast.ClassDef) -> None:
        self.file = file
        self.name = node.name
        self.bases = [called(base) for base in node.bases]
        self.frozen = any(_is_frozen_dataclass(decorator) for decorator in node.decorator_list)
        self.fields: dict[str, list[ast.expr | None]] = {}
        self.mutable: set[str] = set()
        self.given: set[str] = set()
        """Those that keep an argument of the constructor."""
        dataclass = any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list)
        for statement in node.body:
            if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
                self._read_method(statement)
            elif dataclass and isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                self.fields[statement.target.id] = [None]
                self.mutable.add(statement.target.id)

    def _read_method(self, method: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        for target, value in assigned(ast.walk(method)):
            if isinstance(target.value, ast.Name) and target.value.id == "self":
                self.fields.setdefault(target.attr, []).append(value)
                if method.name == "__init__" and isinstance(value, ast.Name):
                    self.given.add(target.attr)
                if method.name not in ("__init__", "__new__", "__post_init__") or _is_container(value):
                    self.mutable.add(target.attr)


def assigned(nodes: Iterable[ast.AST]) -> Iterator[tuple[ast.Attribute, ast.expr | None]]:
    """The attributes that a piece of code assigns, and the expressions."""
    for node in nodes:
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, (ast.AnnAssign, ast.AugAssign)):
            targets = [node.target]
        elif isinstance(node, ast.Delete):
            targets = node.targets
        for target in targets:
            value = getattr(node, "value", None)
            if isinstance(target, ast.Tuple):
                yield from ((element, None) for element in target.elts if isinstance(element, ast.Attribute))
            elif isinstance(target, ast.Attribute):
                yield target, value


def called(node: ast.expr | None) -> str:
    """The name of a class in an expression that calls, subscribes or names it."""
    if isinstance(node, (ast.Call, ast.Subscript)):
        return called(node.func if isinstance(node, ast.Call) else node.value)
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _is_container(value: ast.expr | None) -> bool:
    displays = (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp)
    return isinstance(value, displays) or (isinstance(value, ast.Call) and called(value) in CONTAINERS)


def _is_frozen_dataclass(decorator: ast.expr) -> bool:
    return isinstance(decorator, ast.Call) and any(
        keyword.arg == "frozen" and ast.unparse(keyword.value) == "True" for keyword in decorator.keywords
    )


def _imports(nodes: Iterable[ast.AST]) -> dict[str, str]:
    """Names that are imported from natsproto, and the files they come from."""
    return {
        alias.asname or alias.name: node.module.replace(".", "/") + ".py"
        for node in nodes
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("natsproto")
        for alias in node.names
    }


def count_state(files: dict[str, list[ast.AST]], written: Set[str] = frozenset()) -> Iterator[tuple[str, int]]:
    """The state of the classes in each file; ``written`` are attributes that some other object assigns."""
    imports = {file: _imports(nodes) for file, nodes in files.items()}
    classes = {
        (file, node.name): Class(file, node)
        for file, nodes in files.items()
        for node in nodes
        if isinstance(node, ast.ClassDef)
    }

    def line(read: Class) -> Iterator[Class]:
        yield read
        for base in read.bases:
            file = imports[read.file].get(base, read.file)
            if (found := classes.get((file, base))) is not None and found is not read:
                yield from line(found)

    def is_frozen(read: Class) -> bool:
        return any(one.frozen or FROZEN & {*one.bases} or one.name in FROZEN for one in line(read))

    def count(read: Class, within: frozenset[Class] = frozenset()) -> int:
        fields: dict[str, int] = {}
        for one in line(read):
            for field, values in one.fields.items():
                made = [classes.get((one.file, called(value))) for value in values if isinstance(value, ast.Call)]
                helpers = {helper for helper in made if helper and not is_frozen(helper)} - within - {read}
                nested = sum(count(helper, within | {read}) for helper in helpers)
                fields[field] = max(
                    fields.get(field, 0),
                    nested or (field in one.mutable or (field in written and field not in one.given)),
                )
        return sum(fields.values())

    for (file, name), read in classes.items():
        if not is_frozen(read):
            yield f"{file}:{name}", count(read)
