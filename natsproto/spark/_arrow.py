"""Messages as Arrow batches, and Arrow batches as messages: one column at a time.

Defines the Arrow schema of a stream. Sequence, time and headers arrive as text inside two byte strings for each message
(ack subject and header block); Arrow's kernels split whole columns of them, ten times faster than one by one. The
client's own parsers read the columns that the kernels cannot (a status line in a header block, a repeated header name,
bytes that are not UTF-8).

Subjects and headers that are not UTF-8 get replacement characters: Arrow and Spark only have UTF-8 strings.
"""

# pyarrow makes the functions of pyarrow.compute while it is imported.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from operator import not_
from typing import Any, Literal, cast

import pyarrow as pa
import pyarrow.compute as pc

from natsproto.jetstream import RawMessage, Timestamp
from natsproto.jetstream._consumer.ack_subject import MOST_TOKENS, STREAM_AT, read_ack_subject
from natsproto.jetstream._consumer.message import ack_subjects, header_blocks
from natsproto.jetstream._stream.direct_get import stored_header_blocks, stored_times
from natsproto.jetstream.kv import KeyValueEntry
from natsproto.protocol.frames import Message
from natsproto.protocol.headers import Headers, parse_headers
from natsproto.spark._schema import NO_HEADERS_BLOCK, HeaderFilter, utf8
from natsproto.spark._task import HeaderPairs, MessageColumns

TIME = pa.timestamp("us", tz="UTC")
HEADERS = pa.map_(pa.string(), pa.list_(pa.string()))
_SCHEMA = pa.schema(
    [
        ("stream", pa.string()),
        ("subject", pa.string()),
        ("seq", pa.int64()),
        ("timestamp", TIME),
        ("data", pa.binary()),
        ("headers", HEADERS),
        ("size", pa.int32()),
    ]
)


_WITHOUT_HEADERS = pa.schema([field for field in _SCHEMA if field.name != "headers"])


def arrow_schema(*, headers: bool = True) -> pa.Schema:
    """The schema of the batches made here, equal to the one that Spark derives from the columns of the data source."""
    return _SCHEMA if headers else _WITHOUT_HEADERS


def delivered_batch(stream: str, messages: Sequence[Message], *, headers: bool = True) -> pa.RecordBatch:
    """Messages that a consumer delivered. ``headers`` is null where there are none; ``size`` counts bytes of subject,
    headers and payload.

    LocalProtocolError for a message that no consumer delivered.
    """
    seq, time = _positions(ack_subjects(messages))
    subjects = [message.subject for message in messages]
    return _batch(
        stream, subjects, seq, time, [message.data for message in messages], header_blocks(messages), headers=headers
    )


def stored_batch(stream: str, messages: Sequence[RawMessage], *, headers: bool = True) -> pa.RecordBatch:
    """Messages read by sequence (direct get); as ``delivered_batch``."""
    seq = _ints("q", [message.seq for message in messages])
    time = _times(messages)
    subjects = [message.subject for message in messages]
    blocks = stored_header_blocks(messages)
    return _batch(stream, subjects, seq, time, [message.data for message in messages], blocks, headers=headers)


def _batch(
    stream: str,
    subjects: list[str],
    seq: pa.Array,
    time: pa.Array,
    payloads: list[bytes],
    blocks: list[bytes | Headers | None],
    *,
    headers: bool,
) -> pa.RecordBatch:
    if NO_HEADERS_BLOCK in blocks:
        blocks = [None if head == NO_HEADERS_BLOCK else head for head in blocks]
    subject, data = _strings(subjects), _binaries(payloads)
    weights = [head._wire_size if isinstance(head, Headers) else len(head or b"") for head in blocks]
    size = pc.add(pc.add(pc.binary_length(subject), pc.binary_length(data)), _ints("i", weights))
    columns = [pa.repeat(_strings([stream])[0], len(subjects)), subject, seq, time, data]
    if headers:
        columns.append(_headers(blocks))
    return pa.RecordBatch.from_arrays([*columns, size], schema=arrow_schema(headers=headers))


