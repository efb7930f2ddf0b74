"""What a type checker knows of services. Never run; mypy --strict reads it."""

from datetime import datetime
from typing import assert_type

from natsproto import Client, Message
from natsproto.service import Endpoint, Group, Request, Service, ServiceInfo, ServicePing, ServiceStats


async def running(nc: Client) -> None:
    service = await nc.add_service("calc", "1.0.0", metadata={"a": "b"}, stats_handler=lambda endpoint: endpoint.name)
    assert_type(service, Service)
    async with nc.add_service("calc", "1.0.0", queue_group=None) as entered:
        assert_type(entered, Service)

    @service.endpoint("add", queue_group=None, concurrency=5)
    async def add(request: Request) -> int:
        await request.respond(request.data, headers={"a": "b"})
        await request.respond_error(400, "no")
        return 5

    assert_type(await add(Request("a", None, b"", None)), int)
    group = service.group("v1")
    assert_type(group, Group)
    assert_type(group.add_endpoint("a", lambda request: request.respond()), Endpoint)
    group.add_endpoint("a", lambda: None)  # type: ignore[arg-type]
    assert_type(service.info(), ServiceInfo)
    assert_type(service.stats(), ServiceStats)
    assert_type(await service.wait_stopped(), Exception | None)


async def asking(nc: Client) -> None:
    async for info in nc.discover_services("calc"):
        assert_type(info, ServiceInfo)
    async for ping in nc.ping_services():
        assert_type(ping, ServicePing)
        assert_type(ping.rtt, float)
    async for stats in nc.service_stats("calc", "id"):
        assert_type(stats, ServiceStats)
        assert_type(stats.started, datetime)
    assert_type(await nc.call("add", b"1 2"), Message)
