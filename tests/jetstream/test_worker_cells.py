"""Workers whose handlers take time, on a real server: without faults no message is handled twice."""

from __future__ import annotations

import asyncio

import pytest

from benchmarks.workers import Cell, draw_cells, run_cell
from natsproto.jetstream import JetStream
from natsproto.testing import Server

LONG = 20.0

QUICK = [
    Cell(0.4, 0.6, replicas=2),  # the second message of a prefetch would wait for 0.4 s, the third for 0.8
    Cell(0.4, 0.6, concurrency=3, way="def"),
    Cell(0.3, 0.6, concurrency=3, way="key"),
    Cell(0.4, 0.6, way="messages"),
    Cell(0.1, 0.5, way="batches", replicas=2),
    Cell(0.02, 0.5, concurrency=4, replicas=2),
    Cell(0.001, 0.5),
]


@pytest.mark.parametrize("cell", QUICK, ids=str)
async def test_slow_handlers_double_nothing(nats_server: Server, cell: Cell) -> None:
    result = await run_cell(nats_server.url, cell, seconds=1.0)
    assert (result.calls, result.doubled, result.missed) == (cell.messages(1.0), 0, 0)
    assert result.seconds <= 1.15 * cell.ideal(1.0) + 3.0  # on a busy machine
    assert min(result.shares) >= 0.7 / cell.replicas * result.calls


@pytest.mark.slow
async def test_drawn_workers_double_nothing(nats_server: Server, seed: int) -> None:
    for cell in draw_cells(seed, 6):
        result = await run_cell(nats_server.url, cell)
        assert (result.doubled, result.missed) == (0, 0), cell


async def test_next_and_the_loops_of_one_reader_take_turns(jetstream: JetStream) -> None:
    """A loop counts the message that next() has returned before: more are pulled."""
    stream = await jetstream.create_stream("S", subjects=["s"], storage="memory")
    consumer = await stream.create_consumer("d")
    for number in range(6):
        await jetstream.publish("s", b"%d" % number)
    seen: list[bytes] = []
    async with asyncio.timeout(LONG), consumer.messages() as messages:
        seen.append((await messages.next()).data)
        async for message in messages:
            seen.append(message.data)
            break
        seen.append((await messages.next()).data)
        async for batch in messages.batches(1):
            seen += [message.data for message in batch]
            break
        seen += [(await messages.next()).data for _ in range(2)]
    assert seen == [b"%d" % number for number in range(6)]
