"""Reading a range of a stream: every message between two sequences, once, in order, and no others.

Chooses the read method, ends pulls with the range, and checks that no message was removed meanwhile. The rows follow
from the range and the subjects alone. A message that was removed after the range was planned is an error.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_left, bisect_right
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Sequence
from contextlib import aclosing, closing
from datetime import datetime
from operator import attrgetter
from typing import TYPE_CHECKING, Literal, TypeAlias, TypeVar, overload

from natsproto._client import Client
from natsproto._introspection import import_late_types
from natsproto.errors import (
    ApiError,
    ConfigError,
    ConnectFailed,
    ConnectionLost,
    ConsumerGone,
    ConsumerNotFound,
    HeartbeatMissed,
    JetStreamNotEnabled,
    LimitReached,
    MessageNotFound,
    NatsError,
    NoResponders,
    PermissionDenied,
    PullRefused,
    RequestTimeout,
    StreamNotFound,
    TooManyRequests,
)
from natsproto.jetstream._asset_names import check_stream_name
from natsproto.jetstream._codec import UINT64
from natsproto.jetstream._consumer.ordered import OrderedConsumer
from natsproto.jetstream._direct import RawMessage
from natsproto.jetstream._message import JsMessage
from natsproto.jetstream._policies import RetentionPolicy
from natsproto.jetstream._retry_request import growing_pauses
from natsproto.jetstream._stream import Stream
from natsproto.protocol.subject import matches, subscribe_subject
from natsproto.spark._client import is_retry, iterate_on_loop, run_on_loop
from natsproto.spark._offsets import DataLossCheck, PullSize, SeqRange, StreamBounds, split_range
from natsproto.spark._options import Bound, Method, SparkNats
from natsproto.spark._schema import Row, delivered_rows, stored_rows

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger("natsproto.spark")

M = TypeVar("M")
INACTIVE_THRESHOLD_S = 30.0
"""Seconds after which the server removes the consumer of a killed worker."""
NO_REPLY_TIMEOUT_S = 60.0
"""Seconds without any reply after which reading ends with RequestTimeout."""
RETRY_WAIT_S, RETRY_WAIT_GROWTH = 0.05, 0.1
"""Seconds between attempts to pull, and the part of the elapsed time that is added."""
_SEQ = attrgetter("seq")
_DATA = attrgetter("data")


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
    between them. A sequence is taken literally: messages that are gone are DataLost when the range is read. From
    "earliest" or a time, messages removed before a range is first read are not (``SeqRange.earliest``).

    ConfigError for wrong arguments; StreamNotFound and the errors of every call of the JetStream API.
    """
    check_stream_name(stream)
    wanted = _subjects(subjects)
    _check_bound("start", start)
    _check_bound("end", end)
    if num_partitions is not None and (type(num_partitions) is not int or num_partitions < 1):
        raise ConfigError("num_partitions", num_partitions, "must be a positive number")
    return run_on_loop(config, _plan, stream, start, end, wanted, num_partitions or 0)


async def _plan(
    client: Client, name: str, start: Bound, end: Bound, subjects: tuple[str, ...], partitions: int
) -> list[SeqRange]:
    source = await client.jetstream().stream(name)
    now = StreamBounds.of(source.cached_info)
    first = await sequence_of(source, start, now)
    last = await sequence_of(source, end, now) if isinstance(end, int) else await sequence_of(source, end, now) - 1
    last = min(last, now.last_seq)
    if subjects and first <= last:
        first, last = await _matching_bounds(source, subjects, first, last)
    return [
        SeqRange(stream=name, start=begin, end=stop, created=now.created, earliest=starts_at_first_message(start))
        for begin, stop in split_range(first, last, partitions)
    ]


def starts_at_first_message(start: Bound) -> bool:
    """True if reading from ``start`` begins with the first message that the stream still has."""
    return start == "earliest" or isinstance(start, datetime)


