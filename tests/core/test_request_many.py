"""One request, many replies: each of the rules that end it, at its own time, on a scripted server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest

from natsproto._client import Client
from natsproto.errors import ConfigError, ConnectionClosed, ConnectionLost, PermissionDenied, RequestTimeout
from natsproto.protocol.frames import Message
from tests.core.helpers import ScriptedNetwork, scripted_network, turns, turns_until
from tests.kit.clock import advance, virtual_clock


async def replies(net: ScriptedNetwork, nc: Client, *at: float) -> None:
    """Answers what comes on "a" with 0, 1, 2 … so many seconds after it came."""

    def answer(reply: str, number: int) -> None:
        if nc.is_connected:
            nc.publish_nowait(reply, b"%d" % number)

    def respond(message: Message) -> None:
        for number, delay in enumerate(at):
            asyncio.get_running_loop().call_later(delay, answer, message.reply or "", number)

    await nc.subscribe("a", cb=respond)
    await nc.flush()


async def all_of(stream: AsyncGenerator[Message]) -> tuple[list[bytes], float]:
    """The payloads, and how many seconds it took."""
    began = asyncio.get_running_loop().time()
    got = [message.data async for message in stream]
    return got, round(asyncio.get_running_loop().time() - began, 2)


@virtual_clock
async def test_max_wait_defaults_to_request_timeout() -> None:
    async with scripted_network() as net:
        nc = await net.connect(request_timeout=3)
        await replies(net, nc, 0, 0.5, 1.9, 2.5, 4)
        assert await all_of(nc.request_many("a")) == ([b"0", b"1", b"2", b"3"], 3)
        assert await all_of(nc.request_many("a", timeout=2)) == ([b"0", b"1", b"2"], 2)


@virtual_clock
async def test_stall_begins_after_first_reply() -> None:
    async with scripted_network() as net:
        nc = await net.connect()
        await replies(net, nc, 1, 1.05, 1.1, 1.5)
        got, took = await all_of(nc.request_many("a", timeout=4, stall=0.2))
        assert (got, took) == ([b"0", b"1", b"2"], 1.3)
        got, took = await all_of(nc.request_many("a", timeout=1.2, stall=0.2))
        assert (got, took) == ([b"0", b"1", b"2"], 1.2), "a stall never prolongs the wait"
        assert (await all_of(nc.request_many("a", timeout=4)))[1] == 4
        assert (await all_of(nc.request_many("a", timeout=4, stall=9)))[1] == 4


@virtual_clock
async def test_the_time_of_a_slow_reader_counts_for_nothing() -> None:
    async with scripted_network() as net:
        nc = await net.connect()
        await replies(net, nc, 0, 0.05, 0.1, 0.9, 1.1)
        got = []
        async for reply in nc.request_many("a", timeout=1, stall=0.3):
            got.append(reply.data)
            await advance(5)
        assert got == [b"0", b"1", b"2", b"3"], "what came within a second, and nothing later"


@virtual_clock
async def test_a_number_or_a_sentinel_ends_it_at_once() -> None:
    async with scripted_network() as net:
        nc = await net.connect()
        await replies(net, nc, 0, 0.1, 0.2, 0.3)
        assert await all_of(nc.request_many("a", max_messages=2)) == ([b"0", b"1"], 0.1)
        three = await all_of(nc.request_many("a", sentinel=lambda message: message.data == b"3"))
        assert three == ([b"0", b"1", b"2"], 0.3)

        def pieces(message: Message) -> None:
            nc.publish_nowait(message.reply or "", b"x")
            nc.publish_nowait(message.reply or "", b"")

        await nc.subscribe("b", cb=pieces)
        assert await all_of(nc.request_many("b", sentinel="empty")) == ([b"x"], 0)


@virtual_clock
async def test_an_error_of_the_sentinel_is_the_callers() -> None:
    async with scripted_network() as net:
        nc = await net.connect()
        await replies(net, nc, 0)
        with pytest.raises(ZeroDivisionError):
            await all_of(nc.request_many("a", sentinel=lambda message: bool(1 // 0)))
        assert nc._engine.registry.subscriptions[1:] == []


@virtual_clock
async def test_status_is_last_reply() -> None:
    async with scripted_network() as net:
        nc = await net.connect()
        await nc.subscribe("a")
        connection = await net.server.connection()
        stream = nc.request_many("a", timeout=5)
        first = asyncio.create_task(anext(stream))
        await turns_until(lambda: len(connection.interest) == 2)
        (inbox,) = [sub.subject for sub in nc._engine.registry.subscriptions if sub.subject != "a"]
        connection.deliver(2, inbox, headers=b"NATS/1.0 100 Idle Heartbeat\r\n\r\n")
        connection.deliver(2, inbox, headers=b"NATS/1.0 503 With Payload\r\n\r\n", payload=b"x")
        connection.deliver(2, inbox, headers=b"NATS/1.0 404 No Messages\r\n\r\n")
        connection.deliver(2, inbox, b"never seen")
        got = [await first, *[message async for message in stream]]
        assert [message.headers._status for message in got] == [100, 503, 404]


@virtual_clock
async def test_no_reply_is_no_error() -> None:
    async with scripted_network() as net:
        nc = await net.connect()
        await nc.subscribe("a")
        assert await all_of(nc.request_many("a", timeout=1)) == ([], 1)


@virtual_clock
async def test_leaving_ends_subscription_and_timer() -> None:
    async with scripted_network() as net:
        nc = await net.connect()
        await replies(net, nc, 0, 0.1, 0.2)
        async with aclosing(nc.request_many("a", timeout=50)) as stream:
            async for _ in stream:
                break
        assert len(nc._engine.registry.subscriptions) == 1
        async for _ in nc.request_many("a", timeout=50):
            break
        await turns(3)
        assert len(nc._engine.registry.subscriptions) == 1
        task = asyncio.create_task(all_of(nc.request_many("a", timeout=50)))
        await advance(0.15)
        task.cancel()
        await asyncio.wait([task])
        assert len(nc._engine.registry.subscriptions) == 1
        assert nc._engine.event_bus._listeners == []
        nc.request_many("a")  # never read: nothing was sent
        await nc.flush()
        connection = await net.server.connection()
        await turns_until(lambda: len(connection.interest) == 1)
        began = asyncio.get_running_loop().time()
        await nc.close()
        assert asyncio.get_running_loop().time() - began < 1


@virtual_clock
async def test_lost_connection_is_raised_after_replies() -> None:
    async with scripted_network() as net:
        nc = await net.connect()
        await replies(net, nc, 0, 0.1)
        asyncio.get_running_loop().call_later(0.5, net.down)
        got: list[bytes] = []

        async def ask() -> None:
            async for reply in nc.request_many("a", timeout=50):
                got.append(reply.data)  # noqa: PERF401  # those before the error count

        with pytest.raises(ConnectionLost, match="replies to 'a' may be missing"):
            await ask()
        assert got == [b"0", b"1"]


@virtual_clock
async def test_replies_of_two_connections_add_up() -> None:
    async with scripted_network() as net:
        nc = await net.connect(fail_requests_on_disconnect=False)
        await replies(net, nc, 0, 0.1, 2)
        asyncio.get_running_loop().call_later(0.5, net.down)
        asyncio.get_running_loop().call_later(1, net.up)
        assert (await all_of(nc.request_many("a", timeout=5)))[0] == [b"0", b"1", b"2"]


@virtual_clock
async def test_without_a_connection_all_the_time_it_says_so() -> None:
    async with scripted_network() as net:
        nc = await net.connect()
        net.down()
        await turns_until(lambda: not nc.is_connected)
        with pytest.raises(RequestTimeout, match="'a'"):
            await all_of(nc.request_many("a", timeout=1))


@virtual_clock
async def test_refused_by_the_server_it_ends_with_the_error() -> None:
    async with scripted_network() as net:
        nc = await net.connect()
        connection = await net.server.connection()
        for text in (
            'Permissions Violation for Publish to "a"',
            'Permissions Violation for Subscription to "INBOX"',
        ):
            await nc.subscribe("a")
            task = asyncio.create_task(all_of(nc.request_many("a", timeout=50)))
            await turns_until(lambda: connection.server.ops[-1].name == "PUB")
            inbox = nc._engine.registry.subscriptions[-1].subject
            connection.err('Permissions Violation for Publish to "b"')
            connection.err(text.replace("INBOX", inbox))
            with pytest.raises(PermissionDenied):
                await task
            await nc.flush()


@virtual_clock
@pytest.mark.parametrize("verb", ["close", "drain"])
async def test_a_client_that_ends_meanwhile_says_so(verb: str) -> None:
    async with scripted_network() as net:
        nc = await net.connect()
        await nc.subscribe("a")
        task = asyncio.create_task(all_of(nc.request_many("a", timeout=50)))
        await turns(3)
        await getattr(nc, verb)()
        with pytest.raises(ConnectionClosed, match="request to 'a'"):
            await task
        with pytest.raises(ConnectionClosed):
            await all_of(nc.request_many("a"))


@virtual_clock
async def test_without_a_timeout_stall_or_count_ends() -> None:
    async with scripted_network() as net:
        nc = await net.connect()
        await replies(net, nc, 50, 50.5)
        assert await all_of(nc.request_many("a", timeout=None, stall=60)) == ([b"0", b"1"], 110.5)
        assert await all_of(nc.request_many("a", timeout=None, max_messages=2)) == ([b"0", b"1"], 50.5)
        assert await all_of(nc.request_many("a", timeout=None, stall=2)) == ([], 2), (
            "a stall before the first reply too"
        )


@virtual_clock
async def test_bad_arguments_are_refused_at_the_call() -> None:
    async with scripted_network() as net:
        nc = await net.connect()
        for wrong in (
            {"timeout": 0},
            {"timeout": None},
            {"stall": -1},
            {"stall": 0},
            {"max_messages": 0},
            {"sentinel": "last"},
            {"sentinel": 5},
        ):
            with pytest.raises(ConfigError, match=next(iter(wrong))):
                nc.request_many("a", **wrong)
