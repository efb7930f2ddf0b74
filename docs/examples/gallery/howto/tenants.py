"""Multi-tenant accounts: each tenant has subjects, streams and buckets of its own, and a shared service."""

import asyncio
from contextlib import AsyncExitStack

import natsproto.jetstream
from natsproto.testing import run_server

CONFIG = """
accounts {
    ANN { users: [{user: ann, password: a}], jetstream: enabled, imports: [{service: {account: ALL, subject: "time"}}] }
    BOB { users: [{user: bob, password: b}], jetstream: enabled, imports: [{service: {account: ALL, subject: "time"}}] }
    ALL { users: [{user: shared, password: s}], exports: [{service: "time"}] }
}
"""


async def main() -> None:
    async with run_server(jetstream=True, config=CONFIG) as server, AsyncExitStack() as stack:
        users = (("ann", "a"), ("bob", "b"), ("shared", "s"))
        clients = (natsproto.connect(server.url, user=user, password=password) for user, password in users)
        ann, bob, shared = [await stack.enter_async_context(client) for client in clients]

        async def tell_time(request: natsproto.Message) -> None:
            await request.respond(b"noon")

        for tenant in (ann, bob):  # the same names, and nothing in common
            await tenant.jetstream().create_key_value("settings")
        await (await ann.jetstream().key_value("settings")).put("colour", b"red")
        keys = [key async for key in (await bob.jetstream().key_value("settings")).keys()]
        print("bob sees", keys)

        async with shared.subscribe("time", cb=tell_time):
            await shared.flush()
            print("ann and bob are told", {(await tenant.request("time", timeout=5)).data for tenant in (ann, bob)})


asyncio.run(main())

# origin: how-to guide
# about: Each `Client` logs in to the account of its tenant: buckets of the same name have nothing in common, and only
# about: the exported service is shared.
# prints: bob sees []
# prints: ann and bob are told {b'noon'}
