"""A slow subscription is reported when it begins to drop messages, at most every minute after that, and at its end."""

from __future__ import annotations

import logging

import pytest

from natsproto._core.events import SlowConsumerDetected
from tests.core.helpers import scripted_network, turns, turns_until
from tests.faults.helpers import EventRecorder
from tests.kit.clock import advance, virtual_clock
from tests.kit.scripted import Behaviour


@virtual_clock
async def test_slow_consumer_is_reported_once_per_episode() -> None:
    recorder = EventRecorder(SlowConsumerDetected)
    async with scripted_network(Behaviour(route=False)) as net:
        nc = await net.connect(on_event=recorder)
        sub = await nc.subscribe("a", pending_msgs_limit=10)
        other = await nc.subscribe("b")
        await nc.flush()
        for _ in range(20):
            net.server.send(b"MSG a 1 1\r\nx\r\n" * 10 + b"MSG b 2 1\r\ny\r\n")
            await turns(3)
        assert len(recorder.events) == 1
        assert (sub.pending_msgs, sub.dropped, nc.stats.dropped) == (10, 190, 190)
        assert (other.pending_msgs, other.dropped) == (20, 0)
        await sub.unsubscribe()
        assert nc.stats.dropped == 190, "what was lost stays lost when the subscription ends"
        assert nc.stats.in_msgs == 220


@virtual_clock
async def test_slow_consumer_episodes_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    """A burst in four parts, between which the reader catches up, is one episode; the next burst is another one."""
    recorder = EventRecorder(SlowConsumerDetected)
    caplog.set_level(logging.WARNING, "natsproto")
    async with scripted_network(Behaviour(route=False)) as net:
        nc = await net.connect(on_event=recorder)
        sub = await nc.subscribe("a", pending_msgs_limit=1000)
        await nc.flush()
        for part in range(8):
            net.server.send(b"MSG a 1 1\r\nx\r\n" * 4000)
            await turns_until(lambda: sub.dropped + sub.delivered + sub.pending_msgs == 4000 * (part + 1))  # noqa: B023
            while sub.pending_msgs:
                await sub.next()
            await advance(3 if part == 3 else 0.2)
        await advance(3)
        counts = [event.error.dropped for event in recorder.of(SlowConsumerDetected)]
        assert (sum(counts), sub.dropped, nc.stats.dropped) == (24_000, 24_000, 24_000), "the events tell of each"
        assert len(counts) == 4
        lines = [record.getMessage() for record in caplog.records]
        assert [line for line in lines if "caught up" in line] == [
            "subscription to 'a' has caught up; it lost 12000 messages"
        ] * 2
        assert len(lines) == 6, "one where each begins, and two where it ends"


@virtual_clock
async def test_slow_consumer_is_reported_again() -> None:
    """A reader that never catches up is reported every minute, with the messages since the last report."""
    recorder = EventRecorder(SlowConsumerDetected)
    async with scripted_network(Behaviour(route=False)) as net:
        nc = await net.connect(on_event=recorder)
        sub = await nc.subscribe("a", pending_msgs_limit=10)
        await nc.flush()
        for second in range(150):
            net.server.send(b"MSG a 1 1\r\nx\r\n" * 11)
            await advance(1)
            if second % 2:
                await sub.next()
        counts = [event.error.dropped for event in recorder.of(SlowConsumerDetected)]
        assert len(counts) == 3
        assert counts[0] == 1
        assert all(600 < count < 700 for count in counts[1:])
        assert {event.error.pending_msgs for event in recorder.of(SlowConsumerDetected)} <= {9, 10}


@virtual_clock
async def test_slow_consumer_that_ends_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    recorder = EventRecorder(SlowConsumerDetected)
    async with scripted_network(Behaviour(route=False)) as net:
        nc = await net.connect(on_event=recorder)
        sub = await nc.subscribe("a", pending_msgs_limit=10)
        await nc.flush()
        for _ in range(2):
            net.server.send(b"MSG a 1 1\r\nx\r\n" * 20)
            await turns(3)
        await sub.unsubscribe()
        lines = [record.getMessage() for record in caplog.records]
        assert lines[-1] == "subscription to 'a' has ended; it lost 30 messages"
        assert [event.error.dropped for event in recorder.of(SlowConsumerDetected)] == [10, 20]
        assert len(lines) == 3