async def sequence_of(source: Stream, bound: Bound, now: StreamBounds) -> int:
    """The first sequence at or after a bound; "latest" is after the last message."""
    if isinstance(bound, int):
        return bound
    if bound == "earliest":
        return now.first_seq
    if isinstance(bound, datetime):
        try:
            return (await source.get_next_message(start_time=bound)).seq
        except MessageNotFound:
            pass
    return now.last_seq + 1


async def _matching_bounds(source: Stream, subjects: tuple[str, ...], first: int, last: int) -> tuple[int, int]:
    firsts, lasts = [last + 1], [0]
    for subject in subjects:
        try:
            firsts.append((await source.get_next_message(subject, start_seq=first)).seq)
            lasts.append((await source.get_last_message(subject)).seq)
        except MessageNotFound:
            pass
    return min(firsts), min(last, max(lasts))


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
    replica (ADR-31), which is slower but needs no consumer and leaves a work queue alone. "auto" takes the consumer
    except on work queues; if the server refuses the consumer, it logs the reason and gets batches.

    If messages were removed after planning (by a limit or a purge), or the stream was recreated, DataLost is raised;
    with ``fail_on_data_loss=False`` a warning is logged and the rest is read. An ``earliest`` range allows removals
    until its first message is read, except in a retried task. A message replaced by a newer one of its subject, as in a
    bucket, is not data loss. ConfigError for wrong arguments, at once. While reading StreamNotFound, PermissionDenied,
    the ApiError of a consumer that the server refuses, and RequestTimeout when there is no server for a minute.
    """
    if not isinstance(seq_range, SeqRange):
        raise TypeError(f"seq_range must be a SeqRange, not {type(seq_range).__name__}")
    if output not in ("tuples", "arrow"):
        raise ConfigError("output", output, 'must be "tuples" or "arrow"')
    wanted = check_reading(subjects, method, batch_rows, max_bytes)
    if seq_range.earliest and is_retry():  # the first attempt may have written what it read
        seq_range = seq_range.replace(earliest=False)

    def message_lists(client: Client) -> AsyncIterator[MessageList]:
        return RangeReader(client, seq_range, wanted, method, batch_rows, max_bytes, fail_on_data_loss).message_lists()

    found = iterate_on_loop(config, message_lists)
    return _batches(seq_range.stream, found, headers) if output == "arrow" else _rows(seq_range.stream, found, headers)


MessageList: TypeAlias = list[JsMessage] | list[RawMessage]
"""Consecutive messages, as a consumer delivered them or as they were read by sequence."""


class RangeReader:
    """Reads one range with a client, on its loop. ``headers_only`` leaves out payloads."""

    def __init__(
        self,
        client: Client,
        seq_range: SeqRange,
        subjects: tuple[str, ...],
        method: Method,
        batch_rows: int,
        max_bytes: int,
        fail_on_data_loss: bool,
        headers_only: bool = False,
    ) -> None:
        self._headers_only = headers_only
        self._client, self._range, self._subjects, self._method = client, seq_range, subjects, method
        self._rows, self._max_bytes = batch_rows, max_bytes
        self._loss = DataLossCheck(seq_range, fail_on_data_loss)
        self._pace = PullSize(seq_range, batch_rows)
        self._stream: Stream | None = None

    async def message_lists(self) -> AsyncGenerator[MessageList]:
        """Yields the messages of the range, some at a time."""
        self._stream = source = await self._client.jetstream().stream(self._range.stream)
        if self._loss.begin(source.cached_info):
            if self._loss.first_seq_moves:
                self._pace.use_largest()
            direct = self._method == "direct"
            if self._method == "auto":
                direct = source.cached_info.config.retention == RetentionPolicy.WORK_QUEUE
            async with aclosing(self._read_direct(source) if direct else self._read_consumer(source)) as lists:
                async for messages in lists:
                    yield messages

    # ---------------------------------------------------------------- through a consumer

    async def _read_consumer(self, source: Stream) -> AsyncGenerator[MessageList]:
        allowed = source.cached_info.config.consumer_limits.inactive_threshold or INACTIVE_THRESHOLD_S
        consumer = source.ordered_consumer(
            start_seq=self._range.start,
            filter_subjects=without_covered(self._subjects),
            headers_only=self._headers_only,
            inactive_threshold=min(INACTIVE_THRESHOLD_S, allowed),
        )
        async with consumer:
            pages = self._pull_pages(consumer)
            try:
                first = await anext(pages, None)
            except (ApiError, PermissionDenied, PullRefused) as exc:
                if self._method == "consumer" or isinstance(exc, (ConsumerGone, StreamNotFound)):
                    raise
                log.warning("stream %s is read by direct get, as no consumer can be used: %s", self._range.stream, exc)
            else:
                async for messages in self._message_lists(_chained(first, pages), _position):
                    yield messages
                return
        async for stored in self._read_direct(source):
            yield stored

    async def _pull_pages(self, consumer: OrderedConsumer) -> AsyncGenerator[list[JsMessage]]:
        """The messages of each pull, until the end of the range or the stream."""
        room = max(self._max_bytes, self._client.max_payload + 8192)  # a smaller max_bytes could not hold one message
        while came := await self._pull(consumer, room):
            last = came[-1].metadata
            yield came
            if last.stream_seq >= self._range.end or last.num_pending == 0:
                return

    async def _pull(self, consumer: OrderedConsumer, room: int) -> list[JsMessage]:
        """The next messages; none if there are no more. RequestTimeout after a minute without any reply."""
        loop = asyncio.get_running_loop()
        size, give_up = self._pace.next(), loop.time() + NO_REPLY_TIMEOUT_S
        pauses = growing_pauses(RETRY_WAIT_S, RETRY_WAIT_GROWTH)
        while True:
            try:
                if came := await consumer.fetch(size, max_bytes=room, no_wait=True):
                    return came
                if (await consumer.info()).num_pending == 0:
                    return []
            except NatsError as exc:
                if not may_pass(exc):
                    raise
                if loop.time() >= give_up:
                    what = f"messages of stream {self._range.stream!r} (last error: {exc})"
                    raise RequestTimeout(what, NO_REPLY_TIMEOUT_S) from exc
                await asyncio.sleep(next(pauses))

    # ---------------------------------------------------------------- by sequence

    async def _read_direct(self, source: Stream) -> AsyncGenerator[MessageList]:
        pages = self._direct_pages(source) if len(self._subjects) < 2 else self._direct_pages_by_subject(source)
        async for messages in self._message_lists(pages, _SEQ):
            yield messages

    async def _direct_pages(self, source: Stream) -> AsyncGenerator[list[RawMessage]]:
        subject, start = "".join(self._subjects), self._range.start
        while start <= self._range.end:
            asked = self._pace.next()
            count = 0
            pages = source.get_batch(subject=subject, start_seq=start, batch=asked).batches()
            async with aclosing(pages):
                async for came in pages:
                    count += len(came)
                    start = came[-1].seq + 1
                    yield came
            if count < asked:
                return

    async def _direct_pages_by_subject(self, source: Stream) -> AsyncGenerator[list[RawMessage]]:
        start, end = self._range.start, self._range.end
        pages = [
            source.get_batch(subject=subject, start_seq=start, batch=end - start + 1).batches()
            for subject in self._subjects
        ]
        async with aclosing(_merged(pages)) as found:
            async for came in found:
                yield came

    # ---------------------------------------------------------------- either way

    async def _message_lists(
        self, pages: AsyncGenerator[list[M]], position: Callable[[M], int]
    ) -> AsyncGenerator[list[M]]:
        """The messages of the range, in lists that are not too big; the first are as small as the pulls are."""
        end = self._range.end
        kept: list[M] = []
        nbytes = 0
        async with aclosing(pages):
            async for came in pages:
                rows = self._pace.step or self._rows
                self._pace.on_messages(len(came), position(came[-1]))
                over = position(came[-1]) >= end
                if position(came[-1]) > end:
                    del came[bisect_right(came, end, key=position) :]
                kept += came
                nbytes += sum(map(len, map(_DATA, came)))
                while len(kept) >= rows or nbytes >= self._max_bytes:
                    messages, kept = kept[:rows], kept[rows:]
                    nbytes = sum(map(len, map(_DATA, kept)))
                    if messages := await self._checked(messages, position(messages[-1]), position):
                        yield messages
                if over:
                    break
        if kept := await self._checked(kept, end, position):
            yield kept

    async def _checked(self, messages: list[M], up_to: int, position: Callable[[M], int]) -> list[M]:
        """Checks that ``messages`` are complete up to ``up_to``. DataLost if some were removed before they were read.

        At the start of an ``earliest`` range, returns only messages after those that may be missing.
        """
        if not self._loss.is_complete(up_to, len(messages), position(messages[0]) if messages else up_to + 1):
            assert self._stream is not None
            first = self._loss.compare(await self._stream.info())
            messages = messages[bisect_left(messages, first, key=position) :]
        self._loss.advance(up_to, bool(messages))
        return messages


async def _merged(sources: list[AsyncGenerator[list[RawMessage]]]) -> AsyncGenerator[list[RawMessage]]:
    """Merges sources by sequence, each message once."""
    buffers: list[list[RawMessage]] = [[] for _ in sources]
    live = set(range(len(sources)))
    try:
        while True:
            for index in list(live):
                if not buffers[index]:
                    try:
                        buffers[index] = await anext(sources[index])
                    except StopAsyncIteration:
                        live.discard(index)
            if not any(buffers):
                return
            bound = min((buffers[index][-1].seq for index in live), default=UINT64)
            ready = {message.seq: message for buffer in buffers for message in buffer if message.seq <= bound}
            buffers = [[message for message in buffer if message.seq > bound] for buffer in buffers]
            yield [ready[seq] for seq in sorted(ready)]
    finally:
        for source in sources:
            await source.aclose()


def may_pass(error: NatsError) -> bool:
    """True if the same request may succeed later: a server, a leader or the consumer is gone, or one is overloaded."""
    if isinstance(error, ApiError):
        is_refusal = error.code < 500 or isinstance(error, (JetStreamNotEnabled, LimitReached))
        return not is_refusal or isinstance(error, (ConsumerNotFound, TooManyRequests))
    return isinstance(
        error, (ConnectFailed, ConnectionLost, ConsumerGone, HeartbeatMissed, NoResponders, RequestTimeout)
    )


def _position(message: JsMessage) -> int:
    return message.seq


async def _chained(first: list[M] | None, rest: AsyncGenerator[list[M]]) -> AsyncGenerator[list[M]]:
    async with aclosing(rest):
        if first is not None:
            yield first
            async for page in rest:
                yield page


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
        raise ConfigError("method", method, 'must be "auto", "consumer" or "direct"')
    for name, value in (("batch_rows", batch_rows), ("max_bytes", max_bytes)):
        if type(value) is not int or value < 1:
            raise ConfigError(name, value, "must be a positive number")
    return _subjects(subjects)


def _subjects(subjects: Sequence[str]) -> tuple[str, ...]:
    if isinstance(subjects, str):
        raise TypeError("subjects must be a list of subjects, not one str")
    wanted = tuple(subjects)
    for subject in wanted:
        subscribe_subject(subject)
    return wanted


def without_covered(subjects: Sequence[str]) -> tuple[str, ...]:
    """The subjects without those that others include: the server refuses such filters of a consumer."""
    kept = tuple(dict.fromkeys(subjects))
    return tuple(one for one in kept if not any(other != one and _covers(other, one) for other in kept))


def _covers(pattern: str, other: str) -> bool:
    """True if every subject that ``other`` matches is one of ``pattern``."""
    return matches(pattern, other) and (pattern.endswith(">") or not other.endswith(">"))


def _check_bound(name: str, bound: Bound) -> None:
    if isinstance(bound, datetime):
        if bound.utcoffset() is None:
            raise ConfigError(name, bound, "a naive datetime names no moment: give it a tzinfo")
    elif bound not in ("earliest", "latest") and (type(bound) is not int or not 1 <= bound <= UINT64):
        raise ConfigError(name, bound, 'must be "earliest", "latest", a sequence from 1 on, or an aware datetime')


import_late_types(__name__)
