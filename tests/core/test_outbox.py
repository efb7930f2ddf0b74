"""The outbox: whole messages, in order, bounded, over every kind of wire."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextvars import copy_context

import pytest
from hypothesis import given
from hypothesis import strategies as st

from natsproto._core.cleanups import IN_CLEANUP
from natsproto._core.outbox import CONGESTED_SIZE, LARGE_FLUSH_SIZE, LARGE_PAYLOAD, Outbox
from natsproto.errors import ConnectionClosed, OutboxFull
from tests.core.helpers import turns
from tests.kit.examples import lists_up_to


class Turn:
    """An event loop's call_soon, turned by hand."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] = []

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.calls.append(callback)

    def over(self) -> None:
        calls, self.calls = self.calls, []
        for call in calls:
            call()


class Pipe:
    """A wire that takes ``room`` bytes, tells the outbox to pause when it is full, and remembers everything."""

    def __init__(self, outbox: Outbox, room: int = 1 << 40) -> None:
        self.outbox, self.room = outbox, room
        self.written: list[bytes] = []
        self.parts: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.written.append(data)
        self.room -= len(data)
        if self.room <= 0:
            self.outbox.pause()

    def writelines(self, parts: list[bytes], size: int) -> None:
        assert sum(map(len, parts)) == size
        self.parts = parts
        self.write(b"".join(parts))

    def take(self, room: int) -> None:
        self.room = room
        self.outbox.resume()

    @property
    def bytes(self) -> bytes:
        return b"".join(self.written)

    def close(self) -> None: ...
    def abort(self) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def read_into(self, room: memoryview) -> None: ...
    def unsent_bytes(self) -> int:
        return 0

    def sent_bytes(self) -> int:
        return 0

    async def start_tls(self, context: object, hostname: str) -> None: ...


def make_outbox(limit: int = 1 << 20) -> tuple[Outbox, Turn]:
    turn = Turn()
    return Outbox(limit, turn, lambda: None, lambda: turn), turn


def head(number: int) -> bytes:
    return b"PUB s%d 4\r\n" % number


def frame(number: int) -> bytes:
    return head(number) + b"data\r\n"


# ---------------------------------------------------------------- when it writes


def test_first_message_leaves_at_once() -> None:
    outbox, turn = make_outbox()
    wire = Pipe(outbox)
    outbox.attach(wire, paused=False)
    outbox.put(head(1), b"data")
    assert wire.written == [frame(1)]
    turn.over()
    outbox.put(head(2), b"data")
    assert wire.written == [frame(1), frame(2)]


def test_messages_of_one_turn_leave_together() -> None:
    outbox, turn = make_outbox()
    wire = Pipe(outbox)
    outbox.attach(wire, paused=False)
    for number in range(4):
        outbox.put(head(number), b"data")
    assert wire.written == [frame(0)]
    assert (outbox.frames, outbox.size) == (3, 3 * len(frame(1)))
    turn.over()
    assert wire.written == [frame(0), frame(1) + frame(2) + frame(3)]
    assert (outbox.frames, outbox.size, outbox.frames_out, outbox.bytes_out) == (0, 0, 4, 4 * len(frame(1)))


def test_corked_messages_leave_together() -> None:
    outbox, turn = make_outbox()
    wire = Pipe(outbox)
    outbox.attach(wire, paused=False)
    outbox.cork()
    outbox.cork()
    for number in range(3):
        outbox.put(head(number), b"data")
    assert (wire.written, len(turn.calls)) == ([], 1)
    turn.over()
    assert wire.written == [frame(0) + frame(1) + frame(2)]
    outbox.put(head(3), b"data")
    assert wire.written[1:] == [frame(3)]
    turn.over()
    outbox.cork()
    outbox.put(head(4), bytes(LARGE_FLUSH_SIZE))
    assert len(wire.written) == 3  # that much goes at once
    outbox.close()
    turn.over()
    outbox.cork()
    assert turn.calls == []


def test_full_batch_leaves_before_end_of_turn() -> None:
    outbox, _ = make_outbox()
    wire = Pipe(outbox)
    outbox.attach(wire, paused=False)
    outbox.put(head(0), b"data")
    outbox.put(head(1), bytes(LARGE_FLUSH_SIZE))
    assert len(wire.written) == 2
    assert outbox.must_wait, "a publisher that never suspends has to give way now and then"


