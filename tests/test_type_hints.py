"""Annotations of public functions and methods can be evaluated, as frameworks for dependencies and commands do."""

from __future__ import annotations

import copy
import inspect
import pickle
import typing
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from natsproto import sync
from natsproto.jetstream import JetStream, PullConsumer
from tests.tools import public_api


def public_functions() -> Iterator[tuple[str, Callable[..., object]]]:
    for module in public_api.public_modules():
        for name in public_api.names(module):
            value = getattr(module, name)
            if inspect.isfunction(value):
                yield f"{module.__name__}.{name}", value
            for called, member in inspect.getmembers(value) if inspect.isclass(value) else ():
                function = getattr(member, "fget", getattr(member, "__func__", member))
                if not called.startswith("_") and inspect.isfunction(function):
                    yield f"{module.__name__}.{name}.{called}", function


def test_annotations_can_be_evaluated() -> None:
    failed, evaluated = list[str](), 0
    for name, function in public_functions():
        if not function.__module__.startswith("natsproto."):
            continue
        try:
            typing.get_type_hints(function)
        except NameError as error:
            failed.append(f"{name}: {error}")
        else:
            evaluated += 1
    assert not failed, "\n".join(failed)
    assert evaluated > 1200


@pytest.mark.parametrize("name", sync.__all__)
def test_blocking_methods_show_signature_and_text(name: str) -> None:
    for called, member in inspect.getmembers(getattr(sync, name), inspect.isroutine):
        if called.startswith("_") or not inspect.isfunction(member):
            continue
        parameters = list(inspect.signature(member).parameters)
        assert parameters[:1] == ["self"], called
        assert parameters != ["self", "args", "kwargs"], called
        assert inspect.getdoc(member), called
        assert member.__name__ == called


def test_blocking_signatures_say_what_is_returned() -> None:
    def returned(function: Any) -> object:
        return inspect.signature(function).return_annotation

    jetstream, stream, consumer = sync.JetStream, sync.Stream, sync.PullConsumer
    assert typing.get_type_hints(jetstream.publish)["return"].__name__ == "PubAck"
    assert returned(jetstream.stream) is sync.Stream
    assert returned(consumer.fetch) == list[sync.JsMessage]
    assert str(typing.get_type_hints(jetstream.stream_names)["return"]) == "collections.abc.Iterator[str]"
    assert str(returned(stream.get_batch)).startswith(
        "collections.abc.Iterator[natsproto.jetstream._stream.direct_get.RawMessage"
    )
    assert typing.get_type_hints(sync.KeyValue.keys)["return"] == list[str]


@pytest.mark.parametrize("method", [JetStream.publish, PullConsumer.consume, sync.Client.publish, sync.KeyValue.get])
def test_signatures_can_be_copied(method: Callable[..., object]) -> None:
    made = inspect.signature(method)
    for other in (copy.copy(made), copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
        assert (other, hash(other), str(other)) == (made, hash(made), str(made))
