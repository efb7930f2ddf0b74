"""The data source "nats", behind ``format("nats")``, and its source: Spark's reader interfaces.

Checks the options and plans what is read. A batch query is planned once; a streaming query keeps its offsets in
Spark's checkpoint. ``_reader`` reads the rows; the sink is in ``_sink``.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, cast

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.types import StructType

from natsproto import Client, errors
from natsproto.jetstream.kv import KeyValueEntry, KeyWatcher
from natsproto.spark._client import iterate_on_loop, run_on_loop
from natsproto.spark._offsets import (
    Offset,
    StreamOffset,
    advance,
    batch_range,
    lost_range,
    partition_numbers,
    shares,
)
from natsproto.spark._options import SinkOptions, SourceOptions, is_named
from natsproto.spark._outages import outlast
from natsproto.spark._range_reader import Bound, Window, matching_window, sequence_of, starts_at_first_message
from natsproto.spark._ranges import SeqRange, StreamBounds, parts_of
from natsproto.spark._reader import plan_ranges, read_range
from natsproto.spark._schema import BUCKET_SCHEMA, ROW_SCHEMA, ROW_SCHEMA_WITHOUT_HEADERS, check_columns
from natsproto.spark._sink import BatchWriter, StreamingWriter, check_append
from natsproto.spark._writer import check_ids

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger("natsproto.spark")

IDLE_PAUSE_S, MAX_IDLE_PAUSE_S = 0.1, 5.0
"""Seconds between two looks at the streams while nothing comes, at least and at most."""
LOOK_SHARE = 10
"""The same, as a multiple of the time that a look takes: hundreds of streams take long."""


class RangePartition(InputPartition):
    """The part of a batch that one task reads."""

    def __init__(self, seq_range: SeqRange) -> None:
        super().__init__(seq_range)

    def __repr__(self) -> str:
        return f"RangePartition({self.value!r})"


def read_partition(settings: SourceOptions, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
    """The rows of a partition; none for the empty one that Spark adds if there is nothing to read (4.0: None)."""
    if partition is None or partition.value is None:
        return iter(())
    return read_range(
        settings.nats,
        partition.value,
        subjects=settings.subjects,
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

    def partitions(self) -> list[InputPartition]:
        """Runs on the driver, once."""
        settings = self._settings
        found = [one for name in find_streams(settings) for one in self._range(name)]
        counts = [one.end - one.start + 1 for one in found]
        numbers = partition_numbers(counts, settings.partitions, settings.partition_sequences)
        return [
            RangePartition(part) for one, number in zip(found, numbers, strict=True) for part in parts_of(one, number)
        ]

    def _range(self, stream: str) -> list[SeqRange]:
        """Everything that is read of a stream, as one range; none if there is nothing."""
        settings = self._settings
        start, end = settings.bounds_of(stream)
        return plan_ranges(settings.nats, stream, start=start, end=end, subjects=settings.subjects, num_partitions=1)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Runs in a task."""
        return read_partition(self._settings, partition)


