"""Listen to the server's advisories: a message that failed too often."""

import asyncio

import natsproto
from natsproto.jetstream import JsMessage
from natsproto.jetstream.advisories import MaxDeliveries
from natsproto.testing import run_server


async def main() -> None:
    async with run_server(jetstream=True) as server, natsproto.connect(server.url) as nc:
        js = nc.jetstream()
        stream = await js.create_stream("JOBS", subjects=["jobs"])
        consumer = await stream.create_consumer("workers", max_deliver=2)
        async with js.advisories() as advisories, consumer.consume(reject):
            await js.publish("jobs", b"poison")
            async for advisory in advisories:
                if isinstance(advisory, MaxDeliveries):
                    print(advisory.stream_seq, "was delivered", advisory.deliveries, "times")
                    break


async def reject(message: JsMessage) -> None:
    await message.nak()


asyncio.run(main())

# origin: NATS docs, Monitoring JetStream: advisories
# about: The message is refused until `max_deliver` is reached. `js.advisories` then yields the server's
# about: `MaxDeliveries`.
# prints: 1 was delivered 2 times
