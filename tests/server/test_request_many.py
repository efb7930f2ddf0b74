"""One request, many replies, against a real server."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from natsproto._client import Client
from natsproto.errors import (
    ConnectionLost,
    NoResponders,
    PayloadTooLarge,
    PermissionDenied,
    RequestTimeout,
    SlowConsumer,
)
from natsproto.protocol.frames import Message
from natsproto.testing import Server, run_server
from tests.kit.interruption import interruptions
from tests.server.helpers import both_loops, client


async def answering(nc: Client, subject: str, *payloads: bytes) -> None:
    """Answers every request with all of these."""

    async def respond(message: object) -> None:
        for payload in payloads:
            await message.respond(payload)  # type: ignore[attr-defined]

    await nc.subscribe(subject, cb=respond)
    await nc.flush()


@both_loops
async def test_everybody_who_listens_can_answer(nats_server: Server) -> None:
    async with client(nats_server.url) as nc, client(nats_server.url) as other:
        for number in range(20):
            await answering(nc if number % 2 else other, "who", b"%d" % number)
        got = [reply.data async for reply in nc.request_many("who", b"?", timeout=5, max_messages=20)]
        assert sorted(map(int, got)) == list(range(20))
        stalled = list[Message]()
        while len(stalled) < 20:  # again where the machine stalls for longer than that
            stalled = [reply async for reply in nc.request_many("who", timeout=5, stall=0.6, headers={"A": "b"})]
        assert len(stalled) == 20


@both_loops
async def test_nobody_there_is_known_at_once(nats_server: Server) -> None:
    for no_echo in (False, True):
        async with client(nats_server.url, no_echo=no_echo) as nc:
            with pytest.raises(NoResponders, match="no responders: nothing is subscribed to 'nobody'"):
                async for _ in nc.request_many("nobody", timeout=60):
                    pass
            assert nc._engine.registry.subscriptions == []


@both_loops
async def test_request_many_ends_with_an_empty_reply(nats_server: Server) -> None:
    async with client(nats_server.url) as nc:
        pieces = [b"%d" % number for number in range(10_000)]
        await answering(nc, "pieces", *pieces, b"")
        got = [reply.data async for reply in nc.request_many("pieces", timeout=20, sentinel="empty")]
        assert got == pieces


@both_loops
async def test_request_many_over_its_limits_is_an_error(nats_server: Server) -> None:
    async with client(nats_server.url) as nc, client(nats_server.url, pending_msgs_limit=10) as asking:
        await answering(nc, "pieces", *[b"%d" % number for number in range(1000)])
        got = []

        async def ask() -> None:
            async for reply in asking.request_many("pieces", timeout=20):
                got.append(reply.data)
                await asyncio.sleep(0.01)

        with pytest.raises(SlowConsumer):
            await ask()
        assert got == [b"%d" % number for number in range(len(got))]


@both_loops
async def test_thousand_request_many_at_once_leave_nothing(nats_server: Server) -> None:
    async with client(nats_server.url) as nc:
        await nc.subscribe("echo", cb=lambda message: message.respond(message.data))

        async def ask(number: int) -> None:
            stream = nc.request_many("echo", b"%d" % number, timeout=20, max_messages=1)
            assert [reply.data async for reply in stream] == [b"%d" % number]

        await asyncio.gather(*map(ask, range(1000)))
        assert len(nc._engine.registry.subscriptions) == 1
        await nc.flush()
        assert len(nc._engine.registry.table) == 1


@both_loops
async def test_cancelled_at_any_await_it_leaves_nothing(nats_server: Server) -> None:
    async with client(nats_server.url) as nc:
        await answering(nc, "who", b"1", b"2", b"3")
        tasks = asyncio.all_tasks()

        async def ask() -> int:
            async with aclosing(nc.request_many("who", timeout=20, max_messages=3)) as replies:
                return len([reply async for reply in replies])

        runs = 0
        async for run in interruptions(ask):
            run.check()
            runs += run.delivered
            assert run.delivered or run.value == 3
            assert len(nc._engine.registry.subscriptions) == 1
            assert nc._engine.event_bus._listeners == []
            await nc.flush()
            assert asyncio.all_tasks() <= tasks
        assert runs >= 3


@both_loops
async def test_request_many_with_too_large_a_payload(nats_server: Server) -> None:
    async with client(nats_server.url) as nc:
        with pytest.raises(PayloadTooLarge):
            await anext(nc.request_many("a", bytes(nc.max_payload + 1)))
        assert nc._engine.registry.subscriptions == []


@both_loops
async def test_a_server_that_dies_meanwhile_is_reported_of(nats_server: Server) -> None:
    async with client(nats_server.url) as nc:
        await answering(nc, "who", b"1", b"2")
        got: list[bytes] = []

        async def ask() -> None:
            async for reply in nc.request_many("who", timeout=50):
                got.append(reply.data)
                if len(got) == 2:
                    nats_server.kill()

        with pytest.raises(ConnectionLost):
            await ask()
        assert got == [b"1", b"2"]


@both_loops
async def test_request_many_without_permission() -> None:
    config = 'authorization { users = [ { user: "a", password: "b", permissions: { publish: { deny: "no" } } } ] }'
    with run_server(config=config) as server:
        async with client(server.url, user="a", password="b") as nc:
            with pytest.raises(PermissionDenied, match="'no'"):
                await anext(nc.request_many("no", timeout=50))


@both_loops
async def test_request_many_with_tiny_timeouts(nats_server: Server) -> None:
    async with client(nats_server.url) as nc, nc.subscribe("silent"):

        async def ask(timeout: float) -> None:
            with pytest.raises(RequestTimeout):
                await nc.request("silent", timeout=timeout)

        await asyncio.gather(*(ask(timeout / 10_000) for timeout in range(200, 0, -1)))
