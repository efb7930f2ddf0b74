"""Transform the subjects of stored messages, and republish them."""

import asyncio

import natsproto
from natsproto.jetstream import Republish, SubjectTransform
from natsproto.testing import run_server


async def main() -> None:
    async with run_server(jetstream=True) as server, natsproto.connect(server.url) as nc:
        js = nc.jetstream()
        await js.create_stream(
            "ORDERS",
            subjects=["orders.*.*"],
            subject_transform=SubjectTransform(src="orders.*.*", dest="orders.{{wildcard(2)}}.{{wildcard(1)}}"),
            republish=Republish(src="orders.>", dest="stored.>"),
        )
        async with nc.subscribe("stored.>") as stored:
            await js.publish("orders.eu.ann", b"tulips")
            message = await stored.next(timeout=5)
            print(message.subject, message.headers["Nats-Sequence"])


asyncio.run(main())

# origin: NATS docs, Subject transforms; Republish
# about: A `SubjectTransform` changes the subjects under which messages are stored. `Republish` sends each stored
# about: message to subscribers, too.
# prints: stored.ann.eu 1
