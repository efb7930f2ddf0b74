"""Every row of tests.compat.differences.table is true, of nats-py and of natsproto.compat.nats."""

from __future__ import annotations

import importlib
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

import natsproto
from natsproto.testing import Server, run_server
from tests.compat.differences import SHOWN, Shown
from tests.compat.differences.table import REFUSED, SAFER

for name in ("connections", "messages", "services", "stores", "streams"):
    importlib.import_module(f"tests.compat.differences.{name}")

pytestmark = [
    pytest.mark.differs("it compares both packages itself"),
    pytest.mark.filterwarnings("ignore"),  # nats-py leaves sockets and tasks behind
]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with run_server(jetstream=True) as running:
        yield running


@asynccontextmanager
async def emptied(server: Server) -> AsyncIterator[Server]:
    """The server without streams."""
    async with natsproto.connect(server.url) as nc:
        js = nc.jetstream()
        for name in [name async for name in js.stream_names()]:
            await js.delete_stream(name)
    yield server


def test_every_row_is_shown() -> None:
    assert sorted(shown.row for shown in SHOWN) == sorted([*SAFER, *REFUSED])


@pytest.mark.parametrize("shown", SHOWN, ids=lambda shown: shown.scenario.__name__)
async def test_row_is_true(server: Server, shown: Shown, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    for name, expected in (("nats", shown.theirs), ("natsproto.compat.nats", shown.ours)):
        async with emptied(server):
            assert await shown.scenario(importlib.import_module(name), server) == expected, (shown.row, name)
