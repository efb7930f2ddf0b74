"""Log in with user and password."""

import asyncio

import natsproto
from natsproto.errors import LoginRefused
from natsproto.testing import run_server


async def main() -> None:
    async with run_server(user="ann", password="tulips") as server:
        async with natsproto.connect(server.url, user="ann", password="tulips") as nc:
            print("logged in:", nc.is_connected)
        try:
            async with natsproto.connect(server.url, user="ann", password="roses"):
                pass
        except LoginRefused as error:
            print("refused:", error.reason)


asyncio.run(main())

# origin: NATS docs, Authenticating with a user and password
# about: The right password connects. A wrong one raises `LoginRefused` with the reason of the server.
# prints: logged in: True
# prints: refused: Authorization Violation
