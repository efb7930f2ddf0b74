"""How a session of Spark comes to know the data source, for code that may run where Spark is not installed."""

from __future__ import annotations

import os
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

    _share_archive(spark)
    spark.dataSource.register(NatsDataSource)


def _share_archive(spark: SparkSession) -> None:
    """Lets the process beside the driver that plans streaming queries find what ``--py-files`` has brought.

    Spark (4.0 to 4.3) gives it the environment of the context, and not the files, as it does everywhere else.
    """
    archive = getattr(__spec__.loader if __spec__ else None, "archive", "")
    context = getattr(spark, "sparkContext", None)  # Spark Connect has none
    if archive and context is not None:
        paths = context.environment.get("PYTHONPATH", "").split(os.pathsep)
        if archive not in paths:
            context.environment["PYTHONPATH"] = os.pathsep.join(filter(None, [archive, *paths]))
