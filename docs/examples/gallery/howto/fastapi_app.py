"""FastAPI: one client for the application, opened and drained by its lifespan."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import Depends, FastAPI, Request
from fastapi.testclient import TestClient

import natsproto
from natsproto.jetstream import JetStream
from natsproto.testing import run_server


async def jetstream(request: Request) -> JetStream:
    return request.state.js  # type: ignore[no-any-return]


def create_app(servers: str) -> FastAPI:
    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[dict[str, object]]:
        async with natsproto.connect(servers, name="shop", retry_connect_for=30) as nc:
            js = nc.jetstream()
            await js.create_stream("ORDERS", subjects=["orders.*"])
            yield {"js": js}  # becomes request.state

    app = FastAPI(lifespan=lifespan)

    @app.post("/orders/{region}")
    async def order(region: str, request: Request, js: Annotated[JetStream, Depends(jetstream)]) -> dict[str, int]:
        ack = await js.publish(f"orders.{region}", await request.body())
        return {"number": ack.seq}

    return app


with run_server(jetstream=True) as server, TestClient(create_app(server.url)) as client:
    print(client.post("/orders/eu", content=b"12 tulips").json())

# origin: how-to guide
# about: It needs `pip install fastapi httpx2`; httpx2 is for the client that tests it.
# prints: {'number': 1}
