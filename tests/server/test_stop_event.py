"""Programs that end by a signal, on the real server."""

from __future__ import annotations

import asyncio
import signal
import sys

import pytest

import natsproto
from natsproto.errors import LocalProtocolError
from natsproto.jetstream import JetStream
from natsproto.testing import Server

WORKER = """
import asyncio, sys, time
import natsproto

async def handle(message):
    print("begun", message.seq, flush=True)
    await {work}
    print("handled", message.seq, flush=True)

async def main():
    stop = natsproto.stop_event()
    async with natsproto.connect(sys.argv[1]) as nc:
        consumer = await (await nc.jetstream().stream("S")).consumer("c")
        await consumer.consume(handle).run(until=stop)

asyncio.run(main())
"""


async def start_worker(server: Server, jetstream: JetStream, work: str) -> asyncio.subprocess.Process:
    stream = await jetstream.create_stream("S", subjects=["s"])
    await stream.create_consumer("c")
    for _ in range(20):
        await jetstream.publish("s")
    worker = await asyncio.create_subprocess_exec(
        sys.executable, "-c", WORKER.format(work=work), server.url, stdout=-1, stderr=-1
    )
    assert worker.stdout is not None
    assert await worker.stdout.readline() == b"begun 1\n"
    return worker


async def test_ctrl_c_ends_after_running_handlers(nats_server: Server, jetstream: JetStream) -> None:
    worker = await start_worker(nats_server, jetstream, "asyncio.sleep(1)")  # its own time
    worker.send_signal(signal.SIGINT)
    out, _ = await worker.communicate()
    assert out == b"handled 1\n"  # and nothing of what waited
    assert worker.returncode == 0
    consumer = await (await jetstream.stream("S")).consumer("c")
    assert len(await consumer.fetch(19, timeout=10)) == 19  # they were returned


async def test_second_ctrl_c_ends_at_once(nats_server: Server, jetstream: JetStream) -> None:
    worker = await start_worker(nats_server, jetstream, "asyncio.sleep(600)")  # its own time
    worker.send_signal(signal.SIGINT)
    await asyncio.sleep(0.05)
    worker.send_signal(signal.SIGINT)
    out, _ = await asyncio.wait_for(worker.communicate(), 10)
    assert (out, worker.returncode) == (b"", -signal.SIGINT)


async def test_stop_event_needs_the_main_thread() -> None:
    async def in_thread() -> None:
        natsproto.stop_event()

    with pytest.raises(LocalProtocolError, match="main thread"):
        await asyncio.to_thread(asyncio.run, in_thread())


async def test_stop_event_restores_the_handlers() -> None:
    before = signal.getsignal(signal.SIGTERM)
    stop = natsproto.stop_event(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is not before
    signal.raise_signal(signal.SIGTERM)
    await stop.wait()
    assert signal.getsignal(signal.SIGTERM) is before


async def test_one_signal_sets_the_events_of_all_calls() -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    stops = [natsproto.stop_event(), natsproto.stop_event(signal.SIGTERM), natsproto.stop_event()]
    signal.raise_signal(signal.SIGTERM)
    async with asyncio.timeout(5):
        for stop in stops:
            await stop.wait()
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


def test_event_of_an_ended_loop_does_not_count() -> None:
    async def main(*, ends: bool) -> bool:
        stop = natsproto.stop_event()
        if ends:
            return False
        signal.raise_signal(signal.SIGTERM)
        async with asyncio.timeout(5):
            return await stop.wait()

    before = signal.getsignal(signal.SIGTERM)
    assert not asyncio.run(main(ends=True))
    assert asyncio.run(main(ends=False))
    assert signal.getsignal(signal.SIGTERM) is before
