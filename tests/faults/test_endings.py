"""Endings of clients, subscriptions and services by anybody, in any number, on the real server."""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest

import natsproto
from natsproto import Client, State
from natsproto.errors import DrainTimeout, LocalProtocolError, NatsError, ServiceError
from natsproto.service import Request
from natsproto.testing import Server
from tests.core.helpers import turns
from tests.kit.tasks import end_of_tasks
from tests.kit.waiting import until

LIMIT_S = 20.0
LATE_S = 2.5
"""Seconds after its deadline in which an ending is over: handlers that are cancelled get two of them."""


async def by_itself(call: Callable[[], Awaitable[object]]) -> None:
    await call()


async def by_wait_for(call: Callable[[], Awaitable[object]]) -> None:
    await asyncio.wait_for(call(), LIMIT_S)


async def by_task(call: Callable[[], Awaitable[object]]) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(_wait(call))


async def by_thread(call: Callable[[], Awaitable[object]]) -> None:
    loop = asyncio.get_running_loop()
    await asyncio.to_thread(lambda: asyncio.run_coroutine_threadsafe(_wait(call), loop).result(LIMIT_S))


async def _wait(call: Callable[[], Awaitable[object]]) -> None:
    await call()


WAYS = [by_itself, by_wait_for, by_task, by_thread]


async def test_everybody_may_end_everything(nats_server: Server, seed: int) -> None:
    """Who ends it, in how many places, with what behind them, and whether the program ends it as well: all that was
    received is handled, nobody is cancelled, and nothing is left.
    """
    rng, before = random.Random(seed), asyncio.all_tasks()
    async with natsproto.connect(nats_server.url) as sender:
        nc = await natsproto.connect(nats_server.url)
        readers, behind, drainers = rng.randint(1, 4), rng.randint(0, 200), rng.randint(1, 4)
        kinds = [rng.choice(["async callback", "def callback", "loop", "endpoint"]) for _ in range(readers)]
        handled: Counter[int] = Counter()
        failures: list[BaseException] = []
        ended, loops = 0, set[asyncio.Task[None]]()
        service = await nc.add_service("s", "1.0.0")

        def has_arrived() -> bool:
            return nc.stats.in_msgs >= readers * behind + drainers

        async def handle(number: int, data: bytes, place: int) -> None:
            nonlocal ended
            if data == b"stop":
                try:
                    await until(has_arrived)
                    await rng.choice(WAYS)(rng.choice(targets(place)))
                except BaseException as exc:
                    failures.append(exc)
                    raise
                ended += 1
            elif rng.random() < 0.1:
                await asyncio.sleep(0.001)
            handled[number] += 1

        subscriptions: dict[int, natsproto.Subscription] = {}

        def targets(place: int) -> list[Callable[[], Awaitable[object]]]:
            found: list[Callable[[], Awaitable[object]]] = [nc.drain]
            if place in subscriptions:
                found.append(subscriptions[place].drain)
            if kinds[place] == "endpoint":
                found.append(service.stop)
            return found

        async def read(place: int) -> None:
            async for message in subscriptions[place]:
                await handle(place, message.data, place)

        for place, kind in enumerate(kinds):
            if kind == "endpoint":

                async def answer(request: Request, place: int = place) -> None:
                    await handle(place, request.data, place)

                service.add_endpoint(f"e{place}", answer, subject=f"a.{place}")
                continue

            async def callback(message: natsproto.Message, place: int = place) -> None:
                await handle(place, message.data, place)

            def begin(message: natsproto.Message, place: int = place) -> Awaitable[None] | None:
                if message.data == b"stop":
                    return handle(place, message.data, place)
                handled[place] += 1
                return None

            cb: Any = {"async callback": callback, "def callback": begin, "loop": None}[kind]
            subscriptions[place] = await nc.subscribe(f"a.{place}", cb=cb)
            if kind == "loop":
                loops.add(asyncio.create_task(read(place)))
        await nc.flush()
        stops = Counter(rng.choice(range(readers)) for _ in range(drainers))
        for place in range(readers):
            bodies = [b"stop"] * stops[place] + [b""] * behind
            rng.shuffle(bodies)
            for body in bodies:
                sender.publish_nowait(f"a.{place}", body)
        await sender.flush()
        await until(has_arrived)
        if rng.random() < 0.5:
            await turns(rng.randint(0, 20))
            await nc.drain(LIMIT_S)
        else:
            await until(lambda: ended == drainers)
        async with asyncio.timeout(LIMIT_S):
            await nc.drain()
            await asyncio.gather(*loops)
        assert nc.state is State.CLOSED
        assert failures == []
        assert ended == drainers
        assert {place: handled[place] for place in range(readers)} == {
            place: behind + stops[place] for place in range(readers)
        }, kinds
    await end_of_tasks(before)


