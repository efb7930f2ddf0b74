"""Reads that fill the buffer: how many of them an event loop may make in a row before readers run."""

from __future__ import annotations

import asyncio

import pytest

from natsproto import Subscription
from natsproto._core.socket.wire import READ_BUFFER_SIZE
from tests.core.helpers import scripted_network, turns
from tests.kit.clock import virtual_clock


@virtual_clock
async def test_second_full_read_in_a_turn_lets_readers_run() -> None:
    """An event loop that reads more than once before tasks run (uvloop) is stopped until they have run."""
    async with scripted_network() as net:
        nc = await net.connect()
        got = 0

        async def count(sub: Subscription) -> None:
            nonlocal got
            async for _ in sub:
                got += 1

        async with asyncio.TaskGroup() as readers, nc.subscribe("a") as sub:
            readers.create_task(count(sub))
            await nc.flush()
            session = nc._engine.session
            assert session is not None
            reading: list[int | str] = []
            wire = session.wire
            assert wire is not None
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("natsproto._core.time_slice.TIME_SLICE_S", 60)  # the machine may be busy
                patch.setattr(wire, "pause_reading", lambda: reading.append("pause"))
                patch.setattr(wire, "resume_reading", lambda: reading.append(got))
                frame = b"MSG a 1 1000\r\n" + bytes(1000) + b"\r\n"
                full = frame * (READ_BUFFER_SIZE // len(frame) + 1)
                session.on_data(full)
                await turns(3)
                assert reading == [], "a task runs after each read"
                session.on_data(full)
                session.on_data(frame)
                assert reading == [], "a read that is not full is the last one"
                session.on_data(full)
                assert reading == ["pause"]
                await turns(3)
                assert reading == ["pause", got]
            assert got == sub.delivered == 3 * (READ_BUFFER_SIZE // len(frame) + 1) + 1


@virtual_clock
async def test_many_subscriptions_share_more_full_reads() -> None:
    """Their readers run after one full read for every eight of them, so that each has several messages."""

    async def take(sub: Subscription) -> None:
        async for _ in sub:
            pass

    async with scripted_network() as net, asyncio.TaskGroup() as readers:
        nc = await net.connect()
        subs = [await nc.subscribe(f"s{number}") for number in range(40)]
        for sub in subs:
            readers.create_task(take(sub))
        await nc.flush()
        session = nc._engine.session
        assert session is not None
        reading: list[str] = []
        wire = session.wire
        assert wire is not None
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(wire, "pause_reading", lambda: reading.append("pause"))
            frames = b"".join(b"MSG s%d %d 100\r\n%s\r\n" % (number, number + 1, bytes(100)) for number in range(40))
            full = frames * (READ_BUFFER_SIZE // len(frames) + 1)
            for _ in range(4):
                session.on_data(full)
            assert reading == []
            session.on_data(full)
            assert reading == ["pause"]
            await turns(3)
        assert {sub.delivered for sub in subs} == {5 * (READ_BUFFER_SIZE // len(frames) + 1)}
        for sub in subs:
            await sub.unsubscribe()
