"""Runs the whole pipeline on this machine: a server, the generator, the Spark job, and a ``kill -9`` in the middle.

    python demo.py --orders 200000 --kill 1 --samples samples.json

At the end, the stream RESULTS and the bucket totals are compared with sums computed without Spark.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import generator

import natsproto
from natsproto.jetstream import JetStream
from natsproto.testing import run_server

HERE = Path(__file__).parent
STARTS = 5
"""Restarts of a job that crashes: on a very busy machine Spark loses its workers. They are counted."""
Sums = dict[str, tuple[int, int, int]]


def expected(orders: int) -> Sums:
    """The expected orders, pieces and cents by category and minute."""
    products = {name: (category, price) for name, category, price in generator.PRODUCTS}
    found: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for number in range(orders):
        one = generator.order(number)
        category, price = products[str(one["product"])]
        quantity = int(str(one["quantity"]))
        minute = str(one["at"])[:16].replace("-", "").replace(":", "")
        for place, value in enumerate((1, quantity, quantity * price)):
            found[f"{category}-{minute}"][place] += value
    return {key: (values[0], values[1], values[2]) for key, values in found.items()}


def read_sum(data: bytes) -> tuple[int, int, int]:
    """The output of the job."""
    said = json.loads(data)
    return said["orders"], said["pieces"], said["cents"]


async def results(js: JetStream) -> tuple[Sums, int]:
    """The sums in RESULTS, and the number of messages."""
    found: Sums = {}
    count = 0
    async for message in (await js.stream("RESULTS")).get_batch():
        found[message.subject.removeprefix("results.")] = read_sum(message.data)
        count += 1
    return found, count


async def totals(js: JetStream) -> Sums:
    """The sums in the bucket."""
    bucket = await js.key_value("totals")
    return {key: read_sum((await bucket.get(key)).value) async for key in bucket.keys()}  # noqa: SIM118  # no mapping


class Demo:
    """One run; ``samples`` are the data for the plot."""

    def __init__(self, url: str, js: JetStream, orders: int, checkpoint: str, master: str) -> None:
        self._url, self._js, self._orders, self._checkpoint, self._master = url, js, orders, checkpoint, master
        self._start = time.time()
        self._summed = 0
        self.crashes = 0
        """The crashes of the job, which should not happen."""
        self._wanted = expected(orders)
        self.samples: list[dict[str, object]] = []

    async def run(self, kills: int) -> None:
        """Start the job, kill it in the middle as often as requested, and wait until all orders are summed."""
        for _ in range(kills):
            await self._run_until(partial(self._has_summed, self._orders // (kills + 1)))
            self._note({"event": "kill"}, "kill -9")
        await self._run_until(self.is_right)

    async def _run_until(self, ended: Callable[[], Awaitable[bool]]) -> None:
        """Restart the job after a crash, as a service manager does in production."""
        for _ in range(STARTS):
            if await self._job(ended):
                return
        raise SystemExit(f"the job has ended {STARTS} times")

    async def _has_summed(self, orders: int) -> bool:
        return self._summed >= orders

    async def is_right(self) -> bool:
        """True if every sum is there; raises an error when one is wrong, or in RESULTS twice."""
        found, count = await results(self._js)
        if count > len(found) or not found.items() <= self._wanted.items():
            raise SystemExit("the sums are WRONG")
        return found == self._wanted == await totals(self._js)

    async def _job(self, ended: Callable[[], Awaitable[bool]]) -> bool:
        """Run the job until then, and kill it. False when it ends before."""
        self._note({"event": "start"}, "the Spark job starts")
        self._summed = 0
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, str(HERE / "job.py"), "--servers", self._url, "--checkpoint", self._checkpoint),
            *("--master", self._master, "--batch", str(max(1000, self._orders // 6))),
            env={**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        reading = asyncio.create_task(self._read(process))
        try:
            while not await ended():
                if reading.done():
                    self.crashes += 1
                    self._note({"event": "end"}, f"the job ENDED BY ITSELF with {await process.wait()}")
                    return False
                await asyncio.sleep(0.2)
            return True
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
            await reading
            await process.wait()

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        """Record every batch that the job reports."""
        assert process.stdout is not None
        async for line in process.stdout:
            if not line.startswith(b"{"):
                continue
            batch = json.loads(line)
            if batch["query"] == "results":
                self._summed += batch["orders"]
            rate = batch["orders"] / batch["seconds"]
            words = f"{batch['query']}: batch {batch['batch']} of {batch['orders']:,} orders, {rate:,.0f} a second"
            self._note(batch, words)

    def _note(self, sample: dict[str, object], words: str) -> None:
        now = time.time()
        self.samples.append({"at": round(now - self._start, 2), **sample})
        print(f"{now - self._start:7.1f} s  {words}", flush=True)

    async def watch(self) -> None:
        """Record the number of published orders."""
        orders = await self._js.stream("ORDERS")
        while True:
            count = (await orders.info()).state.messages
            self.samples.append({"at": round(time.time() - self._start, 2), "published": count})
            await asyncio.sleep(0.5)


async def main(orders: int, rate: int, kills: int, master: str) -> list[dict[str, object]]:
    """Run the whole pipeline until every sum is correct; return the events with their times."""
    with tempfile.TemporaryDirectory() as checkpoint:
        async with run_server(jetstream=True) as server, natsproto.connect(server.url) as nc:
            js = nc.jetstream()
            await generator.set_up(js)
            demo = Demo(server.url, js, orders, checkpoint, master)
            publishing = asyncio.create_task(generator.publish(js, orders, rate))
            watching = asyncio.create_task(demo.watch())
            await demo.run(kills)
            await publishing
            watching.cancel()
            sums = len(expected(orders))
            print(f"{orders:,} orders became {sums} sums: all of them are right, and stored once")
            print(f"Ends of the job: {kills} by kill -9, {demo.crashes} by itself")
    return demo.samples


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--orders", type=int, default=200_000)
    parser.add_argument("--rate", type=int, default=0, help="orders a second; 0 is as fast as they go")
    parser.add_argument("--kill", type=int, default=1, help="how often the job is killed")
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--samples", help="where to write what happened when, for plot.py")
    given = parser.parse_args()
    noted = asyncio.run(main(given.orders, given.rate, given.kill, given.master))
    if given.samples:
        Path(given.samples).write_text(json.dumps(noted))
