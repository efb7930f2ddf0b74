"""Workers of a processor that fight for its partitions and are killed, on one server and on three.

``python -m tests.processor.test_matrix single|cluster SECONDS [SEED]`` runs a matrix for longer.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import natsproto
from natsproto.errors import NatsError
from natsproto.jetstream import Stream
from natsproto.testing import Server, run_cluster, run_server
from tests.processor.processes import Workers, check_sink, create_streams, is_complete, publish_sums

PARTITIONS, WORKERS = 3, 3
Fault = Callable[[Stream, random.Random], Awaitable[str]]


@asynccontextmanager
async def single(folder: Path) -> AsyncIterator[tuple[str, Fault]]:
    """A server that is killed, and whose sink is put back."""
    async with run_server(jetstream=True, store_dir=folder / "store") as server:

        async def fault(stream: Stream, rng: random.Random) -> str:
            server.kill()
            before = folder / "before"
            (store,) = (folder / "store").rglob("streams/OUT")
            if before.exists() and rng.random() < 0.3:
                shutil.rmtree(store)
                before.rename(store)
                await server.restart()
                return "sinks put back"
            shutil.rmtree(before, ignore_errors=True)
            shutil.copytree(store, before)
            await server.restart()
            return "servers killed"

        yield server.url, fault


@asynccontextmanager
async def cluster(folder: Path) -> AsyncIterator[tuple[str, Fault]]:
    """Three servers; the leader of a stream is killed, or cut off for two seconds."""
    async with run_cluster(3, link_faults=True, store_dir=folder / "store") as servers:

        async def leader(stream: Stream) -> Server:
            info = await stream.info(timeout=5)
            assert info.cluster is not None
            return next(server for server in servers.servers if server.name == info.cluster.leader)

        async def fault(stream: Stream, rng: random.Random) -> str:
            server = await leader(stream)
            if rng.random() < 0.5:
                servers.isolate(server)
                await asyncio.sleep(2)
                await servers.heal()
                return "leaders cut off"
            server.kill()
            await asyncio.sleep(1)
            await server.restart()
            return "leaders killed"

        yield ",".join(server.url for server in servers.servers), fault


async def run_matrix(kind: str, folder: Path, seconds: float, seed: int) -> str:
    """Publish and kill for so many seconds; return the figures of a sink that equals that of a single run."""
    rng, loop, counts = random.Random(seed), asyncio.get_running_loop(), Counter[str]()
    async with (
        (single if kind == "single" else cluster)(folder) as (url, fault),
        natsproto.connect(url, reconnect_wait=0.05) as nc,
    ):
        js = nc.jetstream(timeout=10)
        source, sink = await create_streams(js, PARTITIONS, 1 if kind == "single" else 3)
        with Workers(url, PARTITIONS, rng) as workers:
            for _ in range(WORKERS):
                workers.start()
            end = loop.time() + seconds
            while loop.time() < end:
                await asyncio.sleep(rng.uniform(0.2, 1.5))
                workers.replace()
                counts["workers killed"] += 1
                try:
                    await publish_sums(js, rng, rng.randrange(300))
                    if rng.random() < 0.25:
                        counts[await fault(rng.choice((source, sink)), rng)] += 1
                except NatsError as exc:
                    counts[type(exc).__name__] += 1
            async with asyncio.timeout(120):
                while not await completed(source, sink):
                    workers.check()
                    await asyncio.sleep(0.2)
        figures = await check_sink(source, sink)
    return f"{kind}, seed {seed}, {seconds:g} s: {dict(counts)}; {figures}"


async def completed(source: Stream, sink: Stream) -> bool:
    try:
        return await is_complete(source, sink)
    except NatsError:
        return False


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", ["single", "cluster"])
async def test_killed_workers_process_once(kind: str, tmp_path: Path, seed: int) -> None:
    print(await run_matrix(kind, tmp_path, 60, seed))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        given = int(sys.argv[3]) if len(sys.argv) > 3 else random.randrange(2**32)
        print(asyncio.run(run_matrix(sys.argv[1], Path(name), float(sys.argv[2]), given)))
