"""The auth callout: a program decides who may connect, and with which permissions.

Run it with ``python docs/examples/auth_callout.py`` where ``natsproto[server,nkeys]`` is installed.
"""

import asyncio

import natsproto
from natsproto.auth import AuthCallout, AuthRequest, KeyPair, Permission, Refused, UserClaims, XKey
from natsproto.errors import LoginRefused
from natsproto.testing import run_server

PASSWORDS = {"ana": "tulips", "ben": "roses"}

CONFIG = """
accounts {{ AUTH {{ users: [ {{ user: auth, password: secret }} ] }}, SHOP {{}} }}
authorization {{
  timeout: 10
  auth_callout {{ issuer: {issuer}, account: AUTH, auth_users: [ auth ], xkey: {xkey} }}
}}
"""


async def decide(request: AuthRequest) -> UserClaims | Refused:
    """Decide with a table; a real program would query a directory here."""
    user = request.connect.user
    if PASSWORDS.get(user) != request.connect.password:
        return Refused(reason=f"{user} is unknown, or gave a wrong password")
    return UserClaims(
        name=user,
        account="SHOP",
        publish=Permission(allow=["orders.>"]),
        subscribe=Permission(allow=["orders.>", "_INBOX.>"]),
        expires_in=3600,
    )


async def main() -> None:
    """Start the server and the callout, and connect with and without permission."""
    issuer, xkey = KeyPair.generate("account"), XKey.generate()
    config = CONFIG.format(issuer=issuer.public_key, xkey=xkey.public_key)
    async with (
        run_server(config=config) as server,
        natsproto.connect(server.url, user="auth", password="secret") as auth,
        await AuthCallout(decide, issuer=issuer, xkey=xkey).start(auth) as service,
    ):
        await auth.flush()
        async with natsproto.connect(server.url, user="ana", password="tulips") as nc:
            orders = await nc.subscribe("orders.>")
            await nc.publish("orders.new", b"3 tulips")
            message = await orders.next(timeout=10)
            print(f"ana is in, and reads: {message.data.decode()}")
        try:
            await natsproto.connect(server.url, user="ben", password="daisies")
        except LoginRefused:
            print("ben is refused")
        print(f"{service.stats().endpoints[0].num_requests} questions answered")


if __name__ == "__main__":
    asyncio.run(main())

# prints: ana is in, and reads: 3 tulips
# prints: ben is refused
# prints: 2 questions answered
