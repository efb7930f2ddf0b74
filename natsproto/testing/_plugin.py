"""pytest fixtures with a real nats-server: ``nats_server``, ``nats_client`` and ``jetstream``.

pytest loads this module wherever natsproto is installed, so it imports nothing else before a test uses a fixture. No
other module imports pytest. The asynchronous fixture is pytest-asyncio's if that is installed, which works in its
strict mode too; otherwise any plugin that runs async fixtures (such as anyio's) runs it.
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
    """Run a nats-server for the test, with JetStream and a temporary store, on a free port."""
    from natsproto.testing._server import run_server

    with run_server(jetstream=True) as server:
        yield server


@_async_fixture
async def nats_client(nats_server: Server) -> AsyncIterator[Client]:
    """Connect a client to ``nats_server``; drain it after the test."""
    import natsproto

    async with natsproto.connect(nats_server.url) as client:
        yield client


@pytest.fixture
def jetstream(nats_client: Client) -> JetStream:
    """Return the JetStream context of ``nats_client``."""
    return nats_client.jetstream()