class BucketReader(DataSourceReader):
    """Reads the current values of a bucket, in one task: the bucket as a whole has a moment, parts of it do not."""

    def __init__(self, settings: SourceOptions) -> None:
        self._settings = settings

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Runs in a task."""
        from natsproto.spark._arrow import entry_batch

        settings = self._settings
        return map(entry_batch, iterate_on_loop(settings.nats, partial(_entries, settings)))


async def _entries(settings: SourceOptions, client: Client) -> AsyncIterator[list[KeyValueEntry[bytes]]]:
    """The current entries of a bucket, each key once, although some change meanwhile."""
    bucket, js = settings.bucket, client.jetstream()
    seen: set[str] = set()
    found: list[KeyValueEntry[bytes]] = []
    async with AsyncExitStack() as stack:

        async def watch() -> KeyWatcher[bytes]:
            return await stack.enter_async_context((await js.key_value(bucket)).watch(ignore_deletes=True))

        watcher = await outlast(f"bucket {bucket!r}", settings.nats.outage_timeout, watch)
        async for entry in await stack.enter_async_context(aclosing(watcher.initial())):
            if entry.key not in seen:
                seen.add(entry.key)
                found.append(entry)
            if len(found) >= settings.batch_rows:
                yield found
                found = []
    if found:
        yield found


# ---------------------------------------------------------------- streaming

_HAS_READ_LIMITS = hasattr(DataSourceStreamReader, "getDefaultReadLimit")  # Spark 4.2


if TYPE_CHECKING or _HAS_READ_LIMITS:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow as _AvailableNow
else:

    class _AvailableNow:
        """Spark before 4.2 does not ask."""


class StreamingReader(DataSourceStreamReader, _AvailableNow):
    """Reads a stream without end.

    Spark keeps one of these in a process beside the driver and copies of it in the tasks. Only the former uses its
    state, and no row depends on it.
    """

    def __init__(self, settings: SourceOptions) -> None:
        self._settings = settings
        self._initial: Offset | None = None
        self._offset: Offset | None = None  # the end of the last batch; Spark 4.0 and 4.1 do not give it
        self._latest: Offset | None = None  # the end of the next batch
        self._targets: dict[str, int] | None = None  # the last sequences of a query with Trigger.AvailableNow
        self._waiting_since: float | None = None  # when a batch began to wait for minOffsetsPerTrigger
        self._streams: dict[str, StreamBounds] = {}  # at the last look
        self._looked_at = self._next_look = 0.0
        self._lag: dict[str, int] = {}  # after the next batch, where messages were counted
        # The end of a new batch, and the streams that it reads from their first message.
        self._untried: tuple[dict[str, Any], set[str]] | None = None
        if not _HAS_READ_LIMITS and (settings.max_sequences or settings.max_bytes):
            log.warning("maxOffsetsPerTrigger and maxBytesPerTrigger need Spark 4.2: a batch takes all there is")

    def initialOffset(self) -> dict[str, Any]:
        """The start of the query. Spark asks more than once, and again after a restart; see ``_offsets``."""
        if self._initial is None:
            self._initial = self._start_offset()
            self._offset = self._offset or self._initial
        return self._initial.json()

    def latestOffset(self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None) -> dict[str, Any]:
        """The end of the next batch. DataLost if the next messages are gone, unless that is allowed."""
        streams = self._look()
        offset = self._offset if start is None else self._read_offset(start)
        if is_unknown := offset is None:  # Spark 4.0 and 4.1 ask before they tell where the query is
            offset = self._offset_of(StreamOffset.end(name, now) for name, now in streams.items())
        starts = {one.stream: one for one in offset.streams if one.stream in streams}
        for gone in offset.streams:
            if gone.stream not in streams:
                self._lost(errors.DataLost(gone.stream, gone.seq, gone.seq, "the stream was deleted"))
        from_first = set()  # streams that are read from the first message that they still have
        for name, now in streams.items():
            known = starts.setdefault(name, StreamOffset.first(name, now))
            may_be_first = known.initial or is_unknown
            start_of_query, _ = self._settings.bounds_of(name)
            if offset.get(name) is None or (may_be_first and starts_at_first_message(start_of_query)):
                from_first.add(name)
            self._check(known, now, name in from_first)
        limited = _HAS_READ_LIMITS and not isinstance(limit, ReadAllAvailable | None)
        reached = self._ends(starts, streams, from_first, limited=limited)
        end = offset.replace(
            streams=tuple(one for one in reached if offset.get(one.stream) is not None or not one.initial)
        )
        if self._waits_for_more(starts, end):
            end, self._lag = offset, {}
        if end == offset:
            pause = max(IDLE_PAUSE_S, LOOK_SHARE * (monotonic() - self._looked_at))
            self._next_look = monotonic() + min(pause, MAX_IDLE_PAUSE_S)
        self._untried = end.json(), from_first
        self._latest = end
        return end.json()

    def _look(self) -> dict[str, StreamBounds]:
        """The streams as they are now. While nothing comes, Spark asks a hundred times a second: here it waits."""
        time.sleep(max(0.0, self._next_look - monotonic()))
        self._looked_at = monotonic()
        self._streams = find_streams(self._settings)
        return self._streams

    def getDefaultReadLimit(self) -> ReadLimit:
        """The limit of a batch."""
        if self._settings.max_sequences is not None:
            return ReadMaxRows(self._settings.max_sequences)
        if self._settings.max_bytes is not None:
            return ReadMaxBytes(self._settings.max_bytes)
        return ReadAllAvailable()

    def reportLatestOffset(self) -> dict[str, Any]:
        """The ends of the streams when the batch was planned, and the lag behind them, for the query's progress.

        With ``subjects`` and a limit the lag counts messages that match, where they can be counted; else sequences.
        """
        streams = self._streams or self._look()
        ends = Offset(streams=tuple(StreamOffset.end(name, now) for name, now in streams.items()))
        reached, lag = self._latest or self._offset, dict(self._lag)
        for name, now in streams.items():
            offset = None if reached is None else reached.get(name)
            lag.setdefault(name, now.last_seq + 1 - max(now.first_seq, 0 if offset is None else offset.seq))
        return {**ends.json(), "lag": lag}

    def prepareForTriggerAvailableNow(self) -> None:
        """Limits the query to the messages that the streams have now."""
        self._targets = {name: now.last_seq for name, now in find_streams(self._settings).items()}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The partitions of a batch. They follow from its offsets alone, as Spark may plan it again later."""
        begin, stop = self._read_offset(start), self._read_offset(end)
        self._offset = stop
        from_first = self._untried[1] if self._untried is not None and self._untried[0] == end else set()
        from_first -= {one.stream for one in begin.streams if not one.initial}
        ranges = [batch_range(begin.get(offset.stream), offset) for offset in stop.streams]
        for offset, found in zip(stop.streams, ranges, strict=True):
            if found.recreated:
                self._lost(
                    errors.DataLost(offset.stream, found.first, found.last, f"it was created anew at {offset.created}")
                )
        counts = [found.last - found.first + 1 for found in ranges]
        numbers = partition_numbers(counts, stop.partitions, stop.partition_sequences)
        return [
            RangePartition(one)
            for offset, found, number in zip(stop.streams, ranges, numbers, strict=True)
            if found.first <= found.last
            for one in parts_of(
                SeqRange(
                    stream=offset.stream,
                    start=found.first,
                    end=found.last,
                    created=offset.created,
                    earliest=offset.stream in from_first,
                ),
                number,
            )
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Runs in a task."""
        return read_partition(self._settings, partition)

    def _ends(
        self, starts: dict[str, StreamOffset], streams: dict[str, StreamBounds], from_first: set[str], *, limited: bool
    ) -> list[StreamOffset]:
        """The end of the next batch in each stream. Several streams share the limits by their waiting messages."""
        untils = {name: None if self._targets is None else self._targets.get(name, 0) for name in streams}

        def ends(limits: Sequence[int | None]) -> list[StreamOffset]:
            return [
                advance(starts[name], now, max_count=limit, until=untils[name], from_first_message=name in from_first)
                for (name, now), limit in zip(streams.items(), limits, strict=True)
            ]

        everything = ends([None] * len(streams))
        most, max_bytes = self._settings.max_sequences, self._settings.max_bytes
        self._lag = {}
        if not limited or (most is None and max_bytes is None):
            return everything
        bounds = list(streams.values())
        firsts = [max(starts[end.stream].seq, now.first_seq) for end, now in zip(everything, bounds, strict=True)]
        counts = [max(0, end.seq - first) for end, first in zip(everything, firsts, strict=True)]
        limits = counts if most is None else shares(most, counts)
        if max_bytes is not None:
            sizes = shares(max_bytes, [now.bytes_of(count) for now, count in zip(bounds, counts, strict=True)])
            fitting = [now.sequences_in(size) for now, size in zip(bounds, sizes, strict=True)]
            limits = fitting if most is None else list(map(min, limits, fitting))
        wanted = {
            end.stream: (first, end.seq - 1, limit, now.reads_directly)
            for end, first, limit, now in zip(everything, firsts, limits, bounds, strict=True)
            if self._settings.subjects and limit < end.seq - first
        }
        windows = run_on_loop(self._settings.nats, _windows, self._settings.subjects, wanted) if wanted else {}
        found = {name: window for name, window in windows.items() if window is not None}
        self._lag = {name: window.left for name, window in found.items()}
        return ends(
            [
                found[name].end - first + 1 if name in found else limit
                for name, first, limit in zip(streams, firsts, limits, strict=True)
            ]
        )

    def _waits_for_more(self, starts: dict[str, StreamOffset], end: Offset) -> bool:
        """True while a batch waits for minOffsetsPerTrigger."""
        fewest = self._settings.min_sequences
        waiting = sum(offset.seq - starts[offset.stream].seq for offset in end.streams)
        if fewest is None or self._targets is not None or not 0 < waiting < fewest:
            self._waiting_since = None
            return False
        self._waiting_since = self._waiting_since or monotonic()
        if monotonic() - self._waiting_since < self._settings.max_trigger_delay:
            return True
        self._waiting_since = None
        return False

    def _start_offset(self) -> Offset:
        """The start of the query by the options."""
        settings = self._settings
        found = []
        for name, now in find_streams(settings).items():
            seq = run_on_loop(settings.nats, _sequence_of, name, settings.bounds_of(name)[0], now)
            found.append(StreamOffset(stream=name, seq=seq, created=now.created, base=seq))
        return self._offset_of(found)

    def _offset_of(self, streams: Iterable[StreamOffset]) -> Offset:
        settings = self._settings
        return Offset(
            streams=tuple(streams), partitions=settings.partitions, partition_sequences=settings.partition_sequences
        )

    def _read_offset(self, saved: dict[str, Any]) -> Offset:
        """An offset of the checkpoint. ConfigError if it has a stream that the options do not name."""
        offset = Offset.read(saved)
        for one in offset.streams:
            if not any(is_named(one.stream, pattern) for pattern in self._settings.streams):
                wanted = ", ".join(self._settings.streams)
                raise errors.ConfigError(
                    "checkpoint", saved, f"is not of stream {wanted}: another stream needs a checkpoint of its own"
                )
        return offset

    def _check(self, offset: StreamOffset, now: StreamBounds, from_first_message: bool) -> None:
        """DataLost if the next messages are gone, or a line in the log."""
        if offset.created != now.created:
            self._lost(errors.DataLost(offset.stream, offset.seq, offset.seq, f"it was created anew at {now.created}"))
        elif not from_first_message and (gone := lost_range(offset, now)) is not None:
            self._lost(errors.DataLost(offset.stream, *gone, f"the stream begins at {now.first_seq} now"))

    def _lost(self, error: errors.DataLost) -> None:
        if self._settings.fail_on_data_loss:
            raise error
        log.warning("%s", error)


# ---------------------------------------------------------------- streams


def find_streams(settings: SourceOptions) -> dict[str, StreamBounds]:
    """The streams that the options name, as they are now, in the order of their names.

    StreamNotFound for a name, ConfigError if nothing matches the patterns.
    """
    return run_on_loop(settings.nats, _find_streams, settings.streams)


async def _find_streams(client: Client, wanted: tuple[str, ...]) -> dict[str, StreamBounds]:
    js = client.jetstream()
    names = {name for name in wanted if "*" not in name}
    found: dict[str, StreamBounds] = {}
    if len(names) < len(wanted):  # pages of many streams instead of a request for each
        listing = js.streams()
        async for info in listing:
            if any(is_named(info.config.name, pattern) for pattern in wanted):
                found[info.config.name] = StreamBounds.of(info)
        unread = [*listing.missing, *listing.offline]  # they are there, but did not reply in time
        names |= {name for name in unread if any(is_named(name, pattern) for pattern in wanted)}
    for name in names - found.keys():
        found[name] = StreamBounds.of((await js.stream(name)).cached_info)
    if not found:
        raise errors.ConfigError("stream", ", ".join(wanted), "matches no stream")
    return dict(sorted(found.items()))


async def _sequence_of(client: Client, stream: str, bound: Bound, now: StreamBounds) -> int:
    source = await client.jetstream().stream(stream, bind=True)
    source.reads_directly = now.reads_directly
    return await sequence_of(source, bound, now)


async def _windows(
    client: Client, subjects: tuple[str, ...], wanted: Mapping[str, tuple[int, int, int, bool]]
) -> dict[str, Window | None]:
    """For each stream a window between two sequences that holds a number of matching messages."""
    js = client.jetstream()
    found = await asyncio.gather(*[matching_window(js, name, subjects, *bounds) for name, bounds in wanted.items()])
    return dict(zip(wanted, found, strict=True))


# ---------------------------------------------------------------- the data source


class NatsDataSource(DataSource):
    """Streams as tables, and tables into streams; see the guide for its options."""

    @classmethod
    def name(cls) -> str:
        """The name for ``format()``."""
        return "nats"

    def schema(self) -> str:
        """The columns of a stream."""
        settings = self._source()
        if settings.bucket:
            return BUCKET_SCHEMA
        return ROW_SCHEMA if settings.headers else ROW_SCHEMA_WITHOUT_HEADERS

    def reader(self, schema: StructType) -> DataSourceReader:
        """For ``spark.read``."""
        settings = self._checked(schema, streaming=False)
        return BucketReader(settings) if settings.bucket else BatchReader(settings)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """For ``spark.readStream``."""
        return StreamingReader(self._checked(schema, streaming=True))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """For ``df.write``."""
        settings, _ = self._sink(schema, overwrite, streaming=False)
        return BatchWriter(settings)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """For ``df.writeStream``."""
        settings, columns = self._sink(schema, overwrite, streaming=True)
        return StreamingWriter(settings, columns)

    def _source(self, *, streaming: bool | None = None) -> SourceOptions:
        return SourceOptions.read(cast("Mapping[str, str]", self.options), streaming=streaming)

    def _checked(self, schema: StructType, *, streaming: bool) -> SourceOptions:
        settings = self._source(streaming=streaming)
        expected = [column.strip().split(" ")[0] for column in self.schema().split(", ")]
        if schema.names != expected:
            raise errors.ConfigError("schema", ", ".join(schema.names), f"the columns are {', '.join(expected)}")
        return settings

    def _sink(
        self, schema: StructType, overwrite: bool, *, streaming: bool
    ) -> tuple[SinkOptions, list[tuple[str, str]]]:
        check_append(overwrite)
        settings = SinkOptions.read(cast("Mapping[str, str]", self.options), streaming=streaming)
        columns = [(field.name, field.dataType.simpleString()) for field in schema.fields]
        check_columns(columns, subject=settings.subject, bucket=settings.bucket)
        check_ids([name for name, _ in columns], settings)
        return settings, columns
