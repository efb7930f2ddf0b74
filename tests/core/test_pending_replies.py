"""The request mux: each reply to its request, each deadline at its time, nothing left behind."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from collections.abc import Callable
from contextvars import copy_context
from random import Random, SystemRandom

import pytest
from hypothesis import given
from hypothesis import strategies as st

from natsproto._core.cleanups import IN_CLEANUP
from natsproto._core.replies.outages import Outages
from natsproto._core.replies.pending_replies import RequestMux, Resending
from natsproto._core.socket.wire import RANDOM_BITS, random_bits
from natsproto.errors import ConnectionLost, InvalidSubject, NoResponders, OutboxFull, RequestTimeout
from natsproto.protocol.commands import ControlLines
from natsproto.protocol.frames import Message
from tests.kit.clock import VirtualClockLoop, advance, run_virtual, virtual_clock
from tests.kit.examples import lists_up_to

PREFIX = "_INBOX.abc."
NOBODY = b"NATS/1.0 503\r\n\r\n"


class Asked:
    """One request: its future, and what was sent."""

    def __init__(self, future: asyncio.Future[Message], head: bytes, payload: bytes) -> None:
        self.future, self.head, self.payload = future, head, payload
        self.reply = head.split(b" ")[2].decode()


class Queue:
    """An outbox that hands on everything at once."""

    frames = 0

    def __init__(self, put: Callable[[bytes, bytes], None]) -> None:
        self.put = put

    def waiting(self, mark: bytes) -> list[bytes]:
        return []

    def take_back(self, mark: bytes, is_wanted: Callable[[bytes], bool]) -> list[bytes]:
        return []


class Requests(RequestMux):
    """A mux that keeps what it sends."""

    def __init__(self, prefix: str = PREFIX) -> None:
        self.sent: list[tuple[bytes, bytes]] = []
        super().__init__(
            prefix,
            asyncio.get_running_loop(),
            ControlLines(),
            Queue(lambda *frame: self.sent.append(frame)),
            random_bits(Random(7)),
            Outages(asyncio.get_running_loop().time),
            connected=True,
        )

    def open(self, subject: str, timeout: float, payload: bytes = b"", block: bytes | None = None) -> Asked:
        """Asks, and looks at what is sent."""
        future = self.send_request(subject, subject.encode(), payload, block, timeout)
        return Asked(future, *self.sent.pop())


def mux() -> Requests:
    return Requests()


def reply(request: Asked, data: bytes = b"answer", head: bytes | None = None) -> Message:
    return Message(request.reply, None, data, head)


def timers() -> int:
    """Timers of the loop that are still going to fire."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualClockLoop)
    scheduled: list[asyncio.TimerHandle] = loop._scheduled  # type: ignore[attr-defined]  # no public view of it
    return sum(not handle.cancelled() for handle in scheduled)


@virtual_clock
async def test_a_reply_reaches_its_request_and_no_other() -> None:
    requests = mux()
    pending = [requests.open("a", 5) for _ in range(100)]
    assert len({request.reply for request in pending}) == 100
    for number, request in reversed(list(enumerate(pending))):
        requests.on_message(reply(request, b"%d" % number))
    assert [request.future.result().data for request in pending] == [b"%d" % n for n in range(100)]
    assert len(requests) == 0


@virtual_clock
async def test_replies_that_nobody_waits_for_are_dropped() -> None:
    requests = mux()
    request, cancelled, other = (requests.open("a", 5) for _ in range(3))
    cancelled.future.cancel()
    for late in (request, request, cancelled, cancelled):
        requests.on_message(reply(late))
    for subject in (PREFIX, PREFIX + "x", PREFIX + "99", PREFIX + "1.2", PREFIX + "\udcff", "", "a"):
        requests.on_message(Message(subject, None, b"", NOBODY))
    assert request.future.result().data == b"answer"
    assert not other.future.done()
    assert len(requests) == 1
    requests.close()


@virtual_clock
async def test_late_replies_take_little_memory() -> None:
    requests = mux()
    request = requests.open("a", 5)
    requests.on_message(reply(request))
    for _ in range(1000):
        requests.on_message(reply(request, b"late"))
        requests.on_message(reply(request, b"x" * 100_000))
        requests.on_message(reply(request, b"", b"NATS/1.0\r\nX: %b\r\n\r\n" % (b"x" * 100_000)))
    assert 0 < sum(message.size for message in requests._further) < 300_000
    first = request.future.result()
    further = await requests.further_reply(first, 0)
    assert further is not None
    assert further.data == b"late"
    requests.close()


@virtual_clock
async def test_503_with_payload_is_a_reply() -> None:
    requests = mux()
    first, second, third = requests.open("a.b", 5), requests.open("a", 5), requests.open("a", 5)
    requests.on_message(reply(first, b"", NOBODY))
    requests.on_message(reply(second, b"x", NOBODY))
    requests.on_message(reply(third, b"", b"NATS/1.0\r\nStatus: 503\r\n\r\n"))
    with pytest.raises(NoResponders) as info:
        first.future.result()
    assert info.value.subject == "a.b"
    assert second.future.result().headers._status == 503
    assert third.future.result().headers["Status"] == "503"


