"""A service with groups and metadata."""

import asyncio

import natsproto
from natsproto.service import Request
from natsproto.testing import run_server


async def main() -> None:
    async with run_server() as server, natsproto.connect(server.url) as nc:
        async with nc.add_service("numbers", "1.0.0", description="small and large") as service:
            versions = service.group("v1")

            @versions.endpoint("max", metadata={"takes": "numbers"})
            async def largest(request: Request) -> None:
                await request.respond(b"%d" % max(map(int, request.data.split())))

            print((await nc.call("v1.max", b"3 9 4", timeout=5)).data)
            print([endpoint.subject for endpoint in service.info().endpoints])


asyncio.run(main())

# origin: NATS docs, Services framework
# about: A `Group` is a prefix for subjects of endpoints, here `v1`; `nc.call` sends the request and raises the errors
# about: of the service.
# prints: b'9'
# prints: ['v1.max']