# Arrays are made of buffers: ``pa.array`` and ``pa.scalar`` import pandas, which takes 42 MiB of every worker.


def _ints(kind: Literal["i", "q"], values: Iterable[int], absent: Sequence[bool] = ()) -> pa.Array:
    """Integers of 32 ("i") or 64 bits ("q"); null where ``absent``."""
    packed = array(kind, values)
    nulls = _bitmap(absent) if absent else None
    return pa.Array.from_buffers(pa.int32() if kind == "i" else pa.int64(), len(packed), [nulls, pa.py_buffer(packed)])


def _strings(texts: Sequence[str]) -> pa.Array:
    text = "".join(texts)
    if not text.isascii():
        return _binaries([utf8(one).encode() for one in texts]).cast(pa.string())
    return pa.Array.from_buffers(pa.string(), len(texts), [None, _ends(texts), pa.py_buffer(text.encode())])


def _binaries(values: Sequence[bytes | None]) -> pa.Array:
    """TypeError for anything but bytes and None."""
    nulls = None
    if None in values:
        nulls = _bitmap([value is None for value in values])
        values = [b"" if value is None else value for value in values]
    data = cast("Sequence[bytes]", values)
    return pa.Array.from_buffers(pa.binary(), len(data), [nulls, _ends(data), pa.py_buffer(b"".join(data))])


def _ends(values: Sequence[str] | Sequence[bytes]) -> pa.Buffer:
    return pa.py_buffer(array("i", accumulate(map(len, values), initial=0)))


def _bitmap(absent: Sequence[bool]) -> pa.Buffer:
    flags = pa.Array.from_buffers(pa.uint8(), len(absent), [None, pa.py_buffer(bytes(map(not_, absent)))])
    return flags.cast(pa.bool_()).buffers()[1]


_SPLIT_INDEX = _ints("i", range(10))
_ZERO, _ONE, _THREE = (_SPLIT_INDEX[index] for index in (0, 1, 3))
_EMPTY, _VERSION = _strings(["", "NATS/1.0"])


# ---------------------------------------------------------------- sequence and time


def _positions(subjects: list[bytes | str | None]) -> tuple[pa.Array, pa.Array]:
    """Stream sequences and times out of ack subjects."""
    try:
        texts = [subject.encode() if isinstance(subject, str) else subject for subject in subjects]
        parts = pc.split_pattern(_binaries(texts).cast(pa.string()), ".")
        lengths = pc.unique(pc.list_value_length(parts)).to_pylist()
        places = {STREAM_AT[min(length or 0, MOST_TOKENS)] for length in lengths}
        if len(places) == 1 and (stream := places.pop()):
            nanos = pc.list_element(parts, _SPLIT_INDEX[stream + 5]).cast(pa.int64())
            return pc.list_element(parts, _SPLIT_INDEX[stream + 3]).cast(pa.int64()), _microseconds(nanos)
    except (pa.ArrowInvalid, UnicodeEncodeError):
        pass  # not UTF-8 or not numbers: read_ack_subject raises the error
    found = [read_ack_subject(_text(subject)) for subject in subjects]
    nanos = _ints("q", [one.timestamp.ns for one in found])
    return _ints("q", [one.stream_seq for one in found]), _microseconds(nanos)


def _text(subject: bytes | str | None) -> str:
    return subject.decode("utf-8", "surrogateescape") if isinstance(subject, bytes) else subject or ""


def _microseconds(nanos: pa.Array) -> pa.Array:
    return nanos.cast(pa.timestamp("ns", tz="UTC")).cast(TIME, safe=False)


def _times(messages: Sequence[RawMessage]) -> pa.Array:
    times = stored_times(messages)
    if all(type(time) is bytes and time.endswith(b"Z") for time in times):
        try:
            nanos = _binaries(cast("list[bytes]", times)).cast(pa.string()).cast(pa.timestamp("ns", tz="UTC"))
            return nanos.cast(TIME, safe=False)
        except pa.ArrowInvalid:
            pass  # the format of the first servers with direct get
    seen: list[Timestamp] = [message.time for message in messages]
    return _microseconds(_ints("q", [time.ns for time in seen]))


