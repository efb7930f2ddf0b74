"""The source: Spark's reader interfaces, for batch and streaming queries, and filter pushdown.

Plans what is read. A batch query is planned once; a streaming query keeps its offsets in Spark's checkpoint.
``_reader`` reads the rows.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from time import monotonic
from typing import TYPE_CHECKING, Any

from pyspark.sql import datasource as spark
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition

from natsproto._client import Client
from natsproto._value import Value
from natsproto.errors import DataLost, InvalidSubject
from natsproto.protocol.subject import matches, publish_subject
from natsproto.spark._client import call
from natsproto.spark._offsets import Offset, SeqRange, StreamBounds, advance, batch_range, lost_range, split_range
from natsproto.spark._options import SourceOptions
from natsproto.spark._reader import plan_ranges, read_range, starts_at_front

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import Filter  # Spark 4.1

log = logging.getLogger("natsproto.spark")


class RangePartition(InputPartition):
    """The part of a batch that one task reads."""

    def __init__(self, rng: SeqRange) -> None:
        super().__init__(rng)

    def __repr__(self) -> str:
        return f"RangePartition({self.value!r})"


def read_partition(
    settings: SourceOptions, partition: InputPartition, subjects: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """The rows of a partition; none for the empty one that Spark adds if there is nothing to read."""
    if partition.value is None:
        return iter(())
    return read_range(
        settings.nats,
        partition.value,
        subjects=subjects,
        method=settings.method,
        batch_rows=settings.batch_rows,
        output="arrow",
        headers=settings.headers,
        fail_on_data_loss=settings.fail_on_data_loss,
    )


# ---------------------------------------------------------------- batch


class BatchReader(DataSourceReader):
    """Reads the messages that a stream has when the query is planned, within the bounds of the options."""

    def __init__(self, settings: SourceOptions) -> None:
        self._settings = settings
        self._pushdown = FilterPushdown()

    def partitions(self) -> list[InputPartition]:
        """Runs on the driver, once."""
        settings, narrowing = self._settings, self._pushdown
        if narrowing.empty:
            return []
        ranges = self._plan(start=settings.start, end=settings.end)
        if narrowing.since is not None or narrowing.until is not None:
            times = self._plan(start=narrowing.since or "earliest", end=narrowing.until or "latest")
            ranges = _intersect(ranges, times[0].start, times[-1].end) if times else []
        last = narrowing.last if narrowing.last is not None else 2**63
        return [RangePartition(rng) for rng in _intersect(ranges, narrowing.first, last)]

    def _plan(self, **places: Any) -> list[SeqRange]:
        settings = self._settings
        partitions = settings.partitions or None
        return plan_ranges(settings.nats, settings.stream, subjects=self._subjects, num_partitions=partitions, **places)

    @property
    def _subjects(self) -> tuple[str, ...]:
        narrowed = self._pushdown.subjects
        return self._settings.subjects if narrowed is None else tuple(sorted(narrowed))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Runs in a task."""
        return read_partition(self._settings, partition, self._subjects)


class PushdownReader(BatchReader):
    """A batch reader with filter pushdown. Spark 4.1 refuses every reader that has this method, unless
    ``spark.sql.python.filterPushdown.enabled`` is true, so it is made only when the option asks for it.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Returns the filters that Spark has to apply itself."""
        self._pushdown, rest = push_filters(filters, self._settings)
        return rest


def _intersect(ranges: list[SeqRange], first: int, last: int) -> list[SeqRange]:
    """Limits the ranges to the sequences from ``first`` to ``last``; their number stays."""
    if not ranges:
        return []
    begin, end = max(first, ranges[0].start), min(last, ranges[-1].end)
    if (begin, end) == (ranges[0].start, ranges[-1].end):
        return ranges
    return [ranges[0].but(start=one, end=other) for one, other in split_range(begin, end, len(ranges))]


# ---------------------------------------------------------------- streaming

_HAS_READ_LIMITS = hasattr(DataSourceStreamReader, "getDefaultReadLimit")  # Spark 4.2


if TYPE_CHECKING or _HAS_READ_LIMITS:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow as _AvailableNow
else:

    class _AvailableNow:
        """Spark before 4.2 does not ask."""


