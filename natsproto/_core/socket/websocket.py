"""WebSocket: the NATS byte stream in binary frames, over the sans-IO layer of the ``websockets`` package.

Owns the framing of one connection and nothing else: the socket below it is a SocketWire, the framing,
masking, compression and closing handshake are the library's. A NATS frame may begin and end anywhere in a
WebSocket frame.

nats-server offers to omit masking (``Nats-No-Masking``). Not used: the library masks in C, and publishing 128 bytes was
as fast with masking as without (925,000 and 886,000 messages a second).
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Protocol

from natsproto import errors
from natsproto._core.socket.wire import DialPlan, Wire, WireHandler
from natsproto.protocol.addresses import ServerAddress
from natsproto.protocol.parser import MAX_INFO

try:
    from websockets.client import ClientProtocol
    from websockets.exceptions import InvalidHandshake, InvalidState
    from websockets.extensions import Extension
    from websockets.extensions.permessage_deflate import ClientPerMessageDeflateFactory
    from websockets.frames import Frame, Opcode
    from websockets.http11 import Response
    from websockets.typing import ExtensionParameter
    from websockets.uri import parse_uri
except ImportError as exc:
    raise errors.ConfigError("ws:// URL", "ws", "needs the package websockets: pip install natsproto[ws]") from exc

MAX_CHUNK_SIZE = 65_536
"""Bytes passed on at once. A frame can hold all pending data of a server, and readers need turns in between."""

_SERVER_MAX_PENDING = 64 << 20  # nats-server's max_pending, all of which it may send in one frame
_FRAME_OVERHEAD = 65_536
_MAX_BEFORE_LOGIN = MAX_INFO + _FRAME_OVERHEAD
"""Bytes that a server may send before it has accepted the login, compressed and unpacked: INFO, PONG, errors."""

_disabled_logger = logging.Logger("natsproto.websocket")
_disabled_logger.disabled = True
# The library logs headers and frames, which contain passwords.


class _Connect(Protocol):
    def __call__(self, address: ServerAddress, plan: DialPlan, handler: WireHandler) -> Awaitable[Wire]: ...


async def dial_websocket(address: ServerAddress, plan: DialPlan, handler: WireHandler, connect: _Connect) -> Wire:
    """Connect and do the WebSocket handshake.

    OSError and ssl.SSLError of the socket, ConnectionLost when the server or a proxy refuses the upgrade.
    Cancelling closes the socket.
    """
    wire = WebSocketWire(address, plan, handler)
    try:
        await wire.open(await connect(address, plan, wire))
    except BaseException:
        wire.abort()
        raise
    return wire


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """The errors that a traceback shows. It shows what the server has sent as it came."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


class _BoundedDeflate(Extension):
    """Compression that unpacks little before the login. The limit of the library is the same for all frames, and a
    frame of 64 KB can hold 64 MiB.
    """

    def __init__(self, inner: Extension, is_accepted: Callable[[], bool]) -> None:
        self.name = inner.name
        self._inner, self._is_accepted = inner, is_accepted
        self._left = _MAX_BEFORE_LOGIN

    def decode(self, frame: Frame, *, max_size: int | None = None) -> Frame:
        if self._is_accepted():
            return self._inner.decode(frame, max_size=max_size)
        unpacked = self._inner.decode(frame, max_size=max(1, self._left))  # 0 would be no limit
        self._left -= len(unpacked.data)
        return unpacked

    def encode(self, frame: Frame) -> Frame:
        return self._inner.encode(frame)


class _BoundedDeflateFactory(ClientPerMessageDeflateFactory):
    def __init__(self, is_accepted: Callable[[], bool]) -> None:
        super().__init__(server_no_context_takeover=True, client_no_context_takeover=True)
        self._is_accepted = is_accepted

    def process_response_params(  # type: ignore[override]  # the library needs an Extension only
        self, params: Sequence[ExtensionParameter], accepted_extensions: Sequence[Extension]
    ) -> Extension:
        return _BoundedDeflate(super().process_response_params(params, accepted_extensions), self._is_accepted)


