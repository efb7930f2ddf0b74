"""A client and a server without a block of their own: what programs and notebooks write first."""

from __future__ import annotations

import asyncio

import pytest

import natsproto
from natsproto import Message
from natsproto.testing import Server, run_server


@pytest.mark.parametrize("fails", [False, True])
async def test_block_around_a_client_ends_it(nats_server: Server, fails: bool) -> None:
    """Drained as in the block of connect(); closed at once after an exception."""
    handled = []

    async def handle(message: Message) -> None:
        await asyncio.sleep(0.01)
        handled.append(message.data)

    nc = await natsproto.connect(nats_server.url)
    try:
        async with nc as entered:
            assert entered is nc
            await nc.subscribe("block", cb=handle)
            for number in range(10):
                await nc.publish("block", b"%d" % number)
            await nc.flush()
            if fails:
                raise ZeroDivisionError
    except ZeroDivisionError:
        pass
    assert nc.state is natsproto.State.CLOSED
    assert (len(handled) == 10) is not fails


async def test_server_can_be_awaited() -> None:
    server = await run_server()
    async with await natsproto.connect(server.url) as nc:
        await nc.flush()
    assert repr(server) == f"Server(url={server.url!r}, running)"
    await server.stop()
    assert repr(server).endswith("stopped)")
