"""Arrow batches as messages: the columns of a DataFrame, as what is published.

Owns the columns that a sink takes and how they are read: ``subject``, ``data``, ``headers`` and ``msg_id``. Whole
columns become lists at once; a Python object is made for a value that is published, and for nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple
from zlib import crc32

import pyarrow as pa

from natsproto.errors import ConfigError
from natsproto.spark._publishing import HeaderFilter

Pairs = list[tuple[str, str]]

_TEXT = ("string",)
_COLUMNS = {
    "subject": _TEXT,
    "data": ("binary", "string"),
    "headers": ("map<string,array<string>>", "map<string,string>"),
    "msg_id": _TEXT,
}
_ARROW = {
    "string": pa.string(),
    "binary": pa.binary(),
    "map<string,array<string>>": pa.map_(pa.string(), pa.list_(pa.string())),
    "map<string,string>": pa.map_(pa.string(), pa.string()),
}


class Outgoing(NamedTuple):
    """Messages to publish, column by column; ``headers`` and ``ids`` are empty when the batch has no such column."""

    subjects: Sequence[str]
    payloads: Sequence[bytes]
    headers: Sequence[Pairs | None]
    ids: Sequence[str | None]

    def piece(self, begin: int, end: int) -> Outgoing:
        """The messages from ``begin`` to before ``end``."""
        cut = slice(begin, end)
        return Outgoing(self.subjects[cut], self.payloads[cut], self.headers[cut], self.ids[cut])

    def digest(self, before: int) -> int:
        """A number that tells these subjects and payloads from others, behind rows with the digest ``before``."""
        for subject, payload in zip(self.subjects, self.payloads, strict=True):
            before = crc32(payload, crc32(subject.encode("utf-8", "surrogateescape"), before))
        return before

    def at(self, places: Sequence[int]) -> Outgoing:
        """The messages at these places."""
        return Outgoing(
            [self.subjects[place] for place in places],
            [self.payloads[place] for place in places],
            [self.headers[place] for place in places] if self.headers else (),
            [self.ids[place] for place in places] if self.ids else (),
        )


def check_columns(columns: Sequence[tuple[str, str]], *, subject: str) -> None:
    """ConfigError unless these (name, Spark's word for the type) can be published. ``subject`` is that for all rows."""
    names = [name for name, _ in columns]
    for name, kind in columns:
        allowed = _COLUMNS.get(name)
        if allowed is None:
            raise ConfigError("column", name, f"has no place in a message: select only {', '.join(_COLUMNS)}")
        if kind not in allowed:
            raise ConfigError(f"column {name}", kind, f"must be {' or '.join(allowed)}")
    if "data" not in names:
        raise ConfigError("columns", ", ".join(names), "need data: what is published")
    if ("subject" in names) == bool(subject):
        either = "both a column and an option" if subject else "neither a column nor an option"
        raise ConfigError("subject", subject, f"is {either}: give one")


def outgoing(batch: pa.RecordBatch, headers: HeaderFilter, *, subject: str = "", first_row: int = 0) -> Outgoing:
    """The messages of a batch. ``data`` that is null is empty. ConfigError for a row without a subject."""
    count = batch.num_rows
    names = batch.schema.names
    subjects: Sequence[str] = [subject] * count if subject else _values(batch.column("subject"))
    if None in subjects:
        row = first_row + list[object](subjects).index(None)
        raise ConfigError("subject", None, f"row {row} of its partition has none")
    data = batch.column("data")
    payloads = _values(data.cast(pa.large_binary()) if data.type in (pa.string(), pa.large_string()) else data)
    if data.null_count:
        payloads = [payload or b"" for payload in payloads]
    return Outgoing(
        subjects,
        payloads,
        list(_pairs(batch.column("headers"), headers)) if "headers" in names else (),
        _values(batch.column("msg_id")) if "msg_id" in names else (),
    )


def batches_of(
    rows: Iterable[Sequence[object]], columns: Sequence[tuple[str, str]], size: int
) -> Iterator[pa.RecordBatch]:
    """Rows as batches of up to so many, for the versions of Spark that give a stream writer nothing else."""
    chunk: list[Sequence[object]] = []
    for row in rows:
        chunk.append(row)
        if len(chunk) == size:
            yield _batch_of(chunk, columns)
            chunk = []
    if chunk:
        yield _batch_of(chunk, columns)


def _batch_of(rows: list[Sequence[object]], columns: Sequence[tuple[str, str]]) -> pa.RecordBatch:
    arrays = []
    for place, (_, kind) in enumerate(columns):
        values = [row[place] for row in rows]
        if kind.startswith("map"):
            values = [list(value.items()) if isinstance(value, dict) else value for value in values]
        arrays.append(pa.array(values, _ARROW[kind]))
    return pa.RecordBatch.from_arrays(arrays, names=[name for name, _ in columns])


def _values(column: pa.Array) -> list[Any]:
    """By way of numpy: a third of the time of ``to_pylist``."""
    values: list[Any] = column.to_numpy(zero_copy_only=False).tolist()
    return values


def _pairs(column: pa.Array, headers: HeaderFilter) -> Iterator[Pairs | None]:
    """The headers of each row; values that are null are left out."""
    for row in column.to_pylist():
        if not row:
            yield None
        else:
            yield headers.strip(
                (name, value)
                for name, held in row
                for value in (held if isinstance(held, list) else [held])
                if value is not None
            )
