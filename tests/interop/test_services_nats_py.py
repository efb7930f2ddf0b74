"""Services of natsproto and of nats-py find, ask and understand each other."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import nats.micro
import pytest
import pytest_asyncio
from nats.aio.client import Client as TheirClient
from nats.micro.request import Request as TheirRequest
from nats.micro.service import ServiceInfo, ServicePing, ServiceStats

from natsproto._client import Client
from natsproto.errors import ServiceError
from natsproto.service import Request
from natsproto.testing import Server

pytestmark = pytest.mark.filterwarnings("ignore:datetime.datetime.utcnow:DeprecationWarning")


@pytest_asyncio.fixture
async def theirs(nats_server: Server) -> AsyncIterator[TheirClient]:
    nc = await nats.connect(nats_server.url)
    yield nc
    await nc.close()


async def test_our_client_uses_nats_py_service(nats_client: Client, theirs: TheirClient) -> None:
    nc = nats_client
    service = await nats.micro.add_service(
        theirs,
        name="theirs",
        version="1.2.3",
        description="from nats-py",
        metadata={"a": "b"},
        stats_handler=lambda endpoint: {"of": endpoint.name},
    )

    async def add(request: TheirRequest) -> None:
        a, b = request.data.split()
        await request.respond(b"%d" % (int(a) + int(b)), headers={"Tag": "a"})

    async def refuse(request: TheirRequest) -> None:
        await request.respond_error("418", "teapot", b"details")

    async def fail(request: TheirRequest) -> None:
        raise ValueError("secret of the house")

    group = service.add_group(name="v1", queue_group="workers")
    await group.add_endpoint(name="add", handler=add, metadata={"unit": "none"})
    await service.add_endpoint(name="refuse", handler=refuse)
    await service.add_endpoint(name="fail", handler=fail)
    await theirs.flush()

    (info,) = [info async for info in nc.discover_services("theirs", service.id, timeout=30)]
    assert (info.name, info.id, info.version, info.description) == ("theirs", service.id, "1.2.3", "from nats-py")
    assert info.metadata == {"a": "b"}
    assert [(e.name, e.subject, e.queue_group, e.metadata) for e in info.endpoints] == [
        ("add", "v1.add", "workers", {"unit": "none"}),
        ("refuse", "refuse", "q", {}),
        ("fail", "fail", "q", {}),
    ]
    assert [ping.id async for ping in nc.ping_services(timeout=30)] == [service.id]
    reply = await nc.call("v1.add", b"40 2", timeout=5)
    assert (reply.data, reply.headers["Tag"]) == (b"42", "a")
    with pytest.raises(ServiceError, match="teapot") as raised:
        await nc.call("refuse", timeout=5)
    assert raised.value.code == 418
    with pytest.raises(ServiceError, match="secret of the house"):
        await nc.call("fail", timeout=5)
    (stats,) = [stats async for stats in nc.service_stats("theirs", timeout=30)]
    assert stats.started.tzinfo is not None
    assert [(e.name, e.num_requests, e.num_errors, e.data) for e in stats.endpoints] == [
        ("add", 1, 0, {"of": "add"}),
        ("refuse", 1, 0, {"of": "refuse"}),
        ("fail", 1, 1, {"of": "fail"}),
    ]
    await service.stop()


async def test_nats_py_finds_and_asks_our_service(nats_client: Client, theirs: TheirClient) -> None:
    service = await nats_client.add_service("ours", "1.2.3", description="from natsproto", metadata={"a": "b"})

    @service.endpoint("add", metadata={"unit": "none"})
    async def add(request: Request) -> None:
        a, b = request.data.split()
        await request.respond(b"%d" % (int(a) + int(b)), headers={"Tag": "a"})

    @service.endpoint("refuse", queue_group=None)
    async def refuse(request: Request) -> None:
        raise ServiceError(418, "teapot")

    await nats_client.flush()

    async def read(verb: str) -> dict[str, Any]:
        reply = await theirs.request(f"$SRV.{verb}.ours.{service.id}", timeout=5)
        fields: dict[str, Any] = json.loads(reply.data)
        return fields

    assert ServicePing.from_dict(await read("PING")).id == service.id
    info = ServiceInfo.from_dict(await read("INFO"))
    assert (info.name, info.version, info.description, info.metadata) == ("ours", "1.2.3", "from natsproto", {"a": "b"})
    assert [(e.name, e.subject, e.queue_group, e.metadata) for e in info.endpoints] == [
        ("add", "add", "q", {"unit": "none"}),
        ("refuse", "refuse", "", {}),
    ]
    sum_ = await theirs.request("add", b"40 2", timeout=5)
    assert (sum_.data, sum_.headers) == (b"42", {"Tag": "a"})
    refused = await theirs.request("refuse", timeout=5)
    assert refused.headers == {"Nats-Service-Error": "teapot", "Nats-Service-Error-Code": "418"}
    stats = ServiceStats.from_dict(await read("STATS"))
    assert [(e.name, e.num_requests, e.num_errors, e.last_error) for e in stats.endpoints or []] == [
        ("add", 1, 0, ""),
        ("refuse", 1, 1, "418:teapot"),
    ]
