"""Work of many items takes no more calls for an item than that of few: nothing looks at all of them for each."""

from __future__ import annotations

import gc
import sys
from types import FrameType

import pytest

import natsproto
from benchmarks.growth_rows import ROWS
from natsproto.testing import run_server

FEW, MANY = 60, 1500


async def calls_of_item(name: str, count: int) -> float:
    """How many functions are called for an item, by Python code, on a server of its own."""
    calls = 0

    def on_event(_frame: FrameType, event: str, _arg: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    async with run_server(jetstream=True) as server, natsproto.connect(server.url, pending_msgs_limit=0) as nc:
        work = await ROWS[name](nc, count)
        gc.collect()
        sys.setprofile(on_event)
        try:
            await work()
        finally:
            sys.setprofile(None)
    return calls / count


@pytest.mark.parametrize("name", ROWS)
async def test_an_item_of_many_takes_as_few_calls(name: str) -> None:
    few, many = await calls_of_item(name, FEW), await calls_of_item(name, MANY)
    assert many < 2 * few
