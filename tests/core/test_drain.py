"""Draining a client, on a scripted server and virtual time."""

from __future__ import annotations

import asyncio

import pytest

from natsproto._core.engine.engine import CLOSE_TIMEOUT_S, State
from natsproto.errors import DrainTimeout
from natsproto.protocol.frames import Message
from tests.core.helpers import client_lines, published_payloads, scripted_network, turns, turns_until
from tests.kit.clock import advance, virtual_clock
from tests.kit.scripted import Behaviour


@virtual_clock
async def test_drain_handles_and_answers_every_message() -> None:
    async with scripted_network() as net:
        service, client = await net.connect(name="service"), await net.connect(name="client")
        handled = 0

        async def answer(message: Message) -> None:
            nonlocal handled
            await asyncio.sleep(0.001)
            await message.respond(message.data)
            handled += 1

        await service.subscribe("svc", cb=answer)
        await service.flush()
        replies = await client.subscribe("replies")
        for number in range(500):
            await client.publish("svc", b"%d" % number, reply="replies")
        await client.flush()
        await service.drain()
        assert handled == 500
        got = [int((await replies.next(timeout=1)).data) for _ in range(500)]
        assert got == list(range(500))


@virtual_clock
async def test_drain_waits_for_running_iterator() -> None:
    async with scripted_network() as net:
        nc = await net.connect()
        sub = await nc.subscribe("a")
        got = 0

        async def reader() -> None:
            nonlocal got
            async for _ in sub:
                await asyncio.sleep(0.01)
                got += 1

        task = asyncio.create_task(reader())
        await turns(2)
        for _ in range(100):
            await nc.publish("a")
        await nc.drain()
        assert got == 100
        await task


@pytest.mark.parametrize("what", ["client", "subscription"])
@virtual_clock
async def test_drain_ends_pause_of_reading(what: str) -> None:
    async with scripted_network(Behaviour(route=False)) as net:
        nc = await net.connect()
        sub = await nc.subscribe("a", pending_msgs_limit=2, slow_policy="pause")
        await nc.flush()
        for _ in range(20):
            net.server.send(b"MSG a 1 1\r\nx\r\n")
        await turns(10)
        assert sub.pending_msgs == 3
        loop = asyncio.get_running_loop()
        began = loop.time()
        await (nc.drain() if what == "client" else sub.drain())
        assert loop.time() == began
        assert len([message async for message in sub]) == 20


@virtual_clock
async def test_callback_may_publish_while_draining() -> None:
    async with scripted_network() as net:
        nc, other = await net.connect(), await net.connect()
        await other.subscribe("upstream", cb=lambda message: message.respond(b"data"))
        await other.flush()
        done: list[bytes] = []

        async def handler(message: Message) -> None:
            reply = await nc.request("upstream", timeout=5)
            await nc.publish("result", reply.data)
            await nc.flush()
            done.append(reply.data)

        await nc.subscribe("a", cb=handler)
        for _ in range(3):
            await nc.publish("a")
        await nc.drain()
        assert done == [b"data"] * 3


@virtual_clock
async def test_client_drain_deadline_names_unfinished_work() -> None:
    async with scripted_network() as net:
        nc = await net.connect()
        await nc.subscribe("a", cb=lambda _: asyncio.get_running_loop().create_future())
        for _ in range(3):
            await nc.publish("a")
        await nc.flush()
        loop = asyncio.get_running_loop()
        began = loop.time()
        with pytest.raises(DrainTimeout) as late:
            await nc.drain(timeout=2)
        assert 2 <= loop.time() - began <= 2 + CLOSE_TIMEOUT_S
        assert "3 messages of 'a' not handled" in str(late.value)
        assert nc.state is State.CLOSED


@virtual_clock
async def test_drain_while_down_sends_messages_when_up() -> None:
    async with scripted_network() as net:
        nc = await net.connect()
        await nc.subscribe("a")
        net.down()
        await turns_until(lambda: not nc.is_connected)
        await nc.publish("b", b"kept")
        draining = asyncio.create_task(nc.drain(timeout=60))
        await advance(5)
        assert nc.state is State.DRAINING
        net.up()
        await draining
        assert published_payloads(net) == [b"kept"]
        assert not any(line.startswith("SUB") for line in client_lines(net, 1)), "drained ones do not come back"


