"""Reading, writing and looking up in Spark: natsproto.spark beside loops of nats-py in plain ``mapPartitions``.

    python -m benchmarks.spark [--rows 200000] [--runs 3] [--only read,write] [--json FILE] [--page]

``--page`` writes the table into docs/benchmarks.md.

Everything runs in one session on local[2] against one server. Contenders take turns; the ratio is that of the medians.
CPU is the processor time of a row in Python workers, JVM and nats-server. The messages are orders in JSON: 445 bytes on
average, lengths and subjects vary, 30 % have headers. Needs Java 17 and the extras spark and server.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as fn

import natsproto
from benchmarks.report import write_page
from natsproto.spark import (
    SparkNats,
    kv_lookup,
    map_async,
    plan_ranges,
    publish_partition,
    read_range,
    register,
    request_partition,
    stream_dataframe,
)
from natsproto.testing import run_server

SCHEMA = (
    "stream string, subject string, seq long, timestamp timestamp, data binary, "
    "headers map<string,array<string>>, size int"
)
PARTITIONS = 2
PAGE = Path(__file__).parent.parent / "docs" / "benchmarks.md"
MARKS = "<!-- spark: begin -->", "<!-- spark: end -->"
KEYS = 1000
ORDER = "id long, product string, quantity long, price double, customer struct<name: string, country: string>"


@dataclass(frozen=True)
class Contender:
    """One way of doing it. ``target`` is the ratio to the first of its group that it should reach."""

    group: str
    name: str
    run: Callable[[], object]
    target: float = 0.0
    share: float = 1.0


def main(rows: int, runs: int, only: str, target: str | None, *, page: bool) -> None:
    """Measures and prints."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    with run_server(jetstream=True) as server, responder(server.url):
        server_version, load = asyncio.run(scene(server.url, rows)), os.getloadavg()[0]
        spark = (
            SparkSession.builder.master(f"local[{PARTITIONS}]")
            .config("spark.ui.enabled", "false")
            .config("spark.log.level", "ERROR")
            .config("spark.python.authenticate.socketTimeout", "120s")
            .config("spark.ui.showConsoleProgress", "false")
            .getOrCreate()
        )
        register(spark)
        wanted = only.split(",")
        contenders = [one for one in Bench(spark, server.url, rows).contenders() if not only or one.group in wanted]
        print(f"Spark {spark.version}, {rows:,} rows, medians of {runs} runs\n")
        seconds: dict[str, list[float]] = {}
        used: dict[str, list[Cpu]] = {}
        for run in range(runs + 1):  # the first warms everything up
            for one in contenders:
                start, before = time.perf_counter(), cpu_seconds()
                one.run()
                if run:
                    seconds.setdefault(one.name, []).append(time.perf_counter() - start)
                    after = cpu_seconds()
                    used.setdefault(one.name, []).append(
                        Cpu(*[now - then for now, then in zip(after, before, strict=True)])
                    )
        lines = table(contenders, {name: median(taken) for name, taken in seconds.items()}, used, rows)
        print("\n".join(lines))
        if page:
            versions = f"Spark {spark.version}, nats-server {server_version}, nats-py {version('nats-py')}"
            write_page(PAGE, page_text(lines, versions, load), MARKS)
        if not only or "memory" in wanted:
            empty, first, highest = memory(spark, server.url)
            reached = f"{highest:.0f} MiB at most, {first:.0f} with the first batch, {empty:.0f} before"
            print(f"\nRSS of a worker that reads {rows:,} rows: {reached}")
        spark.stop()
    if target:
        Path(target).write_text(json.dumps(seconds, indent=1))


class Cpu(NamedTuple):
    """Processor time in seconds."""

    workers: float
    jvm: float
    server: float


