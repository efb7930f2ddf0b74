"""The client inside Spark: helpers for partitions and UDFs, and ranges of streams as rows.

Importing it needs neither pyspark nor pyarrow and starts nothing; what needs them imports them when it is called.
"""

from natsproto.spark._client import close_workers, worker_client
from natsproto.spark._dataframes import arrow_partition, foreach_batch_writer, json, register, stream_dataframe
from natsproto.spark._options import SparkNats
from natsproto.spark._partitions import kv_lookup, kv_lookup_udf, map_async, request_partition, run_partition
from natsproto.spark._publish import WriteSummary, publish_partition
from natsproto.spark._ranges import SeqRange
from natsproto.spark._reader import plan_ranges, read_range
from natsproto.spark._schema import ROW_SCHEMA
from natsproto.spark._secrets import SecretRef

__all__ = [
    "ROW_SCHEMA",
    "SecretRef",
    "SeqRange",
    "SparkNats",
    "WriteSummary",
    "arrow_partition",
    "close_workers",
    "foreach_batch_writer",
    "json",
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
