"""Choose where a consumer starts and what it reads."""

import asyncio

import natsproto.jetstream
from natsproto.testing import run_server


async def main() -> None:
    async with run_server(jetstream=True) as server, natsproto.connect(server.url) as nc:
        js = nc.jetstream()
        stream = await js.create_stream("ORDERS", subjects=["orders.*"])
        for number in range(6):
            await js.publish(f"orders.{('eu', 'us')[number % 2]}", b"%d" % number)

        european = await stream.create_consumer("european", filter_subjects=["orders.eu"])
        late = await stream.create_consumer("late", deliver_policy="by_start_sequence", opt_start_seq=5)
        newest = await stream.create_consumer("newest", deliver_policy="last_per_subject", filter_subject="orders.*")
        for consumer in (european, late, newest):
            print(consumer.name, [message.data for message in await consumer.fetch(10, no_wait=True)])


asyncio.run(main())

# origin: NATS docs, Consumer configuration: DeliverPolicy, FilterSubjects
# about: Three consumers of one stream: with a filter, from a sequence number on, and the last message of each subject.
# about: See `ConsumerConfig`.
# prints: european [b'0', b'2', b'4']
# prints: late [b'4', b'5']
# prints: newest [b'4', b'5']