async def test_what_ends_while_handlers_hang_is_named(nats_server: Server, seed: int) -> None:
    """In an await, and without an end to their cancellation: everybody outside gets the names, and nothing runs on."""
    rng = random.Random(seed)
    async with natsproto.connect(nats_server.url) as sender:
        nc = await natsproto.connect(nats_server.url)
        calls: list[bytes] = []
        stubborn, count, release = rng.random() < 0.3, rng.randint(1, 30), asyncio.Event()

        async def hang(message: natsproto.Message) -> None:
            calls.append(message.data)
            while True:
                try:
                    await release.wait()
                    return
                except asyncio.CancelledError:
                    if not stubborn:
                        raise

        kind = rng.choice(["client", "subscription", "service"])
        service = await nc.add_service("s", "1.0.0")
        subscription = await nc.subscribe("a", cb=hang)
        if kind == "service":
            await subscription.unsubscribe()
            service.add_endpoint("e", hang, subject="a", concurrency=1)
        await nc.flush()
        for number in range(count):
            sender.publish_nowait("a", b"%d" % number)
        await sender.flush()
        await until(lambda: calls)
        ends: dict[str, Callable[..., Awaitable[object]]] = {
            "client": nc.drain,
            "subscription": subscription.drain,
            "service": service.stop,
        }
        deadlines = [0.03 + 0.1 * rng.random() for _ in range(rng.randint(1, 4))]
        loop = asyncio.get_running_loop()
        began = loop.time()
        results = await asyncio.gather(*(ends[kind](timeout=seconds) for seconds in deadlines), return_exceptions=True)
        assert loop.time() - began < min(deadlines) + LATE_S
        assert {type(result) for result in results} == {DrainTimeout}, (kind, results)
        assert f"{count} " in str(results[0])
        before = len(calls)
        await asyncio.sleep(0.05)
        release.set()
        await turns(5)
        assert len(calls) == before
        await nc.close()


async def test_requests_that_are_cut_off_get_an_answer(nats_server: Server, nats_client: Client, seed: int) -> None:
    """Those in work and those that wait, whoever ends the service."""
    rng = random.Random(seed)
    nc = await natsproto.connect(nats_server.url)
    service = await nc.add_service("s", "1.0.0")

    async def hang(request: Request) -> None:
        await asyncio.Event().wait()

    async def parts(request: Request) -> Any:
        yield b"1"
        await asyncio.Event().wait()

    endpoint = service.add_endpoint("one", hang, concurrency=rng.randint(1, 3))
    service.add_endpoint("parts", parts)
    await nc.flush()
    calls = [asyncio.create_task(nats_client.call("one", timeout=LIMIT_S)) for _ in range(5)]

    async def read() -> int:
        return len([part async for part in nats_client.stream("parts")])

    calls.append(asyncio.create_task(read()))  # type: ignore[arg-type]
    await until(lambda: endpoint.in_progress + endpoint.pending == 5 and service.endpoints[1].in_progress)
    how = rng.choice(["stop", "drain", "close"])
    ends: dict[str, Callable[[], Awaitable[object]]] = {
        "stop": lambda: service.stop(timeout=0.02),
        "drain": lambda: nc.drain(timeout=0.02),
        "close": nc.close,
    }
    async with asyncio.timeout(LIMIT_S):
        with suppress(DrainTimeout):
            await ends[how]()
        results = await asyncio.gather(*calls, return_exceptions=True)
    assert {type(result) for result in results} == {ServiceError}, (how, results)
    assert {result.code for result in results if isinstance(result, ServiceError)} == {503}
    await nc.close()


async def test_requests_with_a_response_get_no_second_one(nats_server: Server, nats_client: Client) -> None:
    """When the handler that has responded goes on and is cut off."""
    async with natsproto.connect(nats_server.url) as nc:
        service = await nc.add_service("s", "1.0.0")

        async def handle(request: Request) -> None:
            await request.respond(b"1")
            await asyncio.Event().wait()

        endpoint = service.add_endpoint("one", handle)
        await nc.flush()
        answers = await nats_client.subscribe("answers")
        await nats_client.publish("one", reply="answers")
        assert (await answers.next(timeout=5)).data == b"1"
        with pytest.raises(DrainTimeout):
            await service.stop(timeout=0.02)
        await nc.flush()
        await nats_client.flush()
        assert answers.pending_msgs == 0
        assert endpoint.stats().num_errors == 0


