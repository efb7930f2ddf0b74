"""Messages as Arrow batches: one column at a time, most of them without a Python object a row.

Owns the schema of what a stream is read as, and the way into it. Sequence, time and headers come off the wire as
text inside two byte strings a message (ack subject and header block); whole columns of those are cut up by Arrow's own
kernels, which costs a tenth of reading them one by one. What the kernels cannot read for sure (a status line that a
publisher wrote, a name given twice, bytes that are no UTF-8) is read by the client's own parsers.

Bytes that are no UTF-8, in subjects or headers, become the replacement character: neither Arrow nor Spark has strings
of any other kind.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import pyarrow as pa
import pyarrow.compute as pc

from natsproto.jetstream._direct import RawMessage, stored_header_blocks, stored_times
from natsproto.jetstream._message import ack_subjects, header_blocks, read_ack_subject
from natsproto.jetstream._timestamp import Timestamp
from natsproto.protocol.frames import Message
from natsproto.protocol.headers import Headers

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
    """What the batches made here look like; exactly what Spark derives from the columns of the data source."""
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
    """Messages that were got by sequence (direct get); as ``delivered_batch``."""
    seq = pa.array([message.seq for message in messages], pa.int64())
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
    subject, data = _strings(subjects), pa.array(payloads, pa.binary())
    weights = [0 if head is None else head.wire_size if isinstance(head, Headers) else len(head) for head in blocks]
    size = pc.add(pc.add(pc.binary_length(subject), pc.binary_length(data)), pa.array(weights, pa.int32()))
    columns = [pa.repeat(pa.scalar(stream, pa.string()), len(subjects)), subject, seq, time, data]
    if headers:
        columns.append(_headers(blocks))
    return pa.RecordBatch.from_arrays([*columns, size], schema=arrow_schema(headers=headers))


def _strings(texts: list[str]) -> pa.Array:
    try:
        return pa.array(texts, pa.string())
    except UnicodeEncodeError:
        return pa.array([_utf8(text) for text in texts], pa.string())


def _utf8(text: str) -> str:
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


# ---------------------------------------------------------------- sequence and time


def _positions(subjects: list[bytes | str | None]) -> tuple[pa.Array, pa.Array]:
    """Stream sequences and times out of ack subjects."""
    try:
        parts = pc.split_pattern(pa.array(subjects, pa.string()), ".")
        tokens = set(pc.unique(pc.list_value_length(parts)).to_pylist())
        if tokens and None not in tokens:
            first = 5 if tokens == {9} else 7 if min(tokens) >= 11 else 0  # v1, v2 (ADR-15)
            if first:
                nanos = pc.list_element(parts, first + 2).cast(pa.int64())
                return pc.list_element(parts, first).cast(pa.int64()), _microseconds(nanos)
    except pa.ArrowInvalid:
        pass  # no UTF-8, or no numbers: said in words below
    found = [read_ack_subject(_text(subject)) for subject in subjects]
    nanos = pa.array([one.timestamp.ns for one in found], pa.int64())
    return pa.array([one.stream_seq for one in found], pa.int64()), _microseconds(nanos)


def _text(subject: bytes | str | None) -> str:
    return subject.decode("utf-8", "surrogateescape") if isinstance(subject, bytes) else subject or ""


def _microseconds(nanos: pa.Array) -> pa.Array:
    return nanos.cast(pa.timestamp("ns", tz="UTC")).cast(TIME, safe=False)


def _times(messages: Sequence[RawMessage]) -> pa.Array:
    times = stored_times(messages)
    if all(type(time) is bytes and time.endswith(b"Z") for time in times):
        try:
            nanos = pa.array(times, pa.string()).cast(pa.timestamp("ns", tz="UTC"))
            return nanos.cast(TIME, safe=False)
        except pa.ArrowInvalid:
            pass  # as the first servers with direct get wrote it
    seen: list[Timestamp] = [message.time for message in messages]
    return _microseconds(pa.array([time.ns for time in seen], pa.int64()))


# ---------------------------------------------------------------- headers


def _headers(blocks: list[bytes | Headers | None]) -> pa.Array:
    if blocks.count(None) == len(blocks):
        return pa.nulls(len(blocks), HEADERS)
    try:
        return _cut_headers(blocks)
    except (_Odd, pa.ArrowInvalid, pa.ArrowTypeError):
        return _read_headers(blocks)


class _Odd(Exception):
    """Among the blocks is one that wants reading with care."""


def _cut_headers(blocks: list[bytes | Headers | None]) -> pa.Array:
    """Plain blocks: the version, then lines of ``Name: value``, every name once."""
    column = pa.array(blocks, pa.binary())
    if (
        column.null_count < len(column)
        and not pc.all(
            pc.and_(pc.starts_with(column, b"NATS/1.0\r\n"), pc.ends_with(column, b"\r\n\r\n")), skip_nulls=True
        ).as_py()
    ):
        raise _Odd
    text = column.cast(pa.string())  # ArrowInvalid when it is no UTF-8
    lines = pc.split_pattern(text, "\r\n")  # the version first, then two that are empty
    counts = pc.fill_null(pc.subtract(pc.list_value_length(lines), 3), 0)
    flat = lines.flatten()
    named = flat.filter(pc.and_(pc.not_equal(flat, ""), pc.not_equal(flat, "NATS/1.0")))
    if len(named) != pc.sum(counts).as_py():
        raise _Odd  # an empty line inside, or one that says NATS/1.0 once more
    pairs = pc.split_pattern(named, ":", max_splits=1)
    if len(named) and pc.min(pc.list_value_length(pairs)).as_py() != 2:
        raise _Odd  # a line without a colon
    names = pc.list_element(pairs, 0)
    lengths = counts.to_pylist()
    if _repeats(names, lengths):
        raise _Odd
    values = pc.utf8_trim(pc.list_element(pairs, 1), " \t")
    offsets = _offsets(lengths, [block is None for block in blocks])
    singles = pa.ListArray.from_arrays(pa.array(range(len(values) + 1), pa.int32()), values)
    return pa.MapArray.from_arrays(offsets, names, singles)


def _repeats(names: pa.Array, lengths: list[int]) -> bool:
    """Whether some message has one name twice."""
    if max(lengths, default=0) < 2:
        return False
    codes = names.dictionary_encode()
    width = len(codes.dictionary)
    rows = pa.array([row for row, count in enumerate(lengths) for _ in range(count)], pa.int64())
    keys = pc.add(pc.multiply(rows, width), codes.indices.cast(pa.int64()))
    return bool(pc.count_distinct(keys).as_py() != len(keys))


def _read_headers(blocks: list[bytes | Headers | None]) -> pa.Array:
    names: list[str] = []
    values: list[list[str]] = []
    lengths: list[int] = []
    for block in blocks:
        read: Headers | tuple[()] = () if block is None else Headers.parse(block) if isinstance(block, bytes) else block
        lengths.append(len(read))
        for name in read:
            names.append(_utf8(name))
            values.append([_utf8(value) for value in read.get_all(name)] if isinstance(read, Headers) else [])
    offsets = _offsets(lengths, [block is None for block in blocks])
    return pa.MapArray.from_arrays(offsets, pa.array(names, pa.string()), pa.array(values, pa.list_(pa.string())))


def _offsets(lengths: list[int], absent: list[bool]) -> pa.Array:
    """Where the entries of each row begin; a row that begins nowhere is null."""
    ends = list(accumulate(lengths, initial=0))
    begins = [None if none else start for none, start in zip(absent, ends, strict=False)]
    return pa.array([*begins, ends[-1]], pa.int32())
