"""A service on all cores: one process for each, all in one queue group; on a nats-server started here.

Run it with ``python docs/examples/all_cores.py`` where ``natsproto[server]`` is installed.
"""

import asyncio
import hashlib
import multiprocessing
import os
import time

import natsproto
from natsproto.testing import run_server

REQUESTS = 640


async def work(url: str) -> None:
    """Run in each process: respond to a share of the requests until it is stopped."""
    async with natsproto.connect(url) as nc:

        async def answer(request: natsproto.Message) -> None:
            for _ in range(200):  # stands for a fraction of a millisecond of Python
                digest = hashlib.sha256(request.data).hexdigest()
            await request.respond(digest.encode())

        async with nc.subscribe("hash", queue="workers", cb=answer):
            await nc.publish("ready", str(os.getpid()).encode())
            await asyncio.Event().wait()


def process(url: str) -> None:
    asyncio.run(work(url))


async def measure(nc: natsproto.Client, url: str, count: int) -> float:
    """Return the requests a second with ``count`` processes, 64 requests at a time."""
    spawn = multiprocessing.get_context("spawn")
    processes = [spawn.Process(target=process, args=(url,), daemon=True) for _ in range(count)]
    async with nc.subscribe("ready") as ready:
        await nc.flush()
        for one in processes:
            one.start()
        for _ in processes:
            await ready.next(timeout=60)
    begun = time.perf_counter()
    for _ in range(0, REQUESTS, 64):
        await asyncio.gather(*(nc.request("hash", os.urandom(256), timeout=60) for _ in range(64)))
    rate = REQUESTS / (time.perf_counter() - begun)
    for one in processes:
        one.terminate()
        one.join()
    return rate


async def main() -> None:
    """Measures with one process, and with one for each core."""
    cores = os.cpu_count() or 1
    async with run_server() as server, natsproto.connect(server.url) as nc:
        alone = await measure(nc, server.url, 1)
        together = await measure(nc, server.url, cores)
    print(f"1 process: {alone:,.0f} requests a second")
    print(f"{cores} processes: {together:,.0f}, {together / alone:.1f} times as many")


if __name__ == "__main__":
    asyncio.run(main())

# prints: 1 process:
# prints: times as many
