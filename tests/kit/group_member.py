"""A process that is a member of a group, for tests that kill and freeze it.

    python -m tests.kit.group_member URL LOG WHO '{"ttl": 1.0, …}'

It writes a line of JSON for each beginning and end of a handler, and for each change of its shares. Times are those of
the monotonic clock, which the processes of a machine share. It stops in order on SIGTERM.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
from time import monotonic
from typing import Any

import natsproto
from natsproto._core.events import Event
from natsproto.jetstream import groups
from natsproto.jetstream._consumer.message import JsMessage
from natsproto.jetstream.groups import GroupLeaseLost, GroupSharesChanged
from tests.kit.group_history import LATE_S
from tests.kit.workloads import insist

HANDLER_S = 0.02
TICK_S = 0.05


class Log:
    """Lines that survive ``kill -9``: each is one write to a file that is open for appending."""

    def __init__(self, path: str, who: str) -> None:
        self._file, self._who = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT), who

    def write(self, kind: str, **fields: object) -> None:
        line = json.dumps({"at": monotonic(), "who": self._who, "kind": kind, **fields}) + "\n"
        os.write(self._file, line.encode())


async def main(url: str, path: str, who: str, options: dict[str, Any]) -> None:
    log, rng = Log(path, who), random.Random(who)
    handler_s = options.pop("handler_s", HANDLER_S)

    async def handle(message: JsMessage) -> None:
        key, number = message.subject.partition(".")[2], int(message.data)
        log.write("begin", key=key, number=number, generation=member.generation)
        done = False
        try:
            await asyncio.sleep(handler_s * rng.uniform(0, 2))
            done = True
        finally:
            log.write("end", key=key, number=number, done=done)

    def on_event(event: Event) -> None:
        if isinstance(event, GroupSharesChanged):
            log.write("shares", partitions=event.partitions, generation=event.generation)
        elif isinstance(event, GroupLeaseLost):
            log.write("lost")

    async def notice_lateness() -> None:
        while True:
            before = monotonic()
            await asyncio.sleep(TICK_S)
            if (late := monotonic() - before - TICK_S) > LATE_S:
                log.write("late", seconds=late + TICK_S)

    noticing = asyncio.create_task(notice_lateness())
    async with natsproto.connect(url, connect_timeout=30, retry_connect_for=60) as nc:
        nc.add_listener(on_event)
        stream = await nc.jetstream(timeout=20).stream("O", bind=True)
        member = groups.join(stream, "g", handle, filters={"o.*": [1]}, **{"concurrency": 8, **options})
        stop = natsproto.stop_event()
        log.write("start")
        await insist(member.__aenter__)  # it may be started in an outage
        async with member:
            log.write("entered", name=member.name)
            await member.wait(stop)
        log.write("left")
    noticing.cancel()


if __name__ == "__main__":
    _, *places, options = sys.argv
    asyncio.run(main(places[0], places[1], places[2], json.loads(options)))
