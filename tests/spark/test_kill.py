"""A query that is killed with SIGKILL, driver and all, and started again: every row is in the sink, and once."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import natsproto
from natsproto.jetstream._context import JetStream
from natsproto.jetstream._stream.stream import Stream
from natsproto.testing._server import Server
from tests.spark.conftest import need_java
from tests.spark.streams import window_over

ROOT = Path(__file__).parent.parent.parent


def start(server: Server, folder: Path, delivery: str) -> subprocess.Popen[bytes]:
    env = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPYCACHEPREFIX": str(folder.parent / "bytecode")}
    env.pop("PYTHONDONTWRITEBYTECODE", None)  # every worker would compile everything anew
    command = [sys.executable, "-m", "tests.spark.kill_job", server.url, str(folder), delivery]
    with (folder / "job.log").open("ab") as log:
        return subprocess.Popen(
            command,
            cwd=ROOT,
            env=env,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


async def kill_at(job: subprocess.Popen[bytes], out: Stream, folder: Path, rows: int) -> None:
    """Kills it when the sink holds so many rows; lets it end when it never does."""
    try:
        while job.poll() is None:
            if (await out.info()).state.messages >= rows:
                os.killpg(job.pid, signal.SIGKILL)
                return
            await asyncio.sleep(0.02)
    finally:
        if job.poll() is None:
            os.killpg(job.pid, signal.SIGKILL)
            job.wait()
    assert job.returncode == 0, (folder / "job.log").read_text()[-4000:]


async def check_job(
    server: Server, folder: Path, delivery: str, *, count: int, kills: int, seed: int, window: float = 600
) -> None:
    need_java()
    async with natsproto.connect(server.url) as client:
        js = client.jetstream()
        out = await orders_and_sink(js, count, window)
        points = sorted(random.Random(seed).sample(range(1, count), kills))
        for rows in [*points, 10 * count]:
            job = await asyncio.to_thread(start, server, folder, delivery)
            await kill_at(job, out, folder, rows)
            if window < 600:
                await window_over(js, "out.other")
        found = sorted([int(message.data) async for message in out.get_batch(subject="out.rows.>")])
        assert found == list(range(count))
        assert (await (await js.stream("ORDERS")).info()).state.messages == count


async def orders_and_sink(js: JetStream, count: int, window: float) -> Stream:
    await js.create_stream(name="ORDERS", subjects=["orders"])
    async with js.publisher() as publisher:
        for number in range(count):
            await publisher.publish("orders", b"%d" % number)
    return await js.create_stream(
        name="OUT",
        subjects=["out.>", "$CURSOR.OUT.>"],
        duplicate_window=window,
        allow_atomic=True,
        allow_rollup_hdrs=True,
    )


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_killed_query_doubles_nothing(nats_server: Server, tmp_path: Path, seed: int) -> None:
    await check_job(nats_server, tmp_path, "ids", count=6000, kills=1, seed=seed)


@pytest.mark.spark_full
@pytest.mark.timeout(1800)
async def test_query_that_was_away_longer_than_the_window(nats_server: Server, tmp_path: Path, seed: int) -> None:
    await check_job(nats_server, tmp_path, "cursor", count=40_000, kills=2, seed=seed, window=5)


@pytest.mark.spark_full
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("delivery", ["ids", "cursor"])
async def test_twice_killed_query_doubles_nothing(
    nats_server: Server, tmp_path: Path, delivery: str, seed: int
) -> None:
    await check_job(nats_server, tmp_path, delivery, count=40_000, kills=2, seed=seed)
