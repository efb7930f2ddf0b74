"""The public list is exact: nothing in it is missing, nothing public is left out, everything is explained."""

from __future__ import annotations

import asyncio
import dataclasses
import difflib
import importlib
import inspect
import re
import subprocess
import sys
import typing
from pathlib import Path
from types import FunctionType, ModuleType

import pytest

import natsproto
from natsproto.jetstream import ConsumerConfig, JetStream, Stream, StreamConfig
from natsproto.testing import Server
from tests.tools import public_api

LISTED = [
    natsproto,
    *(
        importlib.import_module(f"natsproto.{name}")
        for name in ("auth", "errors", "jetstream", "jetstream.kv", "jetstream.objectstore", "service", "sync")
    ),
]
CLASSES = list(
    dict.fromkeys(
        value
        for module in LISTED
        for value in (getattr(module, name) for name in module.__all__)
        if inspect.isclass(value) and not issubclass(value, Exception)
    )
)


def public(module: ModuleType) -> set[str]:
    """What a module offers without an underscore: its own things, and for a package what it brings together.

    Late names are attributes once anybody has asked for them. They are not in ``__all__``: ``import *`` imports none.
    """
    package = hasattr(module, "__path__")
    late = module._LATE._homes if hasattr(module, "_LATE") else {}
    return {
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and not inspect.ismodule(value)
        and name not in {"TYPE_CHECKING", *late}
        and (package or getattr(value, "__module__", "") == module.__name__)
    }


def test_api_snapshot() -> None:
    kept, now = public_api.SNAPSHOT.read_text(encoding="utf-8"), public_api.describe()
    changes = "\n".join(difflib.unified_diff(kept.splitlines(), now.splitlines(), "kept", "now", lineterm="", n=0))
    advice = "python -m tests.tools.public_api writes it anew; add a line to CHANGELOG.md"
    assert not changes, f"the public API has changed: {advice}\n{changes}"


@pytest.mark.parametrize("module", LISTED, ids=lambda module: module.__name__)
def test_all_lists_exactly_what_is_public(module: ModuleType) -> None:
    listed = {name for name in module.__all__ if name != "__version__"}
    assert public(module) == {name for name in listed if not inspect.ismodule(getattr(module, name))}


@pytest.mark.parametrize("module", LISTED, ids=lambda module: module.__name__)
def test_all_is_sorted_without_doubles(module: ModuleType) -> None:
    def rank(name: str) -> tuple[bool, bool, str]:
        return not name.isupper(), not name[0].isupper(), name  # constants, classes, functions

    assert list(module.__all__) == sorted(set(module.__all__), key=rank)


@pytest.mark.parametrize("name", [name for name in natsproto.__all__ if name != "__version__"])
def test_everything_public_has_a_docstring(name: str) -> None:
    value = getattr(natsproto, name)
    own = value.__doc__
    assert own
    assert not own.startswith(f"{name}("), "a dataclass without a docstring gets its signature"


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_every_public_method_has_a_docstring(kind: type[object]) -> None:
    silent = [
        name
        for base in kind.__mro__
        if base.__module__.startswith("natsproto")
        for name, member in vars(base).items()
        if not name.startswith("_")
        and (inspect.isroutine(member) or isinstance(member, property))
        and not inspect.getdoc(member)
    ]
    assert silent == []


def test_types_in_signatures_are_importable() -> None:
    """Types that a public function takes or returns, or a public field has, can be imported from a public module.

    Constructors are left out where natsproto makes the object.
    """
    unnamed = {
        f"{named.__module__}.{named.__name__} of {index}"
        for index, function in _public_annotations()
        for named in _classes_in(function)
        if named not in public_api.nameable() and not typing.is_typeddict(named)
    }
    assert unnamed == {
        "natsproto.spark._partitions.PairFunction of natsproto.spark.kv_lookup",
        "natsproto.spark._partitions.PairFunction of natsproto.spark.request_partition",
        "natsproto.testing._steps.Scope of natsproto.testing.run_cluster",  # a context manager, and nothing else
        "natsproto.testing._steps.Scope of natsproto.testing.run_server",
    }


