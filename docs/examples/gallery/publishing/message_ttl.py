"""A message that expires."""

import asyncio

import natsproto.jetstream
from natsproto.testing import run_server


async def main() -> None:
    async with run_server(jetstream=True) as server, natsproto.connect(server.url) as nc:
        js = nc.jetstream()
        stream = await js.create_stream("SESSIONS", subjects=["sessions.*"], allow_msg_ttl=True)
        await js.publish("sessions.ann", b"here", ttl=3600)  # seconds, at least one
        print((await stream.get_message(1)).headers["Nats-TTL"])


asyncio.run(main())

# origin: NATS docs, Per-message TTL (2.11)
# about: `ttl=` of `js.publish` is the lifetime of this message in seconds; the stream must have `allow_msg_ttl`.
# prints: 3600
