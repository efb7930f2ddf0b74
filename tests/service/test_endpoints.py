"""Endpoints that take requests from each other are refused, and so are requests beyond the limit of an endpoint."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from natsproto import Client, Message, errors
from natsproto.service import Request


async def _one(request: Request) -> None:
    await request.respond(b"one")


async def _two(request: Request) -> None:
    await request.respond(b"two")


async def _parts(request: Request) -> AsyncIterator[bytes]:
    yield b"two"


async def test_endpoints_of_one_subject_are_refused(nats_client: Client) -> None:
    """They would be members of one queue group, so that either of them would respond."""
    async with await nats_client.add_service("svc", "1.0.0") as service:
        service.add_endpoint("p", _one, subject="orders.get")
        group = service.group("orders")
        for handler in (_two, _parts):
            with pytest.raises(errors.ConfigError, match=r"'orders\.get': endpoint 'p' has this subject already"):
                service.add_endpoint("q", handler, subject="orders.get")
            with pytest.raises(errors.ConfigError, match="endpoint 'p'"):
                group.add_endpoint("get", handler)
        assert [endpoint.name for endpoint in service.endpoints] == ["p"]
        await nats_client.flush()
        assert {(await nats_client.request("orders.get")).data for _ in range(20)} == {b"one"}


async def test_endpoints_of_other_groups_share_a_subject(nats_client: Client) -> None:
    """Each queue group gets each request, and so does each endpoint without one."""
    async with await nats_client.add_service("svc", "1.0.0") as service:
        service.add_endpoint("p", _one, subject="s")
        service.add_endpoint("q", _two, subject="s", queue_group="other")
        service.add_endpoint("r", _one, subject="s", queue_group=None)
        with pytest.raises(errors.ConfigError, match="endpoint 'r'"):
            service.add_endpoint("t", _two, subject="s", queue_group=None)
        await nats_client.flush()
        replies = [reply.data async for reply in nats_client.request_many("s", max_messages=3)]
        assert sorted(replies) == [b"one", b"one", b"two"]
    async with (
        await nats_client.add_service("svc", "1.0.0") as again,
        await nats_client.add_service("svc", "1.0.0") as other,
    ):
        again.add_endpoint("p", _one)
        other.add_endpoint("p", _one)  # another instance


async def test_requests_beyond_max_pending_are_refused(nats_client: Client) -> None:
    begun, release = asyncio.Event(), asyncio.Event()

    async def wait(request: Request) -> None:
        begun.set()
        await release.wait()
        await request.respond(request.data)

    async with await nats_client.add_service("svc", "1.0.0") as service:
        for wrong in (-1, True, 1.5):
            with pytest.raises(errors.ConfigError, match="max_pending"):
                service.add_endpoint("w", wait, max_pending=wrong)  # type: ignore[arg-type]
        endpoint = service.add_endpoint("w", wait, concurrency=1, max_pending=2)
        await nats_client.flush()
        served = [asyncio.create_task(nats_client.call("w", b"%d" % number, timeout=60)) for number in range(3)]
        await begun.wait()
        while endpoint.pending < 2:
            await nats_client.flush()
        with pytest.raises(errors.ServiceError, match="too many requests wait") as caught:
            await nats_client.call("w", b"3", timeout=60)
        assert caught.value.code == 503
        await nats_client.publish("w", b"a request without a reply subject")
        await nats_client.flush()
        assert (endpoint.pending, endpoint.in_progress) == (2, 1)
        release.set()
        assert [reply.data for reply in await asyncio.gather(*served)] == [b"0", b"1", b"2"]
        stats = endpoint.stats()
        assert (stats.num_requests, stats.num_errors) == (5, 2)
        assert stats.last_error == "503:too many requests wait"


async def test_without_room_for_waiting_none_waits(nats_client: Client) -> None:
    release = asyncio.Event()

    async def wait(request: Request) -> None:
        await release.wait()
        await request.respond()

    async with await nats_client.add_service("svc", "1.0.0") as service:
        service.add_endpoint("w", wait, concurrency=2, max_pending=0)
        await nats_client.flush()
        calls = [asyncio.create_task(nats_client.call("w", timeout=60)) for _ in range(5)]
        done, waiting = set[asyncio.Task[Message]](), set(calls)
        while len(done) < 3:
            ended, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            done |= ended
        assert all(isinstance(call.exception(), errors.ServiceError) for call in done)
        release.set()
        assert len(await asyncio.gather(*waiting)) == 2
