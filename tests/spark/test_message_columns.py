"""Which columns can be published, and what becomes of them."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from natsproto.errors import ConfigError
from natsproto.spark._arrow import batches_from_rows, message_columns
from natsproto.spark._schema import HeaderFilter, check_columns

LISTS = pa.map_(pa.string(), pa.list_(pa.string()))


def test_columns_become_messages() -> None:
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array(["a.1", "a.2", "a.3"]),
            pa.array([b"x", None, b""]),
            pa.array([[("A", ["1", None, "2"]), ("B", [])], None, []], LISTS),
            pa.array(["id-1", None, "id-3"]),
        ],
        names=["subject", "data", "headers", "msg_id"],
    )
    found = message_columns(batch, HeaderFilter(()))
    assert list(found.subjects) == ["a.1", "a.2", "a.3"]
    assert list(found.payloads) == [b"x", b"", b""]
    assert list(found.headers) == [[("A", "1"), ("A", "2")], None, None]
    assert list(found.ids) == ["id-1", None, "id-3"]
    assert found.rows_between(1, 3).payloads == [b"", b""]


def test_text_is_published_as_utf8() -> None:
    for kind in (pa.string(), pa.large_string()):
        batch = pa.RecordBatch.from_arrays([pa.array(["ä", None], kind)], names=["data"])
        found = message_columns(batch, HeaderFilter(()), subject="a.b")
        assert list(found.payloads) == ["ä".encode(), b""]
        assert list(found.subjects) == ["a.b", "a.b"]
        assert (list(found.headers), list(found.ids)) == ([], [])


def test_plain_maps_are_headers_too() -> None:
    batch = pa.RecordBatch.from_arrays(
        [pa.array([b"x"]), pa.array([[("A", "1"), ("B", None)]], pa.map_(pa.string(), pa.string()))],
        names=["data", "headers"],
    )
    assert list(message_columns(batch, HeaderFilter(()), subject="a").headers) == [[("A", "1")]]


@given(
    st.lists(st.none() | st.lists(st.tuples(st.sampled_from("ABC"), st.none() | st.lists(st.none() | st.text())))),
    st.integers(0, 3),
)
def test_headers_of_any_part_of_a_batch(
    given_rows: list[list[tuple[str, list[str | None] | None]] | None], first: int
) -> None:
    column = pa.array(given_rows, LISTS)
    batch = pa.RecordBatch.from_arrays([pa.nulls(len(column), pa.binary()), column], names=["data", "headers"])
    found = message_columns(batch.slice(first), HeaderFilter(()), subject="a").headers
    assert [pairs or None for pairs in found] == [
        [(name, value) for name, held in row or () for value in held or () if value is not None] or None
        for row in given_rows[first:]
    ]


def test_rows_become_batches_of_a_size() -> None:
    columns = [
        ("subject", "string"),
        ("data", "binary"),
        ("headers", "map<string,array<string>>"),
        ("msg_id", "string"),
    ]
    rows = [("a", bytearray(b"x"), {"A": ["1"]}, "1"), ("b", None, None, None), ("c", b"z", {}, "3")]
    found = [message_columns(batch, HeaderFilter(())) for batch in batches_from_rows(rows, columns, 2)]
    assert [list(one.payloads) for one in found] == [[b"x", b""], [b"z"]]
    assert [list(one.headers) for one in found] == [[[("A", "1")], None], [None]]
    assert list(batches_from_rows([], columns, 2)) == []


@pytest.mark.parametrize(
    ("columns", "subject", "words"),
    [
        ([("subject", "string"), ("data", "binary"), ("seq", "bigint")], "", "seq.*is not part of a message"),
        ([("subject", "string"), ("value", "binary")], "", "value.*select it as data"),
        ([("topic", "string"), ("data", "binary")], "", "topic.*select it as subject"),
        ([("subject", "string")], "", "lack data"),
        ([("data", "binary")], "", "neither a column nor an option"),
        ([("subject", "string"), ("data", "binary")], "a.b", "both a column and an option"),
        ([("subject", "string"), ("data", "int")], "", "must be binary or string"),
        ([("data", "binary"), ("headers", "map<string,binary>")], "a.b", "headers.*must be map<string,array<string>>"),
        ([("data", "binary"), ("msg_id", "int")], "a.b", "msg_id.*must be string"),
    ],
)
def test_columns_that_cannot_be_published_are_refused(columns: list[tuple[str, str]], subject: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        check_columns(columns, subject=subject)
