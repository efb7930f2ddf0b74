"""A client of natsproto.compat.nats, or of nats-py itself, on a server of its own.

With the option ``--with-nats-py`` every test runs with both packages: in the run called ``nats-py``, names that a test
module imports from natsproto.compat.nats are those of nats-py. A test marked ``differs`` runs with
natsproto.compat.nats alone; the mark has the reason. It is an option because a failure there may be one of nats-py.
"""

from __future__ import annotations

import gc
import importlib
import logging
from collections.abc import AsyncIterator, Iterator
from types import ModuleType
from typing import Any

import pytest
import pytest_asyncio

from natsproto.testing import Server, run_server
from tests.compat.scenarios import OURS, THEIRS, package_of


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    packages = [pytest.param(OURS, id="natsproto")]
    if metafunc.config.getoption("--with-nats-py") and metafunc.definition.get_closest_marker("differs") is None:
        open_sockets = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
        packages.append(pytest.param(THEIRS, id="nats-py", marks=open_sockets))
    metafunc.parametrize("package", packages, indirect=True)


@pytest.fixture(autouse=True)
def package(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The package under test."""
    if request.param == THEIRS:
        for name, value in vars(request.module).items():
            home = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
            if isinstance(home, str) and home.startswith(OURS):
                found = importlib.import_module(THEIRS + home.removeprefix(OURS))
                theirs = found if isinstance(value, ModuleType) else getattr(found, value.__qualname__)
                monkeypatch.setattr(request.module, name, theirs)
    yield package_of(request.param)
    if request.param == THEIRS:
        gc.collect()  # sockets that nats-py left open are not to be found in the next test


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A server with JetStream for the scenarios that a module runs with both packages."""
    with run_server(jetstream=True) as running:
        yield running


@pytest.fixture(scope="module")
def silent_logs() -> Iterator[None]:
    """Without the logs of hundreds of scenarios."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest_asyncio.fixture
async def nc(package: Any, nats_server: Server) -> AsyncIterator[Any]:
    client = await package.connect(nats_server.url)
    yield client
    await client.close()
