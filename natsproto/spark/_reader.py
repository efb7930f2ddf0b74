"""Ranges of a stream as rows: planned on the driver, and read in a task as tuples or Arrow batches."""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator, Sequence
from contextlib import closing
from datetime import datetime
from typing import TYPE_CHECKING, Literal, overload

from natsproto import Client, errors
from natsproto._help.introspection import import_late_types
from natsproto.jetstream import RawMessage
from natsproto.jetstream._values.asset_names import check_stream_name
from natsproto.jetstream._values.codec import UINT64
from natsproto.protocol.subject import subscribe_subject
from natsproto.spark._client import is_retry, iterate_on_loop, run_on_loop
from natsproto.spark._options import SparkNats
from natsproto.spark._range_reader import Bound, MessageList, Method, RangeReader, plan_range
from natsproto.spark._ranges import SeqRange, parts_of
from natsproto.spark._schema import Row, delivered_rows, stored_rows

if TYPE_CHECKING:
    import pyarrow as pa


# ---------------------------------------------------------------- planning


def plan_ranges(
    config: SparkNats,
    stream: str,
    *,
    start: Bound = "earliest",
    end: Bound = "latest",
    subjects: Sequence[str] = (),
    num_partitions: int | None = None,
) -> list[SeqRange]:
    """Splits a stream into at most ``num_partitions`` ranges of nearly equal length; on the driver.

    Without a number there are up to 4 ranges, and in streams of more than 400,000 messages one for every 100,000, up
    to 200.

    The ranges are inclusive, disjoint and in order. ``start`` and ``end`` are "earliest", "latest", a sequence
    (inclusive) or an aware datetime: from the first message stored then or later, up to the last one stored before
    (nats-server 2.11). With ``subjects`` the ends move inwards to messages that match. An empty list if no message is
    between them. Messages that are gone when a range is read are DataLost, except those removed before the first range
    from "earliest" or a time is first read (``SeqRange.earliest``).

    ConfigError for wrong arguments; StreamNotFound and the errors of every call of the JetStream API.

    Args:
        config: How the tasks connect: a SparkNats.
        stream: Which stream to read, by its name.
        start: Where to begin: "earliest", "latest", a sequence, or a time (server 2.11).
        end: Where to end: "latest", a sequence (inclusive), or a time (server 2.11).
        subjects: Only messages of these subjects, wildcards allowed; empty: all.
        num_partitions: How many ranges to make at most; None: up to 4, in larger streams one for every 100,000
            messages, up to 200.
    """
    check_stream_name(stream)
    wanted = _subjects(subjects)
    _check_bound("start", start)
    _check_bound("end", end)
    if num_partitions is not None and (type(num_partitions) is not int or num_partitions < 1):
        raise errors.ConfigError("num_partitions", num_partitions, "must be a positive number")
    found = run_on_loop(config, _plan, stream, start, end, wanted)
    return [] if found is None else parts_of(found, num_partitions or 0)


async def _plan(client: Client, name: str, start: Bound, end: Bound, subjects: Sequence[str]) -> SeqRange | None:
    return await plan_range(client.jetstream(), name, start, end, subjects)


# ---------------------------------------------------------------- reading


@overload
def read_range(
    config: SparkNats,
    seq_range: SeqRange,
    *,
    subjects: Sequence[str] = (),
    method: Method = "auto",
    batch_rows: int = 4096,
    max_bytes: int = 8 << 20,
    output: Literal["tuples"] = "tuples",
    headers: bool = True,
    fail_on_data_loss: bool = True,
) -> Generator[Row]: ...


@overload
def read_range(
    config: SparkNats,
    seq_range: SeqRange,
    *,
    subjects: Sequence[str] = (),
    method: Method = "auto",
    batch_rows: int = 4096,
    max_bytes: int = 8 << 20,
    output: Literal["arrow"],
    headers: bool = True,
    fail_on_data_loss: bool = True,
) -> Generator[pa.RecordBatch]: ...


