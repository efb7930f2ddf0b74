"""Every way to publish to a stream, on a real nats-server started here.

Run it with ``python docs/examples/publishing.py`` where ``natsproto[server]`` is installed.
"""

import asyncio

import natsproto
from natsproto.errors import NoStream, PublishFailed, WrongLastSequence
from natsproto.jetstream import JetStream, Schedule
from natsproto.testing import run_server


async def main() -> None:
    """Every way in turn, over one connection."""
    async with run_server(jetstream=True) as server, natsproto.connect(server.url) as nc:
        js = nc.jetstream()
        await js.create_stream(
            "SHOP",
            subjects=["orders.>", "later.>"],
            storage="memory",
            allow_atomic=True,
            allow_batched=True,
            allow_msg_schedules=True,
        )
        await js.create_stream("HITS", subjects=["hits.>"], storage="memory", allow_msg_counter=True, allow_direct=True)
        await one_message(js)
        await a_window(js)
        await fast_ingest(js)
        await all_or_nothing(js)
        await counters(js)
        await schedules(js)


async def one_message(js: JetStream) -> None:
    """The acknowledgement has the sequence of the message; with an id it is stored only once."""
    ack = await js.publish("orders.eu", b"12 tulips", msg_id="order-1")
    again = await js.publish("orders.eu", b"12 tulips", msg_id="order-1")
    print(f"1. stored in {ack.stream} as number {ack.seq}; published again: a duplicate of {again.seq}")
    try:
        await js.publish("orders.eu", b"3 roses", expected_last_seq=0)
    except WrongLastSequence as error:
        print(f"   refused, as the last one is {error.last}")
    try:
        await js.publish("invoices.eu", b"12 euros", retry_wait=0.01)
    except NoStream as error:
        print(f"   {error}")


async def a_window(js: JetStream) -> None:
    """A thousand messages in flight; failures are reported together."""
    async with js.publisher(max_pending=1000, auto_msg_id=True) as pub:
        for number in range(10_000):
            await pub.publish("orders.eu", b"%d" % number)
    print(f"2. {pub.acknowledged} messages acknowledged one by one, none of them waited for")
    try:
        async with js.publisher() as pub:
            await pub.publish("orders.eu", b"fine")
            await pub.publish("orders.eu", b"too late", expected_last_seq=7)
    except PublishFailed as failed:
        print(f"   {len(failed.failures)} of {pub.published} failed: message {failed.failures[0].number}")


async def fast_ingest(js: JetStream) -> None:
    """Hundreds of messages for one acknowledgement, in a stream with ``allow_batched``."""
    async with js.fast_publisher() as pub:
        for number in range(10_000):
            await pub.publish("orders.eu", b"%d" % number)
    print(f"3. {pub.published} messages stored, acknowledged by the hundred")


async def all_or_nothing(js: JetStream) -> None:
    """Messages that are stored together."""
    async with js.atomic_batch() as batch:
        await batch.publish("orders.eu", b"12 tulips")
        await batch.publish("orders.us", b"a vase for them")
    print(f"4. {batch.ack.count} messages stored together")


async def counters(js: JetStream) -> None:
    """Numbers that add up, of any size."""
    await js.counter_add("hits.home", 1)
    await js.counter_add("hits.home", 10**20)
    print(f"5. the counter stands at {(await js.counter_get('hits.home')).value:,}")


async def schedules(js: JetStream) -> None:
    """Messages that are published later."""
    stream = await js.stream("SHOP")
    consumer = await stream.create_consumer(filter_subjects=["orders.later"], ack_policy="none")
    await js.publish("later.1", b"the tulips, now", schedule=Schedule.after(0.2, target="orders.later"))
    message = await consumer.next(timeout=10)
    print(f"6. a little later: {message.data.decode()}")


if __name__ == "__main__":
    asyncio.run(main())

# prints: 1. stored in SHOP as number 1; published again: a duplicate of 1
# prints:    refused, as the last one is 1
# prints:    no stream has the subject 'invoices.eu': ...
# prints: 2. 10000 messages acknowledged one by one, none of them waited for
# prints:    1 of 2 failed: message 2
# prints: 3. 10000 messages stored, acknowledged by the hundred
# prints: 4. 2 messages stored together
# prints: 5. the counter stands at 100,000,000,000,000,000,001
# prints: 6. a little later: the tulips, now
