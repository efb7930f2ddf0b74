"""The source: what Spark asks of it to read a stream, in a batch or without end.

Owns the planning of what is read. A batch query is planned once; a streaming query keeps its place in Spark's
checkpoint (``offsets``), and what a batch reads follows from its two offsets alone. The rows are read by ``reading``.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition

from natsproto._client import Client
from natsproto.errors import DataLost
from natsproto.spark._offsets import Horizon, Offset, advance, lost, pieces, span
from natsproto.spark._pushdown import Narrowing, narrow
from natsproto.spark._ranges import SeqRange
from natsproto.spark._reading import begins_at_front, plan_ranges, read_range
from natsproto.spark._settings import SourceSettings
from natsproto.spark._worker import call

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
    settings: SourceSettings, partition: InputPartition, subjects: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """The rows of a partition; none for the one that Spark makes up when there is nothing to read."""
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
    """Reads what a stream holds when the query is planned, between the places that the options name."""

    def __init__(self, settings: SourceSettings) -> None:
        self._settings = settings
        self._narrowing = Narrowing()

    def partitions(self) -> list[InputPartition]:
        """Runs on the driver, once."""
        settings, narrowing = self._settings, self._narrowing
        if narrowing.empty:
            return []
        ranges = self._plan(start=settings.start, end=settings.end)
        if narrowing.since is not None or narrowing.until is not None:
            times = self._plan(start=narrowing.since or "earliest", end=narrowing.until or "latest")
            ranges = _cut(ranges, times[0].start, times[-1].end) if times else []
        last = narrowing.last if narrowing.last is not None else 2**63
        return [RangePartition(rng) for rng in _cut(ranges, narrowing.first, last)]

    def _plan(self, **places: Any) -> list[SeqRange]:
        settings = self._settings
        partitions = settings.partitions or None
        return plan_ranges(settings.nats, settings.stream, subjects=self._subjects, num_partitions=partitions, **places)

    @property
    def _subjects(self) -> tuple[str, ...]:
        narrowed = self._narrowing.subjects
        return self._settings.subjects if narrowed is None else tuple(sorted(narrowed))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Runs in a task."""
        return read_partition(self._settings, partition, self._subjects)


class NarrowingReader(BatchReader):
    """A batch reader that looks at the WHERE of the query. Spark 4.1 refuses every reader that has this method, unless
    ``spark.sql.python.filterPushdown.enabled`` is true, so it is made only when the option asks for it.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Gives back those that Spark has to look at itself."""
        self._narrowing, rest = narrow(filters, self._settings)
        return rest


def _cut(ranges: list[SeqRange], first: int, last: int) -> list[SeqRange]:
    """What the ranges have in common with the sequences from ``first`` to ``last``, in as many pieces."""
    if not ranges:
        return []
    begin, end = max(first, ranges[0].start), min(last, ranges[-1].end)
    if (begin, end) == (ranges[0].start, ranges[-1].end):
        return ranges
    return [ranges[0].but(start=one, end=other) for one, other in pieces(begin, end, len(ranges))]


# ---------------------------------------------------------------- streaming

_OWN_LIMITS = hasattr(DataSourceStreamReader, "getDefaultReadLimit")  # Spark 4.2

if TYPE_CHECKING or _OWN_LIMITS:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow as _AvailableNow
else:

    class _AvailableNow:
        """Spark does it without asking."""


