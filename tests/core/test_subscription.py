"""The subscription: one bounded inbox, whoever reads it, whatever happens meanwhile."""

from __future__ import annotations

import asyncio
import contextvars
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from natsproto._core.inbox.handler import Handler
from natsproto._core.inbox.inbox_limits import SlowPolicy
from natsproto._core.inbox.subscription import Subscription
from natsproto.errors import (
    ConfigError,
    ConnectionLost,
    DrainTimeout,
    LocalProtocolError,
    NatsError,
    RequestTimeout,
    SlowConsumer,
    SubscriptionClosed,
)
from natsproto.protocol.frames import Message
from tests.core.helpers import InOneLoop, turns
from tests.kit.clock import run_virtual, virtual_clock
from tests.kit.examples import lists_up_to
from tests.kit.failures import UnknownExit


class SubscriptionCallbacks(InOneLoop):
    """What a subscription asks of its engine, written down; ``confirmed`` is when the server answers."""

    def __init__(self) -> None:
        self.slow_errors: list[SlowConsumer] = []
        self.turns = 0
        self.holds: list[bool] = []
        self.trace: list[object] = []
        self.failures: list[tuple[str, BaseException]] = []
        self.confirmed: asyncio.Future[None] | None = None
        self.is_running = True

    def unsubscribe(self, subscription: Subscription, max_messages: int | None) -> None:
        self.trace.append(("unsubscribe", max_messages))
        if max_messages is None:
            subscription._close(None, discard=True)

    def stop_delivery(self, subscription: Subscription) -> None:
        self.trace.append("stop_delivery")

    def remove(self, subscription: Subscription) -> None:
        self.trace.append("forget")

    async def flush_connection(self) -> None:
        self.trace.append("confirm")
        if self.confirmed is not None:
            await self.confirmed

    def on_dropped(self, subscription: Subscription, count: int) -> None:
        self.slow_errors.append(subscription._slow_error(count))

    def yield_to_readers(self) -> None:
        self.turns += 1

    def hold_reading(self, subscription: Subscription, wanted: bool) -> None:
        self.holds.append(wanted)

    def on_handler_error(self, where: str, error: BaseException) -> None:
        self.failures.append((where, error))


def make_subscription(
    handler: Handler | None = None,
    *,
    msgs_limit: int = 0,
    bytes_limit: int = 0,
    policy: SlowPolicy = SlowPolicy.DROP_NEWEST,
) -> tuple[Subscription, SubscriptionCallbacks]:
    engine = SubscriptionCallbacks()
    sub = Subscription(engine, "s", None, handler, msgs_limit=msgs_limit, bytes_limit=bytes_limit, policy=policy)
    return sub, engine


def message(size: int, number: int = 0) -> Message:
    """One whose ``size`` is this (the subject takes a byte)."""
    return Message("s", None, b"%d" % (number % 10) * (size - 1), None)


def feed(sub: Subscription, *sizes: int, excess: int = 0) -> list[Message]:
    """A chunk with these messages arrives; the last ``excess`` came behind the limit of an auto-unsubscribe."""
    messages = [message(size, number) for number, size in enumerate(sizes)]
    sub._inbox.extend(messages)
    sub._registry.time_slice.begin()
    sub._account(len(sizes), sum(sizes), excess)
    return messages


# ---------------------------------------------------------------- accounting


class AccountModel:
    """What the account must be, done the slow and obvious way."""

    def __init__(self, msgs_limit: int, bytes_limit: int, policy: SlowPolicy) -> None:
        self.msgs_limit, self.bytes_limit, self.policy = msgs_limit, bytes_limit, policy
        self.pending: list[Message] = []
        self.read: list[Message] = []
        self.received = self.dropped = 0
        self.held = self.ended = False

    def over(self) -> bool:
        size = sum(m.size for m in self.pending)
        return 0 < self.msgs_limit < len(self.pending) or 0 < self.bytes_limit < size

    def arrive(self, messages: list[Message]) -> None:
        self.received += len(messages)
        self.pending += messages
        if not self.over():
            return
        if self.policy is SlowPolicy.PAUSE:
            self.held = True
        else:
            while self.over():
                self.pending.pop(0 if self.policy is SlowPolicy.DROP_OLDEST else -1)
                self.dropped += 1
            self.ended = self.policy is SlowPolicy.ERROR

    def take(self, messages: list[Message]) -> None:
        assert messages == self.pending[: len(messages)], "in order, none left out"
        del self.pending[: len(messages)]
        self.read += messages


