"""Whole DataFrames: a stream as one, the micro-batches of a streaming query into a stream, and ``register``.

Works on Spark 3.5 too, which has no data sources in Python; importing it does not need Spark. From Spark 4 on
``register`` adds the data source, whose queries keep their position in a stream and whose sink checks the target.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, TypedDict

from natsproto import errors
from natsproto._durations import positive_seconds
from natsproto._help.introspection import import_late_types
from natsproto.spark._bad_rows import BadRows
from natsproto.spark._checkpoint import Planned, plan, unknown_plan
from natsproto.spark._options import Duplicates, SparkNats
from natsproto.spark._partitions import PartitionFunction
from natsproto.spark._publish import PublishPlan, check_duplicates, publish_rows
from natsproto.spark._range_reader import Bound, Method
from natsproto.spark._ranges import SeqRange
from natsproto.spark._reader import check_reading, plan_ranges, read_range
from natsproto.spark._schema import ROW_SCHEMA, ROW_SCHEMA_WITHOUT_HEADERS, check_server_headers

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, Row, SparkSession
    from pyspark.sql.types import StructType

log = logging.getLogger("natsproto.spark")

ROWS_PER_ARROW_BATCH = 4096
"""Results of a partition function in one Arrow batch."""


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
    start: Bound = "earliest",
    end: Bound = "latest",
    subjects: Sequence[str] = (),
    num_partitions: int | None = None,
    method: Method = "auto",
    batch_rows: int = 4096,
    max_bytes: int = 8 << 20,
    headers: bool = True,
    fail_on_data_loss: bool = True,
) -> DataFrame:
    """A stream, or a part of it, as a DataFrame with the columns of ROW_SCHEMA.

    ``plan_ranges`` fixes its content here; every action reads it again from the stream, each range in a
    partition of its own, by ``read_range``. Arguments and errors are those of the two functions.

    Args:
        spark: The SparkSession of the driver.
        config: How the tasks connect: a SparkNats.
        stream: Which stream to read, by its name.
        start: Where to begin: "earliest", "latest", a sequence, or a time (server 2.11).
        end: Where to end: "latest", a sequence (inclusive), or a time (server 2.11).
        subjects: Only messages of these subjects, wildcards allowed; empty: all.
        num_partitions: How many ranges to make at most; None: up to 4, in larger streams one for every 100,000
            messages, up to 200.
        method: "consumer" pulls from an ordered consumer, "direct" gets batches from any replica, "auto" takes the
            cheaper one.
        batch_rows: The most rows of one Arrow batch.
        max_bytes: About the most bytes of payload of one Arrow batch.
        headers: Read the headers, too; False leaves their column out.
        fail_on_data_loss: Raise DataLost when messages of the range are gone; False logs a warning and reads the rest.
    """
    check_reading(subjects, method, batch_rows, max_bytes)
    ranges = plan_ranges(config, stream, start=start, end=end, subjects=subjects, num_partitions=num_partitions)
    schema = ROW_SCHEMA if headers else ROW_SCHEMA_WITHOUT_HEADERS
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


def arrow_partition(
    function: PartitionFunction[Row, Any], schema: pa.Schema
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Adapts a partition function to ``mapInArrow``, for Spark Connect, which has no RDDs.

    ``function`` is one of this package (``map_async``, ``request_partition``, ``kv_lookup``, ``publish_partition``,
    ``run_partition``) or any other from an iterator of Rows to an iterator. ``schema`` names the columns of its
    results. A result is a Row, tuple or mapping of them, a ``WriteSummary``, or a pair of a Row and a value, whose
    columns are those of the Row and one more. Errors are those of the function, and pyarrow's for values that do not
    fit the schema.

    Args:
        function: A function of this package, or any other from an iterator of Rows to an iterator.
        schema: The names and types of the columns of its results.
    """
    return partial(_arrow_partition, function, schema)


