"""Any call may be cancelled at any await; the client goes on working and nothing is left behind.

Each operation is cancelled at its first suspension, its second … in three ways (tests.kit.interruption). After
every run: the cancellation came out, no task is left, no request is pending, nobody waits in the outbox, and
publish, subscribe, request and flush work.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import AsyncGenerator, Awaitable, Callable

import pytest

import natsproto
from natsproto._client import Client
from natsproto._core.engine.engine import State
from natsproto._core.outbox import CONGESTED_SIZE
from natsproto.errors import NatsError
from natsproto.protocol.frames import Message
from natsproto.testing import Server
from tests.core.helpers import ScriptedNetwork, scripted_network, turns_until
from tests.kit.clock import virtual_clock
from tests.kit.interruption import Interruption, Moment, interruptions
from tests.server.helpers import also_uvloop, client


async def check_interrupted(nc: Client, run: Interruption, tasks: set[asyncio.Task[object]]) -> None:
    """What must hold after every interruption."""
    run.check()
    await every_verb_works(nc)
    assert len(nc._engine.registry.request_mux()) == 0, "a pending request was left"
    assert not nc._outbox._notifier
    assert not nc._engine.state_changed
    assert asyncio.all_tasks() <= tasks


async def every_verb_works(nc: Client) -> None:
    """A round trip through every verb."""
    async with nc.subscribe("works") as sub:
        await nc.publish("works", b"ok")
        assert (await sub.next(timeout=5)).data == b"ok"
    assert (await nc.request("echo", b"ok", timeout=5)).data == b"ok"
    await nc.flush(timeout=5)


async def serve_echo(nc: Client) -> None:
    await nc.subscribe("echo", cb=lambda message: message.respond(message.data))
    await nc.flush()


Call = Callable[[Client], Awaitable[object]]


async def _request(nc: Client) -> object:
    return (await nc.request("echo", b"x", timeout=5)).data


async def _nobody(nc: Client) -> object:
    try:
        return await nc.request("nobody", timeout=5)
    except NatsError as exc:
        return exc


def _soon(nc: Client, *delays: float) -> str:
    """A new subject on which a message comes after each delay, if the client still lives then."""

    def publish() -> None:
        if nc.is_connected:
            nc.publish_nowait(subject, b"x")

    subject = nc.new_inbox()
    for delay in delays:
        asyncio.get_running_loop().call_later(delay, publish)
    return subject


async def _many(nc: Client) -> object:
    return [reply.data async for reply in nc.request_many("echo", b"x", timeout=5, max_messages=1)]


async def _many_until_silence(nc: Client) -> object:
    return [reply.data async for reply in nc.request_many("echo", b"x", timeout=5, stall=0.02)]


async def _next(nc: Client) -> object:
    async with nc.subscribe(_soon(nc, 0.002)) as sub:
        return (await sub.next(timeout=5)).data


async def _iterate(nc: Client) -> object:
    got = []
    async with nc.subscribe(_soon(nc, 0.0, 0.002, 0.004)) as sub:
        async for message in sub:
            got.append(message.data)
            if len(got) == 3:
                break
    return got


async def _batches(nc: Client) -> object:
    got = 0
    async with nc.subscribe(_soon(nc, 0.0, 0.002, 0.004)) as sub:
        async for batch in sub.batches():
            got += len(batch)
            if got == 3:
                break
    return got


async def _drain_subscription(nc: Client) -> object:
    async def handler(message: Message) -> None:
        await asyncio.sleep(0)

    sub = await nc.subscribe("a", cb=handler)
    for _ in range(3):
        await nc.publish("a")
    await sub.drain(timeout=5)
    return sub.pending_msgs


async def _events(nc: Client) -> object:
    async def raises(_: Message) -> None:
        raise ValueError

    stream = nc.events()
    sub = await nc.subscribe("a", cb=raises)
    await nc.publish("a")
    event = await anext(stream)
    await stream.aclose()
    await sub.unsubscribe()
    return type(event).__name__


CALLS: dict[str, tuple[Call, object]] = {
    "flush": (lambda nc: nc.flush(timeout=5), None),
    "rtt": (lambda nc: nc.rtt(timeout=5), ...),
    "request": (_request, b"x"),
    "request to nobody": (_nobody, ...),
    "request many": (_many, [b"x"]),
    "request many, until silence": (_many_until_silence, [b"x"]),
    "next": (_next, b"x"),
    "iterate": (_iterate, [b"x"] * 3),
    "batches": (_batches, 3),
    "drain a subscription": (_drain_subscription, 0),
    "events": (_events, "HandlerFailed"),
}


@pytest.mark.parametrize("name", CALLS)
@also_uvloop
async def test_call_cancelled_at_any_await(nats_server: Server, name: str) -> None:
    call, result = CALLS[name]
    async with client(nats_server.url) as nc:
        await serve_echo(nc)
        await every_verb_works(nc)
        tasks = asyncio.all_tasks()
        runs = 0
        async for run in interruptions(lambda: call(nc)):
            runs += run.delivered
            await check_interrupted(nc, run, tasks)
            assert run.delivered or result is ... or run.value == result
        assert runs >= 3, "it was cancelled at least once in each way"
        assert nc.stats.reconnects == 0


@also_uvloop
async def test_connect_cancelled_at_any_await(nats_server: Server) -> None:
    tasks = asyncio.all_tasks()
    runs = 0
    async for run in interruptions(lambda: natsproto.connect(nats_server.url)):
        run.check()
        runs += run.delivered
        if isinstance(run.value, Client):
            await works_alone(run.value)
            await run.value.close()
        await tasks_ended(tasks)
    assert runs >= 3, "it was cancelled at least once in each way"  # more where the server takes its time


async def works_alone(nc: Client) -> None:
    await serve_echo(nc)
    await every_verb_works(nc)


async def tasks_ended(tasks: set[asyncio.Task[object]]) -> None:
    """Cancelled tasks and closed sockets end in the turns that follow."""
    for _ in range(20):
        await asyncio.sleep(0)
    assert asyncio.all_tasks() <= tasks


@pytest.mark.parametrize("verb", ["close", "drain"])
@also_uvloop
async def test_close_and_drain_cancelled_at_any_await(nats_server: Server, verb: str) -> None:
    tasks = asyncio.all_tasks()
    clients: list[Client] = []

    async def end() -> None:
        nc = clients[-1]
        await (nc.close() if verb == "close" else nc.drain(timeout=5))

    async def prepare() -> None:
        nc = await natsproto.connect(nats_server.url)
        clients.append(nc)

        async def handler(message: Message) -> None:
            await asyncio.sleep(0.001)

        await nc.subscribe("a", cb=handler)
        for _ in range(3):
            await nc.publish("a")
        await nc.flush()

    await prepare()
    runs = 0
    async for run in interruptions(end):
        run.check()
        runs += run.delivered
        nc = clients[-1]
        assert nc.state is State.CLOSED
        assert await nc.wait_closed() is None
        await nc.close()
        await tasks_ended(tasks)
        await prepare()
    await clients[-1].close()
    assert runs >= 3


# ---------------------------------------------------------------- where a real server does not wait long enough


async def congested(net: ScriptedNetwork, nc: Client) -> None:
    """The server takes nothing until later; what publish() could take at once has been taken."""
    net.peer.stall()
    while nc.stats.buffered_bytes < CONGESTED_SIZE:
        nc.publish_nowait("full", bytes(50_000))
    asyncio.get_running_loop().call_later(1.0, net.peer.unstall)


async def _publish(nc: Client) -> None:
    await nc.publish("mine", b"whole")


async def _publish_headers(nc: Client) -> None:
    await nc.publish("mine", b"whole", headers={"k": "v"})


async def _respond(nc: Client) -> None:
    await Message("a", b"mine", b"", None, nc).respond(b"whole")


async def _ask(nc: Client) -> None:
    await nc.request("echo", b"whole", timeout=5)


@pytest.mark.parametrize("call", [_publish, _publish_headers, _respond, _ask])
@virtual_clock
async def test_publish_cancelled_while_it_waits_for_room(call: Call) -> None:
    async with scripted_network() as net:
        nc = await net.connect()
        await serve_echo(nc)
        await every_verb_works(nc)
        tasks = asyncio.all_tasks()
        cancelled = completed = 0

        async def under_pressure() -> None:
            await congested(net, nc)
            await call(nc)

        async for run in interruptions(under_pressure, limit=60):
            net.peer.unstall()
            await nc.flush(timeout=5)
            cancelled += run.delivered
            completed += not run.delivered
            if call is not _ask:
                whole = [op for op in net.server.ops if op.args[:1] == ("mine",)]
                assert len(whole) == completed
                assert all(op.payload == b"whole" for op in whole)
            await check_interrupted(nc, run, tasks)
        assert cancelled >= 6
        assert completed == 3


@virtual_clock
async def test_flush_cancelled_in_an_outage() -> None:
    async with scripted_network() as net:
        nc = await net.connect()
        await serve_echo(nc)
        connections = itertools.count(2)

        async def over_an_outage() -> None:
            net.down()
            await turns_until(lambda: not nc.is_connected)
            asyncio.get_running_loop().call_later(1.0, net.up)
            await nc.flush(timeout=60)

        async for run in interruptions(over_an_outage, limit=120):
            net.up()
            await nc.flush(timeout=60)
            next(connections)
            run.check()
            await every_verb_works(nc)
            assert not nc._engine.state_changed
            assert not nc._outbox._notifier


@virtual_clock
async def test_connect_to_a_list_cancelled_at_any_await() -> None:
    async with scripted_network() as net:
        net.network.listen("10.0.0.1", 4222)  # accepts and says nothing
        tasks = asyncio.all_tasks()

        async def connect() -> Client:
            return await net.connect("nats://10.0.0.2,nats://10.0.0.1,nats://127.0.0.1", randomize=False)

        async for run in interruptions(connect, limit=60):
            run.check()
            if isinstance(run.value, Client):
                await run.value.close()
            for _ in range(10):
                await asyncio.sleep(0)
            assert {t for t in asyncio.all_tasks() - tasks if "ScriptedServer" not in repr(t)} == set()
            assert all(peer.at_end for peer in net.network.peers)


# ---------------------------------------------------------------- readers


@also_uvloop
async def test_cancelled_reader_misses_no_message(nats_server: Server, seed: int) -> None:
    """Row 19 of the classic complaints: a message taken off the queue is returned or stays."""
    rng = random.Random(seed)
    count = 2000
    async with client(nats_server.url) as nc, client(nats_server.url) as other:
        sub = await nc.subscribe("a")
        await nc.flush()
        got: list[int] = []

        async def publish() -> None:
            for number in range(count):
                await other.publish("a", b"%d" % number)
                if number % 7 == 0:
                    await asyncio.sleep(0)

        async def reader(way: int) -> None:
            if way == 0:
                got.append(int((await sub.next()).data))
            elif way == 1:
                async for message in sub:
                    got.append(int(message.data))  # noqa: PERF401  (one by one is the point)
            elif way == 2:
                async for batch in sub.batches():
                    got.extend(int(message.data) for message in batch)
            else:
                async with asyncio.timeout(rng.random() * 0.001):
                    got.append(int((await sub.next(timeout=rng.choice([0.0001, 1]))).data))

        publishing = asyncio.create_task(publish())
        while len(got) < count:
            task = asyncio.create_task(reader(rng.randrange(4)))
            for _ in range(rng.randrange(4)):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled() or task.exception() is None or isinstance(task.exception(), TimeoutError)
        await publishing
        assert got == list(range(count))
        assert sub.delivered == count


# ---------------------------------------------------------------- storms


async def _storm(nc: Client, tasks: int, rng: random.Random) -> int:
    """Cancels many calls of all kinds at random; returns how many cancellations were swallowed."""
    sub = await nc.subscribe("storm")

    async def call(kind: int) -> None:
        if kind == 0:
            await nc.request("echo", b"x", timeout=5)
        elif kind == 1:
            await nc.flush(timeout=5)
        elif kind == 2:
            await nc.publish("storm", bytes(1000))
            await asyncio.Event().wait()
        elif kind == 3:
            await sub.next(timeout=10)
            await asyncio.Event().wait()
        elif kind == 4:
            async with nc.subscribe("storm") as own:
                async for _ in own:
                    pass
        else:
            await nc.rtt(timeout=5)
            await asyncio.Event().wait()

    swallowed = 0
    running = [asyncio.create_task(call(number % 6)) for number in range(tasks)]
    rng.shuffle(running)
    for at, task in enumerate(running):
        if at % 20 == 0:
            await asyncio.sleep(rng.random() * 0.002)
        cancelled = task.cancel()
        await asyncio.sleep(0)
        if cancelled:
            await asyncio.wait([task], timeout=5)
            swallowed += not task.cancelled()
    await asyncio.wait(running, timeout=10)
    for task in running:
        assert task.done()
        error = None if task.cancelled() else task.exception()
        assert error is None or isinstance(error, NatsError), error
    await sub.unsubscribe()
    return swallowed


@also_uvloop
async def test_thousand_cancelled_calls_leave_nothing(nats_server: Server, seed: int) -> None:
    async with client(nats_server.url) as nc:
        await serve_echo(nc)
        await every_verb_works(nc)
        before = asyncio.all_tasks()
        assert await _storm(nc, 1000, random.Random(seed)) == 0
        await check_interrupted(nc, Interruption(0, Moment.AT_ONCE, False, None), before)
        for _ in range(50):
            assert (await nc.request("echo", b"again", timeout=5)).data == b"again"
        assert nc.stats.reconnects == 0
        assert len(nc._engine.registry.subscriptions) == 1


@pytest.mark.slow
@also_uvloop
async def test_cancellation_storm_over_a_breaking_connection(
    nats_server: Server,
    seed: int,
) -> None:
    async with client(nats_server.url) as nc:
        await serve_echo(nc)
        await every_verb_works(nc)
        before = asyncio.all_tasks()

        async def cuts() -> None:
            while True:
                await asyncio.sleep(0.02)
                await nc.reconnect()

        cutting = asyncio.create_task(cuts())
        swallowed = await _storm(nc, 600, random.Random(seed))
        cutting.cancel()
        await asyncio.wait([cutting])
        await nc.flush(timeout=10)
        assert swallowed == 0
        await every_verb_works(nc)
        await tasks_ended(before)
        assert len(nc._engine.registry.request_mux()) == 0
        assert len(nc._engine.registry.subscriptions) == 1


@also_uvloop
async def test_no_reply_ever_reaches_another_caller(nats_server: Server, seed: int) -> None:
    """Requests cancelled at random moments, each with its own question: never somebody else's answer."""
    rng = random.Random(seed)
    async with client(nats_server.url) as nc:
        await serve_echo(nc)

        async def ask(number: int) -> None:
            question = b"%d" % number
            assert (await nc.request("echo", question, timeout=5)).data == question

        async def impatient(number: int) -> None:
            task = asyncio.create_task(ask(number))
            await asyncio.sleep(rng.random() * 0.003)
            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled() or task.exception() is None

        for start in range(0, 1000, 50):
            await asyncio.gather(*(impatient(number) for number in range(start, start + 50)))
        await every_verb_works(nc)


