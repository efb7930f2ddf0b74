"""An entry of the corpus, the ground on which it is run, and how it is judged.

What was written is read from a recording proxy between the clients and a real server, so nothing depends on what the
server makes of it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import natsproto
from natsproto import Client, sync
from natsproto.testing import Direction, FaultProxy, Server

ENTRY_TIMEOUT_S = 5.0
MAX_SENTENCE = 2000
HARMLESS = (b"PING\r\n", b"PONG\r\n")
"""What a client may write on its own while it refuses something."""
REPORTED = (b"SUB silent.", b"UNSUB ")
"""What the calls themselves need: the end of an entry's own subscription, and a subject that nobody answers."""


class Wrong(NamedTuple):
    """A wrong use: ``words`` is a pattern that the sentence has when the text ``guess`` is taken out of it."""

    name: str
    call: Callable[[], Awaitable[object]]
    errors: tuple[type[Exception], ...]
    words: str = ""
    guess: str = ""
    sends: bool = False


class Ground(NamedTuple):
    """A client and a blocking one on an empty server."""

    nc: Any
    blocking: Any
    proxy: FaultProxy

    async def flush(self) -> None:
        await self.nc.flush(timeout=5)
        await asyncio.to_thread(self.blocking.flush)

    def lengths(self) -> list[int]:
        """The bytes that each connection has written."""
        return [len(link.seen[Direction.TO_SERVER]) for link in self.proxy.history]

    def written(self, before: list[int]) -> list[bytes]:
        """The lines that were written since then, except those that a client may write at any time."""
        marks = [*before, *[0] * (len(self.proxy.history) - len(before))]
        return [
            line
            for link, mark in zip(self.proxy.history, marks, strict=True)
            for line in bytes(link.seen[Direction.TO_SERVER][mark:]).splitlines(keepends=True)
            if line not in HARMLESS and not line.startswith(REPORTED)
        ]


@asynccontextmanager
async def ground(server: Server) -> AsyncIterator[Ground]:
    async with FaultProxy(server.host, server.port, record=True) as proxy, natsproto.connect(proxy.url) as nc:
        blocking = await asyncio.to_thread(sync.connect, proxy.url)
        try:
            yield Ground(nc, blocking, proxy)
        finally:
            await asyncio.to_thread(blocking.close)


async def error_of(wrong: Wrong) -> BaseException | None:
    """The error of the call, and None if it returned."""
    try:
        async with asyncio.timeout(ENTRY_TIMEOUT_S):
            result = await wrong.call()
    except Exception as exc:
        return exc
    if isinstance(result, Client):
        await result.close()
    return None


def faults_of(wrong: Wrong, error: BaseException | None) -> list[str]:
    """What is wrong with the way in which it was refused."""
    if error is None:
        return ["accepted"]
    faults, sentence = [], str(error)
    if not isinstance(error, wrong.errors):
        wanted = " or ".join(kind.__name__ for kind in wrong.errors)
        faults.append(f"{type(error).__name__} instead of {wanted}: {sentence}")
    if not sentence.strip():
        faults.append(f"{type(error).__name__} without a word")
    if len(sentence) > MAX_SENTENCE:
        faults.append(f"a sentence of {len(sentence)} characters")
    if any(char in sentence for char in "\r\n\0"):
        faults.append(f"control characters in the sentence: {sentence!r}")
    known = sentence.replace(f"'{wrong.guess}'", "").replace("'JsMessage'", "") if wrong.guess else sentence
    if not re.search(wrong.words, known):
        faults.append(f"{wrong.words} is not in: {sentence}")
    return faults


async def judge(on: Ground, wrong: Wrong) -> list[str]:
    """Make the call, and say what is wrong with the answer, or with what was sent."""
    before = on.lengths()
    faults = faults_of(wrong, await error_of(wrong))
    await on.flush()
    if not wrong.sends and (written := on.written(before)):
        faults.append(f"wrote {written[:3]}")
    return [f"{wrong.name}: {fault}" for fault in faults]
