"""Names of nats-py raise an error that says what to use instead; the hint names something that exists."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

import natsproto
from natsproto import Client, Message, Options, Subscription
from natsproto._help import nats_py_names as _nats_py_names
from natsproto.jetstream import JetStream, JsMessage, PullConsumer, Stream, StreamInfo
from natsproto.jetstream.kv import KeyValue
from natsproto.jetstream.objectstore import ObjectStore
from natsproto.service import Request, Service

TABLES = [
    (Client, _nats_py_names.CLIENT),
    (Subscription, _nats_py_names.SUBSCRIPTION),
    (JetStream, _nats_py_names.JETSTREAM),
    (Stream, _nats_py_names.STREAM),
    (StreamInfo, _nats_py_names.STREAM_INFO),
    (PullConsumer, _nats_py_names.CONSUMER),
    (KeyValue, _nats_py_names.KEY_VALUE),
    (ObjectStore, _nats_py_names.OBJECT_STORE),
]
USE = r"\b([a-z]+)\.(\w+)"
OLD = [(kind, name, hint) for kind, table in TABLES for name, hint in table.items()]
NEW = {
    "nc": Client,
    "js": JetStream,
    "stream": Stream,
    "info": StreamInfo,
    "consumer": PullConsumer,
    "message": JsMessage,
    "subscription": Subscription,
    "kv": KeyValue,
    "store": ObjectStore,
}


@pytest.mark.parametrize(("kind", "name", "hint"), OLD, ids=lambda value: getattr(value, "__name__", None))
def test_old_attribute_raises_a_hint(kind: type[object], name: str, hint: str) -> None:
    assert name not in dir(kind)
    with pytest.raises(AttributeError) as caught:
        getattr(kind.__new__(kind), name)
    assert str(caught.value) == f"{kind.__name__!r} object has no attribute {name!r}: {hint}"
    assert caught.value.name == name


@pytest.mark.parametrize("kind", [kind for kind, _ in TABLES])
def test_other_missing_attributes_have_no_hint(kind: type[object]) -> None:
    nothing = kind.__new__(kind)
    with pytest.raises(AttributeError, match=f"^'{kind.__name__}' object has no attribute 'nonsense'$"):
        getattr(nothing, "nonsense")  # noqa: B009  # a type checker knows that it is missing
    assert not hasattr(nothing, "__html__")


@pytest.mark.parametrize("name", _nats_py_names.OPTIONS)
def test_old_option_raises_a_hint(name: str) -> None:
    hint = _nats_py_names.OPTIONS[name]
    with pytest.raises(TypeError, match=re.escape(f"there is no option {name!r}: {hint}")):
        natsproto.connect(**{name: None})  # type: ignore[arg-type]
    for option in re.findall(r"pass (\w+)=", hint):
        assert hasattr(Options(), option)


@pytest.mark.parametrize("table", [table for _, table in TABLES])
def test_hints_name_what_exists(table: Mapping[str, str]) -> None:
    for hint in table.values():
        for variable, name in re.findall(r"\b(\w+)\.(\w+)", hint):
            if variable != "natsproto":
                assert hasattr(NEW[variable], name), hint


def names_of(page: str) -> list[tuple[str, str]]:
    text = (Path(__file__).parent.parent / "docs" / page).read_text(encoding="utf-8")
    return [(variable, name) for span in re.findall(r"`([^`]+)`", text) for variable, name in re.findall(USE, span)]


@pytest.mark.parametrize("page", ["which-one.md", "reference/names.md"])
def test_names_of_the_first_pages_exist(page: str) -> None:
    named = names_of(page)
    kinds = {**NEW, "service": Service, "request": Request, "jsmessage": JsMessage, "message": Message}
    for variable, name in named:
        assert hasattr({**kinds, "natsproto": natsproto, "errors": natsproto.errors}[variable], name), (variable, name)
    if page == "reference/names.md":
        assert len(set(named)) == len(named)
        assert len(named) == 60


def test_methods_with_hints_stay_coroutine_functions() -> None:
    """Frameworks and libraries that retry look at this before they call one."""
    for method in (KeyValue.put, KeyValue.get, PullConsumer.next, natsproto.Client.request, JetStream.create_stream):
        assert inspect.iscoroutinefunction(method), method