_SIZES = st.integers(1, 40)
_STEPS = lists_up_to(
    30,
    st.one_of(
        st.tuples(st.just("arrive"), st.lists(_SIZES, min_size=1, max_size=12)),
        st.tuples(st.just("next"), st.integers(1, 6)),
        st.tuples(st.just("iterate"), st.integers(1, 6)),
        st.tuples(st.just("batch"), st.one_of(st.none(), st.integers(1, 6))),
    ),
)


@given(_STEPS, st.integers(0, 12), st.integers(0, 120), st.sampled_from(SlowPolicy))
def test_any_interleaving_of_reads_adds_up(
    steps: list[tuple[str, object]], msgs_limit: int, bytes_limit: int, policy: SlowPolicy
) -> None:
    async def main() -> None:
        sub, engine = make_subscription(msgs_limit=msgs_limit, bytes_limit=bytes_limit, policy=policy)
        model = AccountModel(msgs_limit, bytes_limit, policy)
        for name, what in steps:
            if name == "arrive" and not sub.closed and not model.held:
                assert isinstance(what, list)
                model.arrive(feed(sub, *what))
                assert sub._limits.is_unlimited or sub._limits.count_bytes() == sub.pending_bytes, (
                    "the account by chunks agrees with adding it all up"
                )
            elif name in ("next", "iterate", "batch") and sub._inbox:
                model.take(await read(sub, name, what))
                model.held = model.held and bool(model.pending)
            check_account(sub, engine, model)
        if sub.closed:
            await check_end(sub, model)

    run_virtual(main)


def check_account(sub: Subscription, engine: SubscriptionCallbacks, model: AccountModel) -> None:
    assert sub.delivered + sub.dropped + sub.pending_msgs == model.received
    assert (sub.delivered, sub.dropped) == (len(model.read), model.dropped)
    assert list(sub._inbox) == model.pending
    assert sub.pending_bytes == sum(m.size for m in model.pending)
    assert sum(error.dropped for error in engine.slow_errors) == model.dropped
    assert (engine.holds[-1:] == [True]) == model.held
    assert all(held != following for held, following in zip(engine.holds, engine.holds[1:], strict=False))
    assert sub.closed == model.ended


async def read(sub: Subscription, name: str, what: object) -> list[Message]:
    if name == "batch":
        assert what is None or isinstance(what, int)
        batches = sub.batches(what)
        batch = await anext(batches)
        assert 0 < len(batch) <= (what or len(batch))
        await batches.aclose()
        sub._on_inbox_read()
        return batch
    assert isinstance(what, int)
    wanted = min(what, len(sub._inbox))
    if name == "next":
        return [await sub.next(timeout=1) for _ in range(wanted)]
    messages = aiter(sub)
    found = [await anext(messages) for _ in range(wanted)]
    await aclose(messages)
    sub._on_inbox_read()
    return found


async def aclose(iterator: AsyncIterator[Message]) -> None:
    """Ends an ``async for`` as leaving it by ``break`` does."""
    await iterator.aclose()  # type: ignore[attr-defined]  # an async generator behind its interface


async def check_end(sub: Subscription, model: AccountModel) -> None:
    left = len(model.pending)
    for _ in range(left):
        model.take([await sub.next()])
    with pytest.raises(SlowConsumer):
        await sub.next()
    assert sub.delivered + sub.dropped == model.received


@given(lists_up_to(10, st.tuples(st.lists(_SIZES, min_size=1, max_size=8), st.integers(0, 8))), st.data())
def test_messages_beyond_auto_unsubscribe_do_not_count(
    chunks: list[tuple[list[int], int]], data: st.DataObject
) -> None:
    async def main() -> None:
        sub, _ = make_subscription(msgs_limit=1000)
        wanted: list[Message] = []
        for sizes, reads in chunks:
            wanted += feed(sub, *sizes)
            for _ in range(min(reads, len(sub._inbox))):
                assert await sub.next() is wanted[sub.delivered - 1]
        last = data.draw(st.lists(_SIZES, min_size=1, max_size=8))
        excess = data.draw(st.integers(0, len(last)))
        wanted += feed(sub, *last, excess=excess)[: len(last) - excess]
        sub._close(None)
        assert sub.delivered + sub.pending_msgs == len(wanted)
        rest = [message async for message in sub]
        assert rest == wanted[len(wanted) - len(rest) :]
        assert sub.delivered == len(wanted)

    run_virtual(main)


