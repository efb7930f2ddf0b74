"""Programs that end by a signal, on the real server."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

import natsproto
from natsproto import sync
from natsproto.errors import ConnectFailed, DrainTimeout, LocalProtocolError, NoResponders
from natsproto.jetstream import JetStream
from natsproto.service import Request
from natsproto.testing import Server


@pytest.fixture(autouse=True)
def own_sigterm() -> Iterator[list[int]]:
    """The calls of the handler of SIGTERM before that of natsproto."""
    calls: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: calls.append(number))
    yield calls
    signal.signal(signal.SIGTERM, before)


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


BLOCKING_WORKER = """
import sys
from natsproto import sync

def handle(message):
    print("begun", message.seq, flush=True)
    {work}
    print("handled", message.seq, flush=True)

stop = sync.stop_event()
with sync.connect(sys.argv[1]) as client:
    consumer = client.jetstream().stream("S").consumer("c")
    consumer.consume(handle).run(until=stop)
"""

SERVICE = """
import asyncio, sys
import natsproto

async def answer(request):
    print("begun", flush=True)
    await request.respond((await asyncio.to_thread(sys.stdin.readline)).encode())

async def main():
    stop = natsproto.stop_event()
    async with natsproto.connect(sys.argv[1]) as nc, nc.add_service("calc", "1.0.0") as service:
        service.add_endpoint("answer", answer)
        service.add_endpoint("other", lambda request: request.respond())
        await nc.flush()
        print("ready", flush=True)
        print(await service.wait_stopped(stop))

asyncio.run(main())
"""

BLOCKING_SERVICE = """
import sys
from natsproto import sync

def answer(request):
    print("begun", flush=True)
    request.respond(sys.stdin.readline().encode())

stop = sync.stop_event()
with sync.connect(sys.argv[1]) as client, client.add_service("calc", "1.0.0") as service:
    service.add_endpoint("answer", answer)
    service.add_endpoint("other", lambda request: request.respond())
    client.flush()
    print("ready", flush=True)
    print(service.wait_stopped(stop))
"""


async def start_worker(
    server: Server, jetstream: JetStream, work: str, program: str = WORKER
) -> asyncio.subprocess.Process:
    stream = await jetstream.create_stream("S", subjects=["s"])
    await stream.create_consumer("c")
    for _ in range(20):
        await jetstream.publish("s")
    worker = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program.format(work=work), server.url, stdin=-1, stdout=-1, stderr=-1
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


async def test_blocking_worker_ends_by_sigterm(nats_server: Server, jetstream: JetStream) -> None:
    worker = await start_worker(nats_server, jetstream, "sys.stdin.readline()", BLOCKING_WORKER)
    worker.send_signal(signal.SIGTERM)
    consumer = await (await jetstream.stream("S")).consumer("c")
    assert len(await consumer.fetch(19, timeout=20)) == 19  # they are returned while the handler runs
    out, err = await worker.communicate(b"\n")
    assert (out, err, worker.returncode) == (b"handled 1\n", b"", 0)
    assert (await consumer.info()).ack_floor.stream_seq == 1


async def test_second_sigterm_ends_a_blocking_worker(nats_server: Server, jetstream: JetStream) -> None:
    worker = await start_worker(nats_server, jetstream, "sys.stdin.readline()", BLOCKING_WORKER)
    worker.send_signal(signal.SIGTERM)
    consumer = await (await jetstream.stream("S")).consumer("c")
    assert len(await consumer.fetch(19, timeout=20)) == 19  # it has noticed the first one
    async with asyncio.timeout(10):
        while worker.returncode is None:  # two signals at once are one
            with suppress(ProcessLookupError):
                os.kill(worker.pid, signal.SIGTERM)  # send_signal would take the exit code from the event loop
            await asyncio.sleep(0.05)
    assert worker.returncode == -signal.SIGTERM


@pytest.mark.parametrize("program", [SERVICE, BLOCKING_SERVICE], ids=["async", "blocking"])
async def test_service_answers_before_it_ends(nats_server: Server, program: str) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, nats_server.url, stdin=-1, stdout=-1, stderr=-1
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"ready\n"
    async with natsproto.connect(nats_server.url) as nc:
        answer = asyncio.create_task(nc.request("answer", timeout=30))
        assert await process.stdout.readline() == b"begun\n"
        process.send_signal(signal.SIGTERM)
        with suppress(NoResponders):
            while await nc.request("other", timeout=30):
                pass  # it still takes requests
        out, err = await process.communicate(b"42\n")
        assert (await answer).data == b"42\n"
    assert (out, err, process.returncode) == (b"None\n", b"", 0)


async def test_leaving_a_service_lasts_drain_timeout(nats_server: Server) -> None:
    async with natsproto.connect(nats_server.url, drain_timeout=0.2) as nc:
        stop = asyncio.Event()

        async def hang(_: Request) -> None:
            stop.set()
            await asyncio.get_running_loop().create_future()

        async def serve() -> None:
            async with nc.add_service("calc", "1.0.0") as service:
                endpoint = service.add_endpoint("hangs", hang)
                await nc.publish("hangs", reply="nobody")
                assert await service.wait_stopped(stop) is None
                assert endpoint.in_progress  # the service runs on

        with pytest.raises(DrainTimeout, match=r"within 0\.2 s; unfinished: 1 unfinished request"):
            await serve()


WAITING = """
import asyncio, sys
import natsproto

