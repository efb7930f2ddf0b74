"""Endpoints that take requests from each other are refused."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from natsproto import Client, errors
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
