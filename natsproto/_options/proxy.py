"""Connections through a proxy: SOCKS5, over the package python-socks, and HTTP CONNECT.

Owns the HTTP CONNECT handshake and its error messages. It returns a socket that is connected
to the server; the caller adds TLS and WebSocket.

python-socks is not used for HTTP CONNECT, because it reads the proxy's response together with the data after it: NATS
servers send first, and their INFO would sometimes be lost.
"""

from __future__ import annotations

import asyncio
import re
import socket
from base64 import b64encode
from urllib.parse import SplitResult, unquote, urlsplit

from natsproto import errors
from natsproto._sockets import connect_first, resolve
from natsproto.errors._base import HIDDEN, escaped

_MAX_HEAD, _MAX_REASON = 16_384, 200
_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3})(?: ([^\r\n]*))?\r?\n")


async def connect_through(proxy: str, host: str, port: int, timeout: float) -> socket.socket:
    """A socket connected to ``host``, whose name the proxy resolves. Cancelling closes it.

    ConnectionLost when the proxy cannot be reached or refuses, ConfigError when python-socks is missing.
    """
    parts = urlsplit(proxy)
    by_scheme = _http_connect if parts.scheme == "http" else _socks_connect
    try:
        return await by_scheme(parts, host, port, timeout)
    except OSError as exc:
        reason = exc.strerror or str(exc) or type(exc).__name__
        raise errors.ConnectionLost(f"the proxy {parts.hostname}:{parts.port} did not connect: {reason}") from exc


async def _socks_connect(parts: SplitResult, host: str, port: int, timeout: float) -> socket.socket:
    try:
        from python_socks import ProxyError, ProxyType
        from python_socks.async_.asyncio import Proxy
    except ModuleNotFoundError:
        raise errors.ConfigError(
            "proxy", HIDDEN, "needs the package python-socks: pip install natsproto[proxy]"
        ) from None
    user, password = _login(parts)
    found = await resolve(parts.hostname or "", parts.port or 0)  # python-socks would use the loop's executor
    for number, (*_, where) in enumerate(found, 1):
        through = Proxy(ProxyType.SOCKS5, where[0], parts.port or 0, username=user, password=password, rdns=True)
        try:
            return await through.connect(host, port, timeout=timeout)
        except ProxyError as exc:
            reason = escaped(str(exc)[:_MAX_REASON])
            raise ConnectionRefusedError(reason) from None  # a traceback would show it as it came
        except OSError:
            if number == len(found):
                raise
    raise OSError("its host name does not resolve")


async def _http_connect(parts: SplitResult, host: str, port: int, timeout: float) -> socket.socket:
    """RFC 9110, 9.3.6. No byte after the proxy's response is read."""
    del timeout  # the caller has its own timeout
    target = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    lines = [f"CONNECT {target} HTTP/1.1", f"Host: {target}"]
    user, password = _login(parts)
    if user is not None:
        login = b64encode(f"{user}:{password}".encode()).decode()
        lines.append(f"Proxy-Authorization: Basic {login}")
    sock = await _dial(parts.hostname or "", parts.port or 0)
    try:
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(sock, "\r\n".join([*lines, "", ""]).encode())
        head = bytearray()
        while not head.endswith((b"\r\n\r\n", b"\n\n")):
            byte = await loop.sock_recv(sock, 1)
            if not byte or len(head) > _MAX_HEAD:
                reason = "it ended the connection" if not byte else "its response header is too long"
                raise ConnectionRefusedError(reason)
            head += byte
        status = _STATUS.match(head)
        if status is None:
            raise ConnectionRefusedError("it does not answer with HTTP")
        if not status[1].startswith(b"2"):
            reason = f"{status[1].decode()} {(status[2] or b'')[:_MAX_REASON].decode('latin-1')}".strip()
            raise ConnectionRefusedError(escaped(reason))
    except BaseException:
        sock.close()
        raise
    return sock


async def _dial(host: str, port: int) -> socket.socket:
    """Return a socket connected to the first address of the proxy that accepts."""
    sock, _ = await connect_first(await resolve(host, port))
    return sock


def _login(parts: SplitResult) -> tuple[str | None, str | None]:
    if parts.username is None:
        return None, None
    return unquote(parts.username), unquote(parts.password or "")