async def main():
    stop = natsproto.stop_event()
    print("ready", flush=True)
    async with natsproto.connect(sys.argv[1], retry_connect_for=60, connect_timeout=60):
        await stop.wait()

asyncio.run(main())
"""

BLOCKING_WAITING = """
import sys
from natsproto import sync

stop = sync.stop_event()
print("ready", flush=True)
with sync.connect(sys.argv[1], retry_connect_for=60, connect_timeout=60):
    stop.wait()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("program", [WAITING, BLOCKING_WAITING], ids=["async", "blocking"])
async def test_signal_ends_the_first_connect(program: str, number: signal.Signals) -> None:
    """With a server that says nothing, and one that refuses connections."""
    waiting = asyncio.Event()

    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        waiting.set()
        await reader.read()
        writer.close()

    async with await asyncio.start_server(say_nothing, "127.0.0.1", 0) as silent:
        urls = f"127.0.0.1:9,127.0.0.1:{silent.sockets[0].getsockname()[1]}"
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", program, urls, stdout=-1, stderr=-1)
        await asyncio.wait_for(waiting.wait(), 20)
        process.send_signal(number)
        _, err = await asyncio.wait_for(process.communicate(), 10)
    assert process.returncode == 1
    assert b"natsproto.errors.ConnectFailed: could not connect to any server in" in err
    assert err.rstrip().endswith(b": a signal has set the event of stop_event()")


async def test_signal_before_connect_ends_the_retries(nats_server: Server) -> None:
    stop = natsproto.stop_event(signal.SIGTERM)
    signal.raise_signal(signal.SIGTERM)
    await asyncio.wait_for(stop.wait(), 5)
    with pytest.raises(ConnectFailed, match="a signal has set"):
        await natsproto.connect("127.0.0.1:9", retry_connect_for=60)
    async with natsproto.connect(nats_server.url) as nc:  # which the program may need for its end
        assert nc.is_connected
    stop.clear()
    started = asyncio.get_running_loop().time()
    with pytest.raises(ConnectFailed):
        await natsproto.connect("127.0.0.1:9", retry_connect_for=0.2)
    assert asyncio.get_running_loop().time() - started >= 0.2


@pytest.mark.parametrize("make", [natsproto.stop_event, sync.stop_event], ids=["async", "blocking"])
async def test_stop_event_needs_the_main_thread(make: Callable[[], object]) -> None:
    async def in_thread() -> None:
        make()

    with pytest.raises(LocalProtocolError, match="main thread"):
        await asyncio.to_thread(asyncio.run, in_thread())


def test_stop_event_needs_a_loop() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(LocalProtocolError, match=r"inside the event loop.*natsproto\.sync\.stop_event"):
        natsproto.stop_event()
    assert signal.getsignal(signal.SIGTERM) is before


