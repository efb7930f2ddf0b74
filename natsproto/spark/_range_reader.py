"""Reading a range of a stream: every message between two sequences, once, in order, and no others.

Chooses the read method, ends pulls with the range, and checks that no message was removed meanwhile. The messages
follow from the range and the subjects alone. A message that was removed after the range was planned is an error.
"""

from __future__ import annotations

import logging
from bisect import bisect_left, bisect_right
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from datetime import datetime
from functools import partial
from itertools import compress
from operator import attrgetter
from typing import Literal, TypeAlias, TypeVar, cast

from natsproto import errors
from natsproto._value import Value
from natsproto.jetstream import (
    AckPolicy,
    DeliverPolicy,
    JetStream,
    JsMessage,
    OrderedConsumer,
    RawMessage,
    RetentionPolicy,
    Stream,
)
from natsproto.jetstream._values.codec import UINT64
from natsproto.protocol.subject import matches
from natsproto.spark._outages import DEFAULT_OUTAGE_TIMEOUT_S, OutageWait, outlast
from natsproto.spark._ranges import DataLossCheck, PullSize, SeqRange, StreamBounds
from natsproto.spark._schema import utf8

log = logging.getLogger("natsproto")

M = TypeVar("M")
R = TypeVar("R")
Method: TypeAlias = Literal["auto", "consumer", "direct"]
Bound: TypeAlias = Literal["earliest", "latest"] | int | datetime
MessageList: TypeAlias = list[JsMessage] | list[RawMessage]
"""Consecutive messages, as a consumer delivered them or as they were read by sequence."""
INACTIVE_THRESHOLD_S = 30.0
"""Seconds after which the server removes the consumer of a killed process."""
SMALL_RANGE, TINY_RANGE = 1000, 16
"""Sequences that "auto" reads without a consumer, which every server of a cluster would get to know; the latter one by
one if the stream does not allow direct get."""
MAX_FILTERED_SUBJECTS, MAX_DIRECT_FILTERS = 100, 16
"""The most subjects of a stream for which a consumer is the cheaper way to filter several, and the most filters for
which direct get is. For each message of several filters with wildcards the consumer's server looks at all subjects:
0.16 ms for a row of 1,000 subjects, 0.8 ms for one of 20,000. Direct gets take 0.01 to 0.03 ms, but 3 ms for each
filter and range.
"""
REPLACED = "\ufffd"
"""Stands in a row for bytes that are not UTF-8."""
_SEQ = attrgetter("seq")
_DATA = attrgetter("data")


# ---------------------------------------------------------------- sequences


async def sequence_of(source: Stream, bound: Bound, now: StreamBounds) -> int:
    """The first sequence at or after a bound; "latest" is after the last message."""
    if isinstance(bound, int):
        return bound
    if bound == "earliest":
        return now.first_seq
    if isinstance(bound, datetime):
        try:
            return (await source.get_next_message(start_time=bound)).seq
        except errors.MessageNotFound:
            pass
    return now.last_seq + 1


async def plan_range(js: JetStream, name: str, start: Bound, end: Bound, subjects: Sequence[str]) -> SeqRange | None:
    """The messages of a stream between two bounds, from the first to the last that matches; None if there is none."""
    subjects = filters_of(subjects)
    source = await js.stream(name)
    now = StreamBounds.of(source.cached_info)
    first = await sequence_of(source, start, now)
    last = await sequence_of(source, end, now) if isinstance(end, int) else await sequence_of(source, end, now) - 1
    last = min(last, now.last_seq)
    if subjects and first <= last:
        first, last = await _matching_bounds(source, subjects, first, last)
    if first > last:
        return None
    return SeqRange(stream=name, start=first, end=last, created=now.created, earliest=starts_at_first_message(start))


def starts_at_first_message(start: Bound) -> bool:
    """True if reading from ``start`` begins with the first message that the stream still has."""
    return start == "earliest" or isinstance(start, datetime)


async def _matching_bounds(source: Stream, subjects: Sequence[str], first: int, last: int) -> tuple[int, int]:
    firsts, lasts = [last + 1], [0]
    for subject in subjects:
        try:
            firsts.append((await source.get_next_message(subject, start_seq=first)).seq)
            lasts.append((await source.get_last_message(subject)).seq)
        except errors.MessageNotFound:
            pass
    return min(firsts), min(last, max(lasts))


MAX_COUNTS = 6
"""Requests to find a window that holds a number of messages."""


class Window(Value):
    """Sequences up to ``end``; ``left`` is the number of matching messages after it."""

    end: int
    left: int


