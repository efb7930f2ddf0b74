"""Messages that others publish with odd headers are sent on as they came."""

import asyncio

from natsproto import Client, Message
from natsproto.jetstream import JetStream
from natsproto.testing import Server

BLOCK = b"NATS/1.0\r\nA: caf\xe9\r\nSp ace: 1\r\nPlain: 2\r\n\r\n"


async def received(nc: Client, server: Server) -> Message:
    async with nc.subscribe("in") as into:
        await nc.flush()
        _, writer = await asyncio.open_connection(server.host, server.port)
        writer.write(b'CONNECT {"verbose":false,"headers":true,"protocol":1}\r\n')
        writer.write(b"HPUB in %d %d\r\n%sx\r\n" % (len(BLOCK), len(BLOCK) + 1, BLOCK))
        message = await into.next(timeout=20)
        writer.close()
    return message


async def test_odd_headers_go_on_by_every_call(nats_client: Client, nats_server: Server, jetstream: JetStream) -> None:
    odd = (await received(nats_client, nats_server)).headers
    stream = await jetstream.create_stream("S", subjects=["s"], allow_atomic=True)

    async def echo(message: Message) -> None:
        await message.respond(b"", headers=message.headers)

    async with nats_client.subscribe("echo", cb=echo), nats_client.subscribe("out") as out:
        await nats_client.publish("out", b"", headers=odd)
        assert (await out.next(timeout=20)).headers == odd
        assert (await nats_client.request("echo", b"", headers=odd, timeout=20)).headers == odd
    await jetstream.publish("s", b"", headers=odd)
    await jetstream.publish("s", b"", headers=odd, msg_id="1")
    async with jetstream.publisher() as publisher:
        await publisher.publish("s", b"", headers=odd)
    async with jetstream.atomic_batch() as batch:
        await batch.publish("s", b"", headers=odd)
        await batch.commit()
    for seq in range(1, 5):
        stored = (await stream.get_message(seq)).headers
        assert {name: stored.get_all(name) for name in odd} == {name: odd.get_all(name) for name in odd}
