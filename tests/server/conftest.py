"""Fixtures of the tests with one server."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine

import pytest

from tests.server.helpers import Run


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    """Runs a coroutine on one of the two event loops: their TLS has nothing in common."""
    factory = asyncio.new_event_loop
    if request.param == "uvloop":
        factory = pytest.importorskip("uvloop").new_event_loop

    def run(body: Coroutine[object, object, None]) -> None:
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(body)

    return run