async def matching_window(
    js: JetStream, name: str, subjects: Sequence[str], first: int, last: int, most: int, reads_directly: bool
) -> Window | None:
    """A window from ``first`` on, up to ``last``, in which ``most`` messages match, or somewhat fewer. None if the
    account can neither use direct get nor a consumer.
    """
    source = await js.stream(name, bind=True)
    source.reads_directly = reads_directly
    wanted = without_covered(filters_of(subjects))
    try:
        total = await _count_matching(source, wanted, first)
        if total <= most:
            return Window(end=last, left=0)
        low, low_count = min(last, first + most - 1), -1  # so many sequences hold no more messages
        high, high_count = last, total
        for _ in range(MAX_COUNTS):
            share = (most - max(low_count, 0)) / max(1, high_count - max(low_count, 0))
            guess = low + max(1, int((high - low) * share))
            if guess >= high:
                break
            count = total - await _count_matching(source, wanted, guess + 1)
            if count > most:
                high, high_count = guess, count
            else:
                low, low_count = guess, count
                if 2 * count >= most:
                    break
        left = await _count_matching(source, wanted, low + 1) if low_count < 0 else total - low_count
    except (errors.ApiError, errors.NoResponders, errors.PermissionDenied, errors.UnsupportedByServer) as exc:
        log.debug("stream %s: messages cannot be counted: %s", name, exc)
        return None
    return Window(end=low, left=left)


async def _count_matching(source: Stream, subjects: Sequence[str], start: int) -> int:
    """The messages from ``start`` on; by direct get, those that two patterns match count twice."""
    if not source.reads_directly:
        consumer = await source.create_consumer(
            deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
            opt_start_seq=start,
            filter_subjects=subjects,
            ack_policy=AckPolicy.NONE,
            inactive_threshold=1.0,
            mem_storage=True,
            num_replicas=1,
        )
        await source.delete_consumer(consumer.name)
        return consumer.cached_info.num_pending
    total = 0
    for subject in subjects:
        async with aclosing(source.get_batch(subject=subject, start_seq=start, batch=1).batches()) as pages:
            async for page in pages:
                total += page[-1].num_pending + 1
    return total


# ---------------------------------------------------------------- reading


