"""The counters of a client can be read in any thread, as exporters of metrics do."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator

import pytest

from natsproto import Client, sync
from natsproto.testing import Server


@pytest.fixture(autouse=True)
def _many_switches() -> Iterator[None]:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval)


def test_stats_beside_a_thread_that_subscribes(nats_server: Server) -> None:
    """Of the blocking client."""
    done = threading.Event()
    with sync.connect(nats_server.url) as nc:
        kept = [nc.subscribe(f"k.{number}") for number in range(300)]

        def subscribe() -> None:
            for _ in range(300):
                with nc.subscribe("x"):
                    pass
            done.set()

        thread = threading.Thread(target=subscribe)
        thread.start()
        reads = 0
        while not done.is_set() or reads < 100:
            assert nc.stats.dropped == 0
            reads += 1
        thread.join()
        assert len(kept) == 300


async def test_stats_in_another_thread(nats_client: Client) -> None:
    """Of the asyncio client."""
    kept = [nats_client.subscribe(f"k.{number}") for number in range(300)]
    done = threading.Event()

    def read() -> int:
        reads = 0
        while not done.is_set() or reads < 100:
            assert nats_client.stats.dropped == 0
            reads += 1
        return reads

    reading = asyncio.ensure_future(asyncio.to_thread(read))
    for number in range(2000):
        await nats_client.subscribe(f"x.{number}").unsubscribe()
        if not number % 10:
            await asyncio.sleep(0)
    done.set()
    assert await reading >= 100
    assert len(kept) == 300
