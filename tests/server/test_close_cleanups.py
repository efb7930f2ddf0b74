"""Closing a client that still has to undo something on the server, such as a lock that it releases."""

from __future__ import annotations

import asyncio

import pytest

import natsproto
from natsproto._core.engine import CLOSE_TIMEOUT_S, State
from natsproto.errors import ConnectionClosed
from natsproto.testing import Server
from tests.core.helpers import world
from tests.kit.clock import virtual_clock
from tests.server.helpers import client

LONG = 30.0


async def test_close_ends_delivery_before_cleanups(nats_server: Server) -> None:
    async with client(nats_server.url) as other, asyncio.timeout(LONG):
        await other.subscribe("undo", cb=lambda message: message.respond(b"done"))
        await other.flush()
        nc = await natsproto.connect(nats_server.url)
        received: list[bytes] = []
        await nc.subscribe("news", cb=lambda message: received.append(message.data))
        reader = await nc.subscribe("news")
        await nc.flush()
        may_undo, replies = asyncio.Event(), []

        async def undo() -> None:
            await may_undo.wait()
            replies.append((await nc.request("undo", timeout=LONG)).data)

        nc._start_cleanup(undo())
        closing = asyncio.create_task(nc.close())
        await asyncio.sleep(0)
        with pytest.raises(ConnectionClosed):
            await nc.subscribe("more")
        await other.publish("news", b"late")
        await other.flush()
        may_undo.set()  # its reply comes after the message
        await closing
        assert (nc.state, replies, received) == (State.CLOSED, [b"done"], [])
        assert [message async for message in reader] == []


@virtual_clock
async def test_close_cancels_endless_cleanup() -> None:
    async with world() as place:
        nc = await place.connect()
        cleanup = nc._start_cleanup(asyncio.Event().wait())
        loop = asyncio.get_running_loop()
        began = loop.time()
        await nc.close()
        assert loop.time() - began == pytest.approx(CLOSE_TIMEOUT_S)
        assert cleanup.cancelled()


@virtual_clock
async def test_close_in_an_outage_cancels_cleanups() -> None:
    async with world() as place:
        nc = await place.connect()
        cleanup = nc._start_cleanup(asyncio.Event().wait())
        place.down()
        await asyncio.sleep(0.01)
        loop = asyncio.get_running_loop()
        began = loop.time()
        await nc.close()
        assert loop.time() == began
        assert cleanup.cancelled()