class RangeReader:
    """Reads one range, on the loop."""

    def __init__(
        self,
        js: JetStream,
        seq_range: SeqRange,
        *,
        subjects: Sequence[str] = (),
        method: Method = "auto",
        batch_rows: int = 8192,
        max_bytes: int = 8 << 20,
        fail_on_data_loss: bool = True,
        outage_timeout: float = DEFAULT_OUTAGE_TIMEOUT_S,
    ) -> None:
        self._js, self._range, self._method = js, seq_range, method
        self._subjects, self._shown = (
            without_covered(filters_of(subjects)),
            subjects if REPLACED in "".join(subjects) else (),
        )
        self._rows, self._max_bytes, self._outage_timeout = batch_rows, max_bytes, outage_timeout
        self._loss = DataLossCheck(seq_range, fail_on_data_loss)
        self._pace = PullSize(seq_range, batch_rows)
        self._stream: Stream | None = None

    async def message_lists(self) -> AsyncGenerator[MessageList]:
        """Yields the messages of the range, some at a time. RequestTimeout when nothing comes for ``outage_timeout``
        seconds.
        """
        self._stream = source = await self._outlast(partial(self._js.stream, self._range.stream))
        if not self._loss.begin(source.cached_info):
            return
        if self._loss.first_seq_moves:
            self._pace.use_largest()
        ways = self._ways(source)
        for way in ways:
            async with aclosing(way(source)) as lists:
                try:
                    first = await anext(lists, None)
                except (errors.ApiError, errors.PermissionDenied, errors.PullRefused) as exc:
                    if way is ways[-1] or isinstance(exc, (errors.ConsumerGone, errors.StreamNotFound)):
                        raise
                    log.warning("stream %s is read in another way: %s", self._range.stream, exc)
                    continue
                if first is not None:
                    if found := self._matching(first):
                        yield found
                    async for messages in lists:
                        if found := self._matching(messages):
                            yield found
                return

    def _matching(self, messages: MessageList) -> MessageList:
        """Those that match the subjects as the rows show them. The server compares bytes."""
        if not self._shown:
            return messages
        shown = [any(matches(one, utf8(message.subject)) for one in self._shown) for message in messages]
        return cast("MessageList", list(compress(messages, shown)))

    def _ways(self, source: Stream) -> list[Callable[[Stream], AsyncGenerator[MessageList]]]:
        """How to read, in the order in which it is tried."""
        if self._method == "consumer":
            return [self._read_consumer]
        if self._method == "direct" or source.cached_info.config.retention == RetentionPolicy.WORK_QUEUE:
            return [self._read_direct]
        if self._is_direct_cheaper(source):
            return [self._read_direct, self._read_consumer]
        return [self._read_consumer, self._read_direct]

    def _is_direct_cheaper(self, source: Stream) -> bool:
        subjects, count = self._subjects, self._range.end - self._range.start + 1
        if not source.reads_directly:
            return count <= TINY_RANGE and len(subjects) < 2
        few = len(subjects) <= MAX_DIRECT_FILTERS
        if count <= SMALL_RANGE and few:
            return True
        wide = len(subjects) > 1 and source.cached_info.state.num_subjects > MAX_FILTERED_SUBJECTS
        return wide and (few or any("*" in one or ">" in one for one in subjects))

    # ---------------------------------------------------------------- through a consumer

    async def _read_consumer(self, source: Stream) -> AsyncGenerator[MessageList]:
        allowed = source.cached_info.config.consumer_limits.inactive_threshold or INACTIVE_THRESHOLD_S
        consumer = source.ordered_consumer(
            start_seq=self._range.start,
            filter_subjects=self._subjects,
            inactive_threshold=min(INACTIVE_THRESHOLD_S, allowed),
        )
        async with consumer, aclosing(self._message_lists(self._pull_pages(consumer), _position)) as lists:
            async for messages in lists:
                yield messages

    async def _pull_pages(self, consumer: OrderedConsumer) -> AsyncGenerator[list[JsMessage]]:
        """The messages of each pull, until the end of the range or the stream."""
        room = max(
            self._max_bytes, self._js.connection.max_payload + 8192
        )  # a smaller max_bytes could not hold one message
        while came := await self._pull(consumer, room):
            last = came[-1].metadata
            yield came
            if last.stream_seq >= self._range.end or last.num_pending == 0:
                return

    async def _pull(self, consumer: OrderedConsumer, room: int) -> list[JsMessage]:
        """The next messages; none if there are no more."""
        size, wait = self._pace.next(), self._outage_wait()
        while True:
            error = None
            try:
                if came := await consumer.fetch(size, max_bytes=room, no_wait=True):
                    return came
                if (await consumer.info()).num_pending == 0:
                    return []
            except errors.NatsError as exc:
                error = exc
            await wait.pause(error)

    def _outage_wait(self) -> OutageWait:
        return OutageWait(f"messages of stream {self._range.stream!r}", self._outage_timeout)

    async def _outlast(self, request: Callable[[], Awaitable[R]]) -> R:
        return await outlast(f"stream {self._range.stream!r}", self._outage_timeout, request)

    # ---------------------------------------------------------------- by sequence

    async def _read_direct(self, source: Stream) -> AsyncGenerator[MessageList]:
        if len(self._subjects) < 2:
            pages = self._direct_pages(source, "".join(self._subjects), self._pace.next)
        else:
            pages = _merged([self._paced_pages(source, subject) for subject in self._subjects])
        async with aclosing(self._message_lists(pages, _SEQ)) as lists:
            async for messages in lists:
                yield messages

    async def _direct_pages(
        self, source: Stream, subject: str, size: Callable[[], int]
    ) -> AsyncGenerator[list[RawMessage]]:
        """Messages from any server that has the stream. One that lags behind the leader is asked again."""
        start, wait = self._range.start, self._outage_wait()
        while start <= self._range.end:
            asked, count, error = size(), 0, None
            pages = source.get_batch(subject=subject, start_seq=start, batch=asked).batches()
            try:
                async with aclosing(pages):
                    async for came in pages:
                        count += len(came)
                        start = came[-1].seq + 1
                        wait.reset()
                        yield came
                if count < asked and start <= self._range.end and not await self._has_more(source, subject, start):
                    return
            except errors.NatsError as exc:
                error = exc
            if error is not None or not count:
                await wait.pause(error)

    async def _paced_pages(self, source: Stream, subject: str) -> AsyncGenerator[list[RawMessage]]:
        """The messages of one of several subjects."""
        pace = PullSize(self._range, self._rows)
        async with aclosing(self._direct_pages(source, subject, pace.next)) as pages:
            async for came in pages:
                pace.on_messages(len(came), came[-1].seq)
                yield came

    async def _has_more(self, source: Stream, subject: str, start: int) -> bool:
        """True if the leader has another message in the range. PermissionDenied if it may not be asked, unless no other
        server has a copy of the stream.
        """
        try:
            found = await source.get_next_message(subject or ">", start_seq=start, direct=False)
            return found.seq <= self._range.end
        except errors.MessageNotFound:
            return False
        except errors.PermissionDenied as denied:
            filters = [subject] if subject else []
            try:
                async with source.ordered_consumer(start_seq=start, filter_subjects=filters) as consumer:
                    came = await consumer.fetch(1, no_wait=True)
                    return any(message.seq <= self._range.end for message in came)
            except (errors.ApiError, errors.PermissionDenied):
                if source.cached_info.config.num_replicas == 1:
                    return False
                raise denied from None

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
            first = self._loss.compare(await self._outlast(self._stream.info))
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


def _position(message: JsMessage) -> int:
    return message.seq


def filters_of(subjects: Sequence[str]) -> tuple[str, ...]:
    """The filters that a server can apply. In rows a replacement character stands for bytes that are not UTF-8, which
    no filter can name: a token with one may be any.
    """
    return tuple(".".join("*" if REPLACED in token else token for token in one.split(".")) for one in subjects)


def without_covered(subjects: Sequence[str]) -> tuple[str, ...]:
    """The subjects without those that others include: the server refuses such filters of a consumer."""
    kept = tuple(dict.fromkeys(subjects))
    return tuple(one for one in kept if not any(other != one and _covers(other, one) for other in kept))


def _covers(pattern: str, other: str) -> bool:
    """True if every subject that ``other`` matches is one of ``pattern``."""
    return matches(pattern, other) and (pattern.endswith(">") or not other.endswith(">"))
