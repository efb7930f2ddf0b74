"""Objects in Spark: files of an object store are read and written by the tasks of a job, some at a time.

Needs the extras ``spark`` and ``server``, and Java 17. Starts a nats-server of its own and Spark on two cores.
"""

# not run: it needs Java 17; tests/spark/test_example_in_spark.py runs it

from __future__ import annotations

import asyncio
import os
import sys

from pyspark.sql import Row, SparkSession

import natsproto
import natsproto.spark as nspark
from natsproto.testing import run_server


async def prepare(url: str) -> None:
    """A store with the pages of a book."""
    async with natsproto.connect(url) as nc:
        pages = await nc.jetstream().create_object_store("PAGES")
        for number in range(20):
            await pages.put(f"page-{number:02}", b"word " * (100 + number))


async def count_words(client: natsproto.Client, row: Row) -> tuple[str, int]:
    """Reads one object, and stores what it found in another one."""
    js = client.jetstream()
    page = await (await js.object_store("PAGES")).get_bytes(row.name)
    words = len(page.split())
    await (await js.object_store("COUNTS")).put(row.name, str(words).encode())
    return row.name, words


async def names_and_target(url: str) -> list[str]:
    """Makes the store of the results; returns the names of all pages."""
    async with natsproto.connect(url) as nc:
        js = nc.jetstream()
        await js.create_object_store("COUNTS")
        return [info.name async for info in (await js.object_store("PAGES")).list()]


def main() -> None:
    """Counts the words of every page, eight objects at a time in each task."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    with run_server(jetstream=True) as server:
        asyncio.run(prepare(server.url))
        spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
        names = asyncio.run(names_and_target(server.url))
        pages = spark.createDataFrame([Row(name=name) for name in names])
        # A task that runs again puts the same objects again: the last put of a name wins.
        count = nspark.map_async(count_words, nspark.SparkNats(servers=server.url), concurrency=8)
        found = pages.rdd.mapPartitions(count).toDF(["name", "words"])
        print(found.count(), "pages")
        # shows: 20 pages
        print(found.groupBy().sum("words").collect()[0][0], "words")
        # shows: 2190 words
        spark.stop()


if __name__ == "__main__":
    main()
