"""Several tasks that call ``next`` of the same messages: each is a worker, and nothing is lost count of."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from natsproto.jetstream import JetStream
from natsproto.jetstream._consumer.messages import Messages
from tests.jetstream.reading import make, store
from tests.kit.waiting import eventually

TASKS = 4


class Work:
    """Reads messages in several tasks, and counts them."""

    def __init__(self, messages: Messages, *, wait_for: bool) -> None:
        self.messages, self.wait_for = messages, wait_for
        self.calls, self.running, self.most = Counter[int](), 0, 0

    async def wait_done(self, count: int) -> None:
        await eventually(lambda: sum(self.calls.values()) >= count and not self.running)

    async def read(self) -> None:
        while True:
            following = self.messages.next()
            message = await (asyncio.wait_for(following, 60) if self.wait_for else following)
            self.calls[message.seq] += 1
            self.running += 1
            self.most = max(self.most, self.running)
            await asyncio.sleep(0.1)  # the reader takes its own time
            self.running -= 1
            await message.ack()


@pytest.mark.parametrize("wait_for", [False, True])
async def test_tasks_of_next_work_at_a_time(jetstream: JetStream, wait_for: bool) -> None:
    stream = await make(jetstream)
    consumer = await stream.create_consumer("d", ack_wait=1)
    async with consumer.messages() as messages:
        work = Work(messages, wait_for=wait_for)
        tasks = [asyncio.create_task(work.read()) for _ in range(TASKS)]
        for first in (1, 21, 41):  # all tasks wait when the messages come
            await store(stream, range(first, first + 20))
            await work.wait_done(first + 19)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    assert work.calls == Counter(range(1, 61))
    assert work.most == TASKS
    assert messages.buffer.consumed == messages.buffer.received == 60


async def test_what_next_returned_last_ends_with_stop(jetstream: JetStream) -> None:
    """The timer that looks after messages in hand ends, though nobody asks for another message."""
    stream = await make(jetstream, 1)
    consumer = await stream.create_consumer("d", ack_wait=0.5)
    async with consumer.messages() as messages:
        await (await messages.next(timeout=5)).ack()
    deliveries = messages.buffer.deliveries
    assert deliveries is not None
    await eventually(lambda: deliveries._timer is None)
