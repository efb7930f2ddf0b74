"""Whole DataFrames, on Spark 3.5 too, which has no data sources in Python: a stream as one, and the batches of a
streaming query into a stream.

Owns what ties ``reading`` and ``publishing`` to a session. Where there is Spark 4, ``register`` brings more: queries
that keep their place in a stream, and sinks that know whether it can keep its promise.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypedDict, cast

from natsproto.errors import ConfigError
from natsproto.spark._config import SparkNats
from natsproto.spark._publishing import WriteSummary, publish_partition
from natsproto.spark._reading import (
    ROW_SCHEMA,
    WITHOUT_HEADERS,
    Method,
    Place,
    SeqRange,
    check_reading,
    plan_ranges,
    read_range,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, Row, SparkSession

log = logging.getLogger("natsproto")


class _Reading(TypedDict):
    subjects: tuple[str, ...]
    method: Method
    batch_rows: int
    max_bytes: int
    headers: bool
    fail_on_data_loss: bool


def stream_dataframe(
    spark: SparkSession,
    config: SparkNats,
    stream: str,
    *,
    start: Place = "earliest",
    end: Place = "latest",
    subjects: Sequence[str] = (),
    num_partitions: int = 4,
    method: Method = "auto",
    batch_rows: int = 8192,
    max_bytes: int = 8 << 20,
    headers: bool = True,
    fail_on_data_loss: bool = True,
) -> DataFrame:
    """A stream, or a part of it, as a DataFrame with the columns of ROW_SCHEMA.

    What it holds is settled here, by ``plan_ranges``; every action reads that anew from the stream, each range in a
    partition of its own, by ``read_range``. The arguments are those of the two, and so are the errors.
    """
    check_reading(subjects, method, batch_rows, max_bytes)
    ranges = plan_ranges(config, stream, start=start, end=end, subjects=subjects, num_partitions=num_partitions)
    schema = ROW_SCHEMA if headers else WITHOUT_HEADERS
    if not ranges:
        return spark.createDataFrame([], schema)
    how: _Reading = {
        "subjects": tuple(subjects),
        "method": method,
        "batch_rows": batch_rows,
        "max_bytes": max_bytes,
        "headers": headers,
        "fail_on_data_loss": fail_on_data_loss,
    }
    numbers = spark.range(0, len(ranges), 1, numPartitions=len(ranges))
    return numbers.mapInArrow(partial(_read_numbered, config, tuple(ranges), how), schema)


def _read_numbered(
    config: SparkNats, ranges: tuple[SeqRange, ...], how: _Reading, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for number in batch.column(0).to_pylist():
            yield from read_range(config, ranges[number], output="arrow", **how)


def foreach_batch_writer(
    config: SparkNats,
    *,
    write_id: str = "",
    subject: str | Callable[[Row], str] | None = None,
    msg_id: str | Callable[[Row], str] | None = None,
    server_headers: Sequence[str] = (),
    window: int = 2000,
    timeout: float = 30.0,
) -> Callable[[DataFrame, int], None]:
    """What ``writeStream.foreachBatch`` takes: publishes each micro-batch by ``publish_partition``.

    Message ids hold the number of the batch, so one that runs again after a failure stores nothing twice within the
    stream's ``duplicate_window``, if its rows come in the same order. ``write_id`` names the query in these ids, for
    good: without it Spark's own id of the query does, which is kept in its checkpoint. The other arguments are those of
    ``publish_partition``. A batch that is not stored whole fails the query. ConfigError for wrong arguments.
    """

    def writer(batch: str) -> Callable[[object], Iterator[object]]:
        return publish_partition(  # type: ignore[return-value]
            config,
            write_id=batch,
            subject=subject,
            msg_id=msg_id,
            server_headers=server_headers,
            window=window,
            timeout=timeout,
        )

    writer(write_id or "checked here, on the driver, before a query runs")

    def write(frame: DataFrame, batch: int) -> None:
        query = write_id or frame.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        if not query:
            raise ConfigError("write_id", "", "is needed: this version of Spark does not say which query it runs")
        written = cast("list[WriteSummary]", frame.rdd.mapPartitions(writer(f"{query}.{batch}")).collect())
        log.info(
            "batch %d of %s: %d rows published, %d of them were stored before",
            *(batch, query, sum(one.published for one in written), sum(one.duplicates for one in written)),
        )

    return write
