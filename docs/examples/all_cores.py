"""A service on all cores: one process for each, all in one queue group; one that dies is started again.

``python docs/examples/all_cores.py nats://localhost:4222`` runs it until Ctrl-C or SIGTERM: the processes answer what
they have received, and end. Without a URL it measures the gain on a nats-server started here (``natsproto[server]``).
"""

import asyncio
import hashlib
import multiprocessing
import os
import signal
import sys
import time

import natsproto
from natsproto.testing import run_server

REQUESTS = 640


async def work(url: str) -> None:
    """Run in each process: respond to a share of the requests until SIGTERM, then to those that have arrived."""
    stop = natsproto.stop_event()
    async with natsproto.connect(url) as nc:  # its end drains: what was received is answered

        async def answer(request: natsproto.Message) -> None:
            for _ in range(200):  # stands for a fraction of a millisecond of Python
                digest = hashlib.sha256(request.data).hexdigest()
            await request.respond(digest.encode())

        await nc.subscribe("hash", queue="workers", cb=answer)
        await nc.publish("ready", str(os.getpid()).encode())
        await stop.wait()


def run_work(url: str) -> None:
    asyncio.run(work(url))


async def keep_running(url: str) -> None:
    """Start a process, and another one when it dies. Cancelling it sends SIGTERM and waits for the end."""
    spawn = multiprocessing.get_context("spawn")
    exit_code = None
    while exit_code != 0:  # 0: it was told to end
        process = spawn.Process(target=run_work, args=(url,))
        process.start()
        try:
            while process.is_alive():  # noqa: ASYNC110  # on Windows, no event tells of its end
                await asyncio.sleep(0.05)
        finally:
            process.terminate()
            await asyncio.to_thread(process.join)
        exit_code = process.exitcode
        print(f"process {process.pid} ended with {exit_code}", flush=True)
        await asyncio.sleep(0.2)  # one that cannot start is not tried all the time


async def serve(url: str, processes: int, stop: asyncio.Event) -> None:
    """Keep so many processes running until ``stop`` is set."""
    workers = [asyncio.create_task(keep_running(url)) for _ in range(processes)]
    try:
        await stop.wait()
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)


async def measure(nc: natsproto.Client, url: str, processes: int, *, kill: bool = False) -> float:
    """Return the requests a second, 64 at a time; with ``kill``, one process is killed before."""
    stop = asyncio.Event()
    async with nc.subscribe("ready") as ready:
        await nc.flush()
        serving = asyncio.create_task(serve(url, processes, stop))
        pids = [int((await ready.next(timeout=60)).data) for _ in range(processes)]
        if kill:
            os.kill(pids[0], signal.SIGKILL)
            await ready.next(timeout=60)  # another one has started
    begun = time.perf_counter()
    for _ in range(0, REQUESTS, 64):
        await asyncio.gather(*(nc.request("hash", os.urandom(256), timeout=60) for _ in range(64)))
    rate = REQUESTS / (time.perf_counter() - begun)
    stop.set()
    await serving
    return rate


async def main() -> None:
    """Serves at a URL, or measures with one process, and with one for each core."""
    cores = os.cpu_count() or 1
    if len(sys.argv) > 1:
        await serve(sys.argv[1], cores, natsproto.stop_event())
        return
    async with run_server() as server, natsproto.connect(server.url) as nc:
        alone = await measure(nc, server.url, 1)
        together = await measure(nc, server.url, cores, kill=True)
    print(f"1 process: {alone:,.0f} requests a second")
    print(f"{cores} processes: {together:,.0f}, {together / alone:.1f} times as many")


if __name__ == "__main__":
    asyncio.run(main())

# prints: process ... ended with -9
# prints: 1 process: ... requests a second
# prints: ... processes: ..., ... times as many