_REQUESTS = lists_up_to(
    60,
    st.tuples(
        st.floats(0, 20),  # when it is made
        st.floats(0.001, 30),  # its timeout
        st.one_of(st.none(), st.floats(0, 40)),  # how long after the start it is answered
        st.booleans(),  # or cancelled then
    ),
)


@given(_REQUESTS)
def test_every_request_ends_at_its_own_time(plan: list[tuple[float, float, float | None, bool]]) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        requests = mux()
        start = loop.time()

        async def one(begin: float, timeout: float, answer: float | None, cancel: bool) -> None:
            await advance(begin)
            opened = loop.time()
            request = requests.open("a", timeout)
            if answer is not None:
                end = request.future.cancel if cancel else lambda: requests.on_message(reply(request))
                loop.call_at(opened + answer, end)
            try:
                await request.future
            except RequestTimeout as exc:
                assert loop.time() == pytest.approx(opened + timeout, abs=1e-5)
                assert (exc.timeout, exc.operation) == (timeout, "request to 'a'")  # noqa: PT017
                assert answer is None or answer >= timeout - 1e-5
            except asyncio.CancelledError:
                assert cancel
                assert answer is not None
            else:
                assert answer is not None
                assert loop.time() == pytest.approx(opened + answer, abs=1e-5)
                assert answer <= timeout + 1e-5

        await asyncio.gather(*(one(*what) for what in plan), return_exceptions=False)
        assert len(requests) == 0
        assert loop.time() - start <= 61
        requests.close()
        await advance(100)
        assert timers() == 0

    run_virtual(main)


@virtual_clock
async def test_many_deadlines_fire_in_order() -> None:
    loop = asyncio.get_running_loop()
    requests = mux()
    start = loop.time()
    fired: list[float] = []
    timeouts = [((number * 7919) % 10_000 + 1) / 100 for number in range(10_000)]
    for timeout in timeouts:
        future = requests.open("a", timeout).future
        future.add_done_callback(lambda done: fired.append(_timeout_of(done)))
    assert timers() == 1, "one timer serves them all"
    await advance(100.5)
    assert fired == sorted(timeouts)
    assert loop.time() - start == pytest.approx(100.5)
    assert (len(requests), timers()) == (0, 0)


def _timeout_of(done: asyncio.Future[Message]) -> float:
    error = done.exception()
    assert isinstance(error, RequestTimeout)
    return error.timeout


@virtual_clock
async def test_a_short_timeout_behind_a_long_one_is_not_late() -> None:
    requests = mux()
    long = requests.open("a", 3600)
    short = requests.open("a", 0.5)
    began = asyncio.get_running_loop().time()
    with pytest.raises(RequestTimeout):
        await short.future
    assert asyncio.get_running_loop().time() - began == pytest.approx(0.5, abs=1e-5)
    assert not long.future.done()
    requests.on_message(reply(long))
    assert (await long.future).data == b"answer"
    requests.close()


@virtual_clock
async def test_fail_ends_requests_with_given_error() -> None:
    requests = mux()
    mine, yours = requests.open("mine", 5), requests.open("yours", 5)
    assert requests.fail(lambda subject: ConnectionLost(subject), "mine") == 1
    assert not yours.future.done()
    assert requests.fail(lambda subject: ConnectionLost(subject)) == 1
    for request, subject in ((mine, "mine"), (yours, "yours")):
        with pytest.raises(ConnectionLost, match=subject):
            await request.future
    assert len(requests) == 0
    requests.close()
    assert timers() == 0


@virtual_clock
async def test_cancelled_request_ignores_every_outcome() -> None:
    requests = mux()
    for end in ("timeout", "fail", "deliver"):
        request = requests.open("a", 1)
        request.future.cancel()
        if end == "timeout":
            await advance(2)
        elif end == "fail":
            requests.fail(lambda subject: ConnectionLost(subject))
        else:
            requests.on_message(reply(request))
        assert len(requests) == 0


@pytest.mark.slow
@virtual_clock
async def test_answered_requests_leave_nothing_behind() -> None:
    """A hundred thousand one after the other with an hour of patience: none of their deadlines has passed."""
    requests = mux()
    waiting = [requests.open("a", 3600) for _ in range(10)]

    def many(count: int) -> None:
        for _ in range(count):
            requests.on_message(reply(requests.open("a", 3600)))

    many(1000)
    gc.collect()
    tracemalloc.start()
    many(1000)
    before = tracemalloc.get_traced_memory()[0]
    many(100_000)
    gc.collect()
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert grown < 50_000, "bytes"
    assert len(requests) == len(requests._pending) == 10
    assert timers() == 1
    for request in waiting:
        requests.on_message(reply(request))
    requests.close()


