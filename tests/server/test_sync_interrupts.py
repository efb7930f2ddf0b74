"""Interrupts of the blocking client at the very moment at which messages have come: none is lost, nor out of order."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator

import pytest

from natsproto import sync
from natsproto.jetstream._consumer.message import JsMessage
from natsproto.jetstream._consumer.messages import Fetch
from natsproto.jetstream._values.policies import AckPolicy
from natsproto.testing import Server
from tests.server.helpers import filled_stream

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there are no signals")

COUNT = 30


@pytest.fixture
def nc(nats_server: Server) -> Iterator[sync.Client]:
    with sync.connect(nats_server.url) as client:
        yield client


@pytest.fixture
def stream(nc: sync.Client) -> sync.Stream:
    return filled_stream(nc, COUNT)


@pytest.fixture
def interrupted(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every other fetch, beginning with the first, is interrupted when it has its messages."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
    main, right = threading.main_thread().ident, Fetch._collect
    assert main is not None
    turns = 0

    async def all_of(fetch: Fetch) -> list[JsMessage]:
        nonlocal turns
        messages = await right(fetch)
        turns += 1
        if turns % 2:
            signal.pthread_kill(main, signal.SIGINT)
        return messages

    monkeypatch.setattr(Fetch, "_collect", all_of)
    yield
    signal.signal(signal.SIGINT, before)


def interrupted_numbers(read: Callable[[], list[sync.JsMessage]]) -> list[int]:
    """What is read until all have come, each call of which is interrupted once."""
    seen: list[int] = []
    while len(seen) < COUNT:
        with pytest.raises(KeyboardInterrupt):
            read()
        seen += [int(message.data) for message in read()]
    return seen


ACKS = pytest.mark.parametrize("ack_policy", [AckPolicy.NONE, AckPolicy.EXPLICIT])


@ACKS
@pytest.mark.usefixtures("interrupted")
def test_fetched_messages_are_there_for_the_next_fetch(stream: sync.Stream, ack_policy: AckPolicy) -> None:
    consumer = stream.create_consumer(durable_name="C", ack_policy=ack_policy)
    assert interrupted_numbers(lambda: consumer.fetch(4, timeout=0.5)) == list(range(COUNT))
    assert consumer.info().num_redelivered == 0


@ACKS
@pytest.mark.usefixtures("interrupted")
def test_the_next_message_is_there_for_the_next_call(stream: sync.Stream, ack_policy: AckPolicy) -> None:
    consumer = stream.create_consumer(durable_name="C", ack_policy=ack_policy, max_deliver=1)
    assert interrupted_numbers(lambda: [consumer.next()]) == list(range(COUNT))


@pytest.mark.usefixtures("interrupted")
def test_interrupt_puts_back_priority_group_messages(stream: sync.Stream) -> None:
    consumer = stream.create_consumer(durable_name="C", priority_groups=["g"], priority_policy="overflow")
    assert interrupted_numbers(lambda: consumer.fetch(4, timeout=0.5, priority_group="g")) == list(range(COUNT))


@pytest.mark.usefixtures("interrupted")
def test_an_ordered_consumer_goes_on_without_a_gap(stream: sync.Stream) -> None:
    with stream.ordered_consumer() as consumer:
        assert interrupted_numbers(lambda: consumer.fetch(4, timeout=0.5)) == list(range(COUNT))
    with stream.ordered_consumer() as consumer:
        assert interrupted_numbers(lambda: [consumer.next()]) == list(range(COUNT))


@pytest.mark.usefixtures("interrupted")
def test_messages_reads_what_interrupt_put_back(stream: sync.Stream) -> None:
    consumer = stream.create_consumer(durable_name="C", ack_policy="none")
    with pytest.raises(KeyboardInterrupt):
        consumer.fetch(4)
    with consumer.messages() as messages:
        assert [int(messages.next(timeout=5).data) for _ in range(COUNT)] == list(range(COUNT))
