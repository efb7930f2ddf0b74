"""The pipeline: orders from a stream, prices from a bucket, sums by category and minute into a stream and a bucket.

    python job.py --servers nats://127.0.0.1:4222 --checkpoint /tmp/pipeline
    spark-submit --master yarn --py-files natsproto-spark.zip job.py --servers nats://nats:4222 \
        --files /secure/pipeline.creds --creds spark_file:pipeline.creds --checkpoint hdfs:///pipeline

Kill it whenever you like, and start it again: every order is in every sum once.
"""

from __future__ import annotations

import argparse
import json
import time

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from natsproto.spark import SecretRef, SparkNats, foreach_batch_writer, kv_lookup_udf, register


def enriched(spark: SparkSession, source: dict[str, str], nats: SparkNats) -> DataFrame:
    """Orders with the category and the price of their product."""
    orders = spark.readStream.format("nats").options(stream="ORDERS", **source).load()
    product_of = kv_lookup_udf(nats, "products")
    return (
        orders.select(
            fn.from_json(fn.col("data").cast("string"), "product string, quantity long, at timestamp").alias("o")
        )
        .select("o.*")
        .withColumn("p", fn.from_json(product_of("product").cast("string"), "category string, price long"))
        .select(
            "at",
            fn.coalesce("p.category", fn.lit("unknown")).alias("category"),
            "quantity",
            (fn.col("quantity") * fn.col("p.price")).alias("amount"),
        )
    )


def sums(orders: DataFrame) -> DataFrame:
    """Number, pieces and cents by category and minute of the orders, as JSON, with a key for each sum."""
    by_minute = (
        orders.withWatermark("at", "10 seconds")
        .groupBy(fn.window("at", "1 minute"), "category")
        .agg(fn.count("*").alias("orders"), fn.sum("quantity").alias("pieces"), fn.sum("amount").alias("cents"))
        .where("pieces > 0")  # of the sums, not of the orders: the tick has to pass, as it moves the clock
    )
    key = fn.concat_ws("-", "category", fn.date_format("window.start", "yyyyMMdd'T'HHmm"))
    data = fn.to_json(fn.struct("category", fn.col("window.start").alias("minute"), "orders", "pieces", "cents"))
    return by_minute.select(key.alias("key"), data.alias("data"), "orders")


def start(
    spark: SparkSession, servers: dict[str, str], nats: SparkNats, checkpoint: str, *, batch: int, once: bool
) -> list[StreamingQuery]:
    """Two queries: final sums go into RESULTS, intermediate ones into the bucket.

    After a shuffle a row has no fixed position, so its id is made from its content: for a final sum its key, for an
    intermediate one also the number of its orders.
    """

    def read() -> DataFrame:
        register(spark)  # anew for each query: see "Two queries in one program" in the guide
        return sums(enriched(spark, {**servers, "maxOffsetsPerTrigger": str(batch)}, nats))

    def run(name: str, writer: DataStreamWriter) -> StreamingQuery:
        writer = writer.queryName(name).option("checkpointLocation", f"{checkpoint}/{name}")
        return (writer.trigger(availableNow=True) if once else writer.trigger(processingTime="1 second")).start()

    final = read().selectExpr("concat('results.', key) AS subject", "data", "key AS msg_id")
    results = run("results", final.writeStream.format("nats").options(stream="RESULTS", **servers).outputMode("append"))
    so_far = read().selectExpr("concat('$KV.totals.', key) AS subject", "data", "concat(key, ':', orders) AS msg_id")
    write_so_far = foreach_batch_writer(nats, checkpoint=f"{checkpoint}/totals")
    totals = run("totals", so_far.writeStream.foreachBatch(write_so_far).outputMode("update"))
    return [results, totals]


def report(queries: list[StreamingQuery]) -> None:
    """Print a line of JSON for every batch while the queries run; raises the error of a failed query."""
    seen = dict.fromkeys((query.name for query in queries), -1)
    while True:
        active = [query for query in queries if query.isActive]
        for query in queries:
            for progress in query.recentProgress:
                if progress["batchId"] > seen[query.name] and progress["numInputRows"]:
                    seen[query.name] = progress["batchId"]
                    line = {
                        "time": time.time(),
                        "query": query.name,
                        "batch": progress["batchId"],
                        "orders": progress["numInputRows"],
                        "seconds": progress["batchDuration"] / 1000,
                    }
                    print(json.dumps(line), flush=True)
        for query in queries:
            if (failure := query.exception()) is not None:
                raise failure
        if not active:
            return
        time.sleep(0.2)


def main() -> None:
    """Run until it is killed, or with ``--once`` until it has read all messages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--servers", default="nats://127.0.0.1:4222", help="as the executors reach them")
    parser.add_argument("--creds", help="where the credentials are: env:NATS_NAME, spark_file:NAME, file:/PATH …")
    parser.add_argument("--checkpoint", required=True, help="a folder that all executors and the driver share")
    parser.add_argument("--master", help="local[2] unless spark-submit says otherwise")
    parser.add_argument("--batch", type=int, default=50_000, help="orders in a micro-batch, at most")
    parser.add_argument("--once", action="store_true", help="end when all that is there was read")
    given = parser.parse_args()

    builder = SparkSession.builder.appName("natsproto pipeline").config("spark.sql.session.timeZone", "UTC")
    builder = builder.config("spark.sql.shuffle.partitions", "2").config("spark.log.level", "ERROR")
    builder = builder.config("spark.ui.showConsoleProgress", "false")
    builder = builder.config("spark.python.authenticate.socketTimeout", "120s")  # 15 are few on a busy machine
    if given.master:
        builder = builder.master(given.master)
    spark = builder.getOrCreate()
    servers = {"servers": given.servers}
    nats = SparkNats(servers=given.servers)
    if given.creds:
        servers["creds"] = given.creds
        nats = nats.replace(creds=SecretRef.parse(given.creds))
    report(start(spark, servers, nats, given.checkpoint, batch=given.batch, once=given.once))
    spark.stop()


if __name__ == "__main__":
    main()