@pytest.mark.parametrize("policy", [SlowPolicy.DROP_NEWEST, SlowPolicy.DROP_OLDEST, SlowPolicy.ERROR])
async def test_message_above_bytes_limit_is_dropped(policy: SlowPolicy) -> None:
    sub, engine = make_subscription(bytes_limit=10, policy=policy)
    feed(sub, 11)
    assert (sub.dropped, sub.pending_msgs, sub.pending_bytes) == (1, 0, 0)
    [error] = engine.slow_errors
    assert (error.subject, error.dropped, error.pending_msgs, error.pending_bytes) == ("s", 1, 0, 0)


async def test_slow_consumer_counts_dropped_and_pending() -> None:
    sub, engine = make_subscription(msgs_limit=3)
    feed(sub, 10, 10, 10, 10, 10)
    feed(sub, 10)
    errors = [(error.dropped, error.pending_msgs, error.pending_bytes) for error in engine.slow_errors]
    assert errors == [(2, 3, 30), (1, 3, 30)]
    assert sub.dropped == 3


async def test_def_callback_runs_in_the_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("natsproto._core.time_slice.TIME_SLICE_S", 60)  # the machine may be busy
    seen: list[object] = []
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="none")
    variable.set("subscribed")

    def handler(message: Message) -> None:
        seen.append((message.data, variable.get(), asyncio.current_task()))

    sub, engine = make_subscription(handler)
    variable.set("later")
    me = asyncio.current_task()
    messages = feed(sub, 2, 3)
    assert seen == [(one.data, "subscribed", me) for one in messages]
    assert (sub.pending_msgs, sub.delivered, engine.failures) == (0, 2, [])


async def test_slow_def_callback_goes_on_in_a_task() -> None:
    seen: list[int] = []

    def handler(message: Message) -> None:
        time.sleep(0.004)
        seen.append(message.size)

    sub, _ = make_subscription(handler)
    feed(sub, *range(1, 9))
    assert 1 <= len(seen) < 4, "5 ms"
    feed(sub, 9)
    await sub.drain()
    assert seen == [*range(1, 10)]


async def test_awaitable_of_a_def_callback_is_awaited() -> None:
    """In a task, before the next message is handled."""
    trace: list[object] = []

    async def handle(message: Message) -> None:
        assert asyncio.current_task() is not None
        trace.append(("begin", message.size))
        await asyncio.sleep(0)
        trace.append(("end", message.size))

    sub, engine = make_subscription(lambda message: handle(message))
    feed(sub, 1, 2)
    feed(sub, 3)
    await sub.drain()
    assert trace == [(what, size) for size in (1, 2, 3) for what in ("begin", "end")]
    assert engine.failures == []


async def test_reading_rests_before_an_inbox_overflows() -> None:
    """Once for each time something was read: a reader that never reads does not hold the connection up."""
    sub, engine = make_subscription(msgs_limit=10)
    feed(sub, *[1] * 5)
    assert engine.turns == 0
    feed(sub, 1)
    feed(sub, 1)
    assert engine.turns == 1
    await sub.next()
    feed(sub, 1)
    assert engine.turns == 2


async def test_unsubscribe_drops_unread_messages() -> None:
    sub, _ = make_subscription()
    feed(sub, 1, 1, 1)
    await sub.next()
    await sub.unsubscribe()
    assert (sub.delivered, sub.dropped, sub.pending_msgs) == (1, 0, 0)
    with pytest.raises(SubscriptionClosed):
        await sub.next()


# ---------------------------------------------------------------- pausing


async def test_pause_holds_until_inbox_is_read() -> None:
    sub, engine = make_subscription(msgs_limit=2, policy=SlowPolicy.PAUSE)
    feed(sub, 1, 1)
    assert engine.holds == []
    feed(sub, 1, 1, 1)
    assert (engine.holds, sub.pending_msgs, sub.dropped) == ([True], 5, 0)
    for _ in range(4):
        await sub.next()
    assert engine.holds == [True]
    await sub.next()
    assert engine.holds == [True, False]
    assert engine.slow_errors == []