# ---------------------------------------------------------------- headers


def _headers(blocks: list[bytes | Headers | None]) -> pa.Array:
    if blocks.count(None) == len(blocks):
        return pa.nulls(len(blocks), HEADERS)
    try:
        return _split_headers(blocks)
    except (_UnusualHeaders, pa.ArrowInvalid, TypeError):
        return _parse_headers(blocks)


class _UnusualHeaders(Exception):
    """One of the header blocks needs the client's own parser."""


def _split_headers(blocks: list[bytes | Headers | None]) -> pa.Array:
    """For plain blocks: the version, then lines of ``Name: value``, every name once."""
    column = _binaries(cast("list[bytes | None]", blocks))  # TypeError for one that was parsed already
    if (
        column.null_count < len(column)
        and not pc.all(
            pc.and_(pc.starts_with(column, b"NATS/1.0\r\n"), pc.ends_with(column, b"\r\n\r\n")), skip_nulls=True
        ).as_py()
    ):
        raise _UnusualHeaders
    text = column.cast(pa.string())  # ArrowInvalid if it is not UTF-8
    lines = pc.split_pattern(text, "\r\n")  # the version first, then two that are empty
    counts = pc.fill_null(pc.subtract(pc.list_value_length(lines), _THREE), _ZERO)
    flat = lines.flatten()
    named = flat.filter(pc.and_(pc.not_equal(flat, _EMPTY), pc.not_equal(flat, _VERSION)))
    if len(named) != pc.sum(counts).as_py():
        raise _UnusualHeaders  # an empty line inside, or a second NATS/1.0
    pairs = pc.split_pattern(named, ":", max_splits=1)
    if len(named) and pc.min(pc.list_value_length(pairs)).as_py() != 2:
        raise _UnusualHeaders  # a line without a colon
    names = pc.list_element(pairs, _ZERO)
    lengths = counts.to_pylist()
    if _repeats(names, lengths):
        raise _UnusualHeaders
    values = pc.utf8_trim(pc.list_element(pairs, _ONE), " \t")
    offsets = _offsets(lengths, [block is None for block in blocks])
    singles = pa.ListArray.from_arrays(_ints("i", range(len(values) + 1)), values)
    return pa.MapArray.from_arrays(offsets, names, singles)


def _repeats(names: pa.Array, lengths: list[int]) -> bool:
    """True if a message has a header name twice."""
    if max(lengths, default=0) < 2:
        return False
    codes = names.dictionary_encode()
    width = len(codes.dictionary)
    rows = _ints("q", [row for row, count in enumerate(lengths) for _ in range(count)])
    keys = pc.add(pc.multiply(rows, _ints("q", [width])[0]), codes.indices.cast(pa.int64()))
    return bool(pc.count_distinct(keys).as_py() != len(keys))


def _parse_headers(blocks: list[bytes | Headers | None]) -> pa.Array:
    names: list[str] = []
    values: list[list[str]] = []
    lengths: list[int] = []
    for block in blocks:
        read: Headers | tuple[()] = parse_headers(block) if isinstance(block, bytes) else block or ()
        lengths.append(len(read))
        for name in read:
            names.append(utf8(name))
            values.append([utf8(value) for value in read.get_all(name)] if isinstance(read, Headers) else [])
    offsets = _offsets(lengths, [not length for length in lengths])
    return pa.MapArray.from_arrays(offsets, pa.array(names, pa.string()), pa.array(values, pa.list_(pa.string())))


def _offsets(lengths: list[int], absent: list[bool]) -> pa.Array:
    """Offsets of each row's entries in the map array; a null offset makes a null row."""
    ends = list(accumulate(lengths, initial=0))
    return _ints("i", ends, [*absent, False])


_ARROW = {
    "string": pa.string(),
    "binary": pa.binary(),
    "map<string,array<string>>": pa.map_(pa.string(), pa.list_(pa.string())),
    "map<string,string>": pa.map_(pa.string(), pa.string()),
}


