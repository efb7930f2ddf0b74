"""Every public call with a ``timeout`` ends within it: against a server that stands still, that is gone, that is slow.

The calls are those of ``test_timeouts``, found by their signatures; ``seed`` draws the timeouts.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from threading import Thread
from time import monotonic, sleep
from typing import Any

import pytest

import natsproto
from natsproto import Client, sync
from natsproto.errors import NatsError, RequestTimeout
from natsproto.testing import FaultProxy, Server
from tests.kit.public_calls import things
from tests.server.test_timeouts import calls

LATE_S = 1.5
"""Seconds on a busy machine; on a quiet one 0.1."""

TIDIES_UP = {"ObjectStore.put": 3.0, "Client.drain": 2.0, "Service.stop": 2.0}
"""Seconds more for what a call has begun and takes back: chunks that nobody needs, handlers that are cancelled."""

NOT_CALLED = {"Client.jetstream", "Client.drain"}
"""It waits for nothing; it ends the client of all others."""


async def read_thing(thing: Any) -> None:
    """Read all of it, await it, or enter it."""
    if hasattr(thing, "__aiter__"):
        async for _ in thing:
            pass
    elif isinstance(thing, Awaitable):
        await thing
    elif hasattr(thing, "__aenter__"):
        async with thing:
            pass


async def fill(nc: Client) -> None:
    """Publish until the connection takes no more."""
    for _ in range(400):
        task = asyncio.ensure_future(nc.publish("fill", bytes(100_000)))
        await asyncio.wait([task], timeout=0.3)
        if not task.done():
            task.cancel()
            return
    raise AssertionError("the connection never was congested")


async def late(nc: Client, draw: random.Random, found: list[tuple[str, Callable[..., Any]]]) -> list[str]:
    """Run all calls side by side; return those that took longer than their timeout."""

    async def one(name: str, call: Callable[..., Any]) -> str:
        timeout = round(draw.uniform(0.2, 1.0), 2)
        began = asyncio.get_running_loop().time()
        task = asyncio.ensure_future(read_thing(call(timeout=timeout)))
        limit = timeout + LATE_S + TIDIES_UP.get(name, 0.0)
        await asyncio.wait([task], timeout=limit + 3)
        took = asyncio.get_running_loop().time() - began
        end = "still waits" if not task.done() else "cancelled" if task.cancelled() else repr(task.exception())
        task.cancel()
        await asyncio.wait([task], timeout=5)
        return f"{name}(timeout={timeout}): {took:.2f} s, {end}" if took > limit or end == "cancelled" else ""

    return [*filter(None, await asyncio.gather(*(one(name, call) for name, call in found)))]


@pytest.mark.parametrize("fault", ["congested", "silent", "gone", "slow"])
async def test_every_timeout_holds(nats_server: Server, fault: str, seed: int) -> None:
    async with FaultProxy(nats_server.host, nats_server.port) as proxy:
        nc = await natsproto.connect(proxy.url, reconnect_wait=0.1)
        try:
            found = [
                (name, call) for thing in await things(nc) for name, _, call in calls(thing) if name not in NOT_CALLED
            ]
            await nc.flush()
            if fault in ("congested", "silent"):
                proxy.stall()
            if fault == "congested":
                await fill(nc)
            if fault == "gone":
                proxy.refuse()
                proxy.cut()
            if fault == "slow":
                proxy.bandwidth(50_000)
                await fill(nc)
            wrong = await late(nc, random.Random(seed), found)
            assert not wrong, "\n".join(wrong)
            assert len(found) > 90
        finally:
            await nc.close()


async def test_late_calls_send_nothing(nats_server: Server) -> None:
    """``sent=False`` is a promise."""
    async with FaultProxy(nats_server.host, nats_server.port) as proxy:
        nc = await natsproto.connect(proxy.url)
        async with natsproto.connect(nats_server.url) as other:
            arrived = await other.subscribe("late.>")
            await other.flush()
            proxy.stall()
            await fill(nc)
            calls = [nc.request(f"late.{number}", timeout=0.05) for number in range(20)]
            errors = await asyncio.gather(*calls, return_exceptions=True)
            assert {(type(error), getattr(error, "sent", None)) for error in errors} == {(RequestTimeout, False)}
            assert "the connection takes no data" in str(errors[0])
            proxy.heal()
            await nc.flush(timeout=60)
            await nc.publish("late.last")
            await nc.flush(timeout=60)
            assert (await arrived.next(timeout=30)).subject == "late.last"
        await nc.close()


BLOCKING: dict[str, Callable[[sync.Client, float], object]] = {
    "flush": lambda nc, timeout: nc.flush(timeout),
    "rtt": lambda nc, timeout: nc.rtt(timeout),
    "request": lambda nc, timeout: nc.request("x", timeout=timeout),
    "request_many": lambda nc, timeout: list(nc.request_many("x", timeout=timeout)),
    "health": lambda nc, timeout: nc.health(timeout=timeout),
    "trace": lambda nc, timeout: nc.trace("x", timeout=timeout),
    "discover_services": lambda nc, timeout: list(nc.discover_services(timeout=timeout)),
    "publish to a stream": lambda nc, timeout: nc.jetstream(timeout=timeout).publish("x"),
    "drain": lambda nc, timeout: nc.drain(timeout),
}


@pytest.mark.parametrize("name", BLOCKING)
def test_blocking_timeout_counts_the_queue(nats_server: Server, name: str, seed: int) -> None:
    """Messages of another thread wait before the call."""
    timeout = round(random.Random(seed).uniform(0.2, 0.6), 2)
    nc = sync.connect(nats_server.url, request_timeout=timeout)
    nats_server.freeze()
    sent = 0

    def fill() -> None:
        nonlocal sent
        with suppress(NatsError):
            while True:
                nc.publish("fill", bytes(10_000))
                sent += 1

    Thread(target=fill, daemon=True).start()
    before = -1
    while before != sent or not sent:
        before = sent
        sleep(0.09)
    began = monotonic()
    with suppress(NatsError):
        BLOCKING[name](nc, timeout)
    assert monotonic() - began <= timeout + LATE_S + (2.0 if name == "drain" else 0.0)
    nats_server.kill()
    with suppress(NatsError):  # of the messages that were not sent
        nc.close()


@pytest.mark.parametrize("kind", ["publisher", "fast_publisher"])
def test_publishers_wait_for_their_timeout(nats_server: Server, kind: str, seed: int) -> None:
    """In the blocking client, too: for the queue before the call; and what was not sent in time is never sent."""
    timeout = round(random.Random(seed).uniform(0.2, 0.6), 2)
    with sync.connect(nats_server.url) as other:
        js = other.jetstream()
        stream = js.create_stream("S", subjects=["s"], allow_batched=True, storage="memory")
        nc = sync.connect(nats_server.url)
        publisher = getattr(nc.jetstream(), kind)(timeout=timeout).__enter__()
        publisher.publish("s", b"first")
        publisher.flush()
        nats_server.freeze()
        took, accepted = list[tuple[str, float]](), list[Any]()

        def timed(name: str, call: Callable[[], object]) -> Exception | None:
            began, error = monotonic(), None
            try:
                accepted.append(call())
            except NatsError as exc:
                error = exc
            took.append((name, monotonic() - began))
            return error

        while not isinstance(timed("publish", lambda: publisher.publish("s", bytes(10_000))), NatsError):
            assert len(accepted) < 20_000
        timed("flush", publisher.flush)
        timed("exit", lambda: publisher.__exit__(None, None, None))
        late = [(name, seconds) for name, seconds in took if seconds > 3 * timeout + LATE_S]
        assert not late
        unsent = sum(isinstance(error, RequestTimeout) and error.sent is False for error in errors_of(accepted))
        nats_server.thaw()
        other.flush(timeout=60)
        with suppress(NatsError):
            nc.close()
        if kind == "publisher":
            assert unsent
            assert stream.info().state.messages <= len(accepted) + 1 - unsent


def errors_of(futures: list[Any]) -> list[Exception | None]:
    return [each.exception(timeout=5) for each in futures if isinstance(each, sync.AckFuture)]
