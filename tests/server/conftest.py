"""Fixtures of the tests with one server."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator

import pytest

from natsproto import sync
from natsproto.testing import Server
from tests.server.helpers import Run, loops


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


@pytest.fixture
def nc(nats_server: Server) -> Iterator[sync.Client]:
    """A blocking client, which leaves no thread behind."""
    with sync.connect(nats_server.url) as client:
        yield client
    assert loops() == [], "a thread was left behind"
