"""Reply subjects by hand: publish with an inbox, read the replies."""

import asyncio

import natsproto
from natsproto.testing import run_server


async def main() -> None:
    async with run_server() as server, natsproto.connect(server.url) as nc:
        inbox = nc.new_inbox()
        async with nc.subscribe(inbox) as answers, nc.subscribe("time") as questions:
            await nc.publish("time", b"what time is it?", reply=inbox)
            question = await questions.next(timeout=5)
            await nc.publish(question.reply or "", b"noon")  # the same as question.respond(b"noon")
            print((await answers.next(timeout=5)).data)


asyncio.run(main())

# origin: NATS docs, Replying to a message; Publish with a reply subject
# about: What `nc.request` does, step by step: `nc.new_inbox` makes a subject for the reply, and `nc.publish` sends it
# about: along with the question.
# prints: b'noon'
