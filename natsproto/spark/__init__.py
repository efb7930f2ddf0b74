"""The client inside Spark: helpers for partitions and UDFs, and ranges of streams as rows.

Importing it needs neither pyspark nor pyarrow and starts nothing; what needs them imports them when it is called.
"""

from natsproto.spark._config import SecretRef, SparkNats
from natsproto.spark._frames import arrow_partition, foreach_batch_writer, stream_dataframe
from natsproto.spark._lookup import kv_lookup, kv_lookup_udf
from natsproto.spark._mapping import map_async, request_partition, run_partition
from natsproto.spark._publishing import WriteSummary, publish_partition
from natsproto.spark._ranges import SeqRange
from natsproto.spark._reading import ROW_SCHEMA, plan_ranges, read_range
from natsproto.spark._session import register
from natsproto.spark._worker import close_workers, worker_client

__all__ = [
    "ROW_SCHEMA",
    "SecretRef",
    "SeqRange",
    "SparkNats",
    "WriteSummary",
    "arrow_partition",
    "close_workers",
    "foreach_batch_writer",
    "kv_lookup",
    "kv_lookup_udf",
    "map_async",
    "plan_ranges",
    "publish_partition",
    "read_range",
    "register",
    "request_partition",
    "run_partition",
    "stream_dataframe",
    "worker_client",
]
