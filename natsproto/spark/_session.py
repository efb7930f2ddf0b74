"""How a session of Spark comes to know the data source, for code that may run where Spark is not installed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from natsproto.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Makes ``format("nats")`` known to a session, for reading and writing, in batches and streams.

    To be called once for each session; it connects to nothing. ConfigError before Spark 4.0, which has no data
    sources in Python: use ``stream_dataframe`` and ``publish_partition`` there.
    """
    if not hasattr(spark, "dataSource"):
        raise ConfigError("spark", spark.version, "has no data sources in Python: they need Spark 4.0")
    from natsproto.spark._datasource import NatsDataSource

    spark.dataSource.register(NatsDataSource)
