"""The harness that measures: no repetition has anything to do with the one before."""

from __future__ import annotations

import asyncio

import pytest

import natsproto
from benchmarks.__main__ import RunFailed, repetition
from benchmarks.scenarios import SCENARIOS
from natsproto.testing import Server, run_server


async def _leave_a_stream(server: Server) -> None:
    async with natsproto.connect(server.url) as nc:
        await nc.jetstream().create_stream(name="LEFT", subjects=["bench.>"], storage="memory")


def test_what_a_failed_repetition_leaves_does_not_fail_the_next_one() -> None:
    scenario = next(scenario for scenario in SCENARIOS if scenario.name == "js_pub_seq")
    with run_server(jetstream=True) as server:
        asyncio.run(_leave_a_stream(server))
        with pytest.raises(RunFailed, match="overlap"):
            repetition(server, "natsproto", scenario, "asyncio", 1000)
        assert repetition(server, "natsproto", scenario, "asyncio", 1000)["rate"] > 0
