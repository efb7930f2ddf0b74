"""The worker of docs/howto/testing-outages.md that acknowledges before its work is found by the test of that page."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from natsproto.testing import Recorder, Server

PROGRAM = Path(__file__).parent.parent.parent / "docs/examples/test_outages.py"


async def _outages(server: Server, worker: str) -> Recorder:
    page = runpy.run_path(str(PROGRAM))
    recorder = await page["outages"](server, page[worker])
    assert isinstance(recorder, Recorder)
    return recorder


@pytest.mark.slow
async def test_ack_before_the_work_loses_orders(nats_server: Server) -> None:
    with pytest.raises(AssertionError, match="of 300 lost"):
        (await _outages(nats_server, "ack_before")).check_each_once(allow_repeats=True)


@pytest.mark.slow
async def test_ack_after_the_work_loses_none(nats_server: Server) -> None:
    (await _outages(nats_server, "ack_after")).check_each_once(allow_repeats=True)
