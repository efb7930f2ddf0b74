"""What a type checker knows of core messaging. Never run; mypy --strict reads it."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from datetime import timedelta
from typing import assert_type

import natsproto
from natsproto import Client, Headers, Message, Options, ServerInfo, State, Stats, Subscription


async def connecting() -> None:
    async with natsproto.connect("nats://127.0.0.1:4222", name="typed") as nc:
        assert_type(nc, Client)
    assert_type(await natsproto.connect(), Client)
    assert_type(await natsproto.connect(["a:4222", "b:4222"], connect_timeout=timedelta(seconds=1)), Client)
    assert_type(await natsproto.connect(natsproto.Options("a:4222"), user="ada", password="engine"), Client)
    natsproto.connect("a:4222", conect_timeout=1)  # type: ignore[call-arg]
    natsproto.connect("a:4222", connect_timeout="1s")  # type: ignore[arg-type]
    async with AsyncExitStack() as stack:
        assert_type(await stack.enter_async_context(natsproto.connect()), Client)


def managers(nc: Client) -> list[AbstractAsyncContextManager[object]]:
    connecting: AbstractAsyncContextManager[Client] = natsproto.connect()
    subscribing: AbstractAsyncContextManager[Subscription] = nc.subscribe("a")
    return [connecting, subscribing]


async def publishing(nc: Client) -> None:
    await nc.publish("a", b"1")
    await nc.publish("a", b"1", reply="b", headers={"Trace": "1", "Tag": ["a", "b"]})
    await nc.publish("a", headers=[("Tag", "a"), ("Tag", "b")])
    nc.publish_nowait("a", b"1")
    await nc.publish("a", "text")  # type: ignore[arg-type]


async def subscribing(nc: Client) -> None:
    sub = await nc.subscribe("a.*", queue="workers")
    assert_type(sub, Subscription)
    assert_type(await sub.next(timeout=1), Message)
    async for message in sub:
        assert_type(message, Message)
    async for batch in sub.batches():
        assert_type(batch, list[Message])
    nc.subscribe("a", slow_policy="drop_all")  # type: ignore[arg-type]
    async with nc.subscribe("a", slow_policy="drop_oldest") as entered:
        assert_type(entered, Subscription)
    await sub.unsubscribe(max_messages=10)
    await sub.drain(timeout=1)


async def calling_back(nc: Client) -> None:
    seen: list[Message] = []

    def plain(message: Message) -> None:
        seen.append(message)

    async def coroutine(message: Message) -> None:
        await message.respond(message.data)

    nc.subscribe("a", cb=plain)
    nc.subscribe("a", cb=coroutine)
    nc.subscribe("a", cb=seen.append)
    nc.subscribe("a", cb=lambda: None)  # type: ignore[arg-type, misc]


async def messages(nc: Client) -> None:
    reply = await nc.request("a", b"1", timeout=1.0)
    assert_type(reply, Message)
    assert_type(reply.subject, str)
    assert_type(reply.reply, str | None)
    assert_type(reply.data, bytes)
    assert_type(reply.size, int)
    assert_type(reply.headers, Headers)
    assert_type(reply.headers["Trace"], str)
    assert_type(reply.headers.get("Trace"), str | None)
    assert_type(reply.headers.get_all("Tag"), list[str])
    async for one in nc.request_many("a", timeout=timedelta(seconds=1), stall=0.1, sentinel="empty"):
        assert_type(one, Message)
    nc.request_many("a", sentinel=lambda message: not message.data)
    nc.request_many("a", sentinel="last")  # type: ignore[arg-type]


async def looking(nc: Client) -> None:
    assert_type(nc.state, State)
    assert_type(nc.stats, Stats)
    assert_type(nc.server_info, ServerInfo)
    assert_type(nc.discovered_servers, tuple[str, ...])
    assert_type(await nc.rtt(), float)
    assert_type(await nc.wait_closed(), Exception | None)


async def a_users_wrapper(nc: Client) -> AsyncIterator[str]:
    async with nc.subscribe("names") as names:
        async for name in names:
            yield name.data.decode()


def changing(options: Options) -> None:
    assert_type(options.replace(name="a", reconnect_wait=timedelta(seconds=1)), Options)
    options.replace(nmae="a")  # type: ignore[call-arg]
    options.replace(name=5)  # type: ignore[arg-type]
