"""``key=``: messages of one key in their order, and as many keys at a time as there are workers."""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict

import pytest

from natsproto.jetstream import JetStream, JsMessage
from natsproto.jetstream._consumer.delivery.buffer import Buffer
from natsproto.jetstream._consumer.delivery.key_lanes import KeyLanes
from tests.jetstream.reading import make, store
from tests.kit.waiting import eventually

WORKERS = 8


class Work:
    """Counts what runs."""

    def __init__(self) -> None:
        self.running = Counter[int]()
        self.most = 0
        self.done: defaultdict[int, list[int]] = defaultdict(list)
        self.go_on = asyncio.Event()

    async def handle(self, message: JsMessage, key: int) -> None:
        self.running[key] += 1
        assert self.running[key] == 1, "two of one key at a time"
        self.most = max(self.most, self.running.total())
        await self.go_on.wait()
        self.running[key] -= 1
        self.done[key].append(message.seq)


async def test_each_worker_has_a_key(jetstream: JetStream) -> None:
    """Whatever the hashes of the keys are."""
    stream = await make(jetstream, 3 * WORKERS)
    consumer = await stream.create_consumer("d", ack_wait=1)
    work = Work()

    def key_of(message: JsMessage) -> int:
        return message.seq % WORKERS * WORKERS  # the same hash, modulo the workers

    async with consumer.consume(lambda m: work.handle(m, key_of(m)), concurrency=WORKERS, key=key_of) as context:
        await eventually(lambda: work.running.total() == WORKERS)
        work.go_on.set()
        await eventually(lambda: context.handled == 3 * WORKERS)
    assert all(seqs == sorted(seqs) for seqs in work.done.values())


async def test_workers_are_not_idle_behind_one_key(jetstream: JetStream) -> None:
    """Messages of a key that is handled do not use up what may be requested for the other workers."""
    stream = await make(jetstream, 2 * WORKERS)
    await store(stream, range(WORKERS - 1), subject="s.b")
    consumer = await stream.create_consumer("d", ack_wait=0.6)
    work = Work()
    calls = Counter[int]()

    def key_of(message: JsMessage) -> int:
        return max(0, message.seq - 2 * WORKERS)

    async def handle(message: JsMessage) -> None:
        calls[message.seq] += 1
        await work.handle(message, key_of(message))

    async with consumer.consume(handle, concurrency=WORKERS, key=key_of, keep_alive=True) as context:
        await eventually(lambda: work.running.total() == WORKERS)
        await asyncio.sleep(0.08)
        work.go_on.set()
        await eventually(lambda: context.handled == 3 * WORKERS - 1)
        assert context.given_back == context.stale == 0
    assert set(calls.values()) == {1}
    assert work.done[0] == list(range(1, 2 * WORKERS + 1))


@pytest.mark.parametrize("removes", [False, True])
async def test_lanes_know_their_keys(seed: int, removes: bool) -> None:
    """Whatever arrives, is taken and removed: a key is in one lane at a time, and forgotten at the end."""
    rng = random.Random(seed)
    buffer, workers = Buffer(), rng.choice([1, 2, 5])
    lanes = KeyLanes(buffer, lambda message: message.subject, workers)
    hands: dict[int, JsMessage] = {}
    seen: defaultdict[str, list[int]] = defaultdict(list)
    count = 0
    for _ in range(400):
        step, lane = rng.random(), rng.randrange(workers)
        queue = lanes.queues[lane]
        if step < 0.3:
            count += 1
            buffer.put([JsMessage(rng.choice("abcde"), None, b"%d" % count, None, None)])
        elif step < 0.35 and removes:
            kept = [message for message in queue if message.data[-1] != rng.choice(b"0123456789")]
            queue.clear()
            queue += kept
        else:  # as a worker does
            hands.pop(lane, None)
            if not queue:
                lanes.release(lane)
                lanes.distribute()
            if queue:
                message = queue.popleft()
                lanes.take(lane, message)
                assert message.subject not in {one.subject for one in hands.values()}
                hands[lane] = message
                seen[message.subject].append(int(message.data))
    for lane in range(workers):
        lanes.queues[lane].clear()
        lanes.release(lane)
    assert all(numbers == sorted(numbers) for numbers in seen.values())
    assert (lanes._held, lanes._lane_of, lanes._total) == ({}, {}, 0)
    assert len(lanes._free) == workers