@pytest.mark.parametrize("way", ["iterate", "batches"])
async def test_a_running_reader_releases_the_hold(way: str) -> None:
    sub, engine = make_subscription(msgs_limit=1, policy=SlowPolicy.PAUSE)
    got: list[Message] = []

    async def reader() -> None:
        if way == "iterate":
            async for one in sub:
                got.append(one)  # noqa: PERF401  (one by one is the point)
        else:
            async for batch in sub.batches():
                got.extend(batch)

    task = asyncio.create_task(reader())
    await turns(2)
    feed(sub, 1, 1, 1)
    await turns(3)
    assert (len(got), engine.holds) == (3, [True, False])
    sub._close(None)
    await task


async def test_ended_subscription_releases_pause() -> None:
    sub, engine = make_subscription(msgs_limit=1, policy=SlowPolicy.PAUSE)
    feed(sub, 1, 1, 1)
    sub._close(None)
    assert engine.holds == [True, False]
    assert sub.pending_msgs == 3


# ---------------------------------------------------------------- next


@virtual_clock
async def test_next_times_out_exactly() -> None:
    sub, _ = make_subscription()
    loop = asyncio.get_running_loop()
    for timeout, wait in ((0.25, 0.25), (timedelta(minutes=2), 120.0), (3, 3.0)):
        began = loop.time()
        with pytest.raises(RequestTimeout) as info:
            await sub.next(timeout)
        assert loop.time() - began == pytest.approx(wait, abs=1e-6)
        assert info.value.timeout == wait
        assert isinstance(info.value, TimeoutError)


async def test_next_with_timeout_0_never_waits() -> None:
    sub, _ = make_subscription()
    with pytest.raises(RequestTimeout):
        await sub.next(timeout=0)
    [one] = feed(sub, 1)
    assert await sub.next(timeout=0) is one


@pytest.mark.parametrize("waiting", [0, 1])
@pytest.mark.parametrize("timeout", [-1, float("nan"), float("inf"), 10**400, True, "1", b"1", 1j, [1]], ids=str)
async def test_next_rejects_bad_timeout(timeout: float, waiting: int) -> None:
    sub, _ = make_subscription()
    feed(sub, *[1] * waiting)
    with pytest.raises((ConfigError, TypeError)):
        await sub.next(timeout)
    assert sub.pending_msgs == waiting


async def test_every_waiting_reader_gets_its_own_message() -> None:
    sub, _ = make_subscription()
    readers = [asyncio.create_task(sub.next()) for _ in range(5)]
    await turns(2)
    sent = feed(sub, 1, 1, 1) + feed(sub, 1, 1)
    got = await asyncio.gather(*readers)
    assert sorted(map(id, got)) == sorted(map(id, sent))


async def test_a_cancelled_reader_takes_no_message_with_it() -> None:
    sub, _ = make_subscription()
    for _ in range(20):
        reader = asyncio.create_task(sub.next())
        await turns(1)
        [one] = feed(sub, 1)  # wakes the reader, which is cancelled before it runs
        reader.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reader
        assert await sub.next() is one
    assert not sub._notifier
    assert sub.delivered == 20


async def test_a_cancelled_batch_takes_no_message_with_it() -> None:
    sub, _ = make_subscription()

    async def batches() -> None:
        async for batch in sub.batches():
            raise AssertionError(batch)

    reader = asyncio.create_task(batches())
    await turns(2)
    sent = feed(sub, 1, 1)
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    assert [await sub.next(), await sub.next()] == sent


# ---------------------------------------------------------------- iterating


async def test_iteration_ends_behind_the_last_message() -> None:
    sub, _ = make_subscription()
    sent = feed(sub, 1, 2, 3)
    sub._close(None)
    assert [message async for message in sub] == sent
    assert [message async for message in sub] == []


