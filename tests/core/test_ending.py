"""The rules of an ending, and who is inside of a reader."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable

import pytest

from natsproto._core.ending import INSIDE, Ending, ReaderKey, readers_of_caller
from natsproto._core.inbox.inbox_limits import InboxLimits, SlowPolicy
from natsproto._core.inbox.subscription_readers import SubscriptionReaders
from natsproto._core.notifier import Notifier
from natsproto.errors import DrainTimeout
from tests.core.helpers import turns
from tests.kit.clock import advance, virtual_clock


class Ended:
    """Something that ends after ``seconds`` of work, and is closed a tenth of a second later."""

    def __init__(self, seconds: float) -> None:
        self.ending = Ending("end of it", self.work, self.describe_rest, self.close)
        self.seconds, self.closed_at = seconds, 0.0

    async def work(self) -> None:
        self.ending.on_stopped()
        await asyncio.sleep(self.seconds)

    async def describe_rest(self) -> list[str]:
        return ["the rest"]

    async def close(self) -> None:
        await asyncio.sleep(0.05)
        self.closed_at = asyncio.get_running_loop().time()


@pytest.mark.parametrize("seed", range(20))
@virtual_clock
async def test_the_shortest_deadline_counts(seed: int) -> None:
    """Whoever asks, in whatever order, and whoever of them is cancelled."""
    rng, loop = random.Random(seed), asyncio.get_running_loop()
    began, ended = loop.time(), Ended(3600)
    outcomes: list[BaseException] = []
    deadlines: list[float] = []

    async def caller() -> None:
        await asyncio.sleep(rng.random())
        seconds = 1 + 5 * rng.random()
        deadlines.append(loop.time() + seconds)
        ended.ending.begin(seconds)
        try:
            await ended.ending.wait()
        except DrainTimeout as exc:
            outcomes.append(exc)

    tasks = [asyncio.create_task(caller()) for _ in range(5)]
    await advance(1)
    for task in rng.sample(tasks, 4):
        task.cancel()
    await asyncio.wait(tasks)
    assert ended.closed_at == pytest.approx(min(deadlines) + 0.05), f"seed {seed}, began at {began}"
    assert [str(error) for error in outcomes] == [str(outcomes[0])]
    assert "the rest" in str(outcomes[0])
    with pytest.raises(DrainTimeout, match="the rest"):
        await ended.ending.wait()


@virtual_clock
async def test_the_last_cancelled_waiter_ends_it() -> None:
    loop, ended = asyncio.get_running_loop(), Ended(3600)
    ended.ending.begin(60)
    tasks = [asyncio.create_task(ended.ending.wait()) for _ in range(3)]
    await turns(3)
    began = loop.time()
    for number, task in enumerate(tasks):
        task.cancel()
        await asyncio.wait((task,))
        assert task.cancelled()
        assert ended.ending.closed == (number == 2)
    assert ended.closed_at == loop.time() == pytest.approx(began + 0.05), (
        "the cancelled call returns when all is closed"
    )


@virtual_clock
async def test_its_task_is_not_inside_and_keeps_nothing() -> None:
    key, seen = ReaderKey(), []

    class Observed(Ended):
        async def work(self) -> None:
            seen.append(INSIDE.get())

    ended = Observed(0)
    key.enter()
    ended.ending.begin(1)
    await ended.ending.wait()
    key.leave()
    assert seen == [()]


def readers() -> SubscriptionReaders:
    return SubscriptionReaders("s", None, InboxLimits(deque(), 0, 0, SlowPolicy.PAUSE), Notifier())


async def by_task(call: Callable[[], object]) -> object:
    async def run() -> object:
        return call()

    return await asyncio.create_task(run())


async def by_wait_for(call: Callable[[], object]) -> object:
    async def run() -> object:
        return call()

    return await asyncio.wait_for(run(), 5)


async def by_group(call: Callable[[], object]) -> object:
    async def run() -> object:
        return call()

    async with asyncio.TaskGroup() as group:
        task = group.create_task(run())
    return task.result()


async def by_thread(call: Callable[[], object]) -> object:
    return await asyncio.to_thread(call)


async def by_itself(call: Callable[[], object]) -> object:
    return call()


@pytest.mark.parametrize("way", [by_itself, by_task, by_wait_for, by_group, by_thread])
async def test_tasks_and_threads_of_a_loop_are_inside(way: Callable[[Callable[[], object]], object]) -> None:
    reader = readers()
    task = reader.enter()
    assert await way(lambda: readers_of_caller([reader])) == [reader]  # type: ignore[misc]
    reader.leave(task)
    assert await way(lambda: readers_of_caller([reader])) == []  # type: ignore[misc]


async def test_nested_loops_are_all_inside() -> None:
    outer, inner = readers(), readers()
    first = outer.enter()
    second = inner.enter()
    assert readers_of_caller([outer, inner]) == [outer, inner]
    inner.leave(second)
    assert readers_of_caller([outer, inner]) == [outer]
    outer.leave(first)
    assert INSIDE.get() == ()


async def test_loops_closed_elsewhere_leave_nothing_behind() -> None:
    """As the garbage collector closes a generator after ``break``: in a task of its own."""
    for _ in range(100):
        reader = readers()
        task = reader.enter()

        async def close(reader: SubscriptionReaders = reader, task: asyncio.Task[object] | None = task) -> None:
            reader.leave(task)

        await asyncio.create_task(close())
        assert readers_of_caller([reader]) == []
        assert len(INSIDE.get()) == 1
