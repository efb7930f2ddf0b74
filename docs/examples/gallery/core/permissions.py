"""Missing permissions raise errors."""

import asyncio

import natsproto
from natsproto.errors import PermissionDenied
from natsproto.testing import run_server

CONFIG = """
authorization { users: [
    {user: ann, password: a, permissions: {publish: ["orders.*"], subscribe: ["_INBOX.>"]}}
] }
"""


async def main() -> None:
    async with run_server(config=CONFIG) as server, natsproto.connect(server.url, user="ann", password="a") as nc:
        try:
            await nc.subscribe("secrets")
            await nc.request("secrets", timeout=5)
        except PermissionDenied as error:
            print("request denied:", error.subject)


asyncio.run(main())

# origin: NATS docs, Authorization
# about: The user may not use the subject. The server says so, and the call raises `PermissionDenied` with the subject
# about: instead of waiting for its timeout.
# prints: request denied: secrets