@virtual_clock
async def test_idle_drain_while_down_is_immediate() -> None:
    async with scripted_network() as net:
        nc = await net.connect()
        handled: list[Message] = []
        await nc.subscribe("a", cb=handled.append)
        net.server.send(b"MSG a 1 1\r\nx\r\n")
        await turns_until(lambda: bool(nc.stats.in_msgs))
        net.down()
        await turns_until(lambda: not nc.is_connected)
        began = asyncio.get_running_loop().time()
        await nc.drain(timeout=60)
        assert asyncio.get_running_loop().time() == began
        assert [message.data for message in handled] == [b"x"]


@virtual_clock
async def test_drain_survives_broken_connection() -> None:
    async with scripted_network() as net:
        nc = await net.connect()
        connection = await net.server.connection()
        outage = asyncio.Event()

        async def publish_late(_: Message) -> None:
            await outage.wait()
            await nc.publish("b", b"later")

        await nc.subscribe("a", cb=publish_late)
        await nc.publish("a")
        await nc.flush()
        connection.behaviour = Behaviour(answer_ping=False)
        draining = asyncio.create_task(nc.drain(timeout=60))
        await advance(1)
        await nc.publish("b", b"late")
        net.down()
        await turns_until(lambda: not nc.is_connected)
        outage.set()
        await advance(1)
        net.up()
        await draining
        assert published_payloads(net)[-1] == b"later"


@virtual_clock
async def test_drain_while_down_ends_at_deadline() -> None:
    async with scripted_network() as net:
        nc = await net.connect()
        net.down()
        await turns_until(lambda: not nc.is_connected)
        await nc.publish("b", b"lost")
        loop = asyncio.get_running_loop()
        began = loop.time()
        with pytest.raises(DrainTimeout, match="1 messages not sent"):
            await nc.drain(timeout=4)
        assert loop.time() - began == pytest.approx(4, abs=1e-6)


@virtual_clock
async def test_drain_waits_10_s_for_a_connection(caplog: pytest.LogCaptureFixture) -> None:
    async with scripted_network() as net:
        nc = await net.connect()
        net.down()
        await turns_until(lambda: not nc.is_connected)
        await nc.publish("b", b"lost")
        loop = asyncio.get_running_loop()
        began = loop.time()
        draining = asyncio.create_task(nc.drain())
        await turns(2)
        assert "draining: 1 messages wait for a connection, for at most 10.0 s" in caplog.text
        with pytest.raises(DrainTimeout, match=r"1 messages not sent, the rest not confirmed \(no connection\)"):
            await draining
        assert loop.time() - began == pytest.approx(10, abs=1e-6)


@virtual_clock
async def test_drain_gives_handlers_25_s_in_an_outage() -> None:
    async with scripted_network() as net:
        nc = await net.connect()
        handled = []

        async def slow(message: Message) -> None:
            await advance(20)
            await nc.publish("result")
            handled.append(message)

        await nc.subscribe("a", cb=slow)
        await nc.publish("a")
        await nc.flush()
        net.down()
        await turns_until(lambda: not nc.is_connected)
        began = asyncio.get_running_loop().time()
        with pytest.raises(DrainTimeout, match="1 messages not sent"):
            await nc.drain()
        assert handled
        assert asyncio.get_running_loop().time() - began <= 25 + CLOSE_TIMEOUT_S


@virtual_clock
async def test_drain_of_subscriptions_in_an_outage() -> None:
    async with scripted_network() as net:
        nc = await net.connect()
        lost, down = await nc.subscribe("a"), await nc.subscribe("b")
        connection = await net.server.connection()
        await nc.flush()
        connection.behaviour = Behaviour(answer_ping=False)
        began = asyncio.get_running_loop().time()
        draining = asyncio.create_task(lost.drain())
        await advance(1)
        net.down()
        await draining  # the connection from which messages could come has ended
        await down.drain()
        assert asyncio.get_running_loop().time() - began < 2
        await nc.drain()


@virtual_clock
async def test_leaving_the_block_drains_and_an_error_closes() -> None:
    async with scripted_network() as net:
        nc = await net.connect()
        sub = await nc.subscribe("a")
        async with sub:
            await nc.publish("a", b"x")
            assert (await sub.next(timeout=1)).data == b"x"
        assert sub.closed
        assert "UNSUB 1" in client_lines(net) or await net.server.expect("UNSUB", "1")
