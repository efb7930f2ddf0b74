"""Every option has its text, and the copies of it are the same (tests.texts)."""

from __future__ import annotations

import ast
import inspect

import pytest

import natsproto
from natsproto.jetstream import ConsumerConfig, KeyValueConfig, ObjectStoreConfig, StreamConfig
from natsproto.spark import SparkNats
from tests import texts


def test_copies_are_those_of_the_texts() -> None:
    assert [str(path.relative_to(texts.ROOT)) for path in texts.outdated()] == []  # python -m tests.texts writes them


@pytest.mark.parametrize(
    "kind", [StreamConfig, ConsumerConfig, KeyValueConfig, ObjectStoreConfig, natsproto.Options, SparkNats]
)
def test_every_option_has_its_text(kind: type[object]) -> None:
    source = ast.parse(inspect.getsource(inspect.getmodule(kind)))  # type: ignore[arg-type]  # it has one
    fields = list(texts.fields(texts.class_of(source, kind.__name__)))
    assert len(fields) >= 10
    assert [field.name for field in fields if len(field.text) < 20] == []
    shown = inspect.getdoc(kind) or ""
    assert [field.name for field in fields if f"\n    {field.name}: {field.text}" not in shown] == []


def test_every_parameter_has_its_text() -> None:
    assert len(texts.functions()) > 350
    assert texts.without_text() == []
    assert texts.unused_keys() == set()


def test_no_text_only_repeats_the_names() -> None:
    repeating = [
        f"{function.owner}.{function.name}.{parameter}: {text}"
        for function in texts.functions()
        for parameter in function.parameters
        for text in [texts.parameter_texts()[texts.key_of(function, parameter)]]
        if len(texts.new_words(text, f"{function.owner} {function.name} {parameter}")) < 2
    ]
    assert repeating == []
