"""Sockets: TCP, TLS after INFO, TLS first.

Owns the read buffer and the asyncio transport of one connection, and adapts both to the Wire interface. It knows no
protocol.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from typing import cast

from natsproto import errors
from natsproto._core.socket.wire import READ_BUFFER_SIZE, DialPlan, Wire, WireHandler
from natsproto._sockets import connect_first, resolve
from natsproto.protocol.addresses import ServerAddress

UnknownHost = socket.gaierror
"""The error for a name that has no address."""

FIRST_READ_BUFFER_SIZE = 4096
"""Size of the first buffer: the handshake fits, and clearing a large one takes longer than the handshake."""


async def dial(address: ServerAddress, plan: DialPlan, handler: WireHandler) -> Wire:
    """Connect to one server, over WebSocket where its URL says so.

    All addresses of its name are tried, in random order if there is a shuffle (ADR-11), the next one beside one that is
    silent. Raises the OSError or
    ssl.SSLError of the last address; cancelling closes the socket.
    """
    if address.websocket:
        from natsproto._core.socket.websocket import dial_websocket  # needs an optional package

        return await dial_websocket(address, plan, handler, connect)
    return await connect(address, plan, handler)


async def connect(address: ServerAddress, plan: DialPlan, handler: WireHandler) -> SocketWire:
    """Open a TCP connection to one server, encrypted from the first byte if the plan has a context."""
    loop = asyncio.get_running_loop()
    if plan.dialer is not None:
        return await _take_over(await plan.dialer(), plan, handler)
    if address.is_ip:  # a look-up would need a thread
        wire = SocketWire(plan, handler)
        hostname = plan.hostname if plan.context is not None else None
        await loop.create_connection(
            lambda: wire, address.host, address.port, ssl=plan.context, server_hostname=hostname
        )
        return wire
    left = list(dict.fromkeys(await resolve(address.host, address.port)))
    if plan.shuffle is not None:
        plan.shuffle(left)
    while True:
        sock, left = await connect_first(left)
        try:
            # An address that is silent in the TLS handshake must leave time for the others.
            async with asyncio.timeout(plan.timeout / (len(left) + 1) if left else None):
                return await _adopt(sock, plan, handler)
        except (OSError, TimeoutError):
            if not left:
                raise


async def _take_over(sock: object, plan: DialPlan, handler: WireHandler) -> SocketWire:
    """Use a connection that the user's dialer has made."""
    if not isinstance(sock, socket.socket):
        raise _no_plain_socket(sock)
    if sock.type != socket.SOCK_STREAM or isinstance(sock, ssl.SSLSocket):
        sock.close()
        raise _no_plain_socket(sock)
    return await _adopt(sock, plan, handler)


async def _adopt(sock: socket.socket, plan: DialPlan, handler: WireHandler) -> SocketWire:
    """Use a connected socket; every error closes it."""
    wire = SocketWire(plan, handler)
    hostname = plan.hostname if plan.context is not None else None
    loop = asyncio.get_running_loop()
    try:
        sock.setblocking(False)
        await loop.create_connection(lambda: wire, sock=sock, ssl=plan.context, server_hostname=hostname)
    except BaseException:
        sock.close()
        raise
    return wire


def _no_plain_socket(made: object) -> errors.ConfigError:
    return errors.ConfigError("what dialer returned", made, "must be a connected, unencrypted stream socket")


class SocketWire(asyncio.BufferedProtocol):
    """One TCP connection, encrypted or not."""

    def __init__(self, plan: DialPlan, handler: WireHandler) -> None:
        self._handler = handler
        self._tcp_keepalive = plan.tcp_keepalive
        self._view = memoryview(bytearray(FIRST_READ_BUFFER_SIZE))
        self._room: memoryview | None = None
        self._transport: asyncio.Transport | None = None
        self._gathers_writes = False
        self._upgrading = False
        self._written = 0

    # ---------------------------------------------------------------- Wire

    def write(self, data: bytes) -> None:
        if self._transport is not None:
            self._written += len(data)
            self._transport.write(data)

    def writelines(self, parts: list[bytes], size: int) -> None:
        if self._gathers_writes and self._transport is not None:
            self._written += size
            self._transport.writelines(parts)
        else:
            self.write(b"".join(parts))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def pause_reading(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def read_into(self, room: memoryview) -> None:
        self._room = room

    def unsent_bytes(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def sent_bytes(self) -> int:
        return self._written - self.unsent_bytes()

    async def start_tls(self, context: ssl.SSLContext, hostname: str) -> None:
        plain = self._transport
        if plain is None:
            raise ConnectionResetError("the connection ended before the TLS handshake")
        loop = asyncio.get_running_loop()
        self._upgrading = True
        try:
            encrypted = await loop.start_tls(plain, self, context, server_hostname=hostname)
        except BaseException:
            plain.abort()
            raise
        finally:
            self._upgrading = False
        if encrypted is None:
            raise ConnectionResetError("the connection ended during the TLS handshake")
        self._adopt(encrypted)

    # ---------------------------------------------------------------- asyncio.BufferedProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._adopt(cast("asyncio.Transport", transport))  # uvloop's transports are no subclass of it

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._view if self._room is None else self._room

    def buffer_updated(self, nbytes: int) -> None:
        if self._room is not None:
            self._room = None
            self._handler.on_buffer_filled(nbytes)
            return
        view = self._view
        self._handler.on_data(bytes(view[:nbytes]))
        if nbytes == FIRST_READ_BUFFER_SIZE == len(view):
            self._view = memoryview(bytearray(READ_BUFFER_SIZE))

    def pause_writing(self) -> None:
        self._handler.on_write_paused()

    def resume_writing(self) -> None:
        self._handler.on_write_resumed()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._handler.on_disconnect(exc)

    def _adopt(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        # asyncio's transports join the parts as well, or do not report a full buffer after them (CVE-2024-12254).
        # uvloop's TLS copies each part on its own, which costs more than joining them.
        is_plain = transport.get_extra_info("sslcontext") is None
        self._gathers_writes = is_plain and not isinstance(transport, asyncio.Transport)
        # Data that the kernel does not accept must stay in the outbox, where whole frames survive a reconnect, and
        # not in asyncio's buffer, which is lost with the socket. So the buffer counts as full as soon as it holds
        # anything. (Not high=0: asyncio's TLS transport would report an empty buffer as full, forever.)
        transport.set_write_buffer_limits(high=1, low=0)
        sock = transport.get_extra_info("socket") if self._tcp_keepalive else None
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
