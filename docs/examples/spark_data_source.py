"""The Spark data source: JSON of a stream as columns, sums of it into another stream, and the metrics of the query.

Needs the extras ``spark`` and ``server``, and Java 17. Starts a nats-server of its own and Spark on two cores.
"""

# not run: it needs Java 17; tests/spark/test_example_in_spark.py runs it

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile

from pyspark.sql import SparkSession
from pyspark.sql import functions as fn

import natsproto
import natsproto.spark as nspark
from natsproto.testing import run_server

ORDER = "product string, quantity long, customer struct<name: string, country: string>"


async def prepare(url: str) -> None:
    """Two streams of orders as JSON, one message that is not, and a stream for the results."""
    async with natsproto.connect(url) as nc:
        js = nc.jetstream()
        for name in ("ORDERS_EU", "ORDERS_US", "LINES"):
            await js.create_stream(name, subjects=[f"{name.lower().replace('_', '.')}.>"], allow_direct=True)
        async with js.publisher() as publisher:
            for number in range(300):
                customer = {"name": f"c{number % 7}", "country": ("GB", "US")[number % 2]}
                order = {"product": ("tea", "jam", "oats")[number % 3], "quantity": number % 5, "customer": customer}
                region = ("eu", "us")[number % 2]
                await publisher.publish(f"orders.{region}.{number}", json.dumps(order).encode())
            await publisher.publish("orders.eu.broken", b"not JSON")


def main() -> None:
    """Reads the orders of both streams in a batch, then as a stream into LINES."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    with run_server(jetstream=True) as server, tempfile.TemporaryDirectory() as checkpoint:
        asyncio.run(prepare(server.url))
        builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
        spark = builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()
        nspark.register(spark)

        source = {"servers": server.url, "stream": "ORDERS_*"}
        orders = spark.read.format("nats").options(**source).load()
        parsed = orders.select("stream", "seq", fn.from_json(fn.col("data").cast("string"), ORDER).alias("order"))
        print(parsed.where("order.product IS NULL").count(), "message is no order")
        # shows: 1 message is no order
        sums = parsed.where("order.product IS NOT NULL").groupBy("order.product").agg(fn.sum("order.quantity"))
        for product, quantity in sums.orderBy("product").collect():
            print(product, quantity)
        # shows: jam 200
        # shows: oats 200
        # shows: tea 200

        line = fn.to_json(fn.struct("order.product", "order.quantity", "order.customer.country"))
        lines = (
            spark.readStream.format("nats")
            .options(**source)
            .load()
            .select("stream", "seq", fn.from_json(fn.col("data").cast("string"), ORDER).alias("order"))
            .where("order.product IS NOT NULL")
            .select(
                fn.concat(fn.lit("lines."), "order.product").alias("subject"),
                line.alias("data"),
                fn.concat_ws("-", "stream", "seq").alias("msg_id"),  # a retry publishes the same ids
            )
            .observe("sent", fn.count("*").alias("rows"), fn.sum(fn.length("data")).alias("bytes"))
        )
        query = (
            lines.writeStream.format("nats")
            .options(servers=server.url, stream="LINES", checkpointLocation=checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        (progress,) = [one for one in query.recentProgress if one["numInputRows"]]
        print("read", progress["numInputRows"], "sent", progress["sink"]["numOutputRows"])
        # shows: read 301 sent 300
        print("observed", progress["observedMetrics"]["sent"])
        # shows: observed Row(rows=300, bytes=13600)
        print("lag", json.loads(progress["sources"][0]["latestOffset"])["lag"])
        # shows: lag {'ORDERS_EU': 0, 'ORDERS_US': 0}
        stored = spark.read.format("nats").options(servers=server.url, stream="LINES", subjects="lines.tea").load()
        print(stored.count(), "lines of tea")
        # shows: 100 lines of tea
        spark.stop()
        nspark.close_workers()  # the driver's own client, before its server goes


if __name__ == "__main__":
    main()
