"""``batches(max_wait=...)`` of the async and of the blocking client, and the blocking consume_batches."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Iterator

import pytest

import natsproto
from natsproto import sync
from natsproto.errors import ConfigError
from natsproto.jetstream import BatchFailed, JetStream, JsMessage, Messages
from natsproto.testing import FaultProxy, Server
from tests.jetstream.reading import known
from tests.kit.acknowledged import wait_all_acknowledged
from tests.kit.contents import filled_consumer, publish_numbers
from tests.kit.waiting import until
from tests.server.helpers import filled_stream


async def busy_for(seconds: float) -> None:
    """What a program does between two of its batches."""
    ends = time.monotonic() + seconds
    await until(lambda: time.monotonic() >= ends)


@pytest.mark.parametrize("ack_policy", ["explicit", "none"])
async def test_batches_are_full_or_have_waited(jetstream: JetStream, ack_policy: str) -> None:
    consumer = await filled_consumer(jetstream, 230, ack_policy=ack_policy)
    sizes: list[int] = []
    async with consumer.messages() as messages:
        began = time.monotonic()
        async for batch in messages.batches(100, max_wait=0.4):
            for message in batch:
                await message.ack()
            sizes.append(len(batch))
            if sum(sizes) == 230:
                break
        assert sizes == [100, 100, 30], "the first one is full, too"
        assert time.monotonic() - began >= 0.35
        began = time.monotonic()
        await publish_numbers(jetstream, range(100))
        assert len(await anext(messages.batches(100, max_wait=2.5))) == 100
        assert time.monotonic() - began < 2.4, "a full one does not wait"


async def test_window_begins_with_the_oldest(jetstream: JetStream) -> None:
    """It is the oldest message that waits, also while the reader handles the batch before."""
    consumer = await filled_consumer(jetstream, 1)
    async with consumer.messages() as messages:
        batches = messages.batches(max_wait=1)
        assert len(await anext(batches)) == 1
        await publish_numbers(jetstream, range(3))
        await busy_for(1.1)
        began = time.monotonic()
        assert len(await anext(batches)) == 3
        assert time.monotonic() - began < 0.9, "their window is over"
        await publish_numbers(jetstream, range(2))
        began = time.monotonic()
        assert len(await anext(batches)) == 2
        assert time.monotonic() - began >= 0.9


async def test_window_ends_with_the_reading(jetstream: JetStream) -> None:
    consumer = await filled_consumer(jetstream, 5)
    async with consumer.messages(stop_after=5) as messages:
        began = time.monotonic()
        assert [len(batch) async for batch in messages.batches(max_wait=2.5)] == [5]
        assert time.monotonic() - began < 2.4


async def test_tasks_share_the_batches(jetstream: JetStream) -> None:
    consumer = await filled_consumer(jetstream, 400)
    seqs: list[int] = []

    async def read(messages: Messages) -> None:
        async for batch in messages.batches(100, max_wait=0.1):
            seqs.extend(message.seq for message in batch)
            await asyncio.gather(*(message.ack() for message in batch))

    async with consumer.messages(stop_after=400) as messages:
        await asyncio.gather(*(read(messages) for _ in range(3)))
    assert sorted(seqs) == list(range(1, 401))


async def test_small_max_ack_pending_is_a_full_batch(jetstream: JetStream) -> None:
    consumer = await filled_consumer(jetstream, 40, max_ack_pending=10)
    async with consumer.messages(stop_after=40) as messages:
        began = time.monotonic()
        async for batch in messages.batches(max_wait=2):
            assert len(batch) == 10
            for message in batch:
                await message.ack()
        assert time.monotonic() - began < 2


async def test_bad_arguments_of_windows(jetstream: JetStream) -> None:
    consumer = await filled_consumer(jetstream, 0, ack_wait=5)
    backoff = await (await jetstream.stream("S")).create_consumer("b", max_deliver=4, backoff=[1, 5])
    messages, short = consumer.messages(), backoff.messages()
    for max_messages, max_wait, name in [
        (None, -1, "max_wait"),
        (None, 0.5, "max_wait"),
        (0, None, "max_messages"),
        (-1, 0.1, "max_messages"),
        (100_000, 0.1, "max_messages"),
    ]:
        with pytest.raises(ConfigError, match=name):
            messages.batches(max_messages, max_wait=max_wait)
    with pytest.raises(ConfigError, match=r"max_wait.*ack_wait of 1 s"):
        short.batches(max_wait=0.2)
    with pytest.raises(TypeError, match="max_wait"):
        messages.batches(max_wait="1")  # type: ignore[arg-type]


async def test_batches_without_a_connection(nats_server: Server, jetstream: JetStream) -> None:
    """Without a connection, messages that are still this client's are handled, and nothing spins."""
    await filled_consumer(jetstream, 100, ack_wait=2)
    handled: list[int] = []
    is_slow, go_on = asyncio.Event(), asyncio.Event()

    async def handle(batch: list[JsMessage]) -> None:
        handled.extend(message.seq for message in batch)
        if len(handled) >= 30:
            is_slow.set()
            await go_on.wait()

    async with (
        FaultProxy("127.0.0.1", nats_server.port) as proxy,
        natsproto.connect(proxy.url, reconnect_wait=0.05) as nc,
    ):
        consumer = await (await nc.jetstream().stream("S")).consumer("c")
        async with asyncio.timeout(30), consumer.consume_batches(handle, max_messages=10, max_wait=0.1) as working:
            await is_slow.wait()
            proxy.refuse()
            proxy.cut()
            await busy_for(0.5)
            assert working.pending
            before = len(handled)
            go_on.set()
            used = time.process_time()
            await asyncio.to_thread(time.sleep, 0.09)
            assert time.process_time() - used < 0.08
            assert len(handled) > before
            await proxy.allow()
            await until(lambda: len(set(handled)) == 100, 20)
        assert working.failed == 0


