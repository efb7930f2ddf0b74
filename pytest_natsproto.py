"""pytest fixtures with a real nats-server: ``nats_server``, ``nats_client``, ``jetstream``, and others to share.

pytest loads this module in every run where natsproto is installed. It is outside the package, whose import takes as
long as half of pytest's, and imports nothing of it before a test uses a fixture. The asynchronous fixture is
pytest-asyncio's if that is installed, which works in its strict mode too; otherwise anyio's plugin can run it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from natsproto import Client
    from natsproto.jetstream import JetStream
    from natsproto.testing import Cluster, Server


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Fail a test whose client nobody can run: what pytest says names neither natsproto nor a remedy."""
    names = getattr(item, "fixturenames", ())
    if "nats_client" in names and "anyio_backend" not in names:
        plugins = item.config.pluginmanager.list_name_plugin()
        if not any("asyncio" in name for name, plugin in plugins if plugin is not None):
            pytest.fail(
                "the fixtures nats_client and jetstream need pytest-asyncio: pip install pytest-asyncio, and set "
                'asyncio_mode = "auto" or mark the test with pytest.mark.asyncio',
                pytrace=False,
            )


def _async_fixture(function: Callable[[Server], AsyncIterator[Client]]) -> object:
    try:
        import pytest_asyncio
    except ImportError:
        return pytest.fixture(function)
    return pytest_asyncio.fixture(function)


@pytest.fixture
def nats_server() -> Iterator[Server]:
    """Run a nats-server for the test, with JetStream and a temporary store, on a free port."""
    from natsproto.testing import run_server

    with run_server(jetstream=True) as server:
        yield server


@pytest.fixture(scope="session")
def nats_session_server() -> Iterator[Server]:
    """Run one nats-server for all tests of the process, with JetStream; what a test leaves there the next one finds."""
    from natsproto.testing import run_server

    with run_server(jetstream=True) as server:
        yield server


@pytest.fixture
def nats_cluster() -> Iterator[Cluster]:
    """Run three nats-servers in a cluster for the test, with JetStream and temporary stores, on free ports."""
    from natsproto.testing import run_cluster

    with run_cluster() as cluster:
        yield cluster


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
