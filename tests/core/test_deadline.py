"""The time of a call, and the pauses between its attempts."""

from __future__ import annotations

import asyncio

import pytest

from natsproto._core.deadline import Backoff, Deadline
from tests.kit.clock import advance, virtual_clock


@virtual_clock
async def test_deadline_counts_down_to_zero() -> None:
    deadline = Deadline(3.0)
    await advance(1.0)
    assert deadline.left == pytest.approx(2.0)
    assert not deadline.is_over
    await advance(2.5)
    assert deadline.left == 0.0
    assert Deadline(3.0).at - deadline.at == pytest.approx(3.5)


@virtual_clock
async def test_deadline_cancels_work_that_is_late() -> None:
    finished: list[float] = []

    async def work(seconds: float) -> None:
        await asyncio.sleep(seconds)
        finished.append(seconds)

    deadline = Deadline(2.0)
    assert await deadline.wait(work(1.0))
    assert not await deadline.wait(work(5.0))
    assert finished == [1.0]
    assert asyncio.get_running_loop().time() == pytest.approx(deadline.at)


@virtual_clock
async def test_timeout_of_the_work_is_not_the_deadline() -> None:
    async def work() -> None:
        raise TimeoutError("its own")

    with pytest.raises(TimeoutError, match="its own"):
        await Deadline(1.0).wait(work())


@virtual_clock
async def test_pauses_double_up_to_the_longest() -> None:
    backoff = Backoff(0.1, 0.5)
    for length in (0.1, 0.2, 0.4, 0.5, 0.5):
        assert length / 2 <= backoff.next_delay() <= length
    backoff.reset()
    assert 0.05 <= backoff.next_delay() <= 0.1


def test_contending_clients_draw_the_whole_length() -> None:
    delays = [Backoff(1.0, jitter=1.0).next_delay() for _ in range(200)]
    assert min(delays) < 0.2
    assert max(delays) > 0.8
    assert [Backoff(1.0, jitter=0.0).next_delay() for _ in range(3)] == [1.0] * 3


@virtual_clock
async def test_no_pause_reaches_the_deadline() -> None:
    loop, backoff, deadline = asyncio.get_running_loop(), Backoff(1.0, 1.0, jitter=0.0), Deadline(2.5)
    started_at = loop.time()
    assert await backoff.pause(deadline)
    assert await backoff.pause(deadline)
    assert loop.time() - started_at == pytest.approx(2.0)
    assert not await backoff.pause(deadline)
    assert loop.time() - started_at == pytest.approx(2.0)
