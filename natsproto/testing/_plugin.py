"""pytest fixtures on a real nats-server: ``nats_server``, ``nats_client``, ``jetstream``.

Loaded by pytest wherever natsproto is installed, so it imports nothing it does not need before a test asks
for a fixture. The only module that imports pytest. The asynchronous fixture belongs to pytest-asyncio when
that is installed, in its strict mode too; else to whichever plugin runs async fixtures (anyio's does).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from natsproto._client import Client
    from natsproto.jetstream._context import JetStream
    from natsproto.testing._server import Server


def _async_fixture(function: Callable[[Server], AsyncIterator[Client]]) -> object:
    try:
        import pytest_asyncio
    except ImportError:
        return pytest.fixture(function)
    return pytest_asyncio.fixture(function)


@pytest.fixture
def nats_server() -> Iterator[Server]:
    """A nats-server of the test's own, with JetStream and a temporary store, on a free port."""
    from natsproto.testing._server import run_server

    with run_server(jetstream=True) as server:
        yield server


@_async_fixture
async def nats_client(nats_server: Server) -> AsyncIterator[Client]:
    """A client connected to ``nats_server``; drained after the test."""
    import natsproto

    async with natsproto.connect(nats_server.url) as client:
        yield client


@pytest.fixture
def jetstream(nats_client: Client) -> JetStream:
    """The JetStream context of ``nats_client``."""
    return nats_client.jetstream()
