"""Every row of tests.compat.differences.table is true, of nats-py and of natsproto.compat.nats."""

from __future__ import annotations

import importlib
import logging
from typing import Any

import pytest

from natsproto.testing import Server
from tests.compat.differences import SHOWN, Shown
from tests.compat.differences.table import REFUSED, SAFER
from tests.compat.scenarios import delete_streams, with_both

for name in ("connections", "messages", "services", "stores", "streams"):
    importlib.import_module(f"tests.compat.differences.{name}")

pytestmark = [
    pytest.mark.differs("it compares both packages itself"),
    pytest.mark.filterwarnings("ignore"),  # nats-py leaves sockets and tasks behind
]


def test_every_row_is_shown() -> None:
    assert sorted(shown.row for shown in SHOWN) == sorted([*SAFER, *REFUSED])


@pytest.mark.parametrize("shown", SHOWN, ids=lambda shown: shown.scenario.__name__)
async def test_row_is_true(server: Server, shown: Shown, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    async def on_empty_server(package: Any) -> Any:
        await delete_streams(server.url)
        return await shown.scenario(package, server)

    assert await with_both(on_empty_server) == (shown.theirs, shown.ours), shown.row
