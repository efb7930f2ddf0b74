"""FastAPI: a call asks a service and waits for its response, and a probe tells the health of the client."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, HTTPException, Request
from fastapi.testclient import TestClient

import natsproto
from natsproto.errors import ConnectionLost, NoResponders, RequestTimeout, ServiceError
from natsproto.testing import run_server


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[dict[str, natsproto.Client]]:
    async with natsproto.connect(app.state.server.url, name="shop") as nc:
        yield {"nc": nc}  # becomes request.state


app = FastAPI(lifespan=lifespan)


@app.get("/price/{flower}")
async def price(flower: str, request: Request) -> object:
    try:
        return (await request.state.nc.call("prices.get", flower.encode(), timeout=2)).json()
    except (ServiceError, NoResponders, RequestTimeout, ConnectionLost) as error:
        raise HTTPException(getattr(error, "code", 503), str(error)) from error  # 503 or the service's


@app.get("/ready")
async def ready(request: Request) -> str:
    if not (health := await request.state.nc.health(timeout=2)):
        raise HTTPException(503, health.problem)
    return "ready"


with run_server() as app.state.server, TestClient(app) as client:
    print(client.get("/ready").json(), client.get("/price/rose").status_code)

# origin: how-to guide
# about: It needs `pip install fastapi httpx2`; httpx2 is for the client that tests it.
# prints: ready 503
