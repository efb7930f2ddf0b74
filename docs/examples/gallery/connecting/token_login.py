"""Log in with a token."""

import asyncio

import natsproto
from natsproto.testing import run_server


async def main() -> None:
    async with run_server(token="s3cret") as server, natsproto.connect(server.url, token="s3cret") as nc:
        await nc.flush()
        print("logged in:", nc.is_connected)


asyncio.run(main())

# origin: NATS docs, Authenticating with a token
# about: The server accepts clients with its token; `Options` has the other ways to log in.
# prints: logged in: True