class WebSocketWire:
    """One WebSocket connection as a Wire, and as the handler of the SocketWire below it."""

    def __init__(self, address: ServerAddress, plan: DialPlan, handler: WireHandler) -> None:
        extensions = [_BoundedDeflateFactory(plan.is_accepted)]
        self._protocol = ClientProtocol(
            parse_uri(f"{address.scheme}://{address}{plan.path}"),
            extensions=extensions if plan.compression else None,
            max_size=max(plan.max_message, _SERVER_MAX_PENDING) + _FRAME_OVERHEAD,
            logger=_disabled_logger,
        )
        self._server = str(address)
        self._headers = plan.headers
        self._largest_compressed = plan.largest_compressed
        self._is_accepted = plan.is_accepted
        self._handler = handler
        self._wire: Wire | None = None
        self._upgraded: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._backlog: deque[memoryview] = deque()
        self._paused = self._delivering = self._closing = self._is_ended = False
        self._end: list[Exception | None] = []
        """The causes of the end, the first one first; reported after all earlier data was passed on."""
        self._received_bytes = 0

    async def open(self, wire: Wire) -> None:
        """Send the upgrade request and wait for the response."""
        self._wire = wire
        self._send_request()
        await self._upgraded

    def _send_request(self) -> None:
        request = self._protocol.connect()
        for name, value in self._headers.items():
            if name in request.headers:
                del request.headers[name]
            request.headers[name] = value
        self._protocol.send_request(request)
        self._flush()

    # ---------------------------------------------------------------- Wire

    def write(self, data: bytes) -> None:
        """Send one binary frame, or several when compressed, as a server unpacks no more than max_payload."""
        compressed, limit = self._protocol.extensions, self._largest_compressed
        piece = limit() if compressed and limit is not None else len(data) or 1
        try:
            for start in range(0, len(data), piece):
                self._protocol.send_binary(data[start : start + piece])
        except InvalidState:
            return  # on_disconnect reports the end
        self._flush()

    def writelines(self, parts: list[bytes], size: int) -> None:
        self.write(b"".join(parts))

    def close(self) -> None:
        """Send a close frame. The end comes with the server's answer; data until then is discarded."""
        self._closing = True
        self._backlog.clear()
        try:
            self._protocol.send_close(1000)
        except InvalidState:
            pass
        self._flush()
        self.resume_reading()

    def abort(self) -> None:
        """Close the socket."""
        self._backlog.clear()
        if self._wire is not None:
            self._wire.abort()

    def pause_reading(self) -> None:
        """Stop reading; further bytes stay with the kernel, and those of a partly read frame here."""
        self._paused = True
        if self._wire is not None:
            self._wire.pause_reading()

    def resume_reading(self) -> None:
        """Read again, from the next turn of the event loop: the caller is not ready for data yet."""
        self._paused = False
        asyncio.get_running_loop().call_soon(self._resume)

    def read_into(self, room: memoryview) -> None:
        """Not used: payloads must be unpacked from frames first."""

    def unsent_bytes(self) -> int:
        """Bytes of frames that the kernel has not accepted yet."""
        return 0 if self._wire is None else self._wire.unsent_bytes()

    def sent_bytes(self) -> int:
        """Bytes of frames that the kernel has accepted so far."""
        return 0 if self._wire is None else self._wire.sent_bytes()

    async def start_tls(self, context: ssl.SSLContext, hostname: str) -> None:
        """A WebSocket is encrypted from the first byte or never."""
        raise AssertionError("start_tls on a WebSocket: its URL decides about TLS")

    # ---------------------------------------------------------------- callbacks of the SocketWire

    def on_data(self, chunk: bytes) -> None:
        """Unpack frames and pass their payload on."""
        protocol = self._protocol
        if self._received_bytes + len(chunk) > _MAX_BEFORE_LOGIN and not self._is_accepted():
            self._refuse_more()
            return
        protocol.receive_data(chunk)
        self._flush()
        for event in protocol.events_received():
            if isinstance(event, Frame):
                if event.opcode in (Opcode.BINARY, Opcode.TEXT, Opcode.CONT) and event.data and not self._closing:
                    whole = memoryview(event.data)
                    self._backlog.extend(
                        whole[start : start + MAX_CHUNK_SIZE] for start in range(0, len(whole), MAX_CHUNK_SIZE)
                    )
            elif isinstance(event, Response) and protocol.handshake_exc is None and not self._upgraded.done():
                self._upgraded.set_result(None)
        if protocol.handshake_exc is not None and not self._upgraded.done():
            self._upgraded.set_exception(self._refused(protocol.handshake_exc))
        # Do not wait for the peer to close the socket: it may send a close frame and stay.
        if protocol.parser_exc is not None:
            self._end.append(errors.RemoteProtocolError(f"not WebSocket: {protocol.parser_exc}", self._received_bytes))
        elif protocol.close_rcvd is not None:
            self._end.append(self._close_reason())
        self._received_bytes += len(chunk)
        if self._upgraded.done() and not self._backlog and not self._end:
            self._handler.on_data(b"")  # the beginning of a frame shows that the peer is alive
        self._deliver()

    def on_buffer_filled(self, count: int) -> None:
        """Never called."""
        raise AssertionError("WebSocketWire never uses read_into")

    def on_disconnect(self, cause: Exception | None) -> None:
        """The socket has ended."""
        self._protocol.receive_eof()
        if not self._upgraded.done():
            self._upgraded.set_exception(
                cause or errors.ConnectionLost("closed during the WebSocket handshake", self._server)
            )
        self._end.append(cause)
        self._deliver()

    def on_write_paused(self) -> None:
        """Passed on."""
        self._handler.on_write_paused()

    def on_write_resumed(self) -> None:
        """Passed on."""
        self._handler.on_write_resumed()

    # ---------------------------------------------------------------- internals

    def _resume(self) -> None:
        self._deliver()
        if not self._paused and self._wire is not None:
            self._wire.resume_reading()

    def _deliver(self) -> None:
        """Pass on the received data while reading is not paused, and then the end."""
        if self._delivering:
            return
        self._delivering = True
        while self._backlog and not self._paused:
            self._handler.on_data(bytes(self._backlog.popleft()))
        self._delivering = False
        if self._end and not self._backlog and not self._is_ended:
            self._is_ended = True
            self._handler.on_disconnect(self._end[0])

    def _refuse_more(self) -> None:
        if not self._end:
            error = errors.RemoteProtocolError(
                f"more than {_MAX_BEFORE_LOGIN} bytes before the login", self._received_bytes
            )
            self._end.append(error)
            if not self._upgraded.done():
                self._upgraded.set_exception(error)
            self._deliver()

    def _close_reason(self) -> errors.ConnectionLost | None:
        """Return the reason of the server's close frame; None if it answers ours."""
        said = self._protocol.close_rcvd
        if self._closing or said is None:
            return None
        return errors.ConnectionLost(
            f"WebSocket closed with {said.code}{f' {said.reason}' if said.reason else ''}", self._server
        )

    def _flush(self) -> None:
        if self._wire is None:
            return
        data = self._protocol.data_to_send()
        if data:
            self._wire.write(b"".join(data))
            if not data[-1]:
                self._wire.close()  # the library ends the connection with an empty write

    def _refused(self, exc: Exception) -> errors.ConnectionLost:
        what = str(exc) if isinstance(exc, InvalidHandshake) else f"{type(exc).__name__}: {exc}"
        refusal = errors.ConnectionLost(f"the WebSocket handshake was refused: {what}", self._server)
        refusal.__cause__ = exc if all(str(one).isprintable() for one in _chain(exc)) else None
        return refusal
