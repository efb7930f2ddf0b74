"""Names where one looks for them: late imports, and errors that name the place."""

from __future__ import annotations

import importlib
import subprocess
import sys
from typing import Any

import pytest

import natsproto
import natsproto.errors
from natsproto._help import nats_py_names as names
from natsproto._help.late_names import LateNames

HOMES = {
    "natsproto.jetstream": ["JetStream", "JsMessage", "StreamConfig", "ConsumerConfig"],
    "natsproto.jetstream.kv": ["KeyValue"],
    "natsproto.jetstream.objectstore": ["ObjectStore"],
    "natsproto.retry": ["Retry", "RetryPolicy"],
    "natsproto.errors": ["RequestTimeout", "NoResponders"],
}


def python(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(("home", "name"), [(home, name) for home, found in HOMES.items() for name in found])
def test_name_is_the_object_of_its_module(home: str, name: str) -> None:
    assert getattr(natsproto, name) is getattr(importlib.import_module(home), name)
    assert name in dir(natsproto)


def test_modules_need_no_import() -> None:
    """In one process each, since a test has imported most of them."""
    program = "import natsproto; print(*(getattr(natsproto, name).__name__ for name in natsproto._LATE._modules))"
    done = python(program)
    assert done.stdout.split() == [f"natsproto.{name}" for name in natsproto._LATE._modules], done.stderr
    assert {"jetstream", "service", "sync", "testing"} <= set(natsproto._LATE._modules)


def test_import_loads_no_late_module() -> None:
    done = python(
        "import natsproto, sys; print(*(n for n in natsproto._LATE._modules if f'natsproto.{n}' in sys.modules))"
    )
    assert (done.stdout.split(), done.returncode) == ([], 0)


def test_import_of_sync_makes_no_signatures() -> None:
    """They take longer than the rest of it: those of late types parse the source code, and import more modules."""
    done = python("import ast, inspect; ast.parse = inspect.signature = None; import natsproto.sync")
    assert (done.stderr, done.returncode) == ("", 0)


@pytest.mark.parametrize("ours", sorted(set(names.ERRORS.values())))
def test_advised_error_exists(ours: str) -> None:
    assert ours in natsproto.errors.__all__


def test_unknown_names_are_plain_attribute_errors() -> None:
    late = LateNames("natsproto", advice={})
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        late.get("nothing")
    for module in (natsproto, natsproto.errors):
        wrong: Any = module
        assert not hasattr(wrong, "nothing")
        assert not hasattr(wrong, "__wrapped__")
