"""Workers whose handlers take time, on a real server: without faults no message is handled twice."""

from __future__ import annotations

import pytest

from benchmarks.workers import Cell, draw_cells, run_cell
from natsproto.testing import Server

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