@pytest.mark.parametrize("way", ["consume_batches", "batches"])
async def test_batches_share_a_time_slice(jetstream: JetStream, way: str) -> None:
    """Between two calls that keep the event loop, other tasks run."""
    consumer = await filled_consumer(jetstream, 200)
    calls = 0
    turns = set[int]()

    def handle(batch: list[JsMessage]) -> None:
        nonlocal calls
        calls += 1
        time.sleep(0.02)

    async def tick() -> None:
        while True:
            turns.add(calls)
            await asyncio.sleep(0)

    ticking = asyncio.create_task(tick())
    if way == "consume_batches":
        await consumer.consume_batches(handle, max_messages=10, max_wait=0.1, stop_after=200).run()
    else:
        async with consumer.messages(stop_after=200) as messages:
            async for batch in messages.batches(10, max_wait=0.1):
                handle(batch)
                for message in batch:
                    message.ack_nowait()
    ticking.cancel()
    assert calls == 20
    assert turns >= set(range(1, 20))


@pytest.mark.parametrize("way", ["consume_batches", "batches"])
async def test_a_batch_that_was_waited_for_uses_up_its_turn(
    nats_server: Server, jetstream: JetStream, way: str
) -> None:
    """Other tasks run between it and the next one, although the last messages of both were read at once."""
    consumer = await filled_consumer(jetstream, 0, ack_policy="none")
    calls = 0
    turns = set[int]()

    def handle(batch: list[JsMessage]) -> None:
        nonlocal calls
        calls += 1
        time.sleep(0.02)

    async def tick() -> None:
        while True:
            turns.add(calls)
            await asyncio.sleep(0)

    async def loop() -> None:
        async with consumer.messages(stop_after=12) as messages:
            async for batch in messages.batches(4, max_wait=2):
                handle(batch)

    if way == "consume_batches":
        running = consumer.consume_batches(handle, max_messages=4, max_wait=2, stop_after=12).run()
    else:
        running = loop()
    working = asyncio.create_task(running)
    await known(consumer, lambda info: info.num_waiting)
    await publish_numbers(jetstream, range(2))
    await known(consumer, lambda info: info.delivered.consumer_seq == 2)
    with sync.connect(nats_server.url) as blocking:  # nothing is read meanwhile
        for _ in range(10):
            blocking.jetstream().publish("s")
    ticking = asyncio.create_task(tick())
    await working
    ticking.cancel()
    assert calls == 3
    assert turns >= {1, 2, 3}


