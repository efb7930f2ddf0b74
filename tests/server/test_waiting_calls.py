"""Every call that waits for what never comes, ended in each way that it has: it ends at once, and says why.

The ways: its handle (close, drain), the deletion of what it reads, its client, the loss of the server, a cancellation.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from natsproto.jetstream.groups import ElasticGroup
from tests.server.waiting import LONG, Ground, Opener, Step, Waiting, all_of, end_call

CALLS: dict[str, Opener] = {}


async def _variant(opener: Callable[[Ground, str], Awaitable[Waiting]], name: str, ground: Ground) -> Waiting:
    return await opener(ground, name)


def waits(*names: str) -> Callable[[Callable[..., Awaitable[Waiting]]], Callable[..., Awaitable[Waiting]]]:
    """Add an opener, or one for each of these variants, whose name is its last argument."""

    def add(opener: Callable[..., Awaitable[Waiting]]) -> Callable[..., Awaitable[Waiting]]:
        for name in names:
            CALLS[f"{opener.__name__}.{name}"] = partial(_variant, opener, name)
        if not names:
            CALLS[opener.__name__] = opener
        return opener

    return add


@waits("next", "async for", "batches")
async def subscription(ground: Ground, how: str) -> Waiting:
    sub = await ground.nc.subscribe("nothing")
    calls: dict[str, Step] = {
        "next": sub.next,
        "async for": lambda: all_of(sub),
        "batches": lambda: all_of(sub.batches()),
    }
    return Waiting(calls[how], how != "next", close=sub.unsubscribe, drain=sub.drain)


@waits()
async def request(ground: Ground) -> Waiting:
    return Waiting(lambda: ground.nc.request("silent", timeout=LONG))


@waits()
async def request_many(ground: Ground) -> Waiting:
    return Waiting(lambda: all_of(ground.nc.request_many("silent", timeout=LONG)))


@waits()
async def wait_closed(ground: Ground) -> Waiting:
    return Waiting(ground.nc.wait_closed, returns=True)


@waits("next", "fetch", "fetch async for", "fetch_available")
async def pull(ground: Ground, how: str) -> Waiting:
    consumer = await ground.stream.create_consumer("c")
    calls: dict[str, Step] = {
        "next": lambda: consumer.next(LONG),
        "fetch": lambda: consumer.fetch(10, timeout=LONG),
        "fetch async for": lambda: all_of(consumer.fetch(10, timeout=LONG)),
        "fetch_available": lambda: consumer.fetch_available(10, timeout=LONG),
    }
    return Waiting(calls[how], how != "next", delete=ground.delete_consumer())


@waits("next", "async for", "batches", "wait")
async def messages(ground: Ground, how: str) -> Waiting:
    consumer = await ground.stream.create_consumer("c")
    return await _messages(ground, consumer, how, ground.delete_consumer())


@waits("next", "async for")
async def messages_of_deleted_stream(ground: Ground, how: str) -> Waiting:
    consumer = await ground.stream.create_consumer("c")
    return await _messages(ground, consumer, how, ground.delete_stream())


@waits("next", "async for")
async def push(ground: Ground, how: str) -> Waiting:
    consumer = await ground.stream.create_push_consumer("c", deliver_subject="d", idle_heartbeat=0.1)
    return await _messages(ground, consumer, how, ground.delete_consumer())


async def _messages(ground: Ground, consumer: Any, how: str, delete: Step) -> Waiting:
    messages = await ground.enter(consumer.messages())
    calls: dict[str, Step] = {
        "next": messages.next,
        "async for": lambda: all_of(messages),
        "batches": lambda: all_of(messages.batches()),
        "wait": messages._wait,
    }
    return Waiting(calls[how], how != "next", close=messages.stop, drain=messages.drain, delete=delete)


@waits("wait", "run")
async def consume(ground: Ground, how: str) -> Waiting:
    return await _consume(ground, await ground.stream.create_consumer("c"), how)


@waits("wait")
async def push_consume(ground: Ground, how: str) -> Waiting:
    consumer = await ground.stream.create_push_consumer("c", deliver_subject="d", idle_heartbeat=0.1)
    return await _consume(ground, consumer, how)


async def _consume(ground: Ground, consumer: Any, how: str) -> Waiting:
    running = consumer.consume(lambda message: None)
    if how == "run":

        async def run() -> None:
            await running.run()

        return Waiting(run, True, close=running.stop, delete=ground.delete_consumer())
    await running.__aenter__()
    ground.stack.push_async_callback(running.stop)
    return Waiting(running.wait, True, close=running.stop, drain=running.drain, delete=ground.delete_consumer())


@waits("next", "fetch", "fetch async for", "messages.next", "messages async for", "messages.batches", "consume",
       "push messages.next", "push messages async for", "push consume")  # fmt: skip
async def ordered(ground: Ground, how: str) -> Waiting:
    is_push = how.startswith("push")
    consumer = ground.stream.ordered_consumer(push=is_push, idle_heartbeat=0.1 if is_push else 0.0)

    async def read(how: str) -> object:
        async with consumer.messages() as messages:
            if how == "messages.next":
                return await messages.next()
            return await all_of(messages.batches() if how == "messages.batches" else messages)

    async def consume() -> None:
        await consumer.consume(lambda message: None).run()

    async def fetch() -> object:
        return await consumer.fetch(10, timeout=LONG)

    how = how.removeprefix("push ")
    calls: dict[str, Step] = {
        "next": lambda: consumer.next(LONG),
        "fetch": fetch,
        "fetch async for": lambda: all_of(consumer.fetch(10, timeout=LONG)),
        "consume": consume,
    }
    return Waiting(
        calls.get(how) or (lambda: read(how)),
        returns=not how.endswith("next"),
        close=consumer.stop,
        delete=ground.delete_stream(),
    )


@waits("next", "async for", "batches", "callback.wait", "callback.run")
async def key_watch(ground: Ground, how: str) -> Waiting:
    delete = ground.delete_stream("KV_B")
    if how.startswith("callback"):
        return await _watch_callback(ground, ground.kv.watch(cb=lambda entry: None), how, delete)
    watch = await ground.enter(ground.kv.watch())
    calls: dict[str, Step] = {
        "next": watch.next,
        "async for": lambda: all_of(watch),
        "batches": lambda: all_of(watch.batches()),
    }
    return Waiting(calls[how], how != "next", close=watch.stop, delete=delete)


@waits("next", "async for", "callback.wait", "callback.run")
async def object_watch(ground: Ground, how: str) -> Waiting:
    delete = ground.delete_stream("OBJ_O")
    if how.startswith("callback"):
        return await _watch_callback(ground, ground.objects.watch(cb=lambda info: None), how, delete)
    watch = await ground.enter(ground.objects.watch())
    return Waiting(
        {"next": watch.next, "async for": lambda: all_of(watch)}[how], how != "next", watch.stop, None, delete
    )


async def _watch_callback(ground: Ground, running: Any, how: str, delete: Step) -> Waiting:
    if how == "callback.run":

        async def run() -> None:
            await running.run()

        return Waiting(run, True, close=running.stop, delete=delete)
    await running.__aenter__()
    ground.stack.push_async_callback(running.stop)
    return Waiting(running.wait, True, close=running.stop, delete=delete)


@waits()
async def cache_wait_for(ground: Ground) -> Waiting:
    cache = ground.kv.cache()
    await cache.__aenter__()
    leave = lambda: cache.__aexit__(None, None, None)  # noqa: E731
    ground.stack.push_async_callback(leave)
    return Waiting(lambda: cache.wait_for(2**40), close=leave, delete=ground.delete_stream("KV_B"))


@waits()
async def lock_acquire(ground: Ground) -> Waiting:
    await (await ground.other.jetstream().key_value("B")).lock("k", ttl=30).acquire()
    lock = ground.kv.lock("k", ttl=6)  # a write that the deletion overtakes is never answered: it ends after a third
    return Waiting(lock.acquire, delete=ground.delete_stream("KV_B"))


@waits()
async def lock_wait_lost(ground: Ground) -> Waiting:
    lock = ground.kv.lock("k", ttl=1)
    await lock.acquire()
    return Waiting(lock.wait_lost, True, close=lock.release, delete=ground.delete_stream("KV_B"))


@waits("next", "async for")
async def advisories(ground: Ground, how: str) -> Waiting:
    events = await ground.js.advisories("$JS.EVENT.ADVISORY.SERVER.>")
    calls: dict[str, Step] = {"next": events.next, "async for": lambda: all_of(events)}
    return Waiting(calls[how], how != "next", close=events.stop)


@waits()
async def service(ground: Ground) -> Waiting:
    service = await ground.enter(ground.nc.add_service("s", version="1.0.0"))
    return Waiting(service.wait_stopped, True, close=service.stop)


@waits("wait", "run", "wait_joined")
async def member(ground: Ground, how: str) -> Waiting:
    group = await ElasticGroup.create(ground.js, "S", "g", max_members=1)
    if how != "wait_joined":
        await group.add_members("a")
    member = group.consume("a", lambda message: None)

    async def run() -> None:
        await member.run()

    if how == "run":
        return Waiting(run, True, close=member.stop, delete=group.delete)
    await member.__aenter__()
    ground.stack.push_async_callback(member.stop)
    calls: dict[str, Step] = {"wait": member.wait, "wait_joined": member.wait_joined}
    return Waiting(calls[how], how == "wait", close=member.stop, delete=group.delete)


WAYS = ("close", "drain", "delete", "client closed", "client drained", "server gone", "cancelled")


@pytest.mark.parametrize("name", CALLS)
async def test_waiting_call_ends_at_once(name: str, seed: int) -> None:
    rng = random.Random(seed)
    pauses = [rng.choice((0.0, rng.uniform(0.0, 0.05))) for _ in WAYS]
    reasons = await asyncio.gather(*(end_call(CALLS[name], *one) for one in zip(WAYS, pauses, strict=True)))
    assert not {way: reason for way, reason in zip(WAYS, reasons, strict=True) if reason}