class StreamReader(DataSourceStreamReader, _AvailableNow):
    """Reads a stream without end.

    Spark keeps one of these in a process beside the driver and copies of it in the tasks. Only the former uses its
    state, and no row depends on it.
    """

    def __init__(self, settings: SourceOptions) -> None:
        self._settings = settings
        self._initial: Offset | None = None
        self._place: Offset | None = None  # the end of the last batch; Spark 4.0 and 4.1 do not give it
        self._target: int | None = None
        self._waiting_since: float | None = None  # when a batch began to wait for minOffsetsPerTrigger
        self._planned: dict[str, Any] | None = None  # the end of a batch that was never tried before
        if not _HAS_READ_LIMITS and (settings.max_sequences or settings.max_bytes):
            log.warning("maxOffsetsPerTrigger and maxBytesPerTrigger need Spark 4.2: a batch takes all there is")

    def initialOffset(self) -> dict[str, Any]:
        """The start of the query. Spark asks more than once, and again after a restart; see ``_offsets``."""
        if self._initial is None:
            self._initial = self._start_offset()
            self._place = self._place or self._initial
        return self._initial.json()

    def latestOffset(self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None) -> dict[str, Any]:
        """The end of the next batch. DataLost if the next messages are gone, unless that is allowed."""
        now = self._stream_bounds_now()
        if start is not None:
            place = Offset.read(self._settings.stream, start)
        else:
            place = self._place or Offset(
                stream=self._settings.stream,
                seq=now.last_seq + 1,
                created=now.created,
                partitions=self._settings.partitions,
            )
        from_front = place.initial and starts_at_front(self._settings.start)
        self._check(place, now, from_front)
        end = advance(place, now, max_count=self._max_sequences(now, limit), until=self._target, from_front=from_front)
        if self._waits_for_more(place, end):
            return place.json()
        self._planned = end.json() if from_front else None
        return end.json()

    def getDefaultReadLimit(self) -> ReadLimit:
        """The limit of a batch."""
        if self._settings.max_sequences is not None:
            return ReadMaxRows(self._settings.max_sequences)
        if self._settings.max_bytes is not None:
            return ReadMaxBytes(self._settings.max_bytes)
        return ReadAllAvailable()

    def reportLatestOffset(self) -> dict[str, Any]:
        """The end of the stream, for the query's progress."""
        now = self._stream_bounds_now()
        return Offset(stream=self._settings.stream, seq=now.last_seq + 1, created=now.created).json()

    def prepareForTriggerAvailableNow(self) -> None:
        """Limits the query to the messages that the stream has now."""
        self._target = self._stream_bounds_now().last_seq

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The partitions of a batch. They follow from its offsets alone, as Spark may plan it again later."""
        settings = self._settings
        begin, stop = Offset.read(settings.stream, start), Offset.read(settings.stream, end)
        self._place = stop
        found = batch_range(begin, stop)
        if found.recreated:
            self._lost(DataLost(settings.stream, begin.seq, begin.seq, f"it was created anew at {stop.created}"))
        fresh = end == self._planned
        return [
            RangePartition(
                SeqRange(stream=settings.stream, start=first, end=last, created=stop.created, earliest=fresh)
            )
            for first, last in split_range(found.first, found.last, stop.partitions)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Runs in a task."""
        return read_partition(self._settings, partition, self._settings.subjects)

    def _waits_for_more(self, place: Offset, end: Offset) -> bool:
        """True while a batch waits for minOffsetsPerTrigger."""
        fewest = self._settings.min_sequences
        if fewest is None or self._target is not None or not 0 < end.seq - place.seq < fewest:
            self._waiting_since = None
            return False
        now = monotonic()
        self._waiting_since = now if self._waiting_since is None else self._waiting_since
        if now - self._waiting_since < self._settings.max_trigger_delay:
            return True
        self._waiting_since = None
        return False

    def _start_offset(self) -> Offset:
        """The start of the query by the options."""
        settings = self._settings
        now = self._stream_bounds_now()
        if isinstance(settings.start, int):
            seq = settings.start
        else:
            ranges = plan_ranges(settings.nats, settings.stream, start=settings.start, num_partitions=1)
            seq = ranges[0].start if ranges else now.last_seq + 1
        return Offset(stream=settings.stream, seq=seq, created=now.created, base=seq, partitions=settings.partitions)

    def _check(self, place: Offset, now: StreamBounds, from_front: bool) -> None:
        """DataLost if the next messages are gone, or a line in the log."""
        stream = self._settings.stream
        if place.created != now.created:
            self._lost(DataLost(stream, place.seq, place.seq, f"it was created anew at {now.created}"))
        elif not from_front and (gone := lost_range(place, now)) is not None:
            self._lost(DataLost(stream, *gone, f"the stream begins at {now.first_seq} now"))

    def _lost(self, error: DataLost) -> None:
        if self._settings.fail_on_data_loss:
            raise error
        log.warning("%s", error)

    def _stream_bounds_now(self) -> StreamBounds:
        return call(self._settings.nats, _stream_bounds, self._settings.stream)

    def _max_sequences(self, now: StreamBounds, limit: ReadLimit | None) -> int | None:
        if limit is None or isinstance(limit, ReadAllAvailable):
            return None
        limits = [] if self._settings.max_sequences is None else [self._settings.max_sequences]
        if self._settings.max_bytes is not None:
            limits.append(now.sequences_in(self._settings.max_bytes))
        return min(limits, default=None)


