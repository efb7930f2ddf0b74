"""A program for nats-py with one line changed: ``python docs/examples/compat_program.py``."""

import asyncio
from functools import partial

import natsproto.compat.nats as nats  # was: import nats
from natsproto.compat.nats.aio.msg import Msg
from natsproto.compat.nats.js import JetStreamContext
from natsproto.compat.nats.js.api import RetentionPolicy, StorageType, StreamConfig
from natsproto.testing import run_server


async def pubsub(js: JetStreamContext) -> None:
    """A push subscription whose callback acknowledges."""
    done = asyncio.Event()

    async def handler(msg: Msg) -> None:
        print(f"received {msg.data.decode()} on {msg.subject}")
        await msg.ack()
        if msg.data == b"message 3":
            done.set()

    await js.subscribe("my.subject.*", cb=handler)
    for number in range(1, 4):
        await js.publish("my.subject.test", f"message {number}".encode())
    await done.wait()


async def request_reply(nc: nats.NATS, js: JetStreamContext) -> None:
    """Through a stream, with the reply subject in a header."""
    answers: asyncio.Queue[str] = asyncio.Queue()

    async def collect(msg: Msg, answers: asyncio.Queue[str]) -> None:
        await answers.put(msg.data.decode())

    async def reply(msg: Msg, name: str) -> None:
        assert msg.header is not None
        await nc.publish(msg.header["reply-to"], f"{name}: {msg.data.decode().upper()}".encode())
        await msg.ack()

    inbox = nc.new_inbox()
    await nc.subscribe(inbox, cb=partial(collect, answers=answers))
    await js.subscribe("my.requests", durable="replier", cb=partial(reply, name="replier"), manual_ack=True)
    await js.publish("my.requests", b"hello", headers={"reply-to": inbox})
    print(await answers.get())


async def queue_group(js: JetStreamContext) -> None:
    """Two workers share the messages."""
    seen: list[str] = []
    done = asyncio.Event()

    async def work(msg: Msg, name: str) -> None:
        seen.append(msg.data.decode())
        await msg.ack()
        if len(seen) == 10:
            done.set()

    for name in ("first", "second"):
        await js.subscribe("my.tasks", queue="workers", cb=partial(work, name=name), manual_ack=True)
    for number in range(10):
        await js.publish("my.tasks", b"%d" % number)
    await done.wait()
    print(f"{len(seen)} tasks, none twice: {len(set(seen)) == 10}")


async def main() -> None:
    """Everything, on a server of its own."""
    with run_server(jetstream=True) as server:
        nc = await nats.connect(server.url)
        js = nc.jetstream()
        config = StreamConfig(
            name="example",
            subjects=["my.>"],
            retention=RetentionPolicy.LIMITS,
            storage=StorageType.FILE,
            max_age=3600,
            max_msgs=1000,
        )
        await js.add_stream(config=config)
        await pubsub(js)
        await request_reply(nc, js)
        await queue_group(js)
        try:
            await js.stream_info("missing")
        except nats.js.errors.NotFoundError as error:
            print(error)
        await nc.drain()


asyncio.run(main())
# prints: received message 1 on my.subject.test
# prints: received message 2 on my.subject.test
# prints: received message 3 on my.subject.test
# prints: replier: HELLO
# prints: 10 tasks, none twice: True
# prints: nats: NotFoundError: code=404 err_code=10059 description='stream not found'
