"""Host names on the real server: looked up in threads of their own, all addresses of a name tried."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest

from natsproto._sockets import resolve
from natsproto.errors import ConnectFailed
from natsproto.testing import Server
from tests.server.helpers import client

LookUp = Callable[..., list[Any]]


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """The addresses of names that end in ``.test``."""
    found: dict[str, list[str]] = {}
    look_up = socket.getaddrinfo

    def getaddrinfo(host: str, port: int, **kinds: Any) -> list[Any]:
        if not host.endswith(".test"):
            return look_up(host, port, **kinds)
        return [entry for address in found[host] for entry in look_up(address, port, **kinds)]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    return found


@pytest.fixture
def slow_names(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """The name server answers when this is set."""
    answers, look_up = threading.Event(), socket.getaddrinfo

    def getaddrinfo(host: str, port: int, **kinds: Any) -> list[Any]:
        answers.wait(30)
        return look_up("127.0.0.1" if host.endswith(".test") else host, port, **kinds)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    yield answers
    answers.set()


def look_ups() -> list[str]:
    return [thread.name for thread in threading.enumerate() if "look-up" in thread.name]


@pytest.mark.parametrize("randomize", [False, True])
async def test_addresses_of_a_name_are_tried_in_random_order(
    nats_server: Server, randomize: bool, names: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """ADR-11. Nobody listens on the others."""
    given = names["many.test"] = [f"127.0.0.{number}" for number in range(9, 0, -1)]
    loop = asyncio.get_running_loop()
    dialled: list[str] = []
    dial = loop.sock_connect

    async def note(sock: socket.socket, address: tuple[str, int]) -> None:
        dialled.append(address[0])
        await dial(sock, address)

    monkeypatch.setattr(loop, "sock_connect", note)
    orders = set()
    for _ in range(10):
        dialled.clear()
        async with client(f"nats://many.test:{nats_server.port}", randomize=randomize) as nc:
            assert nc.connected_url == f"nats://many.test:{nats_server.port}"
        assert dialled[-1] == "127.0.0.1"
        assert len(set(dialled)) == len(dialled)
        orders.add(tuple(dialled))
    assert (orders == {tuple(given)}) is not randomize
    assert len(orders) > 1 or not randomize


async def test_silent_addresses_of_a_name(nats_server: Server, names: dict[str, list[str]]) -> None:
    """The next one is dialled beside."""
    silent = [f"127.0.1.{number}" for number in (1, 2)]
    names["many.test"] = [*silent, "127.0.0.1"]
    with ExitStack() as sockets:
        for address in silent:
            listening = sockets.enter_context(socket.create_server((address, nats_server.port), backlog=0))
            for _ in range(4):  # its backlog is full: it answers nothing
                waiting = sockets.enter_context(socket.socket())
                waiting.setblocking(False)
                waiting.connect_ex(listening.getsockname())
        began = time.monotonic()
        async with client(f"nats://many.test:{nats_server.port}", randomize=False, connect_timeout=30) as nc:
            assert nc.is_connected
        assert time.monotonic() - began < 5  # 0.8 s on a quiet machine


async def test_all_addresses_refuse(names: dict[str, list[str]]) -> None:
    names["many.test"] = ["127.0.0.1", "127.0.0.2"]
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(ConnectFailed, match=r"many\.test:\d+: ConnectionRefusedError"):
        async with client(f"nats://many.test:{port}"):
            pass
    names["none.test"] = []
    with pytest.raises(ConnectFailed, match="does not resolve"):
        async with client(f"nats://none.test:{port}"):
            pass


async def test_look_ups_have_their_own_threads(nats_server: Server, slow_names: threading.Event) -> None:
    """The executor of the loop is the application's."""
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(1))
    urls = ",".join(f"nats://n{number}.test:{nats_server.port}" for number in range(3))
    connecting = [asyncio.ensure_future(client(urls, connect_timeout=30).__aenter__()) for _ in range(3)]
    async with asyncio.timeout(10):
        while len(look_ups()) < 3:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert await asyncio.to_thread(int) == 0
        assert sorted(look_ups()) == [f"natsproto look-up of n{number}.test" for number in range(3)]
        slow_names.set()
        for nc in await asyncio.gather(*connecting):
            await nc.close()
    assert not look_ups()


async def test_cancelled_look_up_is_shared(slow_names: threading.Event) -> None:
    waiting = asyncio.create_task(resolve("a.test", 1))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    again = asyncio.create_task(resolve("a.test", 1))
    await asyncio.sleep(0)
    assert look_ups() == ["natsproto look-up of a.test"]
    slow_names.set()
    assert {entry[4] for entry in await again} == {("127.0.0.1", 1)}


def test_program_ends_beside_a_slow_look_up() -> None:
    """``asyncio.run`` waits for the threads of the loop's executor."""

    async def main() -> None:
        with pytest.raises(ConnectFailed, match="no answer within"):
            async with client("nats://a.test:1", connect_timeout=0.05):
                pass

    answers, look_up = threading.Event(), socket.getaddrinfo
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket, "getaddrinfo", lambda *given, **kinds: answers.wait(30) and look_up(*given, **kinds))
        began = time.monotonic()
        asyncio.run(main())
        assert time.monotonic() - began < 10
    answers.set()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
async def test_forked_process_looks_up_itself() -> None:
    program = """
import asyncio, os, socket, threading
from natsproto._sockets import resolve

look_up, parent = socket.getaddrinfo, os.getpid()
hangs = threading.Event()
socket.getaddrinfo = lambda *given, **kinds: (hangs.wait() if os.getpid() == parent else 0, look_up("127.0.0.1", 1))[1]

async def main():
    try:
        async with asyncio.timeout(0.05):
            await resolve("a.test", 1)
    except TimeoutError:
        pass

asyncio.run(main())
if (child := os.fork()) == 0:
    print(bool(asyncio.run(resolve("a.test", 1))), flush=True)
    os._exit(0)
os.waitpid(child, 0)
"""
    process = await asyncio.create_subprocess_exec(sys.executable, "-W", "ignore", "-c", program, stdout=-1)
    async with asyncio.timeout(20):
        out, _ = await process.communicate()
    assert out == b"True\n"
