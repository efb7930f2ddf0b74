"""Reports of a trace that a subscriber of the traced message has invented: few are read, and none costs much."""

from __future__ import annotations

import gzip
import json
import time
import tracemalloc

import pytest

from natsproto import Client, Message
from natsproto.tracing import MAX_REPORTS
from tests.core.helpers import scripted_network
from tests.kit.clock import virtual_clock

MIB = 1 << 20

GZIP = {"Content-Encoding": "gzip"}
SERVER = {"server": {"name": "forged", "id": "x"}}


def report(hop: str = "1", hops: object = 0, **more: object) -> bytes:
    return json.dumps({**SERVER, "request": {"header": {"Nats-Trace-Hop": [hop]}}, "hops": hops, **more}).encode()


REPORTS = {
    "a bomb of zeros": ([gzip.compress(bytes(300 * MIB), 1)], GZIP),
    "many small bombs": ([gzip.compress(bytes(MIB), 1)] * 900, GZIP),
    "a large report": ([gzip.compress(report(events=[{"type": "x"}] * 500_000), 9)], GZIP),
    "brackets": ([b'{"server":{},"events":[' + b"[]," * 300_000 + b"0]}"] * 12, None),
    "thousands of reports": ([report(str(number % 9000), 1) for number in range(5000)], None),
    "many servers to wait for": ([report(str(number), 10**6) for number in range(50)], None),
    "hops that are no numbers": ([report("9" * 5000), report("." * 100_000), report("-1"), report(hops=-5)], None),
    "numbers without end": ([report(hops=1e308), b'{"server":{},"hops":1e999}', b'{"server":{},"hops":NaN}'], None),
}


async def invent(nc: Client, reports: list[bytes], headers: dict[str, str] | None) -> None:
    """A server reports that it has passed the message on, and a subscriber sends reports as soon as he sees it."""

    async def send(message: Message) -> None:
        destination = message.headers["Nats-Trace-Dest"]
        await nc.publish(destination, report("", 1))
        for data in reports:
            await nc.publish(destination, data, headers=headers)

    await nc.subscribe("a", cb=send)
    await nc.flush()


@pytest.mark.parametrize("kind", REPORTS)
@virtual_clock
async def test_invented_trace_reports_are_bounded(kind: str) -> None:
    reports, headers = REPORTS[kind]
    async with scripted_network() as net:
        await invent(await net.connect(), reports, headers)
        client = await net.connect()
        tracemalloc.start()
        began = time.process_time()
        try:
            trace = await client.trace("a", timeout=5)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        print(f"{peak / MIB:.0f} MiB, {time.process_time() - began:.2f} s of CPU with tracemalloc")
        assert trace.servers[0].hop == ""
        assert 1 <= len(trace.servers) <= MAX_REPORTS
        assert len(str(trace)) < 16 * MIB
        assert peak < 150 * MIB