def _arrow_partition(
    function: PartitionFunction[Row, Any], schema: pa.Schema, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    results = function(_rows_of(batches))
    while found := [_values_of(result, schema.names) for result in islice(results, ROWS_PER_ARROW_BATCH)]:
        columns = zip(*found, strict=True)
        arrays = [_column_of(list(values), field) for values, field in zip(columns, schema, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _rows_of(batches: Iterable[pa.RecordBatch]) -> Iterator[Row]:
    from pyspark.sql import Row

    for batch in batches:
        make = Row(*batch.schema.names)
        columns = [column.to_pylist() for column in batch.columns]
        for index, field in enumerate(batch.schema):
            if str(field.type).startswith("map<"):
                columns[index] = [None if pairs is None else dict(pairs) for pairs in columns[index]]
        for values in zip(*columns, strict=True):
            yield make(*values)


def _values_of(result: Any, names: Sequence[str]) -> Sequence[Any]:
    if isinstance(result, tuple):
        pair = len(result) == 2 and isinstance(result[0], tuple)
        return (*result[0], result[1]) if pair else result
    if isinstance(result, Mapping):
        return [result[name] for name in names]
    return [getattr(result, name) for name in names]


def _column_of(values: list[Any], field: pa.Field) -> pa.Array:
    import pyarrow as pa

    if str(field.type).startswith("map<"):
        values = [list(value.items()) if isinstance(value, Mapping) else value for value in values]
    return pa.array(values, field.type)


def foreach_batch_writer(
    config: SparkNats,
    *,
    write_id: str = "",
    subject: str | Callable[[Row], str] | None = None,
    msg_id: str | Callable[[Row], str] | None = None,
    stable_order: bool = False,
    checkpoint: str = "",
    duplicates: Duplicates = "refuse",
    server_headers: Sequence[str] = (),
    max_pending: int = 2000,
    timeout: float = 30.0,
    bad_rows: BadRows = "fail",
    dead_letter_subject: str | None = None,
) -> Callable[[DataFrame, int], None]:
    """A function for ``writeStream.foreachBatch`` that publishes each micro-batch with ``publish_partition``.

    Message ids are made of the batch number, so a micro-batch that runs again within the ``duplicate_window`` of the
    stream stores nothing twice. One that is repeated later is a ConfigError before it stores a row. To know that,
    ``checkpoint`` has to be the query's ``checkpointLocation``, as a folder that the driver can read and write; without
    it give ``duplicates="allow"``: then it is stored twice. ``write_id`` names the query in these ids, for good:
    without it Spark's own id of the query does, which is kept in its checkpoint. Spark Connect, and a micro-batch that
    is written from a second thread, do not know that id and need a ``write_id``. The other arguments are those of
    ``publish_partition``. A micro-batch that is not stored whole fails the query. Needs pyarrow. ConfigError for wrong
    arguments.

    Args:
        config: How the tasks connect: a SparkNats.
        write_id: The name of the query in message ids, for good; "": Spark's own id of the query.
        subject: The subject of all rows, or a function of the row; None: the column ``subject`` has it.
        msg_id: The column with the message ids, or a function of the row; None: the column ``msg_id`` if there is one,
            else ids made by the writer.
        stable_order: The rows of a partition come in the same order again if its task is repeated, so that their
            positions identify them.
        checkpoint: The ``checkpointLocation`` of the query: it says whether a micro-batch is repeated, and since when.
        duplicates: What a micro-batch does that is repeated later than the ``duplicate_window``: "refuse" (default)
            raises ConfigError, "allow" stores rows twice.
        server_headers: The names of headers of rows that begin with ``Nats-`` and are sent; all others of these are
            removed and counted.
        max_pending: Messages that may wait for their acknowledgement.
        timeout: Seconds to wait for each acknowledgement.
        bad_rows: What becomes of a row that cannot be a message: "fail" (default) fails the task, "drop" leaves the row
            out, "deadletter" publishes a dead letter for it.
        dead_letter_subject: The subject of the dead letters; None unless ``bad_rows`` is "deadletter".
    """

    if not checkpoint and check_duplicates(duplicates) == "refuse":
        raise unknown_plan("checkpoint", checkpoint, 'duplicates="allow"')
    settings = PublishPlan(
        write_id=write_id or "the id of the query",
        subject=subject,
        msg_id=msg_id,
        stable_order=stable_order,
        duplicates=check_duplicates(duplicates),
        server_headers=check_server_headers("server_headers", server_headers),
        max_pending=max_pending,
        timeout=positive_seconds("timeout", timeout),
        bad_rows=bad_rows,
        letter_subject=dead_letter_subject,
    )

    def write(frame: DataFrame, batch: int) -> None:
        import pyarrow as pa

        context = getattr(frame.sparkSession, "sparkContext", None)  # Spark Connect has none
        query = write_id or (context and context.getLocalProperty("sql.streaming.queryId"))
        if not query:
            raise errors.ConfigError(
                "write_id", "", "is needed: Spark Connect, and a second thread, do not know the query"
            )
        planned = plan(checkpoint, f"{write_id} {subject if isinstance(subject, str) else ''}")
        if planned is None or planned.epoch != batch:
            if duplicates == "refuse":
                raise unknown_plan("checkpoint", checkpoint, 'duplicates="allow"')
            planned = Planned(batch, time.time(), is_repeated=False)
        summary = pa.schema([("rows", pa.int64()), ("duplicates", pa.int64())])
        now = settings.replace(write_id=query, epoch=batch, since=planned.since, is_repeated=planned.is_repeated)
        function = arrow_partition(partial(publish_rows, now, config), summary)
        written = frame.mapInArrow(function, "rows long, duplicates long").collect()
        log.info(
            "micro-batch %d of %s: %d rows published, %d of them were stored before",
            *(batch, query, sum(one.rows for one in written), sum(one.duplicates for one in written)),
        )

    return write


def json(schema: str | StructType, column: str = "data") -> Column:
    """A column of JSON payloads as a struct: null for one that is not JSON, null fields for what it lacks.

    ``orders.select("seq", nspark.json("product string, quantity long").alias("order")).select("seq", "order.*")``

    Args:
        schema: The fields of the JSON, as Spark writes a schema, or a StructType.
        column: The column with the payloads, as binary or text.
    """
    from pyspark.sql import functions

    return functions.from_json(functions.col(column).cast("string"), schema)


def register(spark: SparkSession) -> None:
    """Registers ``format("nats")`` in a session, for reading and writing, in batch and streaming queries.

    Spark 4 finds it by itself where natsproto is installed. With an archive (``--py-files``) call it once for each
    session, and in every other thread that writes: Spark looks for the data source in the session of the thread, which
    a new thread lacks ("Failed to find the data source: nats"). It opens no connection. ConfigError before Spark 4.0,
    which has no data sources in Python: use ``stream_dataframe`` and ``publish_partition`` there.

    Args:
        spark: The SparkSession of the driver.
    """
    if not hasattr(spark, "dataSource"):
        raise errors.ConfigError("spark", spark.version, "has no data sources in Python: they need Spark 4.0")
    from natsproto.spark._source import NatsDataSource

    _share_archive(spark)
    spark.dataSource.register(NatsDataSource)
    if type(spark).getActiveSession() is None:
        spark.createDataFrame([], "x int")  # makes the session that of this thread


def _share_archive(spark: SparkSession) -> None:
    """Makes the archive of ``--py-files`` importable in the process that plans streaming queries.

    Spark (4.0 to 4.3) gives that process the environment of the context, but not the files.
    """
    archive = getattr(__spec__.loader if __spec__ else None, "archive", "")
    context = getattr(spark, "sparkContext", None)  # Spark Connect has none
    if archive and context is not None:
        paths = context.environment.get("PYTHONPATH", "").split(os.pathsep)
        if archive not in paths:
            context.environment["PYTHONPATH"] = os.pathsep.join(filter(None, [archive, *paths]))


import_late_types(__name__)
