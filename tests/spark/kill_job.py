"""A streaming query from ORDERS to OUT that reads all there is and ends: what test_kill kills, again and again.

python -m tests.spark.kill_job URL FOLDER DELIVERY
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

from natsproto.spark import register


def main(url: str, folder: str, delivery: str) -> None:
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.local.dir", f"{folder}/local")
        .config("spark.python.authenticate.socketTimeout", "120s")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    register(spark)
    orders = (
        spark.readStream.format("nats")
        .options(servers=url, stream="ORDERS", maxOffsetsPerTrigger="3000", minPartitions="2")
        .load()
    )
    sink = {"servers": url, "stream": "OUT", "delivery": delivery, "stableOrder": "true"}
    sink |= {"maxPending": "50"}  # slow enough to be killed in the middle
    query = (
        orders.selectExpr("concat('out.rows.', seq) AS subject", "data")
        .writeStream.format("nats")
        .options(**sink)
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
