"""The client inside Spark: a stream as a DataFrame, a key/value lookup for every row, and results to a stream.

Needs the extras ``spark`` and ``server``, and Java 17. Starts a nats-server of its own and Spark on two cores.
"""

# not run: it needs Java 17; tests/spark/test_example_in_spark.py runs it

from __future__ import annotations

import asyncio
import json
import os
import sys

from pyspark.sql import Row, SparkSession

import natsproto
import natsproto.spark as nspark
from natsproto.testing import run_server

COUNTRIES = {"ada": "GB", "grace": "US"}


async def prepare(url: str) -> None:
    """Two streams and a bucket."""
    async with natsproto.connect(url) as nc:
        js = nc.jetstream()
        await js.create_stream("ORDERS", subjects=["orders.>"], allow_direct=True)
        await js.create_stream("BILLS", subjects=["bills.>"], allow_direct=True)
        customers = await js.create_key_value("customers")
        for name, country in COUNTRIES.items():
            await customers.put(name, country.encode())
        async with js.publisher() as publisher:
            for number in range(1000):
                name = ("ada", "grace", "nobody")[number % 3]
                await publisher.publish(f"orders.{name}", json.dumps({"n": number, "price": number % 7}).encode())


def customer(order: Row) -> str:
    """The key of the bucket that an order needs."""
    return str(order["subject"]).removeprefix("orders.")


async def bill(client: natsproto.Client, pair: tuple[Row, bytes | None]) -> Row:
    """Handle one order; 64 of these calls run at a time, on the event loop of the worker process."""
    order, country = pair
    await client.flush()  # any method of the client, for example a request to a service
    known = (country or b"??").decode()
    return Row(subject=f"bills.{known}", data=order["data"], headers={"Country": [known]})


def main() -> None:
    """Bill every order once."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    with run_server(jetstream=True) as server:
        asyncio.run(prepare(server.url))
        cfg = nspark.SparkNats(servers=server.url)  # on a cluster: creds=SecretRef.spark_file("app.creds")
        builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
        spark = builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()

        orders = nspark.stream_dataframe(spark, cfg, "ORDERS", num_partitions=2)
        bills = (
            orders.rdd.mapPartitions(nspark.kv_lookup(cfg, "customers", customer))
            .mapPartitions(nspark.map_async(bill, cfg, concurrency=64))
            .cache()
        )
        # Rows of a range come in the order of the stream, whenever they are read: they may be counted.
        publish = nspark.publish_partition(cfg, write_id="bills-1", stable_order=True)
        for attempt in ("first", "again"):  # as when a job is run again: the ids are the same
            written = bills.mapPartitions(publish).collect()
            print(attempt, sum(w.rows for w in written), "published,", sum(w.duplicates for w in written), "known")
        # shows: first 1000 published, 0 known
        # shows: again 1000 published, 1000 known

        stored = nspark.stream_dataframe(spark, cfg, "BILLS")
        for row in stored.groupBy("subject").count().orderBy("subject").collect():
            print(row["subject"], row["count"])
        # shows: bills.?? 333
        # shows: bills.GB 334
        # shows: bills.US 333
        spark.stop()
        nspark.close_workers()  # the driver's own client, before its server goes


if __name__ == "__main__":
    main()