@pytest.mark.parametrize("way", ["iterate", "batches", "next"])
async def test_final_error_comes_after_last_message(way: str) -> None:
    sub, _ = make_subscription()
    sent = feed(sub, 1, 2, 3)
    sub._close(ConnectionLost("gone"))
    got: list[Message] = []

    async def reader() -> None:
        if way == "iterate":
            async for one in sub:
                got.append(one)  # noqa: PERF401  (one by one is the point)
        elif way == "batches":
            async for batch in sub.batches():
                got.extend(batch)
        else:
            while True:
                got.append(await sub.next())

    for _ in range(2):
        with pytest.raises(ConnectionLost):
            await reader()
    assert got == sent


async def test_an_error_raised_again_and_again_does_not_grow() -> None:
    sub, _ = make_subscription()
    sub._close(ConnectionLost("gone"))
    depths = []
    for _ in range(5):
        try:
            await sub.next()
        except ConnectionLost as exc:
            depth, trace = 0, exc.__traceback__
            while trace is not None:
                depth, trace = depth + 1, trace.tb_next
            depths.append(depth)
    assert len(set(depths)) == 1


async def test_iteration_can_be_left_and_taken_up_again() -> None:
    sub, _ = make_subscription()
    sent = feed(sub, *[1] * 6)
    got = []
    for _ in range(3):
        async for one in sub:
            got.append(one)
            if len(got) % 2 == 0:
                break
    assert got == sent


async def test_batches_hold_all_that_has_arrived() -> None:
    sub, _ = make_subscription()
    feed(sub, 1, 1)
    feed(sub, 1)
    batches = sub.batches()
    assert len(await anext(batches)) == 3
    feed(sub, 1, 1)
    assert len(await anext(batches)) == 2
    sub._close(None)
    with pytest.raises(StopAsyncIteration):
        await anext(batches)


async def test_batches_of_a_given_size_are_never_bigger() -> None:
    sub, _ = make_subscription()
    sent = feed(sub, *[1] * 10)
    sub._close(None)
    batches = [batch async for batch in sub.batches(4)]
    assert [len(batch) for batch in batches] == [4, 4, 2]
    assert [one for batch in batches for one in batch] == sent


@pytest.mark.parametrize("max_messages", [0, -1, True, 1.5, "5"], ids=str)
async def test_batches_rejects_bad_count(max_messages: int) -> None:
    sub, engine = make_subscription()
    with pytest.raises(ConfigError, match="max_messages"):
        sub.batches(max_messages)
    with pytest.raises(ConfigError, match="max_messages"):
        await sub.unsubscribe(max_messages)
    assert engine.trace == []


# ---------------------------------------------------------------- callbacks


async def test_callback_gets_messages_in_order() -> None:
    got: list[Message] = []
    running = 0

    async def handler(one: Message) -> None:
        nonlocal running
        running += 1
        assert running == 1
        await turns(2)
        got.append(one)
        running -= 1

    sub, _ = make_subscription(handler)
    sent = feed(sub, 1, 1, 1)
    await turns(3)
    sent += feed(sub, 1, 1)
    await turns(30)
    assert got == sent
    assert sub.delivered == 5


class Asynchronous:
    """A callable object whose call is a coroutine function."""

    def __init__(self, got: list[Message]) -> None:
        self.got = got

    async def __call__(self, one: Message) -> None:
        await turns(1)
        self.got.append(one)


def _returns_coroutine(got: list[Message], one: Message) -> Awaitable[None]:
    return Asynchronous(got)(one)


async def _coroutine(got: list[Message], one: Message) -> None:
    got.append(one)


@pytest.mark.parametrize(
    "kind",
    [
        lambda got: got.append,
        Asynchronous,
        lambda got: partial(_returns_coroutine, got),
        lambda got: partial(_coroutine, got),
        lambda got: lambda one: _returns_coroutine(got, one),
    ],
    ids=["def", "async __call__", "def that returns a coroutine", "partial of async def", "lambda"],
)
async def test_any_kind_of_callable_is_a_callback(kind: Callable[[list[Message]], Handler]) -> None:
    got: list[Message] = []
    sub, engine = make_subscription(kind(got))
    sent = feed(sub, 1, 1)
    await turns(10)
    assert got == sent
    assert engine.failures == []


async def test_callback_without_suspension_lets_others_run() -> None:
    other = 0

    async def count() -> None:
        nonlocal other
        while sub.pending_msgs:
            other += 1
            await turns(1)

    sub, _ = make_subscription(lambda _: time.sleep(0.002))
    feed(sub, *[1] * 20)
    await count()
    assert other >= 3