@virtual_clock
async def test_cancelled_requests_leave_nothing() -> None:
    requests = mux()
    held = [requests.open("a", 3600) for _ in range(1000)]
    for _ in range(20_000):
        requests.open("a", 3600).future.cancel()
    assert len(requests) == 1000
    assert len(requests._pending) <= 2 * 1000 + 1
    for request in held:
        request.future.cancel()
    for _ in range(2000):
        requests.open("a", 3600).future.cancel()
    assert len(requests) == 0
    assert len(requests._pending) <= 257, "and none that were held"
    requests.close()


@virtual_clock
async def test_deadlines_of_answered_requests_are_removed() -> None:
    requests = mux()
    held = [requests.open("a", 3600) for _ in range(10)]
    for _ in range(200):
        long = [requests.open("a", 3600) for _ in range(20)]
        short = requests.open("a", 0.01)
        with pytest.raises(RequestTimeout):
            await short.future
        for request in long:
            requests.on_message(reply(request))
    assert len(requests._pending) == 10
    assert len(requests._replies._deadlines) < 300
    for request in held:
        requests.on_message(reply(request))
    requests.close()


@virtual_clock
async def test_unsent_request_is_not_pending() -> None:
    loop = asyncio.get_running_loop()

    def refuse(head: bytes, payload: bytes) -> None:
        raise OutboxFull(0, len(payload), 0)

    requests = RequestMux(
        *(PREFIX, loop, ControlLines(), Queue(refuse), random_bits(Random(7)), Outages(loop.time)), connected=True
    )
    with pytest.raises(OutboxFull):
        requests.send_request("a", b"a", b"x", None, 5)
    assert len(requests._pending) == 0
    await advance(6)
    assert timers() == 0


def draw(new: Callable[[], int], count: int = 1000) -> list[int]:
    return [new() for _ in range(count)]


@virtual_clock
async def test_reply_tokens_are_numbered_and_unpredictable() -> None:
    requests = mux()
    tokens = [int(requests.open("a", 5).reply.removeprefix(PREFIX)) for _ in range(1000)]
    assert [token >> RANDOM_BITS for token in tokens] == list(range(1, 1001))
    bits = [token % 2**RANDOM_BITS for token in tokens]
    assert len(set(bits)) == 1000
    for position in range(RANDOM_BITS):
        ones = sum(bit >> position & 1 for bit in bits)
        assert 380 < ones < 620, f"bit {position} is 1 in {ones} of 1000 tokens"
    requests.close()


def test_owners_share_no_random_bits() -> None:
    """A block that the module kept would be the same in two clients, and in two processes after a fork."""
    one, other = random_bits(SystemRandom()), random_bits(SystemRandom())
    assert not {*draw(one), *draw(one)} & {*draw(other), *draw(other)}
    assert draw(random_bits(Random(1))) == draw(random_bits(Random(1)))
    assert draw(random_bits(Random(1))) != draw(random_bits(Random(2)))


@virtual_clock
async def test_every_request_is_encoded_alike() -> None:
    requests = mux()
    block = b"NATS/1.0\r\na: b\r\n\r\n"
    for _ in range(3):
        plain, empty = requests.open("s.a", 5, b"12345"), requests.open("s.a", 5)
        headed, other = requests.open("s.a", 5, b"12345", block), requests.open("s.b", 5, b"12345")
        assert (plain.head, plain.payload) == (b"PUB s.a %b 5\r\n" % plain.reply.encode(), b"12345")
        assert (empty.head, empty.payload) == (b"PUB s.a %b 0\r\n" % empty.reply.encode(), b"")
        assert headed.head == b"HPUB s.a %b %d %d\r\n" % (headed.reply.encode(), len(block), len(block) + 5) + block
        assert other.head == b"PUB s.b %b 5\r\n" % other.reply.encode()
    requests.close()


@virtual_clock
async def test_too_long_subject_is_rejected_every_time() -> None:
    requests = mux()
    for _ in range(2):
        with pytest.raises(InvalidSubject):
            requests.open("s" * 65_530, 5)
        assert requests.open("s" * 65_000, 5).head.startswith(b"PUB sss")
    assert len(requests._pending) == 2
    requests.close()


@virtual_clock
@pytest.mark.parametrize("order", [(False, True), (True, False)])
async def test_resends_in_the_context_of_the_request(order: tuple[bool, bool]) -> None:
    """Whichever request started the timer: only cleanups may send while the client closes."""
    sent: list[tuple[bytes, bool]] = []
    loop = asyncio.get_running_loop()
    queue = Queue(lambda control, payload: sent.append((payload, IN_CLEANUP.get())))
    requests = RequestMux(
        *(PREFIX, loop, ControlLines(), queue, random_bits(Random(7)), Outages(loop.time)), connected=True
    )
    for in_cleanup in order:
        context = copy_context()
        context.run(IN_CLEANUP.set, in_cleanup)
        context.run(requests.send_request, "a", b"a", b"%d" % in_cleanup, None, 5, Resending(1))
    await advance(2.5)
    expected = [(b"%d" % in_cleanup, in_cleanup) for in_cleanup in order]
    assert sent == 3 * expected
    requests.close()
