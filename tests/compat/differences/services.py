"""Differences of services, and of the login."""

from __future__ import annotations

import importlib
import json
from typing import Any

from natsproto.testing import Server, run_server
from tests.compat.differences import shows
from tests.compat.scenarios import CallbackLog, raised


async def service_of(package: Any, nc: Any, handler: Any = None) -> Any:
    """A service svc with the endpoint e."""

    async def echo(request: Any) -> None:
        await request.respond(request.data)

    micro = importlib.import_module(f"{package.__name__}.micro")
    service = await micro.add_service(nc, name="svc", version="1.0.0")
    await service.add_endpoint(name="e", handler=handler or echo)
    return service


async def fail(request: Any) -> None:
    raise ValueError("no")


@shows("An exception in a handler of a service", theirs=[], ours=["ValueError"])
async def handler_raises(package: Any, server: Server) -> list[str]:
    """What ``error_cb`` is called with."""
    log = CallbackLog()
    async with await package.connect(server.url, **log.callbacks()) as nc:
        await service_of(package, nc, fail)
        await nc.request("e", timeout=5)
    return [type(error).__name__ for error in log.errors]


@shows("`last_error` of an endpoint whose handler raised", theirs="ValueError('no')", ours="500:ValueError('no')")
async def last_error(package: Any, server: Server) -> str:
    async with await package.connect(server.url) as nc:
        service = await service_of(package, nc, fail)
        await nc.request("e", timeout=5)
        return str(service.stats().endpoints[0].last_error)


@shows("Endpoints of a service that was stopped", theirs=(0, ""), ours=(1, "ConfigError"))
async def stopped(package: Any, server: Server) -> tuple[int, str]:
    """How many there are, and what adding one raises."""
    async with await package.connect(server.url) as nc:
        service = await service_of(package, nc)
        await service.stop()
        return len(service.stats().endpoints), await raised(service.add_endpoint(name="f", handler=fail))


@shows("`INFO` of a service without description or metadata", theirs=(None, None), ours=("", {}))
async def info(package: Any, server: Server) -> tuple[Any, Any]:
    """The description of the service and the metadata of its endpoint."""
    async with await package.connect(server.url) as nc:
        await service_of(package, nc)
        reply = json.loads((await nc.request("$SRV.INFO.svc", timeout=5)).data)
        return reply["description"], reply["endpoints"][0]["metadata"]


@shows("`reset()` of a service", theirs=1, ours=0)
async def reset(package: Any, server: Server) -> int:
    """The requests that it counts after one and a reset."""
    async with await package.connect(server.url) as nc:
        service = await service_of(package, nc)
        await nc.request("e", timeout=5)
        await service.reset()
        return int(service.stats().endpoints[0].num_requests)


@shows("`stop()` of a service after `close()`", theirs="ConnectionClosedError", ours="")
async def stop_after_close(package: Any, server: Server) -> str:
    nc = await package.connect(server.url)
    service = await service_of(package, nc)
    await nc.close()
    return await raised(service.stop())


@shows("ServiceError with a code that is not a number", theirs="CONFLICT", ours="500")
async def error_code(package: Any, server: Server) -> str:
    """The code that the requester gets."""
    micro = importlib.import_module(f"{package.__name__}.micro.request")

    async def refuse(request: Any) -> None:
        raise micro.ServiceError("CONFLICT", "no")

    async with await package.connect(server.url) as nc:
        await service_of(package, nc, refuse)
        return str((await nc.request("e", timeout=5)).headers["Nats-Service-Error-Code"])


@shows("signature_cb without user_jwt_cb", theirs="", ours="NotImplementedError")
async def signature_alone(package: Any, server: Server) -> str:
    async with run_server() as other:
        nc = package.NATS()
        error = await raised(nc.connect(other.url, signature_cb=lambda nonce: b""))
        await nc.close()
    return error