def test_batch_of_large_payloads_is_larger() -> None:
    outbox, turn = make_outbox()
    wire = Pipe(outbox)
    outbox.attach(wire, paused=False)
    outbox.cork()
    payload = bytes(LARGE_PAYLOAD)
    number = 0
    while not outbox.must_wait:
        assert wire.written == []
        outbox.put(head(number), payload)
        number += 1
    assert len(wire.bytes) >= LARGE_FLUSH_SIZE > len(wire.bytes) - len(head(0)) - len(payload) - 2
    assert (outbox.frames, outbox.frames_out, outbox.bytes_out) == (0, number, len(wire.bytes))
    turn.over()
    assert len(wire.written) == 1


def test_large_payloads_are_not_copied() -> None:
    outbox, turn = make_outbox()
    wire = Pipe(outbox, room=0)
    outbox.attach(wire, paused=True)
    payload = bytes(CONGESTED_SIZE)
    for number in range(2):
        outbox.put(head(number), payload)
    wire.take(1 << 40)  # so much that it goes out in pieces
    assert wire.parts == [head(1), payload, b"\r\n"]
    assert wire.parts[1] is payload
    turn.over()
    outbox.put(head(2), payload[:LARGE_PAYLOAD])
    assert wire.parts[0] == head(2)
    turn.over()
    outbox.put(head(3), payload[:100])
    assert wire.parts[0] == head(2)
    assert len(wire.written) == 4


# ---------------------------------------------------------------- bounds


def test_outbox_limit_while_detached() -> None:
    size = len(frame(1))
    outbox, _ = make_outbox(limit=3 * size)
    for number in range(3):
        outbox.put(head(number), b"data")
    with pytest.raises(OutboxFull) as info:
        outbox.put(head(3), b"data")
    assert (info.value.buffered, info.value.size, info.value.limit) == (3 * size, size, 3 * size)
    assert (outbox.frames, outbox.size) == (3, 3 * size), "the refused message left no trace"
    wire = Pipe(outbox)
    outbox.attach(wire, paused=False)
    assert wire.bytes == frame(0) + frame(1) + frame(2)


def test_outbox_limit_0_publishes_only_while_connected() -> None:
    outbox, _ = make_outbox(limit=0)
    with pytest.raises(OutboxFull):
        outbox.put(head(0), b"data")
    wire = Pipe(outbox)
    outbox.attach(wire, paused=False)
    outbox.put(head(1), b"data")
    assert wire.bytes == frame(1)
    outbox.detach()
    with pytest.raises(OutboxFull):
        outbox.put(head(2), b"data")


def test_a_busy_wire_bounds_it_too() -> None:
    outbox, _ = make_outbox(limit=1000)
    wire = Pipe(outbox, room=1)
    outbox.attach(wire, paused=False)
    while outbox.size < CONGESTED_SIZE:
        outbox.put(head(0), b"data")
    with pytest.raises(OutboxFull):
        outbox.put(head(0), b"data")
    assert outbox.size <= CONGESTED_SIZE + len(frame(0))


def test_outbox_limit_for_cleanups_while_closing() -> None:
    outbox, _ = make_outbox(limit=2 * len(frame(0)))
    outbox.put(head(0), b"data")
    outbox.accept_only_cleanups()
    with pytest.raises(ConnectionClosed):
        outbox.put(head(1), b"data")

    def clean_up() -> None:
        IN_CLEANUP.set(True)
        outbox.put(head(2), b"data")
        with pytest.raises(OutboxFull) as full:
            outbox.put(head(3), b"data")
        assert full.value.limit == 2 * len(frame(0))

    copy_context().run(clean_up)
    wire = Pipe(outbox)
    outbox.attach(wire, paused=False)
    assert wire.bytes == frame(0) + frame(2)


async def test_cleanups_wait_for_room_while_closing() -> None:
    outbox, _ = make_outbox()
    wire = Pipe(outbox, room=1)
    outbox.attach(wire, paused=False)
    while outbox.size < CONGESTED_SIZE:
        outbox.put(head(0), b"data")
    cleanup_context = copy_context()
    cleanup_context.run(IN_CLEANUP.set, True)
    cleanup = asyncio.get_running_loop().create_task(outbox.wait_writable(), context=cleanup_context)
    other = asyncio.create_task(outbox.wait_writable())
    await turns(2)
    outbox.accept_only_cleanups()
    await turns(2)
    assert (cleanup.done(), other.done()) == (False, True)
    wire.take(1 << 40)
    await cleanup


