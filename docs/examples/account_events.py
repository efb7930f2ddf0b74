"""Connects, disconnects and rejected clients: events for the system account.

Run it with ``python docs/examples/account_events.py`` where ``natsproto[server]`` is installed.
"""

import asyncio
from typing import TypeVar

import natsproto
from natsproto.account_events import AccountEvents, AuthenticationFailed, ClientConnected, ClientDisconnected
from natsproto.errors import LoginRefused
from natsproto.jetstream.advisories import ClientInfo
from natsproto.testing import run_server

Event = TypeVar("Event", bound=ClientConnected)
CONFIG = """
system_account: SYS
accounts {
  SYS { users: [ { user: admin, password: x } ] }
  SHOP { users: [ { user: ana, password: x } ] }
}
"""


async def main() -> None:
    """One client with valid credentials, and one without."""
    async with (
        run_server(config=CONFIG) as server,
        natsproto.connect(server.url, user="admin", password="x") as admin,
        admin.system().events() as events,
    ):
        async with natsproto.connect(server.url, user="ana", password="x"):
            _, client = await find(events, ClientConnected, "ana")
            print(f"ana of account {client.account} came")
        left, _ = await find(events, ClientDisconnected, "ana")
        print(f"ana left: {left.reason}")
        try:
            await natsproto.connect(server.url, user="eve", password="x")
        except LoginRefused:
            await find(events, AuthenticationFailed, "eve")
            print("eve was refused")


async def find(events: AccountEvents, kind: type[Event], user: str) -> tuple[Event, ClientInfo]:
    """Return the next event of a type for a user; others, such as those of admin's own connection, are skipped."""
    while True:
        event = await events.next(timeout=20)
        if isinstance(event, kind) and event.client is not None and event.client.user == user:
            return event, event.client


if __name__ == "__main__":
    asyncio.run(main())

# prints: ana of account SHOP came
# prints: ana left: Client Closed
# prints: eve was refused
