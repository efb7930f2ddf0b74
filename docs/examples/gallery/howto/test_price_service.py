"""Testing your service: pytest with a real nats-server, and an outage in the middle."""

import natsproto
from natsproto.service import Request
from natsproto.testing import Server


async def run_prices(nc: natsproto.Client) -> None:  # your service
    service = await nc.add_service("prices", "1.0.0")

    @service.endpoint("price")
    async def price(request: Request) -> None:
        await request.respond(b"2.50")


async def test_price_of_a_tulip(nats_client: natsproto.Client) -> None:
    await run_prices(nats_client)
    assert (await nats_client.call("price", b"tulip", timeout=5)).data == b"2.50"


async def test_service_survives_a_crash(nats_server: Server, nats_client: natsproto.Client) -> None:
    await run_prices(nats_client)
    await nats_client.flush()
    events = nats_client.events()
    nats_server.kill()
    await nats_server.restart()
    async for event in events:
        if isinstance(event, natsproto.Reconnected):
            break
    assert (await nats_client.call("price", b"tulip", timeout=5)).data == b"2.50"


# origin: how-to guide
# about: It needs `pip install pytest pytest-asyncio`, and runs with `pytest -o asyncio_mode=auto
# about: test_price_service.py`.
# prints: ...
# prints: 2 passed in ...
