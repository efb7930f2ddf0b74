"""A WebSocket server that speaks NATS, small enough to lie on purpose.

Owns the framing only, through the sans-IO server of the ``websockets`` package: the client's end uses the same
package's client, which is another class, and bytes can be said raw. What it says as a NATS server is the test's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from http import HTTPStatus
from types import TracebackType
from typing import Self, cast

from websockets.extensions import Extension
from websockets.extensions.permessage_deflate import ServerPerMessageDeflateFactory
from websockets.frames import Close, Frame, Opcode
from websockets.http11 import Request
from websockets.server import ServerProtocol

from tests.kit.scripted import INFO, info_line

__all__ = ["WebSocketPeer", "WebSocketServer"]


class WebSocketPeer(asyncio.Protocol):
    """One connection: upgraded, greeted with INFO, its PINGs answered; the rest is said by hand."""

    def __init__(self, server: WebSocketServer) -> None:
        self._server = server
        extensions = [ServerPerMessageDeflateFactory(True, True)] if server.compresses else None
        self._protocol = ServerProtocol(max_size=None, extensions=extensions)
        self._transport: asyncio.Transport | None = None
        self.said = b""
        """The NATS bytes the client sent."""
        self.control: list[Opcode] = []
        """The control frames the client sent."""
        self.goodbye: Close | None = None
        self.gone = asyncio.Event()

    # ------------------------------------------------------------ saying

    def say(self, data: bytes, *, fin: bool = True, opcode: Opcode = Opcode.BINARY) -> None:
        """One frame."""
        self._protocol.send_frame(Frame(opcode, data, fin))
        self._flush()

    @property
    def extensions(self) -> Sequence[Extension]:
        """Those that both sides have."""
        return self._protocol.extensions

    def raw(self, data: bytes) -> None:
        """Bytes that need not be WebSocket."""
        assert self._transport is not None
        self._transport.write(data)

    def close(self, code: int, reason: str = "") -> None:
        """A close frame. The socket is left to the client when the server ``stays``."""
        self._protocol.send_close(code, reason)
        self._flush()

    def abort(self) -> None:
        """Ends the socket."""
        assert self._transport is not None
        self._transport.abort()

    # ------------------------------------------------------------ hearing

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._server.accept(self)

    def data_received(self, data: bytes) -> None:
        if self._server.answer is not None:
            self.raw(self._server.answer)
            return
        self._protocol.receive_data(data)
        for event in self._protocol.events_received():
            if isinstance(event, Request):
                self._upgrade(event)
            elif isinstance(event, Frame):
                self._hear(event)
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self.gone.set()

    def _upgrade(self, request: Request) -> None:
        server = self._server
        server.requests.append(request)
        if server.status is not None:
            self._protocol.send_response(self._protocol.reject(server.status, "no\n"))
            return
        self._protocol.send_response(self._protocol.accept(request))
        if server.greets:
            self.say(info_line(INFO))
        server.heard()

    def _hear(self, frame: Frame) -> None:
        if frame.opcode in (Opcode.BINARY, Opcode.TEXT, Opcode.CONT):
            before = self.said.count(b"PING\r\n")
            self.said += bytes(frame.data)
            pings = self.said.count(b"PING\r\n") - before
            if pings and not self._server.mute:
                self.say(b"PONG\r\n" * pings)
            self._server.heard()
        else:
            self.control.append(frame.opcode)
            if frame.opcode is Opcode.CLOSE:
                self.goodbye = Close.parse(bytes(frame.data))
            self._server.heard()

    def _flush(self) -> None:
        assert self._transport is not None
        for data in self._protocol.data_to_send():
            if data:
                self._transport.write(data)
            elif not self._server.stays:
                self._transport.close()


class WebSocketServer:
    """Where peers come from. ``answer`` is said instead of HTTP, ``status`` refuses the upgrade, a server that
    ``stays`` never closes the socket, one that does not ``greet`` sends no INFO, one that ``compresses`` does so if the
    client can, and a ``mute`` one sends no PONG.
    """

    def __init__(
        self,
        *,
        answer: bytes | None = None,
        status: HTTPStatus | None = None,
        stays: bool = False,
        greets: bool = True,
        compresses: bool = False,
    ) -> None:
        self.answer, self.status, self.stays, self.greets = answer, status, stays, greets
        self.compresses = compresses
        self.mute = False
        self.peers: list[WebSocketPeer] = []
        self.requests: list[Request] = []
        self.port = 0
        self._news = asyncio.Event()
        self._listener: asyncio.Server | None = None

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"ws://127.0.0.1:{self.port}"

    @property
    def peer(self) -> WebSocketPeer:
        """The newest connection."""
        return self.peers[-1]

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(lambda: WebSocketPeer(self), "127.0.0.1", 0)
        self.port = self._listener.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._listener is not None
        self._listener.close()
        for peer in self.peers:
            peer.abort()
        for peer in self.peers:
            await peer.gone.wait()
        with suppress(asyncio.CancelledError):
            await self._listener.wait_closed()

    def accept(self, peer: WebSocketPeer) -> None:
        """A peer has come."""
        self.peers.append(peer)
        self.heard()

    def heard(self) -> None:
        """Something changed."""
        self._news.set()

    async def until(self, enough: Callable[[], bool], *, timeout: float = 5.0) -> None:
        """Waits until ``enough()``; asked whenever a client said something. AssertionError after ``timeout`` s."""
        try:
            async with asyncio.timeout(timeout):
                while not enough():
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            said = [(peer.said, peer.control) for peer in self.peers]
            raise AssertionError(f"not within {timeout:g} s; heard: {said}") from None