async def test_callback_runs_in_context_of_subscriber() -> None:
    request = contextvars.ContextVar("request", default="none")
    seen: list[str] = []
    request.set("mine")
    sub, _ = make_subscription(lambda _: seen.append(request.get()))
    request.set("another")
    feed(sub, 1)
    await turns(2)
    assert seen == ["mine"]


if sys.version_info >= (3, 12):  # eager tasks came with it

    async def test_callbacks_work_with_eager_tasks() -> None:
        got: list[Message] = []

        async def later(one: Message) -> None:
            await turns(1)
            got.append(one)

        asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)
        for handler in (got.append, later):
            got.clear()
            sub, _ = make_subscription(handler)
            sent = feed(sub, 1)
            await turns(5)
            sent += feed(sub, 1, 1)
            await turns(5)
            assert got == sent
            await sub.drain()


async def test_async_callback_begins_during_the_read() -> None:
    begun: list[Message] = []
    begins_at_once = sys.version_info >= (3, 12)

    async def later(one: Message) -> None:
        assert asyncio.current_task() in {task for task in asyncio.all_tasks() if "handler of" in task.get_name()}
        begun.append(one)
        await turns(1)

    sub, _ = make_subscription(later)
    sent = feed(sub, 2)
    assert begun == (sent[:1] if begins_at_once else [])
    await turns(6)
    assert begun == sent

    asyncio.get_running_loop().set_task_factory(lambda loop, coro, **named: asyncio.Task(coro, loop=loop, **named))
    other, _ = make_subscription(later)
    begun.clear()
    sent = feed(other, 1)
    assert begun == [], "a task factory of the application makes the tasks"
    await turns(3)
    assert begun == sent
    await sub.drain()
    await other.drain()


async def test_an_idle_subscription_has_no_task() -> None:
    before = asyncio.all_tasks()
    sub, _ = make_subscription(lambda _: None)
    assert asyncio.all_tasks() == before
    feed(sub, 1)
    await turns(3)
    assert asyncio.all_tasks() == before


def _raise(kind: Callable[[], BaseException]) -> Handler:
    def handler(one: Message) -> None:
        if one.data:
            raise kind()

    return handler


def _raise_later(kind: Callable[[], BaseException]) -> Handler:
    async def handler(one: Message) -> None:
        await turns(1)
        if one.data:
            raise kind()

    return handler


@pytest.mark.parametrize("handler", [_raise, _raise_later], ids=["def", "async def"])
@pytest.mark.parametrize("kind", [ValueError, UnknownExit, asyncio.CancelledError, StopAsyncIteration, TimeoutError])
async def test_callback_error_is_reported(
    handler: Callable[[Callable[[], BaseException]], Handler], kind: type[BaseException]
) -> None:
    sub, engine = make_subscription(handler(kind))
    feed(sub, 2, 1, 2, 1)
    await turns(20)
    assert sub.pending_msgs == 0
    assert [(where, type(error)) for where, error in engine.failures] == [("callback of 's'", kind)] * 2


async def test_self_cancelling_callback_is_reported() -> None:
    got = []

    async def handler(one: Message) -> None:
        if one.data:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await turns(1)
        got.append(one)

    sub, engine = make_subscription(handler)
    sent = feed(sub, 2, 1, 2, 1)
    await turns(20)
    assert got == [sent[1], sent[3]]
    assert [type(error) for _, error in engine.failures] == [asyncio.CancelledError] * 2


async def test_program_end_cancels_callback() -> None:
    async def handler(one: Message) -> None:
        await asyncio.get_running_loop().create_future()

    sub, engine = make_subscription(handler)
    feed(sub, 1, 1)
    await turns(2)
    engine.is_running = False
    worker = sub._readers.cancel_callback()
    assert worker is not None
    with pytest.raises(asyncio.CancelledError):
        await worker
    assert engine.failures == []


@pytest.mark.parametrize("read", ["next", "iterate", "batches"])
async def test_subscription_with_callback_cannot_be_read(read: str) -> None:
    sub, _ = make_subscription(lambda _: None)
    ways = {"next": sub.next, "iterate": aiter(sub).__anext__, "batches": sub.batches().__anext__}
    with pytest.raises(LocalProtocolError):
        await ways[read]()


