"""The driver of Spark 4.0, as far as the source is concerned, on a newer one: what has come since is taken away.

python -m tests.spark.older_spark URL: plans and reads stream ORDERS, and prints the numbers of rows.
"""

from __future__ import annotations

import json
import sys

import pyspark.sql.streaming
from pyspark.sql import datasource

NEWER = (
    *("ColumnPath", "DataSourceStreamArrowWriter", "EqualNullSafe", "EqualTo", "Filter", "GreaterThan", "IsNotNull"),
    *("GreaterThanOrEqual", "In", "IsNull", "LessThan", "LessThanOrEqual", "Not", "ReadAllAvailable", "ReadLimit"),
    *("StringContains", "StringEndsWith", "StringStartsWith"),
)


def take_away() -> None:
    """Leaves of ``pyspark.sql.datasource`` what Spark 4.0 has."""
    for name in NEWER:
        if hasattr(datasource, name):
            delattr(datasource, name)
    for name in ("getDefaultReadLimit", "reportLatestOffset"):
        if hasattr(datasource.DataSourceStreamReader, name):
            delattr(datasource.DataSourceStreamReader, name)
    if hasattr(datasource.DataSourceReader, "pushFilters"):
        del datasource.DataSourceReader.pushFilters
    sys.modules["pyspark.sql.streaming.datasource"] = None  # type: ignore[assignment]  # importing it fails
    vars(pyspark.sql.streaming).pop("datasource", None)


def main(url: str) -> None:
    from natsproto.spark._options import SourceOptions
    from natsproto.spark._source import BatchReader, StreamingReader

    settings = SourceOptions.read({"servers": url, "stream": "ORDERS"})
    reader, batch = StreamingReader(settings), BatchReader(settings)
    start = reader.initialOffset()
    end = reader.latestOffset()
    partitions = reader.partitions(start, end)
    print(
        json.dumps(
            {
                "streaming": sum(len(rows) for one in partitions for rows in reader.read(one)),
                "later": len(reader.partitions(end, reader.latestOffset())),
                "batch": sum(len(rows) for one in batch.partitions() for rows in batch.read(one)),
                "empty": len(list(batch.read(None))),  # type: ignore[arg-type]  # for an empty list of partitions
            }
        )
    )


if __name__ == "__main__":
    take_away()
    main(*sys.argv[1:])