def test_all_events_are_importable() -> None:
    def below(kind: type[natsproto.Event]) -> set[type[natsproto.Event]]:
        return {kind}.union(*map(below, kind.__subclasses__()))

    ours = {kind for kind in below(natsproto.Event) if kind.__module__.startswith("natsproto.")}
    assert len(ours) > 15
    assert ours - public_api.nameable() == set()


def _public_annotations() -> typing.Iterator[tuple[str, object]]:
    """What has annotations: public functions, classes with public fields, and their public methods."""
    for module in public_api.public_modules():
        for name in public_api.names(module):
            value = getattr(module, name)
            if inspect.isfunction(value):
                yield f"{module.__name__}.{name}", inspect.unwrap(value)
            elif inspect.isclass(value):
                for base in value.__mro__:
                    if base.__module__.startswith("natsproto."):
                        yield value.__name__, base
                        yield from _annotated_members(value.__name__, base)


def _annotated_members(index: str, kind: type[object]) -> typing.Iterator[tuple[str, object]]:
    for name, member in vars(kind).items():
        function = getattr(member, "__func__", getattr(member, "fget", member))
        if inspect.isfunction(function) and (
            not name.startswith("_") or name in {"__aenter__", "__aiter__", "__iter__"}
        ):
            yield f"{index}.{name}", inspect.unwrap(function)


def _classes_in(annotated: object) -> set[type[object]]:
    scope = vars(sys.modules[annotated.__module__])
    words = {
        word
        for name, annotation in inspect.get_annotations(annotated).items()  # type: ignore[arg-type]
        if not name.startswith("_")
        for word in re.findall(r"(?<!Unpack\[)\b[A-Z]\w+", str(annotation))
    }
    found = (scope.get(word) for word in words)
    return {kind for kind in found if inspect.isclass(kind) and kind.__module__.startswith("natsproto.")}


def test_import_loads_no_extra_and_no_test_tool() -> None:
    unwanted = ("websockets", "nkeys", "nacl", "uvloop", "pyspark", "pandas", "pyarrow", "opentelemetry", "pytest")
    loaded = (
        "import sys; before = set(sys.modules); import natsproto;"
        "print(*sorted({name.partition('.')[0] for name in set(sys.modules) - before}))"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", loaded], capture_output=True, text=True, check=True)
    modules = set(done.stdout.split())
    assert "natsproto" in modules
    assert modules.isdisjoint(unwanted)
    assert modules - {"natsproto"} <= set(sys.stdlib_module_names)


async def test_core_program_loads_no_jetstream(nats_server: Server, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(f"""
import asyncio, sys, natsproto

async def answer(request):
    await request.respond(request.data)

async def main():
    async with natsproto.connect({nats_server.url!r}) as nc, nc.subscribe("a") as subscription:
        await nc.subscribe("b", cb=answer)
        await nc.publish("a", b"1")
        await subscription.next(60)
        assert (await nc.request("b", b"2", timeout=60)).data == b"2"
    print(*[name for name in sys.modules if name.startswith("natsproto.jetstream")])

asyncio.run(main())
""")
    done = await asyncio.create_subprocess_exec(sys.executable, str(program), stdout=subprocess.PIPE)
    assert (await done.communicate())[0].split() == []
    assert done.returncode == 0


@pytest.mark.parametrize(
    ("method", "fields"), [(Stream.create_consumer, ConsumerConfig), (JetStream.create_stream, StreamConfig)]
)
def test_signature_shows_the_fields(method: FunctionType, fields: type[StreamConfig]) -> None:
    """For help() and for completion in a shell; also where the method is bound, without ``self``."""
    shown = inspect.signature(method)
    assert {field.name for field in dataclasses.fields(fields)} - {"extra"} <= shown.parameters.keys()
    bound = inspect.signature(method.__get__(object()))
    assert [*bound.parameters] == [*shown.parameters][1:]
    assert bound.return_annotation == shown.return_annotation
