"""A put that ends in an outage says what its caller can do: there is no message to publish again."""

from __future__ import annotations

import asyncio

import pytest

import natsproto
from natsproto.errors import PublishUncertain
from natsproto.testing import run_server
from tests.faults.helpers import settled


async def test_failed_put_says_to_put_it_again() -> None:
    async with run_server(jetstream=True) as server, natsproto.connect(server.url) as nc:
        store = await nc.jetstream().create_object_store("files")
        sent = nc.stats.out_msgs
        server.freeze()
        try:
            putting = asyncio.create_task(store.put("one", b"x" * 1000, timeout=0.5))
            await settled(lambda: nc.stats.out_msgs > sent)
        finally:
            server.kill()
        with pytest.raises(PublishUncertain, match="the object is not finished: put it again") as info:
            await putting
        assert "msg_id" not in str(info.value)
        await nc.close()  # a drain would wait to remove the chunk
