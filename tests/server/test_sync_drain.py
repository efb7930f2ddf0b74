"""Draining the blocking client while threads read: it waits until they have handled what was received."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext

import pytest

from natsproto import sync
from natsproto._core.engine.engine import State
from natsproto.testing import Server
from tests.server.helpers import filled_stream, loops
from tests.server.test_sync_hardship import Crew

COUNT = 50

Open = Callable[[sync.Client], "AbstractContextManager[Iterator[object]]"]


class Opened(AbstractContextManager[Iterator[object]]):
    """Enters a reader, and is entered as an iterator over it."""

    def __init__(self, reader: sync.Messages | sync.KeyWatcher | sync.ObjectWatcher) -> None:
        self._reader = reader

    def __enter__(self) -> Iterator[object]:
        return iter(self._reader.__enter__())

    def __exit__(self, *_: object) -> None:
        self._reader.__exit__(None, None, None)


def read_subscription(nc: sync.Client) -> AbstractContextManager[Iterator[object]]:
    subscription = nc.subscribe("s")
    nc.flush()
    for number in range(COUNT):
        nc.publish("s", b"%d" % number)
    return nullcontext(iter(subscription))


def read_messages(nc: sync.Client) -> AbstractContextManager[Iterator[object]]:
    return Opened(filled_stream(nc, COUNT).create_consumer(durable_name="d", ack_wait=300).messages())


def read_messages_not_entered(nc: sync.Client) -> AbstractContextManager[Iterator[object]]:
    return nullcontext(iter(filled_stream(nc, COUNT).create_consumer(durable_name="d", ack_wait=300).messages()))


def read_ordered(nc: sync.Client) -> AbstractContextManager[Iterator[object]]:
    return Opened(filled_stream(nc, COUNT).ordered_consumer().messages())


def read_keys(nc: sync.Client) -> AbstractContextManager[Iterator[object]]:
    kv = nc.jetstream().create_key_value(bucket="k", storage="memory")
    for number in range(COUNT):
        kv.put(f"{number}", b"")
    return Opened(kv.watch())


def read_objects(nc: sync.Client) -> AbstractContextManager[Iterator[object]]:
    store = nc.jetstream().create_object_store(bucket="o", storage="memory")
    for number in range(COUNT):
        store.put(f"{number}", b"")
    return Opened(store.watch())


WARM_UP = 3
"""Items that are handled at once, so that a reader of a consumer gets some ahead."""


def wait_sent(nc: sync.Client) -> None:
    """Wait until the server has sent the messages of all consumers: those that it has not are not received."""
    js = nc.jetstream()
    for stream in js.streams():
        for consumer in js.stream(stream.config.name).consumers():
            while js.stream(stream.config.name).consumer(consumer.name).info().num_pending:
                time.sleep(0.001)


@pytest.mark.parametrize(
    "read", [read_subscription, read_messages, read_messages_not_entered, read_ordered, read_keys, read_objects]
)
def test_drain_waits_for_reading_threads(nats_server: Server, read: Open) -> None:
    handled: list[object] = []
    begun = threading.Event()
    crew = Crew()
    follows_pace = read in (read_messages, read_messages_not_entered)

    def handle_all(nc: sync.Client) -> None:
        with read(nc) as items:
            for item in items:
                handled.append(item)
                if len(handled) > WARM_UP:
                    begun.set()
                    while nc.state is State.OPEN:  # the other items are handled while the client drains
                        time.sleep(0.001)
                nc.publish("handled", b"%d" % len(handled))
                if isinstance(item, sync.JsMessage):
                    item.ack()

    with sync.connect(nats_server.url) as listening, listening.subscribe("handled") as reports:
        listening.flush()
        with sync.connect(nats_server.url) as nc:
            crew.send(lambda: handle_all(nc))
            assert begun.wait(30)
            if not follows_pace:
                wait_sent(listening)
            nc.flush()
        crew.home()
        assert crew.raised == []
        count = len(handled)
        assert [reports.next(timeout=30).data for _ in range(count)] == [b"%d" % (n + 1) for n in range(count)]
        if follows_pace:  # a few messages were sent ahead
            info = listening.jetstream().stream("S").consumer("d").info()
            assert WARM_UP + 1 < count == info.delivered.consumer_seq - info.num_ack_pending
        else:
            assert count == COUNT
    assert loops() == []


def test_closed_client_ends_new_iterations(nats_server: Server) -> None:
    with sync.connect(nats_server.url) as nc:
        messages = filled_stream(nc, COUNT).create_consumer(durable_name="d").messages()
        watcher = nc.jetstream().create_key_value(bucket="k", storage="memory").watch()
        readers: list[Iterable[object]] = [nc.subscribe("a"), messages.__enter__(), watcher.__enter__()]
        nc.close()
        assert [list(reader) for reader in readers] == [[], [], []]


def test_two_threads_end_one_client(nats_server: Server) -> None:
    for verb in (sync.Client.drain, sync.Client.close):
        nc = sync.connect(nats_server.url)
        crew = Crew()
        for _ in range(4):
            crew.send(lambda nc=nc, verb=verb: verb(nc))  # type: ignore[misc]
        crew.home()
        assert crew.raised == []
        assert nc.state is State.CLOSED
    assert loops() == []
