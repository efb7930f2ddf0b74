"""Publish only if the stream has not changed."""

import asyncio

import natsproto.jetstream
from natsproto.errors import WrongLastSequence
from natsproto.testing import run_server


async def main() -> None:
    async with run_server(jetstream=True) as server, natsproto.connect(server.url) as nc:
        js = nc.jetstream()
        await js.create_stream("ACCOUNTS", subjects=["accounts.*"])
        first = await js.publish("accounts.ann", b"100", expected_last_subject_seq=0)
        await js.publish("accounts.ann", b"90", expected_last_subject_seq=first.seq)
        try:
            await js.publish("accounts.ann", b"80", expected_last_subject_seq=first.seq)
        except WrongLastSequence as error:
            print("somebody was faster:", type(error).__name__)


asyncio.run(main())

# origin: NATS docs, Optimistic concurrency: expected last sequence; nats.go JetStream guide, Publish options
# about: The stream stores the message only if the last one of its subject has the expected number. Otherwise
# about: `js.publish` raises `WrongLastSequence`.
# prints: somebody was faster: WrongLastSequence