class StreamReader(DataSourceStreamReader, _AvailableNow):
    """Reads a stream without end.

    Spark keeps one of these in a process beside the driver and copies of it in the tasks; what it remembers is of use
    to the former only, and nothing that is read depends on it.
    """

    def __init__(self, settings: SourceSettings) -> None:
        self._settings = settings
        self._initial: Offset | None = None
        self._place: Offset | None = None  # the end of the last batch, for Spark 4.0 and 4.1, which do not say
        self._target: int | None = None
        self._waiting_since: float | None = None  # for as many messages as a batch shall have at least
        self._planned: dict[str, Any] | None = None  # the end of a batch that was never tried before
        if not _OWN_LIMITS and (settings.max_sequences or settings.max_octets):
            log.warning("maxOffsetsPerTrigger and maxBytesPerTrigger need Spark 4.2: a batch takes all there is")

    def initialOffset(self) -> dict[str, Any]:
        """Where the query begins. Spark asks more than once, and again after a restart; see ``offsets``."""
        if self._initial is None:
            self._initial = self._begin()
            self._place = self._place or self._initial
        return self._initial.json()

    def latestOffset(self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None) -> dict[str, Any]:
        """Where the next batch ends. DataLost when what comes next is gone, unless that is allowed."""
        now = self._look()
        if start is not None:
            place = Offset.read(self._settings.stream, start)
        else:
            place = self._place or Offset(
                stream=self._settings.stream,
                seq=now.last_seq + 1,
                created=now.created,
                partitions=self._settings.partitions,
            )
        from_front = place.initial and begins_at_front(self._settings.start)
        self._check(place, now, from_front)
        end = advance(place, now, most=self._most(now, limit), until=self._target, from_front=from_front)
        if self._waits_for_more(place, end):
            return place.json()
        self._planned = end.json() if from_front else None
        return end.json()

    def getDefaultReadLimit(self) -> ReadLimit:
        """How much a batch takes, as Spark words it."""
        if self._settings.max_sequences is not None:
            return ReadMaxRows(self._settings.max_sequences)
        if self._settings.max_octets is not None:
            return ReadMaxBytes(self._settings.max_octets)
        return ReadAllAvailable()

    def reportLatestOffset(self) -> dict[str, Any]:
        """The end of the stream, for the progress of the query."""
        now = self._look()
        return Offset(stream=self._settings.stream, seq=now.last_seq + 1, created=now.created).json()

    def prepareForTriggerAvailableNow(self) -> None:
        """From now on nothing is read beyond what is there."""
        self._target = self._look().last_seq

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """What a batch reads: it follows from its offsets, however often and whenever it is planned."""
        settings = self._settings
        begin, stop = Offset.read(settings.stream, start), Offset.read(settings.stream, end)
        self._place = stop
        found = span(begin, stop)
        if found.recreated:
            self._lost(DataLost(settings.stream, begin.seq, begin.seq, f"it was created anew at {stop.created}"))
        fresh = end == self._planned
        return [
            RangePartition(
                SeqRange(stream=settings.stream, start=first, end=last, created=stop.created, earliest=fresh)
            )
            for first, last in pieces(found.first, found.last, stop.partitions)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Runs in a task."""
        return read_partition(self._settings, partition, self._settings.subjects)

    def _waits_for_more(self, place: Offset, end: Offset) -> bool:
        """Whether there are too few messages for a batch, and not for too long yet."""
        fewest = self._settings.min_sequences
        if fewest is None or self._target is not None or not 0 < end.seq - place.seq < fewest:
            self._waiting_since = None
            return False
        now = monotonic()
        self._waiting_since = now if self._waiting_since is None else self._waiting_since
        if now - self._waiting_since < self._settings.max_delay:
            return True
        self._waiting_since = None
        return False

    def _begin(self) -> Offset:
        """Where the options say that the query begins."""
        settings = self._settings
        now = self._look()
        if isinstance(settings.start, int):
            seq = settings.start
        else:
            ranges = plan_ranges(settings.nats, settings.stream, start=settings.start, num_partitions=1)
            seq = ranges[0].start if ranges else now.last_seq + 1
        return Offset(stream=settings.stream, seq=seq, created=now.created, base=seq, partitions=settings.partitions)

    def _check(self, place: Offset, now: Horizon, from_front: bool) -> None:
        """DataLost when what is to be read next is gone, or a word in the log."""
        stream = self._settings.stream
        if place.created != now.created:
            self._lost(DataLost(stream, place.seq, place.seq, f"it was created anew at {now.created}"))
        elif not from_front and (gone := lost(place, now)) is not None:
            self._lost(DataLost(stream, *gone, f"the stream begins at {now.first_seq} now"))

    def _lost(self, error: DataLost) -> None:
        if self._settings.fail_on_data_loss:
            raise error
        log.warning("%s", error)

    def _look(self) -> Horizon:
        return call(self._settings.nats, _horizon, self._settings.stream)

    def _most(self, now: Horizon, limit: ReadLimit | None) -> int | None:
        if limit is None or isinstance(limit, ReadAllAvailable):
            return None
        most = [] if self._settings.max_sequences is None else [self._settings.max_sequences]
        if self._settings.max_octets is not None:
            most.append(now.sequences_in(self._settings.max_octets))
        return min(most, default=None)


async def _horizon(client: Client, stream: str) -> Horizon:
    return Horizon.of((await client.jetstream().stream(stream)).cached_info)
