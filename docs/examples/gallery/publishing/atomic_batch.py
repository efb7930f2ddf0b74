"""Store several messages together, or none."""

import asyncio

import natsproto.jetstream
from natsproto.testing import run_server


async def main() -> None:
    async with run_server(jetstream=True) as server, natsproto.connect(server.url) as nc:
        js = nc.jetstream()
        stream = await js.create_stream("BANK", subjects=["bank.*"], allow_atomic=True)
        async with js.atomic_batch() as batch:
            await batch.publish("bank.ann", b"-10")
            await batch.publish("bank.bob", b"+10")
        print(batch.ack.seq, "messages")
        try:
            async with js.atomic_batch() as batch:
                await batch.publish("bank.ann", b"-10")
                raise ValueError("bob has moved")
        except ValueError as error:
            print(error, "and", (await stream.info()).state.messages, "are stored")


asyncio.run(main())

# origin: NATS docs, Atomic batch publish (2.12)
# about: The messages of a `js.atomic_batch` are stored together when its block ends, and none of them if it ends with
# about: an exception.
# prints: 2 messages
# prints: bob has moved and 2 are stored