def cpu_seconds() -> Cpu:
    """What the processes below this one have taken so far, with those that have ended."""
    parents: dict[int, int] = {}
    found: dict[int, tuple[str, float]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, rest = path.read_text().partition("(")[2].rpartition(")")
        except OSError:
            continue  # it has ended
        fields = rest.split()
        process = int(path.parent.name)
        parents[process] = int(fields[1])
        found[process] = name, sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    totals = {"java": 0.0, "nats-server": 0.0, "": 0.0}
    for process, (name, taken) in found.items():
        ancestor = process
        while ancestor in parents and ancestor != os.getpid():
            ancestor = parents[ancestor]
        if ancestor == os.getpid() != process:
            totals[name if name in totals else ""] += taken
    return Cpu(totals[""], totals["java"], totals["nats-server"])


def table(contenders: list[Contender], taken: dict[str, float], used: dict[str, list[Cpu]], rows: int) -> list[str]:
    """A table in Markdown; the first of each group is what the others are held against."""
    lines = ["| contender | rows/s | ratio | CPU: workers + JVM + server, µs a row | target |", "|---|---|---|---|---|"]
    first: dict[str, float] = {}
    for one in contenders:
        count = rows * one.share
        rate = count / taken[one.name]
        against = first.setdefault(one.group, rate)
        target = f">= {one.target:g}" if one.target else ""
        cpu = " + ".join(f"{1e6 * median(times) / count:.1f}" for times in zip(*used[one.name], strict=True))
        lines.append(f"| {one.group}: {one.name} | {rate:,.0f} | {rate / against:.2f} | {cpu} | {target} |")
    return lines


def page_text(lines: list[str], versions: str, load: float) -> str:
    """The measured part of the page."""
    given = "".join(f" {argument}" for argument in sys.argv[1:] if argument != "--page")
    busy = f"{os.cpu_count()} cores, a load of {load:.1f} at the start."
    return "\n".join([f"Command: `python -m benchmarks.spark{given}`", "", f"{versions}, {busy}", "", *lines, ""])


async def scene(url: str, rows: int) -> str:
    """Makes a stream of orders, and a bucket; returns the version of the server."""
    chance = random.Random(21)
    async with natsproto.connect(url) as nc:
        js = nc.jetstream()
        await js.create_stream("BENCH", subjects=["bench.>"], storage="memory", allow_direct=True)
        await js.create_stream(
            "SINK", subjects=["sink.>"], storage="memory", allow_atomic=True, max_msgs_per_subject=1000
        )
        async with js.publisher(max_pending=2000) as publisher:
            for number in range(rows):
                subject, data, headers = order(chance, number)
                await publisher.publish(f"bench.{subject}", data, headers=headers)
        bucket = await js.create_key_value("KEYS", storage="memory")
        for number in range(KEYS):
            await bucket.put(f"k{number}", b"v" * 50)
        return nc.server_info.version


def order(chance: random.Random, number: int) -> tuple[str, bytes, dict[str, str] | None]:
    """One message as users have it: subject, JSON, and for 30 % of them headers."""
    customer = {"name": f"customer {chance.randrange(10_000)}", "country": chance.choice(("GB", "US", "FR", "KR"))}
    note = "left at the door " * min(200, int(chance.lognormvariate(2.63, 0.8)))
    fields = {"id": number, "product": f"p{chance.randrange(500)}", "quantity": chance.randrange(1, 9)}
    data = json.dumps({**fields, "price": round(chance.uniform(1, 99), 2), "customer": customer, "note": note})
    headers = {"Trace-Id": f"{chance.getrandbits(128):032x}", "Source": "shop"} if chance.random() < 0.3 else None
    return f"{customer['country'].lower()}.{chance.randrange(1000)}", data.encode(), headers


@contextmanager
def responder(url: str) -> Iterator[None]:
    """A process that answers requests on the subject echo."""
    with subprocess.Popen([sys.executable, "-c", RESPONDER, url], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield
        finally:
            process.kill()


RESPONDER = """
import asyncio, sys
import natsproto

async def main() -> None:
    async with natsproto.connect(sys.argv[1]) as nc:
        async with nc.subscribe("echo") as requests:
            await nc.flush()
            print("ready", flush=True)
            async for request in requests:
                await request.respond(request.data)

asyncio.run(main())
"""


class Bench:
    """The contenders."""

    def __init__(self, spark: SparkSession, url: str, rows: int) -> None:
        self._spark, self._url, self._rows = spark, url, rows
        self._nats = SparkNats(servers=url)
        self._serial = 0
        self._cached: dict[float, DataFrame] = {}
        bounds = [(rows * part // PARTITIONS + 1, rows * (part + 1) // PARTITIONS) for part in range(PARTITIONS)]
        self._bounds = spark.sparkContext.parallelize(bounds, PARTITIONS)

    def contenders(self) -> list[Contender]:
        """In the order in which they take turns."""
        few, half = 0.1, 0.5  # of the rows, for what is slow
        return [
            Contender("read", "nats-py, psub.fetch in mapPartitions", self.nats_py_read),
            Contender("read", "format(nats), Arrow", lambda: noop(self.table()), 4.5),
            Contender("read", "read_range, tuples", self.tuples, 2),
            Contender("read", "format(nats), readMethod=direct", lambda: noop(self.table(readMethod="direct")), 3),
            Contender("read", "stream_dataframe", lambda: noop(stream_dataframe(self._spark, self._nats, "BENCH"))),
            Contender("job", "nats-py, psub.fetch, from_json, sum", lambda: job(self.nats_py_payloads())),
            Contender("job", "format(nats), from_json, sum", lambda: job(self.table(includeHeaders="false")), 3),
            Contender("write", "nats-py, gather(500) in foreachPartition", self.nats_py_write),
            Contender("write", "format(nats), Arrow, ids", lambda: self.write(delivery="ids"), 3.5),
            Contender("write", "format(nats), Arrow, none", lambda: self.write(delivery="none"), 3.5),
            Contender("write", "publish_partition, rows, ids", self.publish_rows, 2.5),
            Contender(
                "cursor",
                "format(nats), Arrow, ids (of a tenth)",
                lambda: self.write(few, delivery="ids"),
                share=few,
            ),
            Contender(
                "cursor",
                "format(nats), Arrow, cursor (of a tenth)",
                lambda: self.write(few, delivery="cursor", cursorSubject="sink.cursors"),
                0.5,
                few,
            ),
            Contender("lookup", "nats-py, 64 kv.get at a time", self.nats_py_lookup, share=few),
            Contender("lookup", "kv_lookup", self.lookup, 3, few),
            Contender("request", "nats-py, 64 at a time", self.nats_py_request, share=half),
            Contender("request", "map_async, 64 at a time", self.request_each, 2, half),
            Contender("request", "request_partition, 64 at a time", self.request_rows, 2, half),
            Contender("5 ms service", "map_async, 1 at a time", lambda: self.service(1, 0.002), share=0.002),
            Contender("5 ms service", "map_async, 64 at a time", lambda: self.service(64, 0.1), 30, 0.1),
        ]

    # ------------------------------------------------------------ reading

    def table(self, **options: str) -> DataFrame:
        given = {"servers": self._url, "stream": "BENCH", "minPartitions": str(PARTITIONS), **options}
        return self._spark.read.format("nats").options(**given).load()

    def tuples(self) -> None:
        ranges = self._spark.sparkContext.parallelize(
            plan_ranges(self._nats, "BENCH", num_partitions=PARTITIONS), PARTITIONS
        )
        nats = self._nats

        def read(given: Iterable[Any]) -> Iterator[Any]:
            for seq_range in given:
                yield from read_range(nats, seq_range)

        noop(self._spark.createDataFrame(ranges.mapPartitions(read), SCHEMA))

    def nats_py_read(self) -> None:
        rows = self._bounds.mapPartitions(partial(fetch_all, self._url, every_column))
        noop(self._spark.createDataFrame(rows, SCHEMA))

    def nats_py_payloads(self) -> DataFrame:
        rows = self._bounds.mapPartitions(partial(fetch_all, self._url, payload_alone))
        return self._spark.createDataFrame(rows, "data binary")

    # ------------------------------------------------------------ writing

    def rows(self, share: float = 1.0) -> DataFrame:
        """Orders in the memory of Spark."""
        if share not in self._cached:
            orders = self.table(endingOffsets=str(int(self._rows * share)))
            self._cached[share] = orders.selectExpr("replace(subject, 'bench', 'sink') AS subject", "data", "headers")
            self._cached[share].cache().count()
        return self._cached[share]

    def write(self, share: float = 1.0, **options: str) -> None:
        given = {"servers": self._url, "stream": "SINK", "stableOrder": "true", **options}
        self.rows(share).write.format("nats").options(**given).mode("append").save()

    def publish_rows(self) -> None:
        self._serial += 1
        publish: Any = publish_partition(self._nats, write_id=f"bench-{self._serial}", stable_order=True)
        self.rows().rdd.mapPartitions(publish).collect()

    def nats_py_write(self) -> None:
        url = self._url
        self._serial += 1
        write_id = f"gather-{self._serial}"

        async def publish(rows: Iterator[Row], partition: int) -> None:
            from itertools import islice

            import nats

            nc = await nats.connect(url)
            js = nc.jetstream()
            number = 0
            while chunk := list(islice(rows, 500)):
                pending = []
                for row in chunk:
                    headers = {"Nats-Msg-Id": f"{write_id}.{partition}.{number}"}
                    for name, values in (row.headers or {}).items():
                        headers[name] = values[0]
                    pending.append(js.publish(row.subject, bytes(row.data), headers=headers, timeout=30))
                    number += 1
                await asyncio.gather(*pending)
            await nc.close()

        def write(partition: int, rows: Iterable[Row]) -> Iterator[int]:
            asyncio.run(publish(iter(rows), partition))
            yield partition

        self.rows().rdd.mapPartitionsWithIndex(write).collect()

    # ------------------------------------------------------------ looking up

    def keys(self) -> Any:
        count = self._rows // 10
        return self._spark.sparkContext.parallelize([f"k{number % KEYS}" for number in range(count)], PARTITIONS)

    def lookup(self) -> None:
        look_up: Any = kv_lookup(self._nats, "KEYS", key_itself)
        self.keys().mapPartitions(look_up).count()

    def nats_py_lookup(self) -> None:
        url = self._url

        async def get(keys: list[str]) -> list[bytes | None]:
            import nats

            nc = await nats.connect(url)
            bucket = await nc.jetstream().key_value("KEYS")
            found: list[bytes | None] = []
            for begin in range(0, len(keys), 64):
                found += [entry.value for entry in await asyncio.gather(*map(bucket.get, keys[begin : begin + 64]))]
            await nc.close()
            return found

        def look_up(keys: Iterable[str]) -> Iterator[bytes | None]:
            yield from asyncio.run(get(list(keys)))

        self.keys().mapPartitions(look_up).count()

    def payloads(self) -> Any:
        count = self._rows // 2
        return self._spark.sparkContext.parallelize([{"data": b"%d" % number} for number in range(count)], PARTITIONS)

    def request_each(self) -> None:
        ask: Any = map_async(echo, self._nats, concurrency=64)
        self.payloads().mapPartitions(ask).count()

    def request_rows(self) -> None:
        ask: Any = request_partition(self._nats, "echo", concurrency=64)
        self.payloads().mapPartitions(ask).count()

    def nats_py_request(self) -> None:
        url = self._url

        async def ask(rows: Iterator[dict[str, bytes]]) -> list[bytes]:
            import nats

            nc = await nats.connect(url)
            replies: list[bytes] = []

            async def lane() -> None:
                for row in rows:  # 64 lanes take from one iterator: one slow reply does not hold up the others
                    reply = await nc.request("echo", row["data"], timeout=5)
                    replies.append(reply.data)

            await asyncio.gather(*(lane() for _ in range(64)))
            await nc.close()
            return replies

        def request(rows: Iterable[dict[str, bytes]]) -> Iterator[bytes]:
            yield from asyncio.run(ask(iter(rows)))

        self.payloads().mapPartitions(request).count()

    def service(self, concurrency: int, share: float) -> None:
        rows = self._spark.sparkContext.parallelize(range(int(self._rows * share)), PARTITIONS)
        ask: Any = map_async(five_milliseconds, self._nats, concurrency=concurrency)
        rows.mapPartitions(ask).count()


def fetch_all(
    url: str, row_of: Callable[[Any], tuple[object, ...]], bounds: Iterable[tuple[int, int]]
) -> Iterator[Any]:
    """What nats-py's documentation shows for reading a stream: a pull subscription, ``fetch`` after ``fetch``."""

    async def fetch(first: int, last: int) -> list[tuple[object, ...]]:
        import nats
        from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

        nc = await nats.connect(url)
        config = ConsumerConfig(
            ack_policy=AckPolicy.NONE, deliver_policy=DeliverPolicy.BY_START_SEQUENCE, opt_start_seq=first
        )
        subscription = await nc.jetstream().pull_subscribe("bench.>", stream="BENCH", config=config)
        rows: list[tuple[object, ...]] = []
        while len(rows) < last - first + 1:
            rows += map(row_of, await subscription.fetch(5000, timeout=10))
        await nc.close()
        return rows[: last - first + 1]

    for first, last in bounds:
        yield from asyncio.run(fetch(first, last))


def every_column(message: Any) -> tuple[object, ...]:
    about = message.metadata
    headers = {name: [value] for name, value in (message.headers or {}).items()} or None
    size = len(message.subject) + len(message.data)
    return "BENCH", message.subject, about.sequence.stream, about.timestamp, message.data, headers, size


def payload_alone(message: Any) -> tuple[object, ...]:
    return (message.data,)


def job(orders: DataFrame) -> None:
    """Revenue by product and country."""
    parsed = orders.select(fn.from_json(fn.col("data").cast("string"), ORDER).alias("order"))
    revenue = parsed.groupBy("order.product", "order.customer.country")
    noop(revenue.agg(fn.sum(fn.col("order.quantity") * fn.col("order.price"))))


async def echo(client: natsproto.Client, row: dict[str, bytes]) -> bytes:
    return (await client.request("echo", row["data"], timeout=5)).data


def key_itself(key: str) -> str:
    return key


async def five_milliseconds(client: natsproto.Client, row: int) -> int:
    """A service that takes its time; what is measured is how many of them are under way."""
    await asyncio.sleep(0.005)
    return row


def noop(frame: DataFrame) -> None:
    """Makes every row and throws it away."""
    frame.write.format("noop").mode("overwrite").save()


def memory(spark: SparkSession, url: str) -> tuple[float, float, float]:
    """MiB of a worker before it reads, when it has the first Arrow batch of the stream, and at most until the last.

    The first brings pyarrow, the client and its buffers. Looked at behind every batch: the highest that the system
    knows of a process is that of what it did before as well.
    """
    nats = SparkNats(servers=url)
    (seq_range,) = plan_ranges(nats, "BENCH", num_partitions=1)

    def resident() -> float:
        with open("/proc/self/statm", encoding="ascii") as pages:
            return int(pages.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20

    def read(ranges: Iterable[Any]) -> Iterator[tuple[float, float, float]]:
        for one in ranges:
            empty = resident()
            batches = read_range(nats, one, output="arrow")
            next(batches)
            first = highest = resident()
            for _ in batches:
                highest = max(highest, resident())
            yield empty, first, highest

    empty, first, highest = spark.sparkContext.parallelize([seq_range], 1).mapPartitions(read).first()
    return float(empty), float(first), float(highest)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--only", default="", help="groups, with commas: read, job, write, cursor ... memory")
    parser.add_argument("--page", action="store_true", help="write the table into docs/benchmarks.md")
    parser.add_argument("--json", help="a file for the seconds of every run")
    given = parser.parse_args()
    main(given.rows, given.runs, given.only, given.json, page=given.page)
