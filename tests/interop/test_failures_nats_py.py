"""What the first page of the site says of nats-py and natsproto in failures: each row is provoked with both."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import nats
import nats.errors
import pytest
import pytest_asyncio
from nats.aio.client import Client as TheirClient

import natsproto
from natsproto import Disconnected, Event, SlowConsumerDetected, errors
from natsproto.testing import Server, run_server

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::Warning")]

INDEX = Path(__file__).parent.parent.parent / "docs/index.md"


@pytest_asyncio.fixture
async def their_errors() -> list[Exception]:
    return []


@pytest_asyncio.fixture
async def connect_theirs(their_errors: list[Exception]) -> AsyncIterator[Callable[..., Awaitable[Any]]]:
    opened: list[Any] = []

    async def on_error(error: Exception) -> None:
        their_errors.append(error)

    async def connect(*servers: str, **options: Any) -> Any:
        given = {"error_cb": on_error, "max_reconnect_attempts": -1, "reconnect_time_wait": 0.1, **options}
        opened.append(await nats.connect(list(servers), **given))
        return opened[-1]

    yield connect
    tasks = [task for task in asyncio.all_tasks() if "nats.aio" in repr(task.get_coro())]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for client in opened:
        client._status = TheirClient.CLOSED
        if client._transport is not None:
            client._transport.close()
    opened.clear()
    await asyncio.sleep(0.05)
    gc.collect()  # here, where warnings about what else it has left open are ignored


async def holds_within(condition: Callable[[], bool], seconds: float) -> bool:
    """True as soon as the condition holds, False if it does not in this time."""
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:  # noqa: ASYNC110  # nats-py has no event for it
        await asyncio.sleep(0.02)
    return condition()


async def test_callback_of_a_disconnect_raises(nats_server: Server, connect_theirs: Any) -> None:
    heard: list[Event] = []

    def on_event(event: Event) -> None:
        heard.append(event)
        if isinstance(event, Disconnected):
            raise RuntimeError

    async def on_disconnect() -> None:
        raise RuntimeError

    ours = await natsproto.connect(nats_server.url, on_event=on_event)
    theirs = await connect_theirs(nats_server.url, disconnected_cb=on_disconnect)
    await nats_server.restart()
    assert await holds_within(lambda: theirs.is_reconnecting and bool(heard), 10)
    assert await holds_within(lambda: ours.is_connected, 10)
    assert not await holds_within(lambda: theirs.is_connected, 5)
    assert theirs.is_reconnecting
    await ours.close()


async def test_frozen_server_with_megabytes_unsent(connect_theirs: Any) -> None:
    async with run_server() as first, run_server() as second:
        urls = [first.url, second.url]
        pings = {"ping_interval": 1, "max_outstanding_pings": 2}
        ours = await natsproto.connect(urls, randomize=False, **pings)  # type: ignore[arg-type]
        theirs = await connect_theirs(*urls, dont_randomize=True, pending_size=2**26, **pings)
        first.freeze()
        for client in (ours, theirs):
            for _ in range(12):
                with_limit = asyncio.wait_for(client.publish("a", bytes(900_000)), 0.1)
                await asyncio.gather(with_limit, return_exceptions=True)
        assert await holds_within(lambda: ours.connected_url == second.url, 4)
        assert not await holds_within(
            lambda: theirs.connected_url is not None and second.url in theirs.connected_url.geturl(), 8
        )
        await ours.close()
        first.kill()


async def test_subscriber_that_falls_behind(
    nats_server: Server, connect_theirs: Any, their_errors: list[Exception]
) -> None:
    heard: list[Event] = []
    ours = await natsproto.connect(nats_server.url, on_event=heard.append)
    theirs = await connect_theirs(nats_server.url)
    our_sub = await ours.subscribe("a", pending_msgs_limit=1000)
    their_sub = await theirs.subscribe("a", pending_msgs_limit=1000)
    await theirs.flush()
    for _ in range(5000):
        await ours.publish("a", b"1")
    await ours.flush()
    assert await holds_within(lambda: len(their_errors) == 4000, 10)
    assert not [name for name in dir(their_sub) if "drop" in name]
    assert our_sub.dropped == 4000
    assert await holds_within(lambda: any(isinstance(event, SlowConsumerDetected) for event in heard), 5)
    assert sum(isinstance(event, SlowConsumerDetected) for event in heard) == 1
    await ours.close()


async def test_drain_reaches_its_deadline(
    nats_server: Server, connect_theirs: Any, their_errors: list[Exception]
) -> None:
    async def slow(message: object) -> None:
        await asyncio.Event().wait()

    theirs = await connect_theirs(nats_server.url, drain_timeout=0.5)
    ours = await natsproto.connect(nats_server.url, drain_timeout=0.5)
    for client in (theirs, ours):
        await client.subscribe("a", cb=slow)
        await client.flush()
    for _ in range(10):
        await ours.publish("a", b"1")
    await ours.flush()
    await theirs.drain()  # returns as if all was well
    assert [type(error) for error in their_errors] == [nats.errors.DrainTimeoutError]
    with pytest.raises(errors.DrainTimeout, match="messages of 'a' not handled"):
        await ours.drain()


async def test_header_that_comes_twice(nats_server: Server, connect_theirs: Any) -> None:
    ours, theirs = await natsproto.connect(nats_server.url), await connect_theirs(nats_server.url)
    our_sub, their_sub = await ours.subscribe("a"), await theirs.subscribe("a")
    await theirs.flush()
    await ours.publish("a", headers={"Tag": ["one", "two"]})
    assert (await our_sub.next(5)).headers.get_all("Tag") == ["one", "two"]
    assert (await their_sub.next_msg(5)).headers == {"Tag": "two"}
    await ours.close()


async def test_publishing_while_the_server_is_killed(nats_server: Server, connect_theirs: Any) -> None:
    heard: list[Event] = []
    ours = await natsproto.connect(nats_server.url, on_event=heard.append)
    theirs = await connect_theirs(nats_server.url)
    counts = {"published": 0}

    async def publish() -> None:
        while True:
            for client in (ours, theirs):
                await client.publish("a", b"1")  # neither raises
            counts["published"] += 1
            await asyncio.sleep(0.0005)

    publishing = asyncio.create_task(publish())
    assert await holds_within(lambda: counts["published"] > 200, 10)
    nats_server.kill()
    await nats_server.restart()
    assert await holds_within(lambda: ours.is_connected and theirs.is_connected, 10)
    assert not publishing.done()
    publishing.cancel()
    [lost] = [event for event in heard if isinstance(event, Disconnected)]
    assert lost.in_flight > 0
    assert theirs.stats.keys() == {"in_msgs", "out_msgs", "in_bytes", "out_bytes", "reconnects", "errors_received"}
    await ours.close()


async def test_nothing_listens(unused_tcp_port: int) -> None:
    url = f"nats://127.0.0.1:{unused_tcp_port}"
    began = time.monotonic()
    with pytest.raises(errors.ConnectFailed, match="ConnectionRefusedError"):
        await natsproto.connect(url)
    assert time.monotonic() - began < 2
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(nats.connect(url), 10)  # 120 s with its defaults: 60 attempts, 2 s apart


def test_page_has_a_row_for_each_test() -> None:
    table = INDEX.read_text().partition("<!-- failures -->")[2].partition("\n\n#")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ")][1:]
    assert len(rows) == sum(name.startswith("test_") for name in globals()) - 1
