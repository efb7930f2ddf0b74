"""A member of a group is told when its stream grows and its work queue takes nothing, and not otherwise."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from natsproto.jetstream._consumer.message import JsMessage
from natsproto.jetstream._context import JetStream
from natsproto.jetstream.groups import ElasticGroup, GroupStalled
from tests.kit.waiting import eventually

LOOK_S = 0.15


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("natsproto.jetstream.groups._stall_watch.STALL_CHECK_INTERVAL_S", LOOK_S)


@asynccontextmanager
async def reading(js: JetStream, group: ElasticGroup, name: str, gate: asyncio.Event) -> AsyncIterator[list[bytes]]:
    got: list[bytes] = []

    async def handle(message: JsMessage) -> None:
        got.append(message.data)
        await gate.wait()

    async with group.consume(name, handle) as member:
        await member.wait_joined()
        yield got


def stalls(js: JetStream) -> list[GroupStalled]:
    events: list[GroupStalled] = []
    js.connection.add_listener(lambda event: events.append(event) if isinstance(event, GroupStalled) else None)
    return events


async def publish_for(js: JetStream, subject: str, seconds: float) -> None:
    """Let the stream grow for some time."""
    end = asyncio.get_running_loop().time() + seconds
    while asyncio.get_running_loop().time() < end:
        await js.publish(subject)
        await asyncio.sleep(0.02)


@pytest.mark.slow
async def test_queue_without_source_is_told_once(jetstream: JetStream) -> None:
    js, events, gate = jetstream, stalls(jetstream), asyncio.Event()
    gate.set()
    stream = await js.create_stream("O", subjects=["o.*", "other"])
    group = await ElasticGroup.create(js, "O", "g", max_members=1, filters=["o.*"])
    await group.add_members("a")
    async with reading(js, group, "a", gate) as got:
        await publish_for(js, "o.1", 3 * LOOK_S)
        await publish_for(js, "other", 5 * LOOK_S)  # is not for the group
        assert events == []
        queue = await js.stream("O-g")
        source = queue.cached_info.config.sources
        await queue.update(sources=[])
        await publish_for(js, "o.1", 8 * LOOK_S)
        [event] = events
        assert (event.stream, event.group, event.member, event.queued) == ("O", "g", "a", 0)
        assert event.seconds < 3 * LOOK_S
        before = len(got)
        await queue.update(sources=source)
        await js.publish("o.1")
        await eventually(lambda: len(got) > before)
        assert len(events) == 1
    assert stream is not None


@pytest.mark.slow
async def test_full_queue_is_told(jetstream: JetStream) -> None:
    """The other member's messages fill the queue; this one waits for its own."""
    js, events, gate = jetstream, stalls(jetstream), asyncio.Event()
    await js.create_stream("O", subjects=["o.*"])
    group = await ElasticGroup.create(js, "O", "g", max_members=2, filters={"o.*": [1]}, max_buffered_msgs=3)
    await group.set_mappings({"a": [0], "b": [1]})
    async with reading(js, group, "a", gate) as a, reading(js, group, "b", gate) as b:
        for number in range(20):
            await js.publish(f"o.{number}")
            await asyncio.sleep(0.01)
        await eventually(lambda: bool(a or b))
        await publish_for(js, "o.1", 12 * LOOK_S)
        assert {event.queued for event in events} == {3}
        assert 1 <= len(events) <= 2
        gate.set()
