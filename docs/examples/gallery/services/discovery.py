"""Find services and read their statistics."""

import asyncio

import natsproto
from natsproto.testing import run_server


async def main() -> None:
    async with run_server() as server, natsproto.connect(server.url) as nc:
        async with nc.add_service("echo", "1.2.3") as service:
            service.add_endpoint("echo", lambda request: None)
            async for ping in nc.ping_services():
                print(ping.name, ping.version)
            async for info in nc.discover_services("echo"):
                print([endpoint.subject for endpoint in info.endpoints])
            async for stats in nc.service_stats("echo"):
                print(stats.endpoints[0].num_requests, "requests")


asyncio.run(main())

# origin: NATS docs, Services framework: discovery
# about: `nc.ping_services`, `nc.discover_services` and `nc.service_stats` ask all running services, whatever language
# about: they are written in.
# prints: echo 1.2.3
# prints: ['echo']
# prints: 0 requests