def read_range(
    config: SparkNats,
    seq_range: SeqRange,
    *,
    subjects: Sequence[str] = (),
    method: Method = "auto",
    batch_rows: int = 4096,
    max_bytes: int = 8 << 20,
    output: Literal["tuples", "arrow"] = "tuples",
    headers: bool = True,
    fail_on_data_loss: bool = True,
) -> Generator[Row] | Generator[pa.RecordBatch]:
    """Reads the messages of a range, those of the ``subjects`` that match (none: all), in a task of Spark.

    Gives tuples (see ROW_SCHEMA; without ``headers`` there is no such column), or Arrow batches of at most
    ``batch_rows`` rows and about ``max_bytes`` bytes of payload. It reads at most a few batches ahead.
    Close the iterator to end early; that deletes its consumer.

    ``method`` "consumer" pulls from an ordered consumer in memory, "direct" gets batches of messages from any
    replica (ADR-31), which needs no consumer and leaves a work queue alone. "auto" takes the cheaper one: "direct" for
    up to 1,000 sequences, on work queues, and for several subjects of a stream with more than 100; if the server
    refuses one way, it logs the reason and takes the other.

    If messages were removed after planning (by a limit or a purge), or the stream was recreated, DataLost is raised;
    with ``fail_on_data_loss=False`` a warning is logged and the rest is read. An ``earliest`` range allows removals
    until its first message is read, except in a retried task. A message replaced by a newer one of its subject, as in a
    bucket, is not data loss. ConfigError for wrong arguments, at once. While reading StreamNotFound, PermissionDenied,
    the ApiError of a consumer that the server refuses, and RequestTimeout when there is no server for a minute.

    Args:
        config: How the tasks connect: a SparkNats.
        seq_range: One of the ranges of ``plan_ranges``.
        subjects: Only messages of these subjects, wildcards allowed; empty: all.
        method: "consumer" pulls from an ordered consumer, "direct" gets batches from any replica, "auto" takes the
            cheaper one.
        batch_rows: The most rows of one Arrow batch.
        max_bytes: About the most bytes of payload of one Arrow batch.
        output: "tuples" gives a tuple for each message, "arrow" Arrow batches.
        headers: Read the headers, too; False leaves their column out.
        fail_on_data_loss: Raise DataLost when messages of the range are gone; False logs a warning and reads the rest.
    """
    if not isinstance(seq_range, SeqRange):
        raise TypeError(f"seq_range must be a SeqRange, not {type(seq_range).__name__}")
    if output not in ("tuples", "arrow"):
        raise errors.ConfigError("output", output, 'must be "tuples" or "arrow"')
    wanted = check_reading(subjects, method, batch_rows, max_bytes)
    if seq_range.earliest and is_retry():  # the first attempt may have written what it read
        seq_range = seq_range.replace(earliest=False)

    def message_lists(client: Client) -> AsyncIterator[MessageList]:
        reader = RangeReader(
            client.jetstream(),
            seq_range,
            subjects=wanted,
            method=method,
            batch_rows=batch_rows,
            max_bytes=max_bytes,
            fail_on_data_loss=fail_on_data_loss,
            outage_timeout=config.outage_timeout,
        )
        return reader.message_lists()

    found = iterate_on_loop(config, message_lists)
    return _batches(seq_range.stream, found, headers) if output == "arrow" else _rows(seq_range.stream, found, headers)


# ---------------------------------------------------------------- rows


def _batches(name: str, lists: Generator[MessageList], headers: bool) -> Generator[pa.RecordBatch]:
    from natsproto.spark._arrow import delivered_batch, stored_batch

    with closing(lists):
        for messages in lists:
            if isinstance(messages[0], RawMessage):
                yield stored_batch(name, messages, headers=headers)  # pyright: ignore[reportArgumentType]
            else:
                yield delivered_batch(name, messages, headers=headers)  # pyright: ignore[reportArgumentType]


def _rows(name: str, lists: Generator[MessageList], headers: bool) -> Generator[Row]:
    with closing(lists):
        for messages in lists:
            if isinstance(messages[0], RawMessage):
                rows = stored_rows(name, messages)  # pyright: ignore[reportArgumentType]
            else:
                rows = delivered_rows(name, messages)  # pyright: ignore[reportArgumentType]
            if headers:
                yield from rows
            else:
                for row in rows:
                    yield row[:5] + row[6:]  # type: ignore[misc]  # the same without one column


# ---------------------------------------------------------------- arguments


def check_reading(subjects: Sequence[str], method: Method, batch_rows: int, max_bytes: int) -> tuple[str, ...]:
    """The subjects as a tuple; ConfigError (InvalidSubject) for arguments that ``read_range`` does not take."""
    if method not in ("auto", "consumer", "direct"):
        raise errors.ConfigError("method", method, 'must be "auto", "consumer" or "direct"')
    for name, value in (("batch_rows", batch_rows), ("max_bytes", max_bytes)):
        if type(value) is not int or value < 1:
            raise errors.ConfigError(name, value, "must be a positive number")
    return _subjects(subjects)


def _subjects(subjects: Sequence[str]) -> tuple[str, ...]:
    if isinstance(subjects, str):
        raise TypeError("subjects must be a list of subjects, not one str")
    wanted = tuple(subjects)
    for subject in wanted:
        subscribe_subject(subject)
    return wanted


def _check_bound(name: str, bound: Bound) -> None:
    if isinstance(bound, datetime):
        if bound.utcoffset() is None:
            raise errors.ConfigError(name, bound, "a naive datetime names no moment: give it a tzinfo")
    elif bound not in ("earliest", "latest") and (type(bound) is not int or not 1 <= bound <= UINT64):
        raise errors.ConfigError(
            name, bound, 'must be "earliest", "latest", a sequence from 1 on, or an aware datetime'
        )


import_late_types(__name__)
