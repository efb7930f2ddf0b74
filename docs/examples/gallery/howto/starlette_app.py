"""Starlette: one client for the application, and a probe for its health."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.testclient import TestClient

import natsproto
from natsproto.testing import run_server


async def ready(request: Request) -> JSONResponse:
    nc: natsproto.Client = request.state.nc
    health = await nc.health(timeout=2)
    return JSONResponse({"ready": health.ok, "problem": health.problem}, 200 if health.ok else 503)


def create_app(servers: str) -> Starlette:
    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[dict[str, natsproto.Client]]:
        async with natsproto.connect(servers, name="shop") as nc:
            yield {"nc": nc}

    return Starlette(lifespan=lifespan, routes=[Route("/ready", ready)])


with run_server() as server, TestClient(create_app(server.url)) as client:
    print(client.get("/ready").json()["ready"])

# origin: how-to guide
# about: It needs `pip install starlette httpx2`; httpx2 is for the client that tests it.
# prints: True
