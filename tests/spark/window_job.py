"""A streaming query that counts orders in windows of their own time, into a bucket; the tests kill it.

python -m tests.spark.window_job URL FOLDER
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as fn

from natsproto.spark import register


def main(url: str, folder: str) -> None:
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.local.dir", f"{folder}/local")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.python.authenticate.socketTimeout", "120s")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    register(spark)
    source = {"servers": url, "stream": "ORDERS", "maxOffsetsPerTrigger": "500", "minPartitions": "2"}
    orders = spark.readStream.format("nats").options(**source).load()
    second = fn.timestamp_seconds(fn.col("data").cast("string").cast("long"))
    counts = (
        orders.select(second.alias("at"), "seq")
        .withWatermark("at", "10 seconds")
        .groupBy(fn.window("at", "100 seconds").alias("window"))
        .agg(fn.count("*").alias("orders"), fn.sum("seq").alias("sum"))
    )
    query = (
        counts.selectExpr("concat('w', unix_timestamp(window.start)) AS key", "concat(orders, ' ', sum) AS value")
        .writeStream.format("nats")
        .options(servers=url, bucket="windows")
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
