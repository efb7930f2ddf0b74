"""Looking up host names, and connecting sockets to the first of several addresses.

Names are looked up in daemon threads of this module. The default executor of the event loop belongs to the application:
name servers that do not answer would take all of its threads, and ``asyncio.run`` would wait for them at the end. The
rules of the look-ups:

1. There is one thread for each name that is being looked up, however many clients and event loops wait for it.
2. Cancelling ends the wait, not the look-up: the next attempt waits for the one that is running.
3. Nothing is kept after its end: each later attempt looks the name up again.
4. A forked process has none of the threads, so it begins its own look-ups.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from typing import Any, TypeAlias

from natsproto._race import STAGGER_S, Race

SocketAddress: TypeAlias = tuple[socket.AddressFamily, socket.SocketKind, int, str, tuple[Any, ...]]
"""An entry of what ``socket.getaddrinfo`` returns: family, kind, protocol, a name, and host with port."""

_LookUp: TypeAlias = tuple[int, str, int]

_running: dict[_LookUp, Future[list[SocketAddress]]] = {}
"""By process, host and port. A dict's own methods are atomic, so that no lock can be held at a fork."""


async def resolve(host: str, port: int) -> list[SocketAddress]:
    """Return the addresses of a host for stream sockets. The OSError of the look-up if there are none."""
    key = os.getpid(), host, port
    look_up: Future[list[SocketAddress]] = Future()
    running = _running.setdefault(key, look_up)
    if running is look_up:
        look_up.set_running_or_notify_cancel()  # from now on a waiter's cancellation does not reach it
        thread = threading.Thread(
            target=_look_up, args=(key, look_up), name=f"natsproto look-up of {host}", daemon=True
        )
        try:
            thread.start()
        except BaseException as exc:  # the process may have no more threads
            del _running[key]
            look_up.set_exception(exc)
    return await asyncio.wrap_future(running)


def _look_up(key: _LookUp, look_up: Future[list[SocketAddress]]) -> None:
    """Look a name up and end its future, in its thread."""
    _, host, port = key
    try:
        found: list[SocketAddress] = list(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
    except BaseException as exc:
        del _running[key]
        look_up.set_exception(exc)
    else:
        del _running[key]
        look_up.set_result(found)


async def connect_first(addresses: Sequence[SocketAddress]) -> tuple[socket.socket, list[SocketAddress]]:
    """Return a socket that is connected to the first address that accepts, and the addresses that were not tried.

    The next one is dialled beside when one is silent. The OSError of the last if all refuse.
    """
    loop = asyncio.get_running_loop()
    left, errors = list(addresses), [OSError("its host name does not resolve")]

    async def attempt(address: SocketAddress) -> socket.socket | None:
        family, kind, protocol, _, where = address
        with ExitStack() as unless_connected:
            try:
                sock = unless_connected.enter_context(socket.socket(family, kind, protocol))
                sock.setblocking(False)
                await loop.sock_connect(sock, where)
            except OSError as exc:
                errors.append(exc)
                return None
            unless_connected.pop_all()
        return sock

    race: Race[SocketAddress, socket.socket] = Race("natsproto dial of an address", socket.socket.close)
    try:
        for address in addresses:
            left.remove(address)
            race.start(address, attempt(address))
            if (sock := await race.winner(STAGGER_S)) is not None:
                return sock, left
        while race.running:
            if (sock := await race.winner()) is not None:
                return sock, left
    finally:
        race.cut()
    raise errors[-1]
