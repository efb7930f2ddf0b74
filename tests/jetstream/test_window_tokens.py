"""No acknowledgement is ever booked for a message that its stream does not have, whatever comes twice or late."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from hypothesis import given, settings
from hypothesis import strategies as st

from natsproto.core.connection import Connection
from natsproto.core.outbox import Outbox
from natsproto.jetstream.publishing.ackfuture import AckFuture
from natsproto.jetstream.publishing.window import Window
from natsproto.protocol.commands import Heads

Steps = list[tuple[str, int]]


class Line:
    """A connection on which everything published lies ready to be looked at."""

    is_connected = True
    heads = Heads()

    def __init__(self) -> None:
        self.outbox = Outbox(1 << 20, self, lambda: None, lambda: self)

    def call_soon(self, callback: Callable[[], None], /) -> None:
        """Without a wire the end of a turn does not matter."""

    def token(self) -> bytes:
        """That of the message that was published."""
        [head] = self.outbox.withdraw(b"PUB")
        return head.split(b" ")[2].rpartition(b".")[2]

    def new_inbox(self) -> str:
        return "_INBOX.x"

    def open_inbox(self, inbox: Window) -> None:
        """It is answered by hand."""

    def close_inbox(self, inbox: Window) -> None:
        """It is answered by hand."""


class Streams:
    """Two streams, of which each stores some messages and answers each of those as often as the test wants."""

    def __init__(self) -> None:
        self.line = Line()
        self.window = Window(
            cast("Connection", self.line),
            max_pending=1000,
            max_pending_bytes=1 << 20,
            timeout=60,
            retry_attempts=2,
            retry_wait=0.25,
        )
        self.window.open()
        self.stored: dict[str, list[bytes]] = {"S": [], "T": [b""] * 5}
        self.answers: list[tuple[bytes, bytes]] = []
        self.futures: list[tuple[bytes, AckFuture]] = []

    def publish(self, subject: int, *, lost: bool, both: bool) -> None:
        """A message that S stores unless it is lost; T stores it as well, or everything of the second subject."""
        payload = b"%04d" % len(self.futures)
        lane = self.window.lane_of("ab"[subject], payload, None)
        self.futures.append((payload, self.window.take(lane, payload)))
        token = self.line.token()
        for name in ("S", "T") if both else ("ST"[subject],):
            if not lost:
                self.stored[name].append(payload)
                seq = len(self.stored[name])
                self.answers.append((token, b'{"stream":"%b", "seq":%d}' % (name.encode(), seq)))

    def answer(self, place: int) -> None:
        """Any of the answers so far, once more."""
        if self.answers:
            self.window.answer(*self.answers[-1 - place % len(self.answers)])
            self.window.settled()

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


@settings(max_examples=300, deadline=None)
@given(st.lists(STEP, max_size=60))
def test_an_acknowledgement_is_only_booked_for_a_message_that_the_stream_has(steps: Steps) -> None:
    asyncio.run(act(steps))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 6), min_size=20, max_size=80))
def test_with_one_answer_to_each_message_all_are_settled_in_whatever_order_the_answers_come(places: list[int]) -> None:
    async def one_stream() -> None:
        streams = Streams()
        for place in places:
            streams.publish(0, lost=False, both=False)
            streams.publish(0, lost=False, both=False)
            if len(streams.answers) > 6:  # never in order, and something is always pending
                for _ in range(2):
                    token, payload = streams.answers.pop(place % 6)
                    streams.window.answer(token, payload)
                streams.window.settled()
        for token, payload in streams.answers:
            streams.window.answer(token, payload)
        streams.check()
        assert all(future.done() for _, future in streams.futures)
        streams.window.close()

    asyncio.run(one_stream())


def test_tokens_are_kept_when_everything_is_answered_while_a_publisher_gives_way() -> None:
    async def one_who_gives_way() -> None:
        streams = Streams()
        for _ in range(3):
            streams.publish(0, lost=False, both=False)
        used = [token for token, _ in streams.answers]
        streams.line.outbox.wait_first = True
        room = asyncio.create_task(streams.window.room())
        await asyncio.sleep(0)
        for token, payload in streams.answers:
            streams.window.answer(token, payload)
        streams.window.settled()
        assert streams.window.pending == 0
        await room
        streams.publish(0, lost=False, both=False)
        assert streams.answers[-1][0] in used
        streams.window.close()

    asyncio.run(one_who_gives_way())