# ---------------------------------------------------------------- structured concurrency


@also_uvloop
async def test_timeouts_and_task_groups_cancel_calls(nats_server: Server) -> None:
    async with client(nats_server.url) as nc:
        sub = await nc.subscribe("silent")
        await nc.subscribe("deaf")
        waits: list[Callable[[], Awaitable[object]]] = [
            sub.next,
            lambda: anext(aiter(sub)),
            lambda: anext(sub.batches()),
            lambda: nc.request("deaf", timeout=60),
            lambda: anext(nc.events()),
            nc.wait_closed,
        ]
        for wait in waits:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await wait()
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(_as_coroutine(wait), 0.01)
        with pytest.raises(ExceptionGroup) as group:
            await _group(nc, waits)
        assert [type(error) for error in group.value.exceptions] == [ZeroDivisionError]
        await serve_echo(nc)
        await every_verb_works(nc)


async def _as_coroutine(wait: Callable[[], Awaitable[object]]) -> object:
    return await wait()


async def _group(nc: Client, waits: list[Callable[[], Awaitable[object]]]) -> None:
    async with asyncio.TaskGroup() as group:
        for wait in waits:
            group.create_task(_as_coroutine(wait))
        await nc.flush()
        raise ZeroDivisionError


async def _never(stream: AsyncGenerator[object]) -> None:
    async for _ in stream:
        raise AssertionError


@also_uvloop
async def test_cancelled_reader_of_events(nats_server: Server) -> None:
    async with client(nats_server.url) as nc:
        other = nc.events()
        for _ in range(10):
            task = asyncio.create_task(_never(nc.events()))
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled()
        await nc.close()
        assert [type(event).__name__ async for event in other] == ["Closed"]
