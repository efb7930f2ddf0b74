"""A client of natsproto.compat.nats on a server of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from natsproto.compat import nats
from natsproto.testing import Server


@pytest_asyncio.fixture
async def nc(nats_server: Server) -> AsyncIterator[nats.NATS]:
    client = await nats.connect(nats_server.url)
    yield client
    await client.close()
