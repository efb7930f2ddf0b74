"""A worker in Kubernetes: starts before its server, answers probes, and drains at SIGTERM."""

import asyncio
import signal

import natsproto
from natsproto.testing import run_server


async def work(servers: str, probe_port: int, started: asyncio.Event) -> None:
    stop = natsproto.stop_event()  # set by SIGTERM or Ctrl-C, which end connect, too
    async with natsproto.connect(servers, retry_connect_for=60) as nc:

        async def probe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            live = (await reader.readline()).startswith(b"GET /live")  # else /ready
            health = await nc.health(timeout=2)
            writer.write(b"HTTP/1.1 %d -\r\n\r\n" % (200 if (health.alive if live else health.ok) else 503))
            writer.close()

        await nc.subscribe("jobs", queue="workers", cb=lambda job: print("handled", job.data.decode()))
        async with await asyncio.start_server(probe, port=probe_port):
            started.set()
            await stop.wait()  # leaving the block drains: what was received is handled


async def main() -> None:
    async with run_server() as server:
        server.kill()  # the worker starts first
        worker = asyncio.create_task(work(server.url, 0, started := asyncio.Event()))
        await server.restart()
        await started.wait()
        async with natsproto.connect(server.url) as nc:
            await nc.publish("jobs", b"one job")
        signal.raise_signal(signal.SIGTERM)  # as Kubernetes does
        await worker


asyncio.run(main())

# origin: how-to guide
# about: `retry_connect_for` waits for the server, `nc.health` answers the probes, and the end of the block drains the
# about: client.
# prints: handled one job
