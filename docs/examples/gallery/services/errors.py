"""Errors of a service: refused by it, and failed in it."""

import asyncio

import natsproto
from natsproto.errors import ServiceError
from natsproto.service import Request
from natsproto.testing import run_server


async def main() -> None:
    async with run_server() as server, natsproto.connect(server.url) as nc:
        async with nc.add_service("divide", "1.0.0") as service:

            @service.endpoint("divide")
            async def divide(request: Request) -> None:
                a, b = map(int, request.data.split())
                if b == 0:
                    raise ServiceError(400, "not by zero")
                await request.respond(b"%d" % (a // b))

            for numbers in (b"9 3", b"9 0", b"nine"):
                try:
                    print((await nc.call("divide", numbers, timeout=5)).data)
                except ServiceError as error:
                    print(error.code, error.description.partition(":")[0])


asyncio.run(main())

# origin: NATS docs, Services framework: error handling
# about: A handler that raises `ServiceError` chooses code and description. Any other exception reaches the caller of
# about: `nc.call` as an error 500.
# prints: b'3'
# prints: 400 not by zero
# prints: 500 ValueError
