"""Responses in parts beside request_many: parts a second, and the CPU time of a part on either side.

    python -m benchmarks.response_streams

The responder is a process of its own, and the server another one. The ways take turns, five times; the table has the
medians, and the ratios to request_many in the same turn.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from typing import NamedTuple

import natsproto
from natsproto.service import Request
from natsproto.testing import run_server

__all__ = ["main"]

TURNS = 5
LOADS = ((100_000, 16), (100_000, 1024), (16_384, 16_384), (4096, 65_536))
"""Parts of a response, and bytes of a part."""
WAYS: dict[str, int | None] = {"request_many": None, "window 1 MiB": 1 << 20, "window 8 MiB": 8 << 20}


class Figures(NamedTuple):
    """One response."""

    seconds: float
    requester_us: float
    responder_us: float
    """CPU time of a part."""


def _cpu_s() -> float:
    used = os.times()
    return used.user + used.system


async def respond(url: str) -> None:
    """Answer requests for a number of parts of a size until the process is killed."""
    async with natsproto.connect(url) as nc, nc.add_service("parts", "1.0.0") as service:

        @service.endpoint()
        async def stream(request: Request) -> AsyncIterator[bytes]:
            count, size = map(int, request.data.split())
            part = bytes(size)
            for _ in range(count):
                yield part

        @service.endpoint()
        async def many(request: Request) -> None:
            count, size = map(int, request.data.split())
            part = bytes(size)
            for _ in range(count):
                await request.respond(part)
            await request.respond(b"")

        @service.endpoint()
        async def cpu(request: Request) -> None:
            await request.respond(repr(_cpu_s()).encode())

        await nc.flush()
        print("ready", flush=True)
        await nc.wait_closed()


async def _measure(nc: natsproto.Client, window: int | None, count: int, size: int) -> Figures:
    theirs, ours, began, read = float((await nc.request("cpu")).data), _cpu_s(), time.perf_counter(), 0
    payload = b"%d %d" % (count, size)
    if window is None:
        async for _ in nc.request_many("many", payload, sentinel="empty", timeout=300):
            read += 1
    else:
        async for _ in nc.stream("stream", payload, window=window):
            read += 1
    seconds, ours = time.perf_counter() - began, _cpu_s() - ours
    assert read == count
    theirs = float((await nc.request("cpu")).data) - theirs
    return Figures(seconds, ours / count * 1e6, theirs / count * 1e6)


async def _table(url: str) -> None:
    async with natsproto.connect(url, pending_msgs_limit=0, pending_bytes_limit=0) as nc:
        for window in WAYS.values():
            await _measure(nc, window, 1000, 100)
        print("| parts | way | parts a second | MiB/s | CPU µs requester, responder | rate | CPU time |")
        print("|---|---|---|---|---|---|---|")
        for count, size in LOADS:
            turns = [
                {way: await _measure(nc, window, count, size) for way, window in WAYS.items()} for _ in range(TURNS)
            ]
            for way in WAYS:
                seconds, requester_us, responder_us = (
                    statistics.median(turn[way][place] for turn in turns) for place in range(3)
                )
                rate = statistics.median(turn["request_many"].seconds / turn[way].seconds for turn in turns)
                cpu = statistics.median(sum(turn[way][1:]) / sum(turn["request_many"][1:]) for turn in turns)
                load, mib_per_s = f"{count:,} of {size:,} B", count * size / seconds / 2**20
                sides = f"{requester_us:.1f}, {responder_us:.1f}"
                print(
                    f"| {load} | {way} | {count / seconds:,.0f} | {mib_per_s:.0f} | {sides} | {rate:.2f} | {cpu:.2f} |"
                )


def main() -> None:
    """Print the table."""
    with run_server() as server:
        command = [sys.executable, "-m", "benchmarks.response_streams", server.url]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as responder:
            assert responder.stdout is not None
            responder.stdout.readline()
            try:
                asyncio.run(_table(server.url))
            finally:
                responder.kill()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        asyncio.run(respond(sys.argv[1]))
    else:
        main()
