"""From Redis streams: XADD with MAXLEN, XREADGROUP, XACK, XPENDING, XCLAIM and XRANGE."""

import asyncio

import natsproto.jetstream
from natsproto.testing import run_server


async def main() -> None:
    async with run_server(jetstream=True) as server, natsproto.connect(server.url) as nc:
        js = nc.jetstream()
        # XADD jobs MAXLEN 1000 * task a: the limit belongs to the stream.
        stream = await js.create_stream("JOBS", subjects=["jobs"], max_msgs=1000)
        for task in (b"a", b"b", b"c"):
            await js.publish("jobs", task)

        # XGROUP CREATE jobs workers 0, and XREADGROUP GROUP workers me COUNT 2 BLOCK 5000 STREAMS jobs >
        group = await stream.create_consumer("workers", ack_wait=3, max_deliver=5)
        first, second = await group.fetch(2, timeout=5)
        await first.ack_sync(timeout=5)  # XACK
        print(f"{(await group.info()).num_ack_pending} pending")  # XPENDING

        # XAUTOCLAIM with a minimum of idle time: the server does it, ack_wait seconds after the delivery.
        third, again = await group.fetch(2, timeout=30)
        print(again.data == second.data, again.metadata.num_delivered)
        await asyncio.gather(third.ack(), again.ack())

        # XRANGE jobs - +
        async with stream.ordered_consumer() as everything:
            print([message.data for message in await everything.fetch(3)])
        print((await stream.info()).state.messages)  # XLEN


asyncio.run(main())

# origin: how-to guide
# about: Each command is a call: `js.publish` is XADD, `consumer.fetch` is XREADGROUP, and the server itself delivers
# about: again what nobody acknowledged.
# prints: 1 pending
# prints: True 2
# prints: [b'a', b'b', b'c']
# prints: 3
