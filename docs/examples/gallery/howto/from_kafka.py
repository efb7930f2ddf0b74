"""From Kafka (aiokafka): a topic, keyed records, a consumer group with committed offsets, and a replay."""

import asyncio

import natsproto
from natsproto.jetstream import JsMessage
from natsproto.testing import run_server


async def main() -> None:
    async with run_server(jetstream=True) as server, natsproto.connect(server.url) as nc:
        js = nc.jetstream()
        # NewTopic("orders"): the key of a record becomes the last token of the subject.
        stream = await js.create_stream("ORDERS", subjects=["orders.*"], max_age=7 * 24 * 3600)
        # AIOKafkaProducer(enable_idempotence=True).send("orders", key=..., value=...)
        async with js.publisher() as producer:
            for number in range(6):
                await producer.publish(f"orders.{'ann' if number % 2 else 'bob'}", b"%d" % number, msg_id=f"o-{number}")

        # AIOKafkaConsumer("orders", group_id="billing"): every process that names the group shares the work.
        group = await stream.create_consumer("billing")
        billed: dict[str, list[bytes]] = {}

        async def bill(message: JsMessage) -> None:  # returning is commit() for this one message
            billed.setdefault(message.subject, []).append(message.data)

        by_key = group.consume(bill, concurrency=4, key=lambda message: message.subject, stop_after=6)
        async with by_key as work:
            await work.wait()
        print(billed["orders.ann"], billed["orders.bob"])

        # seek(partition, 3): read from a sequence, without a group.
        async with stream.ordered_consumer(start_seq=4) as replay:
            print([message.seq for message in await replay.fetch(3)])


asyncio.run(main())

# origin: how-to guide
# about: The key of a record is the last token of its subject. `consumer.consume` with `key=` handles one key in order
# about: and several keys at a time.
# prints: [b'1', b'3', b'5'] [b'0', b'2', b'4']
# prints: [4, 5, 6]
