"""A streaming query whose every task runs in a worker of its own, for the tests of what a sink reads of its target.

python -m tests.spark.lookup_job URL FOLDER: one micro-batch for each line of its input, and a line for each when it is
stored.
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

from natsproto.spark import register


def main(url: str, folder: str) -> None:
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.local.dir", f"{folder}/local")
        .config("spark.python.worker.reuse", "false")
        .config("spark.python.authenticate.socketTimeout", "120s")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    register(spark)
    orders = spark.readStream.format("nats").options(servers=url, stream="ORDERS", minPartitions="2").load()
    query = (
        orders.selectExpr("'out.rows' AS subject", "data", "concat(stream, '-', seq) AS msg_id")
        .writeStream.format("nats")
        .options(servers=url, stream="OUT")
        .option("checkpointLocation", f"{folder}/checkpoint")
        .start()
    )
    print("started", flush=True)
    for _ in sys.stdin:
        query.processAllAvailable()
        print("stored", flush=True)
    query.stop()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
