"""Every option has its text, and the copies of it are the same (tests.tools.texts)."""

from __future__ import annotations

import ast
import inspect
import re

import pytest

import natsproto
from natsproto.jetstream import ConsumerConfig, KeyValueConfig, ObjectStoreConfig, StreamConfig
from natsproto.spark import SparkNats
from tests.tools import texts


def test_copies_are_those_of_the_texts() -> None:
    """Run ``python -m tests.tools.texts`` after changing a text."""
    assert [str(path.relative_to(texts.ROOT)) for path in texts.outdated()] == []


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
    assert len(texts.described_functions()) > 350
    assert texts.without_text() == []
    assert texts.unused_keys() == set()


def test_no_text_only_repeats_the_names() -> None:
    repeating = [
        f"{function.owner}.{function.name}.{parameter}: {text}"
        for function in texts.described_functions()
        for parameter in function.parameters
        for text in [texts.parameter_texts()[texts.key_of(function, parameter)]]
        if len(texts.new_words(text, f"{function.owner} {function.name} {parameter}")) < 2
    ]
    assert repeating == []


NAMES_OF_THINGS = frozenset(
    re.findall(
        r"\w+",
        "account address bucket cluster config consumer description domain endpoints error group info jwt key leader "
        "member message metadata name nonce password queue queue_group replicas seq server state stream stream_name "
        "stream_seq subject tags token user version",
    )
)
"""Fields that are what their names say."""


def test_every_field_says_what_its_name_does_not() -> None:
    """A field of an event, an error or a result has a text, is in the text of its class, or is the name of a thing."""
    silent = [
        f"{kind}.{field.name}"
        for kind, words, field in texts.public_fields()
        if not field.text
        and f"``{field.name}``" not in words
        and f" {field.name}: " not in words  # an argument of the constructor
        and field.name not in NAMES_OF_THINGS
    ]
    assert silent == []


def test_every_member_of_an_enumeration_has_its_text() -> None:
    assert [member for member, text in texts.public_members() if not text] == [
        "Default.DEFAULT"
    ]  # which its class is about


def test_texts_of_fields_say_more_than_the_names() -> None:
    found = [(f"{kind}.{field.name}", field.text) for kind, _, field in texts.public_fields() if field.text]
    found += [(member, text) for member, text in texts.public_members() if text]
    assert len(found) > 500
    assert [one for one in found if len(texts.new_words(one[1], one[0])) < 1] == []
