"""One side of a response in parts, in a process of its own that a test kills, freezes or cuts off, or in the test.

A side says "begun" when it has reached the phase, and "ended" with the number of entries in its tables afterwards.

    python -m tests.service.stream_peer responder URL start
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Callable

import natsproto
from natsproto._client import Client
from natsproto.errors import NatsError, NoResponders, ServiceError
from natsproto.service import Request

HEARTBEAT_S = 0.3
PHASES = ("start", "parts", "credit", "idle")
"""No part yet; parts all the time; a full window and a reader that pauses; a generator that pauses after some parts."""


async def respond(nc: Client, phase: str, say: Callable[[str], None]) -> None:
    """Offer the endpoint until the task is cancelled."""
    async with nc.add_service("peer", "1.0.0") as service:

        @service.endpoint(subject="svc.phase")
        async def parts(request: Request) -> AsyncIterator[bytes]:
            number = 0
            try:
                if phase == "start":
                    say("begun")
                    await asyncio.Event().wait()
                while True:
                    number += 1
                    if number == 5:
                        say("begun")
                    if phase == "idle" and number > 5:
                        await asyncio.Event().wait()
                    elif phase != "credit":
                        await asyncio.sleep(0.002)
                    yield b"%d" % number
            finally:
                asyncio.get_running_loop().call_soon(asyncio.ensure_future, report())

        async def report() -> None:
            assert service._credit_inbox is not None
            while service._credit_inbox.streams:  # noqa: ASYNC110  (nothing tells)
                await asyncio.sleep(0)
            say("ended 0")

        await nc.flush()
        say("ready")
        await asyncio.Event().wait()


async def request(nc: Client, phase: str, say: Callable[[str], None]) -> None:
    """Ask for the response, and read it to its end."""
    while True:  # until the servers of a cluster have told each other of the endpoint
        try:
            await nc.call("svc.phase", headers={"Stream-Window": "0"})
        except NoResponders:
            await asyncio.sleep(0.01)
        except ServiceError:  # for the window: no stream has begun
            break
    parts = nc.stream("svc.phase", heartbeat=HEARTBEAT_S, window=2000)

    async def read() -> None:
        number = 0
        with contextlib.suppress(NatsError):
            async for part in parts:
                number += 1
                assert part.data == b"%d" % number
                if number == 2:
                    say("begun")
                    if phase == "credit":
                        await asyncio.Event().wait()

    async with parts:
        if phase == "start":
            say("begun")
        reading = asyncio.create_task(read())
        handlers = nc._engine.registry.reply_handlers
        while parts._stream in handlers:  # noqa: ASYNC110  (the reader may pause)
            await asyncio.sleep(0.01)
        if phase != "credit":
            await reading
        reading.cancel()
        say(f"ended {len(handlers)}")


SIDES = {"responder": respond, "requester": request}


async def main(side: str, url: str, phase: str) -> None:
    async with natsproto.connect(url, user=side, password="x") as nc:
        await SIDES[side](nc, phase, lambda line: print(line, flush=True))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