def message_columns(batch: pa.RecordBatch, headers: HeaderFilter, *, subject: str = "") -> MessageColumns:
    """The messages of a batch. ``data`` that is null is empty."""
    count = batch.num_rows
    names = batch.schema.names
    subjects: Sequence[str] = [subject] * count if subject else _values(batch.column("subject"))
    data = batch.column("data")
    payloads = _values(data.cast(pa.large_binary()) if data.type in (pa.string(), pa.large_string()) else data)
    if data.null_count:
        payloads = [payload or b"" for payload in payloads]
    return MessageColumns(
        subjects,
        payloads,
        list(_pairs(batch.column("headers"), headers)) if "headers" in names else (),
        _values(batch.column("msg_id")) if "msg_id" in names else (),
    )


def entry_columns(batch: pa.RecordBatch, bucket: str) -> MessageColumns:
    """Entries of a bucket as messages; a null value deletes."""
    keys, value = _values(batch.column("key")), batch.column("value")
    payloads = _values(value.cast(pa.large_binary()) if value.type in (pa.string(), pa.large_string()) else value)
    return MessageColumns(
        [f"$KV.{bucket}.{key or ''}" for key in keys],
        [payload or b"" for payload in payloads],
        [None if payload is not None else [("KV-Operation", "DEL")] for payload in payloads]
        if value.null_count
        else (),
        (),
    )


def entry_batch(entries: Sequence[KeyValueEntry[bytes]]) -> pa.RecordBatch:
    """Entries of a bucket in the columns of BUCKET_SCHEMA."""
    columns = [
        _strings([entry.key for entry in entries]),
        _binaries([entry.value for entry in entries]),
        _ints("q", [entry.revision for entry in entries]),
        _microseconds(_ints("q", [entry.created.ns for entry in entries])),
    ]
    return pa.RecordBatch.from_arrays(columns, names=["key", "value", "revision", "timestamp"])


def batches_from_rows(
    rows: Iterable[Sequence[object]], columns: Sequence[tuple[str, str]], size: int
) -> Iterator[pa.RecordBatch]:
    """Rows as batches of up to ``size``: before 4.1 Spark gives rows to a stream writer, not batches."""
    waiting: list[Sequence[object]] = []
    for row in rows:
        waiting.append(row)
        if len(waiting) == size:
            yield _batch_from_rows(waiting, columns)
            waiting = []
    if waiting:
        yield _batch_from_rows(waiting, columns)


def _batch_from_rows(rows: list[Sequence[object]], columns: Sequence[tuple[str, str]]) -> pa.RecordBatch:
    arrays = []
    for index, (_, kind) in enumerate(columns):
        values = [row[index] for row in rows]
        if kind.startswith("map"):
            values = [list(value.items()) if isinstance(value, dict) else value for value in values]
        arrays.append(pa.array(values, _ARROW[kind]))
    return pa.RecordBatch.from_arrays(arrays, names=[name for name, _ in columns])


def _values(column: pa.Array) -> list[Any]:
    """As a list, through numpy: a third of the time of ``to_pylist``."""
    values: list[Any] = column.to_numpy(zero_copy_only=False).tolist()
    return values


def _pairs(column: pa.Array, headers: HeaderFilter) -> Iterator[HeaderPairs | None]:
    """The headers of each row; values that are null are left out. ``to_pylist`` takes five times as long."""
    rows, names, held = _values(column.offsets), _values(column.keys), column.items
    is_list = isinstance(held, pa.ListArray)
    ends = _values(held.offsets) if is_list else range(len(held) + 1)
    values = _values(held.values if is_list else held)
    for valid, begin, end in zip(_values(column.is_valid()), rows, rows[1:], strict=False):
        yield (
            headers.strip(
                (names[index], value)
                for index in range(begin, end)
                for value in values[ends[index] : ends[index + 1]]
                if value is not None
            )
            if valid and begin < end
            else None
        )
