"""Real proxies of the package tiny-proxy: HTTP CONNECT and SOCKS5, with or without a password."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Literal

import anyio
from tiny_proxy import HttpProxyHandler, Socks5ProxyHandler  # type: ignore[import-untyped]

Kind = Literal["http", "socks5"]

USER, PASSWORD = "ann", "pa ss:w@rd"


class RunningProxy:
    """Where it listens, and how many connections it took."""

    def __init__(self, kind: Kind, port: int) -> None:
        self.kind, self.port = kind, port
        self.accepted = 0

    @property
    def url(self) -> str:
        """Without user info."""
        return f"{self.kind}://127.0.0.1:{self.port}"


@asynccontextmanager
async def run_proxy(kind: Kind, *, password: str | None = None) -> AsyncIterator[RunningProxy]:
    """A proxy on a free port; with a password it asks for that and ``USER``."""
    handlers = {"http": HttpProxyHandler, "socks5": Socks5ProxyHandler}
    handler = handlers[kind](username=None if password is None else USER, password=password)
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=0)
    proxy = RunningProxy(kind, listener.extra(anyio.abc.SocketAttribute.local_port))

    async def handle(stream: anyio.abc.SocketStream) -> None:
        proxy.accepted += 1
        try:
            await handler.handle(stream)
        finally:  # which it leaves open when it is cancelled
            with anyio.CancelScope(shield=True):
                await stream.aclose()

    task = asyncio.create_task(listener.serve(handle))
    try:
        yield proxy
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await listener.aclose()
