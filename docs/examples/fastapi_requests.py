"""FastAPI: a call asks a service and waits for its response, and a probe tells the health of the client.

Run it with ``python docs/examples/fastapi_requests.py`` where ``natsproto[server]``, ``fastapi`` and ``httpx2`` are
installed. The service runs beside the client here; it may as well be another program.
"""

# --8<-- [start:program]
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, HTTPException, Request
from fastapi.testclient import TestClient

import natsproto
from natsproto.errors import ConnectionLost, NoResponders, RequestTimeout, ServiceError
from natsproto.service import Request as ServiceRequest
from natsproto.testing import run_server

PRICES = {"rose": 3, "tulip": 1}


async def get_price(request: ServiceRequest) -> None:
    if request.text not in PRICES:
        raise ServiceError(404, f"we have no {request.text}")
    await request.respond(json.dumps({"flower": request.text, "price": PRICES[request.text]}).encode())


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[dict[str, natsproto.Client]]:
    async with (
        natsproto.connect(app.state.url, name="shop", drain_timeout=8) as nc,
        nc.add_service("prices", "1.0.0") as prices,
    ):
        prices.add_endpoint("get", get_price, subject="prices.get")
        yield {"nc": nc}  # becomes request.state


app = FastAPI(lifespan=lifespan)


@app.get("/price/{flower}")
async def price(flower: str, request: Request) -> object:
    try:
        return (await request.state.nc.call("prices.get", flower.encode(), timeout=2)).json()
    except ServiceError as error:
        raise HTTPException(error.code if 400 <= error.code < 600 else 502, str(error)) from error
    except (NoResponders, RequestTimeout, ConnectionLost) as error:
        raise HTTPException(503, str(error)) from error


@app.get("/ready")
async def ready(request: Request) -> str:
    if not (health := await request.state.nc.health(timeout=2)):
        raise HTTPException(503, health.problem)
    return "ready"


def main() -> None:
    """Ask as a browser and a probe would."""
    with run_server() as server:
        app.state.url = server.url
        with TestClient(app) as client:
            for path in ("/price/rose", "/price/cactus", "/ready"):
                response = client.get(path)
                print(response.status_code, response.text)


if __name__ == "__main__":
    main()
# --8<-- [end:program]

# prints: 200 {"flower":"rose","price":3}
# prints: 404 {"detail":"we have no cactus (code 404)"}
# prints: 200 "ready"
