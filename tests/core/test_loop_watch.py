"""Blocks of the event loop: what is reported, and what is not."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator

import pytest

from natsproto import Event, LoopBlocked
from natsproto._core.engine import loop_watch
from natsproto._core.engine.loop_watch import LoopWatch
from natsproto._core.event_bus import EventBus
from tests.kit.waiting import until

HELD_S = 0.09


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenth of the usual times."""
    monkeypatch.setattr(loop_watch, "BEAT_S", 0.01)
    monkeypatch.setattr(loop_watch, "LATE_S", 0.01)
    monkeypatch.setattr(loop_watch, "LOOP_BLOCKED_S", 0.06)
    monkeypatch.setattr(loop_watch, "UNSEEN_BLOCK_S", 60)  # the machine may be busy


class Watched:
    """A watch, and what it has reported about this file."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.watch = LoopWatch(EventBus(self.events.append))
        self.watch.start()

    @property
    def blocks(self) -> list[LoopBlocked]:
        """The events that name a line of this file: a busy machine can hold the loop as well."""
        return [event for event in self.events if isinstance(event, LoopBlocked) and __file__ in event.location]


@pytest.fixture
async def watched() -> Iterator[Watched]:  # type: ignore[misc]
    found = Watched()
    yield found
    found.watch.stop()


def hold(seconds: float = HELD_S) -> None:
    time.sleep(seconds)


async def test_a_block_is_reported_with_its_line(watched: Watched) -> None:
    await asyncio.sleep(0.02)
    hold()
    await until(lambda: watched.blocks)
    [block] = watched.blocks
    assert block.handler == ""
    assert block.seconds > 0.06
    assert f"{__file__}:" in block.location
    assert block.location.endswith(" in hold")
    assert "stood still" in block.log_line()[1]


async def test_a_block_behind_an_await_is_located(watched: Watched) -> None:
    async def inner() -> None:
        await asyncio.sleep(0)
        hold()

    await asyncio.gather(inner(), asyncio.sleep(0.02))
    await until(lambda: watched.blocks)
    assert watched.blocks[0].location.endswith(" in hold")


async def test_short_blocks_are_no_block(watched: Watched) -> None:
    for _ in range(5):
        hold(0.02)
        await asyncio.sleep(0.012)
    assert watched.blocks == []


async def test_short_blocks_add_up(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_watch, "MAX_HELD_S", 0.1)
    for _ in range(20):
        hold(0.04)
        await asyncio.sleep(0.012)
    block = watched.blocks[0]
    assert 0.1 < block.seconds <= block.window
    assert "stood still for %(seconds).1f of %(window).1f s: " in block.log_line()[1]


async def test_one_watch_for_all_clients_of_a_loop(watched: Watched) -> None:
    other = Watched()

    async def hold_until(condition: Callable[[], object]) -> None:
        """The thread may sleep for the usual time still, or be kept waiting by the machine."""
        async with asyncio.timeout(10):
            while not condition():
                hold()
                await asyncio.sleep(0.02)

    await hold_until(lambda: watched.blocks and other.blocks)
    other.watch.stop()
    before, seen = len(watched.blocks), len(other.blocks)
    await hold_until(lambda: len(watched.blocks) > before)
    assert len(other.blocks) == seen


def test_a_loop_that_rests_is_not_blocked() -> None:
    loop = asyncio.new_event_loop()
    try:

        async def begin() -> Watched:
            return Watched()

        watched = loop.run_until_complete(begin())
        hold(0.09)
        loop.run_until_complete(asyncio.sleep(0.03))
        assert [event for event in watched.events if isinstance(event, LoopBlocked)] == []

        async def block() -> None:
            await asyncio.sleep(0.02)
            hold()

        loop.run_until_complete(block())
        loop.run_until_complete(asyncio.sleep(0.03))
        assert len(watched.blocks) == 1
        watched.watch.stop()
    finally:
        loop.close()


async def test_a_watch_that_has_stopped_reports_nothing() -> None:
    watched = Watched()
    watched.watch.stop()
    hold()
    await asyncio.sleep(0.03)
    assert watched.events == []
