"""Services of natsproto and of nats.js find, ask and understand each other."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from natsproto._client import Client
from natsproto.errors import ServiceError
from natsproto.service import Request, error_of
from natsproto.testing import Server
from tests.interop.node import Node

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.xdist_group("nats.js")]  # installed once


async def test_nats_js_client_uses_our_service(nats_server: Server, nats_client: Client, node: Node) -> None:
    service = await nats_client.add_service(
        "py",
        "1.2.3",
        description="from Python",
        metadata={"language": "python"},
        stats_handler=lambda endpoint: {"of": endpoint.name},
    )
    group = service.group("v1", queue_group="workers")

    @group.endpoint("add", metadata={"unit": "none"})
    async def add(request: Request) -> None:
        a, b = request.data.split()
        await request.respond(b"%d" % (int(a) + int(b)), headers={"Tag": ["a", "b"]})

    @service.endpoint("refuse", queue_group=None)
    async def refuse(request: Request) -> None:
        await request.respond_error(418, "teapot", b"details")

    @service.endpoint("fail")
    async def fail(request: Request) -> None:
        raise ValueError("secret of the house")

    await nats_client.flush()
    said = await node.run("ask.cjs", nats_server.url, "py", service.id)
    found = {line["what"]: line["value"] for line in cast("list[dict[str, Any]]", said)}
    identity = {"name": "py", "id": service.id, "version": "1.2.3", "metadata": {"language": "python"}}
    ping = {"type": "io.nats.micro.v1.ping_response", **identity}
    assert found["ping"] == found["ping name"] == found["ping id"] == [ping]
    assert found["info"] == [
        {
            "type": "io.nats.micro.v1.info_response",
            **identity,
            "description": "from Python",
            "endpoints": [
                {"name": "add", "subject": "v1.add", "queue_group": "workers", "metadata": {"unit": "none"}},
                {"name": "refuse", "subject": "refuse", "queue_group": "", "metadata": {}},
                {"name": "fail", "subject": "fail", "queue_group": "q", "metadata": {}},
            ],
        }
    ]
    assert found["add"] == ["42", False, ["a", "b"]]
    assert found["refuse"] == [418, "teapot", "details"]
    assert found["fail"] == 500
    (stats,) = found["stats"]
    assert [(e["name"], e["num_requests"], e["num_errors"], e["data"]) for e in stats["endpoints"]] == [
        ("add", 1, 0, {"of": "add"}),
        ("refuse", 1, 1, {"of": "refuse"}),
        ("fail", 1, 1, {"of": "fail"}),
    ]
    assert stats["endpoints"][2]["last_error"] == "500:ValueError: secret of the house"
    assert all(isinstance(e["processing_time"], int) for e in stats["endpoints"])


async def test_our_client_uses_nats_js_service(nats_server: Server, nats_client: Client, node: Node) -> None:
    nc = nats_client
    async with node.running("service.cjs", nats_server.url) as program:
        theirs = cast("dict[str, Any]", await program.line())
        (info,) = [info async for info in nc.discover_services("js", theirs["id"], timeout=30)]
        assert (info.name, info.id, info.version) == ("js", theirs["id"], "1.2.3")
        assert (info.description, info.metadata) == ("from JavaScript", {"language": "javascript"})
        assert [(e.name, e.subject, e.queue_group, e.metadata) for e in info.endpoints] == [
            ("add", "v1.add", "workers", {"unit": "none"}),
            ("refuse", "refuse", "q", {}),
            ("fail", "fail", "q", {}),
            ("every", "every", "q", {}),
        ]
        assert [ping.id async for ping in nc.ping_services(timeout=30)] == [theirs["id"]]
        assert [ping.id async for ping in nc.ping_services("js", timeout=30)] == [theirs["id"]]
        reply = await nc.call("v1.add", b"40 2", timeout=5)
        assert (reply.data, reply.headers.get_all("Tag")) == (b"42", ["a", "b"])
        with pytest.raises(ServiceError, match="teapot") as raised:
            await nc.call("refuse", timeout=5)
        assert raised.value.code == 418
        assert error_of(await nc.request("refuse", timeout=5)) is not None
        with pytest.raises(ServiceError, match="secret of the house"):
            await nc.call("fail", timeout=5)
        (stats,) = [stats async for stats in nc.service_stats("js", timeout=30)]
        assert abs(stats.started - datetime.now(UTC)) < timedelta(minutes=1)
        assert [(e.name, e.num_requests, e.data) for e in stats.endpoints] == [
            ("add", 1, {"of": "add"}),
            ("refuse", 2, {"of": "refuse"}),
            ("fail", 1, {"of": "fail"}),
            ("every", 0, {"of": "every"}),
        ]
        assert "secret of the house" in stats.endpoints[2].last_error
        assert 0 <= stats.endpoints[0].processing_time < 5


async def test_instances_of_both_share_the_work(nats_server: Server, nats_client: Client, node: Node) -> None:
    async with node.running("service.cjs", nats_server.url) as program:
        await program.line()
        service = await nats_client.add_service("js", "2.0.0")
        group = service.group("v1", queue_group="workers")
        mine = group.add_endpoint("add", lambda request: request.respond(b"42"))
        service.add_endpoint("every", lambda request: request.respond(b"py"), queue_group=None)
        await nats_client.flush()
        for _ in range(100):
            assert (await nats_client.call("v1.add", b"40 2", timeout=5)).data == b"42"
        assert 0 < mine.stats().num_requests < 100
        both = [reply.data async for reply in nats_client.request_many("every", timeout=5, max_messages=2)]
        assert sorted(both) == [b"js", b"py"]
        counted = [stats async for stats in nats_client.service_stats("js", timeout=30, stall=5)]
        assert sum(stats.endpoints[0].num_requests for stats in counted) == 100