async def test_unsubscribing_drops_what_a_drain_waits_for(nats_client: Client) -> None:
    handled: list[bytes] = []
    go_on = asyncio.Event()

    async def handle(message: natsproto.Message) -> None:
        await go_on.wait()
        handled.append(message.data)

    subscription = await nats_client.subscribe("a", cb=handle)
    for number in range(10):
        await nats_client.publish("a", b"%d" % number)
    await nats_client.flush()
    draining = asyncio.create_task(subscription.drain())
    await until(lambda: subscription.closed)
    await subscription.unsubscribe()
    go_on.set()
    await draining
    assert handled == [b"0"]


async def test_ended_subscriptions_drain_with_the_client(nats_server: Server) -> None:
    """Whose messages are still being handled: after ``max_messages``, and while they drain themselves."""
    handled: Counter[str] = Counter()

    async def handle(message: natsproto.Message) -> None:
        await asyncio.sleep(0.001)
        handled[message.subject] += 1

    async with natsproto.connect(nats_server.url) as nc:
        await nc.subscribe("a", cb=handle, max_messages=50)
        draining = await nc.subscribe("b", cb=handle)
        for _ in range(50):
            await nc.publish("a")
            await nc.publish("b")
        await nc.flush()
        task = asyncio.create_task(draining.drain())
        await until(lambda: draining.closed)
    await task
    assert handled == {"a": 50, "b": 50}


async def test_a_loop_that_was_left_is_not_inside(nats_server: Server) -> None:
    """After ``break``, and with an iterator that is kept: the block is left with a closed client."""
    for keep in (False, True):
        async with natsproto.connect(nats_server.url) as nc:
            subscription = await nc.subscribe("a")
            await nc.publish("a")
            kept = aiter(subscription)
            if keep:
                await anext(kept)
            else:
                async for _ in subscription:
                    break
        assert nc.state is State.CLOSED


def in_a_child(call: Callable[[], Awaitable[object]]) -> str:
    """Run the coroutine in a forked process, and return the name of its error."""
    read, write = os.pipe()
    if os.fork() == 0:
        try:
            asyncio.events._set_running_loop(None)
            asyncio.run(asyncio.wait_for(_wait(call), 5))
            ended = "nothing"
        except BaseException as exc:
            ended = type(exc).__name__
        os.write(write, ended.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        return pipe.read()


async def test_nothing_is_ended_from_elsewhere(nats_server: Server) -> None:
    """From a forked process, another thread's loop: LocalProtocolError, and everything goes on."""
    got: list[bytes] = []
    async with natsproto.connect(nats_server.url) as nc:
        subscription = await nc.subscribe("a", cb=lambda message: got.append(message.data))
        reader = await nc.subscribe("b")
        service = await nc.add_service("s", "1.0.0")
        service.add_endpoint("e", lambda request: request.respond(b"1"))
        await nc.flush()
        verbs: list[Callable[[], Awaitable[object]]] = [
            *(nc.drain, nc.close, subscription.drain, subscription.unsubscribe, reader.drain),
            *(reader.unsubscribe, service.stop, lambda: reader.next(timeout=1), nc.flush),
        ]
        for verb in verbs:
            assert in_a_child(verb) == "LocalProtocolError", verb
            with pytest.raises(LocalProtocolError):
                await asyncio.to_thread(asyncio.run, _wait(verb))
        await nc.publish("a", b"1")
        await nc.publish("b", b"1")
        assert (await nc.request("e", timeout=5)).data == b"1"
        assert (await reader.next(timeout=5)).data == b"1"
        assert got == [b"1"]


async def test_a_timeout_around_parts_is_an_error(nats_client: Client) -> None:
    """And not the end of the service; one that is swallowed does not make the response look complete."""

    async def limited(request: Request, call: Callable[[], Awaitable[None]]) -> None:
        async with asyncio.timeout(0.02):
            await call()

    async def swallowing(request: Request, call: Callable[[], Awaitable[None]]) -> None:
        try:
            await limited(request, call)
        except TimeoutError:
            pass

    async def parts(request: Request) -> Any:
        yield b"1"
        await asyncio.Event().wait()

    service = await nats_client.add_service("s", "1.0.0")
    for name, middleware in (("limited", limited), ("swallowing", swallowing)):
        service.add_endpoint(name, natsproto.middleware.with_middleware(parts, middleware))
    for name, text in (("limited", "TimeoutError"), ("swallowing", "cut short")):
        stream = nats_client.stream(name)
        with pytest.raises(NatsError, match=text) as failed:
            await anext(part async for part in stream if part.data != b"1")
        assert stream.received == 1
        assert "500" in str(failed.value)
