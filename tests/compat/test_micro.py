"""Services of nats-py on natsproto."""

from __future__ import annotations

import json

import pytest

from natsproto.compat import nats
from natsproto.compat.nats import micro
from natsproto.compat.nats.micro.request import ServiceError
from natsproto.compat.nats.micro.service import (
    EndpointConfig,
    EndpointStats,
    ServiceInfo,
    ServicePing,
    ServiceStats,
    ServiceVerb,
    control_subject,
)


async def test_service_answers_and_counts(nc: nats.NATS) -> None:
    def extra(stats: EndpointStats) -> dict[str, int]:
        return {"asked": stats.num_requests}

    async def add(request: micro.Request) -> None:
        if not request.data:
            raise ServiceError("400", "numbers, please")
        await request.respond(str(sum(map(int, request.data.split()))).encode(), headers={"K": "v"})

    service = await micro.add_service(nc, name="calc", version="1.0.0", metadata={"a": "b"}, stats_handler=extra)
    async with service:
        group = service.add_group(name="v1").add_group(name="x")
        await group.add_endpoint(name="add", handler=add, metadata={"m": "n"})
        answer = await nc.request("v1.x.add", b"1 2")
        assert (answer.data, answer.headers) == (b"3", {"K": "v"})
        refused = (await nc.request("v1.x.add")).headers
        assert refused == {"Nats-Service-Error": "numbers, please", "Nats-Service-Error-Code": "400"}
        reported = {verb: json.loads((await nc.request(control_subject(verb, "calc"))).data) for verb in ServiceVerb}
        assert ServicePing.from_dict(reported[ServiceVerb.PING]).id == service.id
        assert ServiceInfo.from_dict(reported[ServiceVerb.INFO]) == service.info()
        [stats] = service.stats().endpoints
        assert (stats.num_requests, stats.num_errors, stats.data) == (2, 1, {"asked": 2})
        assert ServiceStats.from_dict(reported[ServiceVerb.STATS]).endpoints[0].num_requests == 2
    assert service.stopped.is_set()
    with pytest.raises(nats.errors.NoRespondersError):
        await nc.request("v1.x.add", b"1 2")


@pytest.mark.parametrize("name", ["", "a b"])
async def test_name_of_a_service_is_checked(name: str) -> None:
    with pytest.raises(ValueError, match="ame"):
        micro.ServiceConfig(name=name, version="1.0.0")
    with pytest.raises(ValueError, match="ersion"):
        micro.ServiceConfig(name="a", version="one")
    with pytest.raises(ValueError, match="subject"):
        EndpointConfig(name="a", handler=print, subject="a b")
