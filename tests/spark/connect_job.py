"""Everything that Spark Connect has of the helpers and the data source, on a Connect server on loopback.

python -m tests.spark.connect_job URL FOLDER
"""

from __future__ import annotations

import sys
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, Row, SparkSession

import natsproto
import natsproto.spark as nspark
from natsproto.spark import SparkNats

SUMMARY = "write_id string, partition int, rows long, duplicates long"
SUMMARY_COLUMNS = pa.schema(
    [("write_id", pa.string()), ("partition", pa.int32()), ("rows", pa.int64()), ("duplicates", pa.int64())]
)


def frame_numbers(spark: Any, cfg: SparkNats, subject: str) -> list[int]:
    found = nspark.stream_dataframe(spark, cfg, "OUT", subjects=[subject])
    return sorted(int(row.data) for row in found.select("data").collect())


def with_id_column(frame: Any, prefix: str) -> Any:
    return frame.selectExpr("data", f"concat('{prefix}-', cast(data AS string)) AS msg_id")


def publishing(spark: Any, cfg: SparkNats) -> None:
    rows = with_id_column(spark.range(0, 500, 1, 3).selectExpr("cast(id AS string) AS data"), "foreach")
    for _ in range(2):
        rows.foreachPartition(nspark.publish_partition(cfg, write_id="w1", subject="out.foreach"))
    assert frame_numbers(spark, cfg, "out.foreach") == list(range(500))
    publish = nspark.publish_partition(cfg, write_id="w2", subject="out.arrow")
    written = (
        with_id_column(rows, "arrow").mapInArrow(nspark.arrow_partition(publish, SUMMARY_COLUMNS), SUMMARY).collect()
    )
    assert sorted((one.partition, one.rows) for one in written) == [(0, 166), (1, 167), (2, 167)]
    assert frame_numbers(spark, cfg, "out.arrow") == list(range(500))


async def double(client: natsproto.Client, row: Row) -> Row:
    await client.flush()
    return Row(id=row.id, twice=str(2 * row.id))


def looking_up(spark: Any, cfg: SparkNats) -> None:
    rows = spark.range(0, 100, 1, 2)
    columns = pa.schema([("id", pa.int64()), ("twice", pa.string())])
    mapping = nspark.map_async(double, cfg, concurrency=16)
    found = rows.mapInArrow(nspark.arrow_partition(mapping, columns), "id long, twice string").collect()
    assert {row.id: row.twice for row in found} == {number: str(2 * number) for number in range(100)}
    columns = pa.schema([("key", pa.string()), ("value", pa.binary())])
    keyed = rows.selectExpr("concat('k', id % 10) AS key")
    lookup = nspark.kv_lookup(cfg, "prices", "key")
    pairs = keyed.mapInArrow(nspark.arrow_partition(lookup, columns), "key string, value binary").collect()
    assert {(row.key, row.value and bytes(row.value)) for row in pairs} == {
        (f"k{number}", b"%d" % number if number < 5 else None) for number in range(10)
    }
    by_udf = keyed.select(nspark.kv_lookup_udf(cfg, "prices")("key").alias("value")).collect()
    assert {row.value and bytes(row.value) for row in by_udf} == {None, *(b"%d" % number for number in range(5))}


def check_batches(spark: Any, cfg: SparkNats, folder: str) -> None:
    orders = spark.readStream.format("nats").options(servers=cfg.servers, stream="ORDERS").load()
    write = nspark.foreach_batch_writer(cfg, write_id="q1", subject="out.batches", checkpoint=f"{folder}/batches")

    def twice(frame: DataFrame, number: int) -> None:
        write(frame, number)
        write(frame, number)

    rows = with_id_column(orders.select("data"), "batches")
    query = rows.writeStream.foreachBatch(twice).option("checkpointLocation", f"{folder}/batches")
    query.trigger(availableNow=True).start().awaitTermination()
    assert frame_numbers(spark, cfg, "out.batches") == list(range(300))


def data_source(spark: Any, cfg: SparkNats, folder: str) -> None:
    options = {"servers": cfg.servers, "stream": "ORDERS"}
    assert spark.read.format("nats").options(**options).load().count() == 300
    rows = with_id_column(spark.readStream.format("nats").options(**options).load().select("data"), "stream")
    sink = {"servers": cfg.servers, "stream": "OUT", "subject": "out.stream"}
    query = rows.writeStream.format("nats").options(**sink).option("checkpointLocation", f"{folder}/stream")
    query.trigger(availableNow=True).start().awaitTermination()
    assert frame_numbers(spark, cfg, "out.stream") == list(range(300))


def main(url: str, folder: str) -> None:
    builder = SparkSession.builder.remote("local[2]").config("spark.local.dir", f"{folder}/local")
    spark = builder.config("spark.ui.enabled", "false").getOrCreate()
    nspark.register(spark)
    cfg = SparkNats(servers=url)
    publishing(spark, cfg)
    looking_up(spark, cfg)
    check_batches(spark, cfg, folder)
    data_source(spark, cfg, folder)
    nspark.close_workers()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