def test_sealed_it_takes_nothing_and_says_why() -> None:
    outbox, _ = make_outbox()
    wire = Pipe(outbox)
    outbox.attach(wire, paused=False)
    outbox.close()
    with pytest.raises(ConnectionClosed):
        outbox.put(head(1), b"data")
    with pytest.raises(ConnectionClosed):
        outbox.put(b"", b"")
    assert wire.written == []


# ---------------------------------------------------------------- over wires


def test_unwritten_messages_go_to_next_wire() -> None:
    outbox, turn = make_outbox()
    first = Pipe(outbox, room=1)
    outbox.attach(first, paused=False)
    for number in range(4):
        outbox.put(head(number), b"data")
    turn.over()
    outbox.detach()
    outbox.put(head(4), b"data")
    second = Pipe(outbox)
    outbox.attach(second, paused=False)
    assert first.bytes == frame(0)
    assert second.bytes == frame(1) + frame(2) + frame(3) + frame(4)


def test_a_wire_that_starts_paused_is_not_written_to() -> None:
    outbox, _ = make_outbox()
    outbox.put(head(1), b"data")
    wire = Pipe(outbox)
    outbox.attach(wire, paused=True)
    assert wire.written == []
    outbox.resume()
    assert wire.bytes == frame(1)


def test_unconfirmed_counts_messages_without_pong() -> None:
    outbox, turn = make_outbox()
    outbox.attach(Pipe(outbox), paused=False)
    for number in range(3):
        outbox.put(head(number), b"data")
    turn.over()
    assert outbox.unconfirmed == 3
    outbox.confirm(2)
    outbox.confirm(1)  # an older pong
    assert outbox.unconfirmed == 1
    outbox.detach()
    outbox.put(head(3), b"data")
    outbox.attach(Pipe(outbox), paused=False)
    assert outbox.unconfirmed == 1, "what the old wire lost is not this one's to lose; what it was just handed is"


# ---------------------------------------------------------------- those who wait


async def test_turn_waits_for_room_and_no_longer() -> None:
    outbox, _ = make_outbox()
    wire = Pipe(outbox, room=1)
    outbox.attach(wire, paused=False)
    outbox.put(head(0), bytes(CONGESTED_SIZE))
    outbox.put(head(1), bytes(CONGESTED_SIZE))
    assert outbox.must_wait
    waiting = asyncio.ensure_future(outbox.wait_writable())
    await turns(3)
    assert not waiting.done()
    wire.take(1 << 40)
    await waiting
    assert not outbox.must_wait


async def test_who_goes_on_after_its_turn_is_collected() -> None:
    outbox = Outbox(1 << 20, asyncio.get_running_loop(), lambda: None)
    wire = Pipe(outbox)
    outbox.attach(wire, paused=False)
    for _ in range(2):
        outbox.put(head(0), bytes(LARGE_FLUSH_SIZE))
    assert outbox.must_wait
    await outbox.wait_writable()
    outbox.put(head(1), b"data")
    outbox.put(head(2), b"data")
    assert len(wire.written) == 2
    await turns(2)
    assert wire.written[2:] == [frame(1) + frame(2)]


async def test_turn_ends_when_the_wire_goes() -> None:
    outbox, _ = make_outbox()
    outbox.attach(Pipe(outbox, room=1), paused=False)
    outbox.put(head(0), bytes(CONGESTED_SIZE))
    outbox.put(head(1), bytes(CONGESTED_SIZE))
    waiting = asyncio.ensure_future(outbox.wait_writable())
    await turns(3)
    outbox.detach()
    await waiting


async def test_a_crowd_of_publishers_stays_within_the_bound() -> None:
    """Each of them may look at the flag in the turn in which another one has just passed."""
    loop = asyncio.get_running_loop()
    outbox = Outbox(CONGESTED_SIZE, loop, lambda: None)
    wire = Pipe(outbox, room=1)
    outbox.attach(wire, paused=False)
    payload = bytes(32_768)
    highest = 0

    async def publish() -> None:
        nonlocal highest
        for _ in range(3):
            if outbox.must_wait:
                await outbox.wait_writable()
            outbox.put(head(0), payload)
            highest = max(highest, outbox.size)

    crowd = [asyncio.ensure_future(publish()) for _ in range(100)]
    for _ in range(1000):
        if all(task.done() for task in crowd):
            break
        wire.take(100_000)
        await turns(4)
    await asyncio.gather(*crowd)
    assert highest <= CONGESTED_SIZE + len(payload) + 64
    assert outbox.frames_out + outbox.frames == 300


