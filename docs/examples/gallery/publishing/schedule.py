"""Publish later: a delayed message."""

import asyncio

import natsproto
from natsproto.jetstream import Schedule
from natsproto.testing import run_server


async def main() -> None:
    async with run_server(jetstream=True) as server, natsproto.connect(server.url) as nc:
        js = nc.jetstream()
        stream = await js.create_stream("MAIL", subjects=["mail.*", "later.*"], allow_msg_schedules=True)
        await js.publish("later.ann", b"reminder", schedule=Schedule.after(1), schedule_target="mail.ann")
        consumer = await stream.create_consumer("postman", filter_subject="mail.*")
        print((await consumer.next(timeout=30)).data)


asyncio.run(main())

# origin: NATS docs, Message scheduling (2.12)
# about: The stream keeps the message, and publishes it to `schedule_target` when its `Schedule` says so: here after a
# about: second.
# prints: b'reminder'