async def test_events_of_both_clients_are_set() -> None:
    gc.collect()  # an event of another test gives its handler back when it is collected
    before = signal.getsignal(signal.SIGINT)
    blocking, stop = sync.stop_event(signal.SIGINT), natsproto.stop_event()
    signal.raise_signal(signal.SIGINT)
    await asyncio.wait_for(stop.wait(), 5)
    assert await asyncio.to_thread(blocking.wait, 5)
    assert signal.getsignal(signal.SIGINT) is before


def test_dropped_event_does_not_count() -> None:
    seen: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: seen.append(number))
    try:
        sync.stop_event(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        assert seen == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)


WRONG: list[Any] = [threading.Event(), True]


@pytest.mark.parametrize("wrong", WRONG, ids=["of threads", "bool"])
async def test_other_events_are_refused(nats_client: natsproto.Client, jetstream: JetStream, wrong: Any) -> None:
    stream = await jetstream.create_stream("S", subjects=["s"])
    consumer = await stream.create_consumer("c")
    kv = await jetstream.create_key_value("B")
    refused = pytest.raises(TypeError, match=r"until must be an asyncio\.Event")
    with refused:
        await consumer.consume(print).run(until=wrong)
    with refused:
        await kv.watch(cb=print).run(until=wrong)
    async with consumer.consume(print) as work, kv.watch(cb=print) as watching:
        with refused:
            await work.wait(wrong)
        with refused:
            await watching.wait(wrong)
        assert not work.closed
    assert (await consumer.info()).num_waiting == 0
    async with nats_client.add_service("calc", "1.0.0") as service:
        with refused:
            await service.wait_stopped(wrong)


async def test_event_of_another_loop_is_an_error(nats_client: natsproto.Client, jetstream: JetStream) -> None:
    """Not taken for an event that is set."""
    event = asyncio.Event()

    async def bind() -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(0.01):
                await event.wait()

    await asyncio.to_thread(asyncio.run, bind())
    consumer = await (await jetstream.create_stream("S", subjects=["s"])).create_consumer("c")
    with pytest.raises(RuntimeError, match="different event loop"):
        await consumer.consume(print).run(until=event)
    async with nats_client.add_service("calc", "1.0.0") as service:
        with pytest.raises(RuntimeError, match="different event loop"):
            await service.wait_stopped(event)


async def test_stop_event_restores_the_handlers() -> None:
    before = signal.getsignal(signal.SIGINT)
    stop = natsproto.stop_event(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is not before
    signal.raise_signal(signal.SIGINT)
    await stop.wait()
    assert signal.getsignal(signal.SIGINT) is before


async def test_forwarded_sigterm_is_the_same(monkeypatch: pytest.MonkeyPatch, own_sigterm: list[int]) -> None:
    now = 100.0
    monkeypatch.setattr("natsproto._signals.time.monotonic", lambda: now)
    stop = natsproto.stop_event()
    for _ in range(3):  # a launcher gets it together with the program, and forwards it
        signal.raise_signal(signal.SIGTERM)
    await stop.wait()
    assert own_sigterm == []
    now += 1.0
    signal.raise_signal(signal.SIGTERM)
    signal.raise_signal(signal.SIGTERM)
    assert own_sigterm == [signal.SIGTERM, signal.SIGTERM]


async def test_one_signal_sets_the_events_of_all_calls() -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    stops = [natsproto.stop_event(), natsproto.stop_event(signal.SIGINT), natsproto.stop_event()]
    signal.raise_signal(signal.SIGINT)
    async with asyncio.timeout(5):
        for stop in stops:
            await stop.wait()
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


def test_event_of_an_ended_loop_does_not_count() -> None:
    async def main(*, ends: bool) -> bool:
        stop = natsproto.stop_event()
        if ends:
            return False
        signal.raise_signal(signal.SIGINT)
        async with asyncio.timeout(5):
            return await stop.wait()

    before = signal.getsignal(signal.SIGTERM)
    assert not asyncio.run(main(ends=True))
    assert asyncio.run(main(ends=False))
    assert signal.getsignal(signal.SIGTERM) is before
