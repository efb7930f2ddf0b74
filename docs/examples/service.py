"""A service with two instances, and their discovery and statistics; on a nats-server started here.

Run it with ``python docs/examples/service.py`` where ``natsproto[server]`` is installed.
"""

import asyncio

import natsproto
from natsproto.errors import ServiceError
from natsproto.service import Request, Service
from natsproto.testing import run_server

PRICES = {"tulips": 2, "roses": 5}


async def florist(nc: natsproto.Client) -> Service:
    """One instance, which gets a share of the requests."""
    service = await nc.add_service("florist", "1.0.0", description="flowers and their prices")
    orders = service.group("orders")

    @service.endpoint("price", metadata={"unit": "euro"})
    async def price(request: Request) -> None:
        flower = request.data.decode()
        if flower not in PRICES:
            raise ServiceError(404, f"we have no {flower}")
        await request.respond(b"%d" % PRICES[flower])

    @orders.endpoint("place", concurrency=1)
    async def place(request: Request) -> None:
        await request.respond(b"on its way")

    return service


async def main() -> None:
    """Run two instances, send requests, discover them, and stop one."""
    async with run_server() as server, natsproto.connect(server.url) as ana, natsproto.connect(server.url) as ben:
        first = await florist(ana)
        await florist(ben)
        await asyncio.gather(ana.flush(), ben.flush())

        reply = await ana.call("price", b"roses", timeout=2)
        print(f"a rose costs {reply.data.decode()} euros")
        try:
            await ana.call("price", b"orchids", timeout=2)
        except ServiceError as error:
            print(f"refused: {error}")
        for _ in range(20):
            await ana.call("orders.place", b"3 roses", timeout=2)

        instances = [info async for info in ana.discover_services("florist")]
        subjects = ", ".join(endpoint.subject for endpoint in instances[0].endpoints)
        print(f"{len(instances)} instances of {instances[0].name} {instances[0].version}: {subjects}")
        requests = errors = 0
        async for stats in ana.service_stats("florist"):
            requests += sum(endpoint.num_requests for endpoint in stats.endpoints)
            errors += sum(endpoint.num_errors for endpoint in stats.endpoints)
        print(f"{requests} requests, {errors} of them refused")

        await first.stop()
        left = [ping async for ping in ana.ping_services("florist")]
        print(f"{len(left)} instance goes on alone")


if __name__ == "__main__":
    asyncio.run(main())

# prints: a rose costs 5 euros
# prints: refused: we have no orchids (code 404)
# prints: 2 instances of florist 1.0.0: price, orders.place
# prints: 22 requests, 1 of them refused
# prints: 1 instance goes on alone