# ---------------------------------------------------------------- draining


@virtual_clock
async def test_drain_sends_unsub_and_flushes() -> None:
    sub, engine = make_subscription()
    engine.confirmed = asyncio.get_running_loop().create_future()
    draining = asyncio.create_task(sub.drain(timeout=5))
    await turns(3)
    assert engine.trace == ["stop_delivery", "confirm"]
    sent = feed(sub, 1, 1)  # the server had sent it before it heard of the end
    engine.confirmed.set_result(None)
    await draining
    assert engine.trace[2:] == ["forget"]
    assert sub.closed
    assert [message async for message in sub] == sent


@virtual_clock
async def test_drain_waits_for_callback() -> None:
    handled = 0

    async def handler(_: Message) -> None:
        nonlocal handled
        await asyncio.sleep(0.01)
        handled += 1

    sub, _ = make_subscription(handler)
    feed(sub, *[1] * 100)
    await sub.drain()
    assert (handled, sub.pending_msgs) == (100, 0)


@virtual_clock
async def test_drain_deadline_names_unfinished_work() -> None:
    release = asyncio.Event()

    async def handler(_: Message) -> None:
        await release.wait()

    sub, _ = make_subscription(handler)
    feed(sub, 1, 1, 1)
    began = asyncio.get_running_loop().time()
    with pytest.raises(DrainTimeout) as info:
        await sub.drain(timeout=timedelta(seconds=3))
    assert asyncio.get_running_loop().time() - began == pytest.approx(3, abs=1e-6)
    assert info.value.unfinished == ("3 messages of 's' not handled",)
    assert sub.closed
    release.set()
    await turns(5)
    assert sub.pending_msgs == 0, "what was named is not handled in secret"
    with pytest.raises(DrainTimeout, match="not finished within 3 s"):
        await sub.drain()


async def test_a_callback_may_drain_its_own_subscription() -> None:
    async def handler(_: Message) -> None:
        await sub.drain(timeout=1)
        drained.set()

    drained = asyncio.Event()
    sub, engine = make_subscription(handler)
    feed(sub, 1)
    await drained.wait()
    assert engine.failures == []


@pytest.mark.parametrize("error", [RequestTimeout("flush", 1), ConnectionLost("gone")])
async def test_unconfirmed_drain_ends_subscription(error: NatsError) -> None:
    sub, engine = make_subscription()
    engine.confirmed = asyncio.get_running_loop().create_future()
    engine.confirmed.set_exception(error)
    with pytest.raises(type(error)):
        await sub.drain()
    assert sub.closed
    assert engine.trace[-1] == "forget"


async def test_a_cancelled_drain_ends_the_subscription() -> None:
    sub, engine = make_subscription()
    engine.confirmed = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(sub.drain())
    await turns(2)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert sub.closed
    assert engine.trace[-1] == "forget"


async def test_reading_out_waits_for_the_running_iterator() -> None:
    sub, _ = make_subscription()
    got: list[Message] = []

    async def reader() -> None:
        async for one in sub:
            await turns(3)
            got.append(one)

    task = asyncio.create_task(reader())
    await turns(1)
    feed(sub, 1, 1, 1)
    sub._close(None)
    await sub._readers.join()
    assert len(got) == 3
    await task


@virtual_clock
async def test_join_ignores_iterator_of_ended_task() -> None:
    sub, _ = make_subscription()
    held: list[AsyncIterator[Message]] = []

    async def reader() -> None:
        held.append(aiter(sub))
        await anext(held[0])

    feed(sub, 1, 1)
    await asyncio.create_task(reader())
    sub._close(None)
    loop = asyncio.get_running_loop()
    began = loop.time()
    await sub._readers.join()
    assert loop.time() == began
    await aclose(held[0])


async def test_a_subscription_can_be_awaited_and_entered() -> None:
    sub, engine = make_subscription()
    assert await sub is sub
    async with sub as entered:
        assert entered is sub
    assert engine.trace == [("unsubscribe", None)]
    await sub.unsubscribe()  # nothing happens on one that has ended
    assert engine.trace == [("unsubscribe", None)]