# ---------------------------------------------------------------- the blocking client


@pytest.fixture
def client(nats_server: Server) -> Iterator[sync.Client]:
    with sync.connect(nats_server.url) as client:
        yield client


@pytest.mark.parametrize("entered", [True, False])
def test_blocking_batches(client: sync.Client, entered: bool) -> None:
    consumer = filled_stream(client, 25).create_consumer("c")
    messages = consumer.messages()
    if entered:
        messages.__enter__()
    seqs: list[list[int]] = []
    for batch in messages.batches(10, max_wait=0.3):
        seqs.append([message.seq for message in batch])
        for message in batch:
            message.ack_sync()
        if len(seqs) == 3:
            break
    assert seqs == [list(range(1, 11)), list(range(11, 21)), list(range(21, 26))]
    if entered:
        messages.stop()
    wait_all_acknowledged(consumer)


def test_blocking_batches_get_what_next_has_left(client: sync.Client) -> None:
    consumer = filled_stream(client, 60).create_consumer("c")
    seqs: list[int] = []
    with consumer.messages(stop_after=60) as messages:
        for _ in range(10):
            message = messages.next(timeout=10)
            seqs.append(message.seq)
            message.ack()
        for batch in messages.batches(7, max_wait=0.05):
            seqs += [message.seq for message in batch]
            for message in batch:
                message.ack()
    assert seqs == list(range(1, 61))


def test_blocking_batches_of_ordered_consumers(client: sync.Client) -> None:
    filled_stream(client, 60).create_consumer("c")
    ordered = client.jetstream().stream("S").ordered_consumer()
    seqs: list[int] = []
    with ordered, ordered.messages() as messages:
        seqs.append(messages.next(timeout=10).seq)
        for batch in messages.batches(50):
            seqs += [message.seq for message in batch]
            if len(seqs) == 60:
                break
    assert seqs == list(range(1, 61))


def test_interrupted_batches_return_to_the_server(client: sync.Client) -> None:
    consumer = filled_stream(client, 1).create_consumer("c")
    main = threading.main_thread().ident
    assert main is not None

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, interrupt)
    timer = threading.Timer(0.1, lambda: signal.pthread_kill(main, signal.SIGUSR1))
    try:
        with consumer.messages() as messages:
            timer.start()
            batches = messages.batches(2, max_wait=2.5)
            with pytest.raises(KeyboardInterrupt):
                next(batches)
    finally:
        signal.signal(signal.SIGUSR1, before)
        timer.join()
    assert consumer.next(timeout=10).seq == 1


def test_blocking_consume_batches(client: sync.Client) -> None:
    consumer = filled_stream(client, 45).create_consumer("c")
    calls: list[list[int]] = []
    threads = set[str]()

    def handle(batch: list[sync.JsMessage]) -> None:
        threads.add(threading.current_thread().name)
        calls.append([message.seq for message in batch])
        if len(calls) == 1:
            raise BatchFailed([0])

    with consumer.consume_batches(handle, max_messages=20, max_wait=0.2, nak_delay=0, stop_after=46) as working:
        working.wait()
    assert sorted(seq for call in calls for seq in call) == [1, *range(1, 46)]
    assert threading.current_thread().name not in threads
    assert (working.handled, working.failed) == (46, 1)
    client.flush()
    wait_all_acknowledged(consumer)


def test_bad_arguments_of_blocking_windows(client: sync.Client) -> None:
    consumer = filled_stream(client, 0).create_consumer("c")

    async def wrong(batch: list[sync.JsMessage]) -> None: ...

    with pytest.raises(TypeError, match="async def"):
        consumer.consume_batches(wrong)
    for arguments, name in (({"threads": 0}, "threads"), ({"max_wait": 3}, "max_wait"), ({"max_wait": -1}, "max_wait")):
        with pytest.raises(ConfigError, match=name):
            consumer.consume_batches(lambda batch: None, **arguments)  # type: ignore[arg-type]
    with consumer.messages() as messages:
        for max_wait in (3, -1):
            with pytest.raises(ConfigError, match="max_wait"):
                messages.batches(max_wait=max_wait)
