"""A put that ends in an outage says what its caller can do: there is no message to publish again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

import natsproto
from natsproto.errors import PublishUncertain, RequestTimeout
from natsproto.testing import run_server
from tests.kit.waiting import until


async def test_failed_put_says_to_put_it_again() -> None:
    async with run_server(jetstream=True) as server, natsproto.connect(server.url) as nc:
        store = await nc.jetstream().create_object_store("files")
        sent = nc.stats.out_msgs
        server.freeze()
        try:
            putting = asyncio.create_task(store.put("one", b"x" * 1000, timeout=0.5))
            await until(lambda: nc.stats.out_msgs > sent, 20)
        finally:
            server.kill()
        with pytest.raises(PublishUncertain, match="the object is not finished: put it again") as info:
            await putting
        assert "msg_id" not in str(info.value)
        await nc.close()  # a drain would wait to remove the chunk


async def test_put_over_a_long_outage_names_the_object() -> None:
    async with run_server(jetstream=True) as server, natsproto.connect(server.url) as nc:
        store = await nc.jetstream().create_object_store("files")

        async def parts() -> AsyncIterator[bytes]:
            yield b"x" * 1000
            while not (await store.status()).stream.state.messages:
                pass
            await nc.flush()  # the acknowledgement has come, too
            server.kill()
            await until(lambda: not nc.is_connected, 20)
            yield b"x" * 1000

        with pytest.raises(
            RequestTimeout, match="put of object 'one', which is not finished: no answer within"
        ) as info:
            await store.put("one", parts(), chunk_size=1000, timeout=0.5)
        assert "raise timeout= to wait out an outage" in str(info.value)
        await nc.close()


async def test_offline_put_waits_for_one_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    """The look-up that begins with it ends it, also that of an empty object, which has nothing else to wait for."""
    async with run_server(jetstream=True) as server, natsproto.connect(server.url) as nc:
        store = await nc.jetstream().create_object_store("files")
        find, names = store._index.find, list[str]()

        async def counted(name: str, **options: Any) -> Any:
            names.append(name)
            return await find(name, **options)

        monkeypatch.setattr(store._index, "find", counted)
        server.kill()
        await until(lambda: not nc.is_connected, 20)
        with pytest.raises(RequestTimeout, match="not sent within"):
            await store.put("one", b"", timeout=0.1)
        assert names == ["one"]
        await nc.close()
