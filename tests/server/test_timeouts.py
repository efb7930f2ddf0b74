"""What ``timeout`` means: left out, None and 0, in every public call that has one (docs/errors.md)."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any

import pytest

import natsproto
from natsproto import Client
from natsproto.errors import ConfigError, NatsError
from natsproto.testing._server import Server
from tests.kit.public_calls import CONFIGURE, SAMPLES, things, use

WAITS = {
    *("Client.drain", "Subscription.drain", "Subscription.next", "Service.stop"),
    *("PullConsumer.fetch", "PullConsumer.fetch_available", "PullConsumer.next"),
    *("OrderedConsumer.fetch", "OrderedConsumer.fetch_available", "OrderedConsumer.next", "Lock.acquire"),
}
"""They wait for something to come: None is no limit, 0 what is there now, or refused."""
COLLECTS = {"Client.request_many", "Client.discover_services", "Client.ping_services", "Client.service_stats"}
"""They end without an error: None until a stall or a count, of which one is needed."""
BOUNDED = {"Client.health", "Client.trace", "Client.jetstream"}
"""They always end."""
OF_HANDLERS = {"subscribe", "consume", "consume_batches", "add_endpoint", "join"}
"""Their timeout is that of the handler, which tests/server/test_handler_timeouts.py shows."""
LEAVES_OUT = {"JetStream.restore_stream", "OrderedConsumer.info", "Lock.put", "Stream.backup"}
"""They read a folder first, or need a consumer or the lock."""


def calls(thing: object) -> Iterator[tuple[str, inspect.Parameter, Callable[..., Any]]]:
    """The public calls of an object that have a timeout, with the other arguments that they need."""
    for name, function in inspect.getmembers(type(thing), inspect.isfunction):
        parameters = inspect.signature(function).parameters
        if name.startswith("_") or "timeout" not in parameters or name in OF_HANDLERS:
            continue
        kind = name.removeprefix("create_or_update_").removeprefix("create_").removeprefix("update_")
        needed: dict[str, object] = dict(CONFIGURE.get(kind, {})) if kind != name else {}
        for each in list(parameters.values())[1:]:
            if each.default is each.empty and each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY):
                needed[each.name] = SAMPLES.get(each.name, print)
        yield f"{type(thing).__name__}.{name}", parameters["timeout"], partial(getattr(thing, name), **needed)


async def refuses_timeout(call: Callable[[], object]) -> bool:
    """True if the timeout is refused; False if the call ends in another way within a second, or waits."""
    try:
        async with asyncio.timeout(1):
            await use(call())
    except ConfigError as error:
        return "timeout" in str(error)
    except (NatsError, TimeoutError):
        pass
    return False


async def accepts_timeout(call: Callable[[], object]) -> bool:
    """True if the call accepts the timeout: it has ended, or still waits a moment later."""
    thing = call()
    assert isinstance(thing, Awaitable)
    task = asyncio.ensure_future(thing)
    await asyncio.wait([task], timeout=0.05)
    if not task.done():
        task.cancel()
    results: list[object] = await asyncio.gather(task, return_exceptions=True)
    return not isinstance(results[0], (ConfigError, TypeError))


async def test_none_and_zero_in_every_call(nats_client: Client) -> None:
    found, wrong = set[str](), list[str]()
    for name, parameter, call in [each for thing in await things(nats_client) for each in calls(thing)]:
        found.add(name)
        if name in LEAVES_OUT or name in ("Client.drain", "Service.stop"):
            continue
        no_limit, zero = partial(call, timeout=None), partial(call, timeout=0)
        sent = nats_client.stats.out_msgs
        if name in WAITS:
            if not await accepts_timeout(no_limit):
                wrong.append(f"{name}(timeout=None) is refused")
        elif name in COLLECTS:
            if [reply async for reply in call(timeout=None, stall=0.01)] and name != "Client.request_many":
                continue
            if not await refuses_timeout(partial(call, timeout=None, stall=None)):
                wrong.append(f"{name}(timeout=None, stall=None) is accepted")
        elif name in BOUNDED:
            if name != "Client.jetstream" and not (await refuses_timeout(no_limit) and await refuses_timeout(zero)):
                wrong.append(f"{name} accepts None or 0")
        elif parameter.default is not None:
            wrong.append(f"{name} has the default {parameter.default}")
        elif not await refuses_timeout(zero) or nats_client.stats.out_msgs != sent:
            wrong.append(f"{name}(timeout=0) is accepted")
    assert not wrong, "\n".join(wrong)
    assert found >= (WAITS | COLLECTS | BOUNDED)
    assert len(found) > 90


@pytest.mark.parametrize("limit", [None, 30])
async def test_drain_and_stop_without_a_limit(nats_server: Server, limit: float | None) -> None:
    nc = await natsproto.connect(nats_server.url)
    service = await nc.add_service("calc", "1.0.0")
    handled = list[bytes]()

    async def slowly(message: natsproto.Message) -> None:
        await asyncio.sleep(0.01)
        handled.append(message.data)

    sub = await nc.subscribe("a", cb=slowly)
    await nc.subscribe("b", cb=slowly)
    for subject in ("a", "b"):
        await nc.publish(subject, subject.encode())
    await sub.drain(limit)
    await service.stop(timeout=limit)
    await nc.drain(limit)
    assert sorted(handled) == [b"a", b"b"]


async def test_fetch_without_a_limit_waits_for_all(nats_client: Client) -> None:
    js = nats_client.jetstream()
    stream = await js.create_stream("S", subjects=["s"], storage="memory")
    for reader in (await stream.create_consumer("c"), stream.ordered_consumer()):
        fetching = asyncio.ensure_future(reader.fetch(3, timeout=None))
        for number in range(3):
            await asyncio.sleep(0.01)
            assert not fetching.done()
            await js.publish("s", b"%d" % number)
        assert [message.data for message in await fetching] == [b"0", b"1", b"2"]
        waiting = asyncio.ensure_future(reader.next(None))
        await js.publish("s", b"3")
        assert (await waiting).data == b"3"
        await stream.purge()
