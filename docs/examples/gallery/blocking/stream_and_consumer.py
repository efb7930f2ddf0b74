"""Without asyncio: publish into a stream and read it."""

from natsproto import sync
from natsproto.testing import run_server

with run_server(jetstream=True) as server, sync.connect(server.url, name="script") as client:
    js = client.jetstream()
    stream = js.create_stream("ORDERS", subjects=["orders.*"])
    with js.publisher() as publisher:
        for number in range(5):
            publisher.publish("orders.eu", b"%d" % number)
    consumer = stream.create_consumer("billing")
    for message in consumer.fetch(5, timeout=5):
        print(message.subject, message.data)
        message.ack()

# origin: Python tutorial: Publisher, Subscriber
# about: The blocking client has the names of `JetStream`, `Publisher` and `PullConsumer`, without `await`.
# prints: orders.eu b'0'
# prints: orders.eu b'1'
# prints: orders.eu b'2'
# prints: orders.eu b'3'
# prints: orders.eu b'4'
