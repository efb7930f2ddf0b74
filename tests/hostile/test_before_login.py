"""A WebSocket server that has accepted no login yet costs little, whatever it sends."""

from __future__ import annotations

import asyncio
import tracemalloc

import pytest
from websockets.frames import Frame, Opcode

import natsproto
from natsproto.errors import RemoteProtocolError
from tests.kit.failures import cause_of
from tests.kit.websocket import WebSocketServer


@pytest.mark.parametrize("compresses", [True, False])
@pytest.mark.parametrize("fragments", [1, 40])
@pytest.mark.parametrize("greets", [True, False])
async def test_little_is_unpacked_before_the_login(compresses: bool, fragments: int, greets: bool) -> None:
    """64 KB can hold 64 MiB; here 40 MiB, in one frame or as many fragments of 1 MiB."""
    async with WebSocketServer(compresses=compresses, greets=greets) as server:
        server.mute = True
        connecting = asyncio.create_task(cause_of(server.url, websocket_compression=True, connect_timeout=20))
        await server.until(lambda: len(server.requests) == 1)
        await server.until(lambda: not greets or b"PING" in server.peer.said)
        tracemalloc.start()
        try:
            part = bytes((40 << 20) // fragments)
            for at in range(fragments):
                frame = Frame(Opcode.CONT if at else Opcode.BINARY, part, at == fragments - 1)
                server.peer.raw(frame.serialize(mask=False, extensions=server.peer.extensions))
            sent, _ = tracemalloc.get_traced_memory()
            tracemalloc.reset_peak()
            cause = await connecting
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert isinstance(cause, RemoteProtocolError)
        assert peak - sent < 8 << 20


async def test_large_frames_after_the_login_are_unpacked() -> None:
    async with (
        WebSocketServer(compresses=True) as server,
        natsproto.connect(server.url, websocket_compression=True) as nc,
        nc.subscribe("a", max_messages=3) as messages,
    ):
        await nc.flush()
        payload = bytes(8 << 20)
        server.peer.say(b"MSG a 1 %d\r\n%b\r\n" % (len(payload), payload) * 3)
        assert [len(message.data) async for message in messages] == [len(payload)] * 3
