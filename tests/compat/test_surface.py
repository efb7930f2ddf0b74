"""The names of nats-py are there, with its signatures and defaults: held against the nats-py that is installed."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import logging
import pkgutil
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any

import nats
import pytest

import natsproto.compat
from tests.compat.differences.table import MISSING

pytestmark = pytest.mark.differs("it is about natsproto alone")

MODULES = (
    *("nats", "nats.aio.client", "nats.aio.errors", "nats.aio.msg", "nats.aio.subscription", "nats.errors"),
    *("nats.js", "nats.js.api", "nats.js.client", "nats.js.errors", "nats.js.kv", "nats.js.manager"),
    *("nats.js.object_store", "nats.micro", "nats.micro.request", "nats.micro.service", "nats.nuid"),
)


def both(name: str) -> tuple[ModuleType, ModuleType]:
    return importlib.import_module(name), importlib.import_module(f"natsproto.compat.{name}")


def own(module: ModuleType) -> Iterator[tuple[str, Any]]:
    """The public classes and functions that it defines."""
    for name, value in vars(module).items():
        if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__:
            yield name, value


def parameters(function: Any) -> dict[str, object]:
    """Names and defaults, without those that only its own package gives."""
    found = inspect.signature(function).parameters.values()
    return {one.name: plain_value(one.default) for one in found if not one.name.startswith("_")}


def plain_value(value: object) -> object:
    return value.value if isinstance(value, Enum) else value


def everything() -> Iterator[Any]:
    for name in MODULES:
        for member, theirs in own(both(name)[0]):
            index = f"{name}.{member}"
            if index not in MISSING:
                yield pytest.param(name, member, theirs, id=index)


@pytest.mark.parametrize(("module", "name", "theirs"), list(everything()))
def test_name_of_nats_py_is_there(module: str, name: str, theirs: Any) -> None:
    ours = getattr(both(module)[1], name)
    if inspect.isfunction(theirs):
        assert parameters(ours) == parameters(theirs)
    if not inspect.isclass(theirs):
        return
    if issubclass(theirs, Exception):
        assert {base.__name__ for base in theirs.__mro__} <= {base.__name__ for base in ours.__mro__} | {
            "ErrTimeout",
            name,
        }
    elif issubclass(theirs, Enum):
        assert {one.name: one.value for one in ours} == {one.name: one.value for one in theirs}
    elif dataclasses.is_dataclass(theirs):
        assert field_defaults(ours) == field_defaults(theirs)
    for member, method in vars(theirs).items():
        index = f"{module}.{name}.{member}"
        if member.startswith("_") or index in MISSING:
            continue
        assert hasattr(ours, member) or member in field_defaults(ours), index
        if inspect.isfunction(method):
            assert parameters(getattr(ours, member)) == parameters(method), index


def field_defaults(kind: Any) -> dict[str, object]:
    if not dataclasses.is_dataclass(kind):
        return {}
    found = [one for one in dataclasses.fields(kind) if not one.name.startswith("_")]
    return {one.name: (plain_value(one.default), one.default_factory) for one in found}


def is_of_nats_py(value: object) -> bool:
    """Whether it is defined in nats-py, not imported by it from elsewhere."""
    home = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
    return not isinstance(home, str) or home.partition(".")[0] == "nats"


def every_module() -> list[str]:
    found = [module.name for module in pkgutil.walk_packages(nats.__path__, "nats.")]
    return ["nats", *(name for name in found if not any(name.startswith(missing) for missing in MISSING))]


@pytest.mark.parametrize("name", every_module())
def test_every_name_of_a_module_is_there_or_listed(name: str) -> None:
    """What its modules only import from each other as well: programs import names from wherever they stand."""
    theirs, ours = both(name)
    for member in dir(theirs):
        value = getattr(theirs, member)
        if member.startswith("_") or value is nats or not is_of_nats_py(value) or is_constant(value):
            continue
        if f"{name}.{member}" in MISSING:
            assert not hasattr(ours, member), f"{name}.{member} is there, and listed as missing"
            continue
        found = getattr(ours, member)
        home = getattr(value, "__module__", None)
        if home is not None and home != name and hasattr(importlib.import_module(home), member):
            assert found is getattr(both(home)[1], member), f"{name}.{member} is not that of {home}"


def is_constant(value: object) -> bool:
    """Whether the test of constants looks at it, or nobody imports it (`TYPE_CHECKING`, a logger)."""
    return isinstance(value, (str, bytes, int, float, logging.Logger)) or value is None


@pytest.mark.parametrize("name", MODULES)
def test_constant_of_nats_py_is_the_same(name: str) -> None:
    theirs, ours = both(name)
    for member, value in vars(theirs).items():
        if (
            member.isupper()
            and member[0] != "_"
            and member != "TYPE_CHECKING"  # typing's
            and isinstance(value, str | bytes | int | float)
            and f"{name}.{member}" not in MISSING
        ):
            assert getattr(ours, member) == value, member


def test_compat_imports_only_what_is_public() -> None:
    root = Path(natsproto.compat.__file__).parent
    for path in root.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            named = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            named += [one.name for one in node.names] if isinstance(node, ast.Import) else []
            for module in named:
                if module.startswith("natsproto.") and not module.startswith("natsproto.compat"):
                    assert not any(part.startswith("_") for part in module.split(".")), f"{path}: {module}"


def test_compat_is_for_the_newest_nats_py() -> None:
    theirs, ours = both("nats.aio.client")
    assert ours.__version__ == theirs.__version__
    assert nats is not natsproto.compat.nats