async def _stream_bounds(client: Client, stream: str) -> StreamBounds:
    return StreamBounds.of((await client.jetstream().stream(stream)).cached_info)


_NEVER_NULL = ("stream", "subject", "seq", "timestamp", "data", "size")


class FilterPushdown(Value):
    """The messages left by the filters: ``subjects`` (None: all), sequences and times, all inclusive."""

    subjects: frozenset[str] | None = None
    first: int = 1
    last: int | None = None
    since: datetime | None = None
    until: datetime | None = None

    @property
    def empty(self) -> bool:
        """True if no message can match."""
        return self.subjects == frozenset() or (self.last is not None and self.last < self.first)


def push_filters(filters: Iterable[Filter], settings: SourceOptions) -> tuple[FilterPushdown, list[Filter]]:
    """Combines the filters (all of which hold); also returns those that Spark has to apply itself."""
    found = FilterPushdown()
    rest = []
    for one in filters:
        narrowed, exact = _apply(found, one, settings)
        found = narrowed
        if not exact:
            rest.append(one)
    return found, rest


def _apply(found: FilterPushdown, one: Filter, settings: SourceOptions) -> tuple[FilterPushdown, bool]:
    """Adds one filter; True if it is covered exactly."""
    match one:
        case spark.IsNotNull(attribute=(name,)) if name in _NEVER_NULL:
            return found, True
        case spark.EqualTo(attribute=("subject",), value=str() as subject):
            return _subjects(found, [subject], settings)
        case spark.In(attribute=("subject",), value=values) if all(isinstance(value, str) for value in values):
            return _subjects(found, values, settings)
        case spark.EqualTo(attribute=("seq",), value=int() as seq):
            return _sequences(found, seq, seq), True
        case spark.GreaterThanOrEqual(attribute=("seq",), value=int() as seq):
            return _sequences(found, seq, None), True
        case spark.GreaterThan(attribute=("seq",), value=int() as seq):
            return _sequences(found, seq + 1, None), True
        case spark.LessThanOrEqual(attribute=("seq",), value=int() as seq):
            return _sequences(found, 1, seq), True
        case spark.LessThan(attribute=("seq",), value=int() as seq):
            return _sequences(found, 1, seq - 1), True
        case spark.GreaterThan(attribute=("timestamp",), value=datetime() as time):
            return _times(found, time, None), False
        case spark.GreaterThanOrEqual(attribute=("timestamp",), value=datetime() as time):
            return _times(found, time, None), False
        case spark.LessThan(attribute=("timestamp",), value=datetime() as time):
            return _times(found, None, time), False
        case spark.LessThanOrEqual(attribute=("timestamp",), value=datetime() as time):
            return _times(found, None, time), False
    return found, False


def _subjects(found: FilterPushdown, subjects: Iterable[str], settings: SourceOptions) -> tuple[FilterPushdown, bool]:
    wanted = frozenset(_readable(subjects, settings.subjects))
    return found.but(subjects=wanted if found.subjects is None else wanted & found.subjects), True


def _readable(subjects: Iterable[str], patterns: tuple[str, ...]) -> Iterator[str]:
    """The valid subjects among those that the options read."""
    for subject in subjects:
        try:
            publish_subject(subject)
        except InvalidSubject:
            continue
        if not patterns or any(matches(pattern, subject) for pattern in patterns):
            yield subject


def _sequences(found: FilterPushdown, first: int, last: int | None) -> FilterPushdown:
    lasts = [bound for bound in (found.last, last) if bound is not None]
    return found.but(first=max(found.first, first), last=min(lasts, default=None))


def _times(found: FilterPushdown, since: datetime | None, until: datetime | None) -> FilterPushdown:
    """Limits the times; only times with a zone count."""
    if since is not None and since.tzinfo is not None:
        return found.but(since=since if found.since is None else max(since, found.since))
    if until is not None and until.tzinfo is not None:
        behind = until + timedelta(microseconds=1)  # the end of a range is exclusive
        return found.but(until=behind if found.until is None else min(behind, found.until))
    return found