async def test_wait_flushed_ignores_later_messages() -> None:
    outbox, _ = make_outbox()
    wire = Pipe(outbox, room=1)
    outbox.attach(wire, paused=False)
    outbox.put(head(0), b"data")
    outbox.put(head(1), b"data")
    waiting = asyncio.ensure_future(outbox.wait_flushed())
    await turns(2)
    for number in range(2, 6):
        assert not waiting.done()
        outbox.put(head(number), b"data")
        wire.take(1)  # takes what waits, and is busy again at once
        await turns(2)
        if waiting.done():
            break
        outbox.put(head(number), b"data")
    assert waiting.done()
    await waiting


async def test_wait_flushed_ignores_messages_taken_back() -> None:
    outbox, _ = make_outbox()
    wire = Pipe(outbox, room=1)
    outbox.attach(wire, paused=False)
    for number in range(4):
        outbox.put(head(number), b"data")
    waiting = asyncio.ensure_future(outbox.wait_flushed())
    await turns(2)
    assert not waiting.done()
    assert outbox.take_back(head(3)) == [head(3)]
    wire.take(1 << 40)
    await turns(2)
    assert waiting.done()
    assert outbox.frames == 0


async def test_drained_ends_when_the_wire_goes() -> None:
    outbox, _ = make_outbox()
    outbox.attach(Pipe(outbox, room=1), paused=False)
    outbox.put(head(0), b"data")
    outbox.put(head(1), b"data")
    waiting = asyncio.ensure_future(outbox.wait_flushed())
    await turns(2)
    assert not waiting.done()
    outbox.detach()
    await waiting


async def test_cancelled_waiters_leave_nothing_behind() -> None:
    outbox, _ = make_outbox()
    wire = Pipe(outbox, room=1)
    outbox.attach(wire, paused=False)
    outbox.put(head(0), bytes(CONGESTED_SIZE))
    outbox.put(head(1), bytes(CONGESTED_SIZE))
    tasks = [asyncio.ensure_future(wait()) for wait in [outbox.wait_writable, outbox.wait_flushed] * 10]
    await turns(3)
    for task in tasks:
        task.cancel()
    assert all(isinstance(r, asyncio.CancelledError) for r in await asyncio.gather(*tasks, return_exceptions=True))
    assert not outbox._notifier
    wire.take(1 << 40)
    assert wire.bytes.count(b"PUB ") == 2


# ---------------------------------------------------------------- whatever happens


_EVENTS = st.one_of(
    st.tuples(st.just("put"), st.integers(0, 400)),
    st.tuples(st.just("turn"), st.just(0)),
    st.tuples(st.just("collect"), st.just(0)),
    st.tuples(st.just("attach"), st.integers(1, 2000)),
    st.tuples(st.just("detach"), st.just(0)),
    st.tuples(st.just("take"), st.integers(1, 2000)),
)


@given(lists_up_to(60, _EVENTS), st.integers(0, 3000))
def test_messages_are_written_once_in_order(events: list[tuple[str, int]], limit: int) -> None:
    outbox, turn = make_outbox(limit)
    wires: list[Pipe] = []
    taken: list[bytes] = []
    refused = 0
    attached = False
    for name, number in [*events, ("detach", 0), ("attach", 1 << 40)]:
        if name == "put":
            payload = b"%d" % len(taken) * number
            line = b"PUB a %d\r\n" % len(payload)
            try:
                outbox.put(line, payload)
            except OutboxFull:
                refused += 1
                assert not attached or outbox.size >= limit
            else:
                taken.append(line + payload + b"\r\n")
                assert attached or outbox.size <= limit
        elif name == "turn":
            turn.over()
        elif name == "collect":
            outbox.cork()
        elif name == "attach" and not attached:
            attached = True
            wires.append(Pipe(outbox, number))
            outbox.attach(wires[-1], paused=False)
        elif name == "detach" and attached:
            attached = False
            outbox.detach()
        elif name == "take" and attached:
            wires[-1].take(number)
        assert outbox.frames_out + outbox.frames == len(taken)
        assert outbox.size == sum(map(len, taken[outbox.frames_out :]))
    assert b"".join(wire.bytes for wire in wires) == b"".join(taken)
    assert all(sum(_frames(piece)) for wire in wires for piece in wire.written)


def _frames(piece: bytes) -> Iterator[int]:
    """Cuts what one write got into whole messages; fails when it does not consist of them."""
    while piece:
        line, _, rest = piece.partition(b"\r\n")
        size = int(line.rsplit(b" ", 1)[1])
        assert rest[size : size + 2] == b"\r\n"
        piece = rest[size + 2 :]
        yield 1
