"""Who connects, who leaves, and who is refused: what servers tell the system account.

Run it with ``python docs/examples/account_events.py`` where ``natsproto[server]`` is installed.
"""

import asyncio

import natsproto
from natsproto.account_events import AuthenticationFailed, ClientConnected, ClientDisconnected
from natsproto.errors import LoginRefused
from natsproto.testing import run_server

CONFIG = """
system_account: SYS
accounts {
  SYS { users: [ { user: admin, password: x } ] }
  SHOP { users: [ { user: ana, password: x } ] }
}
"""


async def main() -> None:
    """One who may, and one who may not."""
    async with (
        run_server(config=CONFIG) as server,
        natsproto.connect(server.url, user="admin", password="x") as admin,
        admin.system().events() as events,
    ):
        async with natsproto.connect(server.url, user="ana", password="x"):
            pass
        try:
            await natsproto.connect(server.url, user="eve", password="x")
        except LoginRefused:
            pass
        seen = 0
        while seen < 3:
            event = await events.next(timeout=20)
            if isinstance(event, ClientConnected) and event.client is not None and event.client.user != "admin":
                seen += 1
                if isinstance(event, AuthenticationFailed):
                    print(f"{event.client.user} was refused")
                elif isinstance(event, ClientDisconnected):
                    print(f"{event.client.user} left: {event.reason}")
                else:
                    print(f"{event.client.user} of account {event.client.account} came")


if __name__ == "__main__":
    asyncio.run(main())

# prints: ana of account SHOP came
# prints: ana left: Client Closed
# prints: eve was refused
