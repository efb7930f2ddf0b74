"""A query that starts again reads its last micro-batch and what came since, once, and never the whole target."""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio.subprocess import PIPE, Process
from pathlib import Path

import pytest

import natsproto
from natsproto.jetstream._context import JetStream
from natsproto.testing import Server
from tests.faults.helpers import monitoring
from tests.spark.conftest import need_java

ROOT = Path(__file__).parent.parent.parent
TARGET, BATCH = 60_000, 10


async def start(server: Server, folder: Path) -> Process:
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    command = [sys.executable, "-m", "tests.spark.lookup_job", server.url, str(folder)]
    with (folder / "job.log").open("ab") as log:
        job = await asyncio.create_subprocess_exec(
            *command, cwd=ROOT, env=environment, stdin=PIPE, stdout=PIPE, stderr=log
        )
    assert job.stdout is not None
    assert await job.stdout.readline() == b"started\n", (folder / "job.log").read_text()[-4000:]
    return job


async def store(job: Process, server: Server, js: JetStream, rows: int) -> int:
    """Publishes orders and waits until the query has stored them; returns what the server sent meanwhile."""
    async with js.publisher() as publisher:
        for number in range(rows):
            await publisher.publish("orders", b"%d" % number)
    before = (await monitoring(server, "/varz"))["out_msgs"]
    assert job.stdin is not None
    assert job.stdout is not None
    job.stdin.write(b"\n")
    assert await job.stdout.readline() == b"stored\n"
    return int(str((await monitoring(server, "/varz"))["out_msgs"])) - int(str(before))


async def end(job: Process) -> None:
    assert job.stdin is not None
    job.stdin.close()
    assert await job.wait() == 0


@pytest.mark.spark_full
@pytest.mark.timeout(600)
async def test_restart_costs_one_batch(nats_server: Server, tmp_path: Path) -> None:
    """Each micro-batch runs in new workers, as if the trigger was longer than Spark keeps them."""
    need_java()
    async with natsproto.connect(nats_server.url) as client:
        js = client.jetstream()
        await js.create_stream(name="ORDERS", subjects=["orders"], storage="memory")
        out = await js.create_stream(name="OUT", subjects=["out.>"], storage="memory")
        async with js.publisher() as publisher:
            for number in range(TARGET):
                await publisher.publish("out.old", msg_id=f"old-{number}")
        taken = []
        for _ in range(2):
            job = await start(nats_server, tmp_path)
            taken.append([await store(job, nats_server, js, BATCH) for _ in range(3)])
            await end(job)
        assert (await out.info()).state.messages == TARGET + 6 * BATCH
    print(taken)
    # No row of the query is there: everything of the last 15 minutes may be one. One of the two workers reads it.
    assert TARGET < taken[0][0] < 1.1 * TARGET, taken
    assert max(taken[0][1:] + taken[1]) < 1000, taken
