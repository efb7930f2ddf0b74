"""No acknowledgement is ever booked for a message that its stream does not have, whatever comes twice or late."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from types import SimpleNamespace
from typing import cast

from hypothesis import given
from hypothesis import strategies as st

from natsproto._core.connection import Connection
from natsproto._core.outbox import Outbox
from natsproto._core.socket.wire import random_bits
from natsproto.jetstream._publish.ack_future import AckFuture
from natsproto.jetstream._publish.publish_window import PublisherOptions, PublishWindow
from natsproto.protocol.frames import Message
from tests.kit.examples import examples, lists_up_to

Steps = list[tuple[str, int]]


class Line:
    """A connection on which everything published lies ready to be looked at."""

    is_connected = True

    def __init__(self) -> None:
        self._outbox = Outbox(1 << 20, self, lambda: None, lambda: self)
        self._runtime = SimpleNamespace(random_bits=lambda: random_bits(Random(7)))

    def call_soon(self, callback: Callable[[], None], /) -> None:
        """Without a wire the end of a turn does not matter."""

    def reply(self) -> str:
        """The reply subject of the message that was published."""
        [head] = self._outbox.take_back(b"PUB")
        return head.split(b" ")[2].decode()

    def new_inbox(self) -> str:
        return "_INBOX.x"

    def _add_reply_handler(self, inbox: PublishWindow) -> Callable[[], None]:
        """It is answered by hand."""
        return lambda: None


class Streams:
    """Two streams, of which each stores some messages and answers each of those as often as the test wants."""

    def __init__(self) -> None:
        self.line = Line()
        self.window = PublishWindow(cast("Connection", self.line), PublisherOptions(1000, 1 << 20, 60.0, 2, 0.25))
        self.window.open()
        self.stored: dict[str, list[bytes]] = {"S": [], "T": [b""] * 5}
        self.answers: list[Message] = []
        self.futures: list[tuple[bytes, AckFuture]] = []

    def publish(self, subject: int, *, lost: bool, both: bool) -> None:
        """A message that S stores unless it is lost; T stores it as well, or everything of the second subject."""
        payload = b"%04d" % len(self.futures)
        self.futures.append((payload, self.window.add("ab"[subject], payload)))
        reply = self.line.reply()
        for name in ("S", "T") if both else ("ST"[subject],):
            if not lost:
                self.stored[name].append(payload)
                seq = len(self.stored[name])
                ack = b'{"stream":"%b", "seq":%d}' % (name.encode(), seq)
                self.answers.append(Message(reply, None, ack, None))

    def answer(self, index: int) -> None:
        """Any of the answers so far, once more."""
        if self.answers:
            self.window.on_message(self.answers[-1 - index % len(self.answers)])
            self.window.on_replies_handled()

    def check(self) -> None:
        for payload, future in self.futures:
            if future.done():
                ack = future.result()
                assert self.stored[ack.stream][ack.seq - 1] == payload


async def act(steps: Steps) -> None:
    streams = Streams()
    for what, number in steps:
        match what:
            case "publish":
                streams.publish(number % 2, lost=False, both=False)
            case "lose":
                streams.publish(number % 2, lost=True, both=False)
            case "twice":
                streams.publish(number % 2, lost=False, both=True)
            case "first":
                streams.answer(len(streams.answers) - 1 - number)
            case _:
                streams.answer(number)
        streams.check()
    streams.window.close()


STEP = st.tuples(
    st.sampled_from(
        ["publish", "publish", "publish", "lose", "twice", "answer", "answer", "answer", "answer", "first"]
    ),
    st.integers(0, 12),
)


@examples(300)
@given(lists_up_to(60, STEP))
def test_ack_belongs_to_a_stored_message(steps: Steps) -> None:
    asyncio.run(act(steps))


@examples(100)
@given(st.lists(st.integers(0, 6), min_size=20, max_size=80))
def test_acks_in_any_order_settle_all(places: list[int]) -> None:
    async def one_stream() -> None:
        streams = Streams()
        for index in places:
            streams.publish(0, lost=False, both=False)
            streams.publish(0, lost=False, both=False)
            if len(streams.answers) > 6:  # never in order, and something is always pending
                for _ in range(2):
                    streams.window.on_message(streams.answers.pop(index % 6))
                streams.window.on_replies_handled()
        for answer in streams.answers:
            streams.window.on_message(answer)
        streams.check()
        assert all(future.done() for _, future in streams.futures)
        streams.window.close()

    asyncio.run(one_stream())
