"""Everything that the page "Coming from nats-py" shows, run: ``python docs/examples/coming_from_nats_py.py``."""

import asyncio
import logging
import sys
import tempfile
from pathlib import Path

import natsproto
from natsproto import Event, HandlerFailed
from natsproto.errors import KeyDeleted, NoResponders, ServiceError
from natsproto.jetstream import JetStream, JsMessage, Stream
from natsproto.service import Request
from natsproto.testing import run_server


async def messaging(url: str) -> None:
    """Core NATS."""
    told: list[Event] = []
    seen: list[bytes] = []

    async def handler(message: natsproto.Message) -> None:
        seen.append(message.data)

    nc = await natsproto.connect(url, name="app", on_event=told.append)
    sub = await nc.subscribe("a.*")
    await nc.subscribe("a.*", queue="workers", cb=handler)
    await nc.publish("a.b", b"1", headers={"K": "v"})
    await nc.publish("a.b", b"2", reply="inbox")
    await nc.flush()

    msg = await sub.next(timeout=1)
    assert (msg.data, msg.headers["K"]) == (b"1", "v")
    await sub.unsubscribe(max_messages=2)
    async for msg in sub:
        assert (msg.data, msg.reply, msg.headers.get("K")) == (b"2", "inbox", None)
    print(f"a callback saw {seen}")

    async def shout(msg: natsproto.Message) -> None:
        await msg.respond(b"HI")

    sub = await nc.subscribe("svc", cb=shout)
    reply = await nc.request("svc", b"hi", timeout=1)
    print(f"asked, and heard {reply.data.decode()}")
    await sub.drain()
    try:
        await nc.request("svc", b"hi", timeout=1)
    except NoResponders as error:
        print(f"refused: {error}")
    inbox = nc.new_inbox()
    assert inbox.startswith("_INBOX.")

    await nc.reconnect()
    await nc.rtt()
    nc.set_servers(url)
    assert nc.is_connected
    assert nc.stats.in_msgs > 0
    assert nc.stats.reconnects == 1
    print(f"told: {', '.join(type(event).__name__ for event in told)}")
    print(f"{nc.connected_url} is nats-server {nc.server_info.version}, and takes {nc.max_payload} bytes")
    await nc.drain()
    assert nc.state is natsproto.State.CLOSED


async def streams(js: JetStream) -> Stream:
    """Streams and publishing."""
    stream = await js.create_stream("ORDERS", subjects=["orders.>"], allow_msg_ttl=True)
    await js.update_stream("ORDERS", max_msgs=1_000_000)
    await js.publish("orders.eu", b"1", msg_id="o-1")
    await js.publish("orders.eu", b"2", expected_stream="ORDERS", timeout=5)
    ack = await js.publish("orders.eu", b"3", ttl=60)
    async with js.publisher(max_pending=4000) as pub:
        future = await pub.publish("orders.us", b"4")
        await pub.flush()
        assert (await future).seq == ack.seq + 1

    stream = await js.stream("ORDERS")
    assert (await stream.info()).state.messages == 4
    assert await js.stream_name_by_subject("orders.eu") == "ORDERS"
    names = [info.config.name async for info in js.streams()]
    first = await stream.get_message(1)
    last = await stream.get_last_message("orders.eu")
    print(f"{names[0]} begins with {first.data!r}, orders.eu ends with {last.data!r}")
    await stream.delete_message(2)
    await stream.purge(subject="orders.us")
    assert (await js.account_info()).streams == 1
    return stream


async def consumers(nc: natsproto.Client, js: JetStream, stream: Stream) -> None:
    """Reading streams."""
    handled: list[int] = []

    async def handler(message: JsMessage) -> None:
        handled.append(message.seq)

    consumer = await stream.create_consumer("billing", filter_subject="orders.>", ack_wait=30)
    consumer = await stream.consumer("billing", bind=True)
    msgs = await consumer.fetch_available(10, timeout=1)
    await msgs[0].nak(0.01)
    await msgs[1].ack()
    msg = await consumer.next()
    await msg.in_progress()
    await msg.ack_sync(timeout=1)
    print(f"number {msg.seq} came {msg.metadata.num_delivered} times")
    assert (await consumer.info()).num_ack_pending == 0
    assert await consumer.fetch(10, no_wait=True) == []

    await js.publish("orders.eu", b"5")
    async with consumer.messages(stop_after=1) as messages:
        async for msg in messages:
            await msg.term()
    await js.publish("orders.eu", b"6")
    async with consumer.consume(handler, stop_after=1) as work:
        await work.wait()
    async with stream.ordered_consumer(filter_subjects=["orders.eu"]) as ordered:
        everything = await ordered.fetch(4)
    print(f"handled {handled}; in order: {[message.data for message in everything]}")
    push = await stream.create_push_consumer("pushed", deliver_subject=nc.new_inbox(), deliver_policy="last")
    async with push.consume(handler, stop_after=1) as work:
        await work.wait()
    await stream.delete_consumer("billing")


async def buckets(js: JetStream) -> None:
    """Key/value."""
    kv = await js.create_key_value("cfg", history=5, num_replicas=1, limit_marker_ttl=60)
    kv = await js.key_value("cfg")
    revision = await kv.put("eu.tax", b"19")
    entry = await kv.get("eu.tax")
    assert (entry.value, entry.revision, entry.operation) == (b"19", revision, "PUT")
    await kv.update("eu.tax", b"20", entry.revision)
    await kv.create("session", b"ann", ttl=60)
    keys = [key async for key in kv.keys()]  # noqa: SIM118  # a bucket is no dict
    assert [entry.value for entry in await kv.history("eu.tax")] == [b"19", b"20"]

    async with kv.watch("eu.*") as watcher:
        async for entry in watcher.initial():
            print(f"of {sorted(keys)}, {entry.key} is {entry.value.decode()}")
        await kv.delete("eu.tax", revision=2)
        entry = await watcher.next(timeout=1)
        print(f"{entry.key}: {entry.operation.value}")
    async with kv.watch() as everything:
        await everything.ready()
    try:
        await kv.get("eu.tax")
    except KeyDeleted as error:
        print(f"missing: {error}")
    await kv.purge("eu.tax")
    await kv.purge_deletes()
    assert (await kv.status()).bucket == "cfg"
    await js.delete_key_value("cfg")


async def objects(js: JetStream) -> None:
    """Objects."""
    store = await js.create_object_store("files")
    store = await js.object_store("files")
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "copy"
        await store.put("report", b"one\ntwo\n")
        data = await store.get_bytes("report")
        await store.get_file("report", path)
        assert path.read_bytes() == data
        await store.put_file(path, name="again")
    await store.update_meta("report", description="two lines")
    print([f"{info.name}: {info.size}" async for info in store.list()])
    assert (await store.info("report")).description == "two lines"
    await store.delete("report")
    await js.delete_object_store("files")


async def services(nc: natsproto.Client) -> None:
    """Services."""

    async def add(request: Request) -> None:
        try:
            await request.respond(b"%d" % sum(map(int, request.data.split())))
        except ValueError:
            await request.respond_error(400, "numbers, please")

    service = await nc.add_service("calc", "1.0.0")
    group = service.group("v1")
    group.add_endpoint("add", add)
    reply = await nc.call("v1.add", b"1 2", timeout=1)
    try:
        await nc.call("v1.add", b"one", timeout=1)
    except ServiceError as error:
        print(f"{reply.data!r}, or error {error.code}: {error.description}")
    assert service.stats().endpoints[0].num_requests == 2
    await service.stop()


async def main() -> None:
    """One after the other, on a server started here."""
    async with run_server(jetstream=True) as server:
        url = server.url
        await messaging(url)
        async with natsproto.connect(url) as nc:
            js = nc.jetstream(timeout=5)
            stream = await streams(js)
            await consumers(nc, js, stream)
            await js.delete_stream("ORDERS")
            await buckets(js)
            await objects(js)
            await services(nc)

            async def fails(message: natsproto.Message) -> None:
                raise ValueError(message.subject)

            async with nc.subscribe("oops", cb=fails):
                happened = nc.events()
                await nc.publish("oops")
                async for event in happened:
                    if isinstance(event, HandlerFailed):
                        print(f"told, and logged: {event.error!r}")
                        break


if __name__ == "__main__":
    logging.basicConfig(stream=sys.stdout, format="log: %(message)s")  # a handler that fails, a connection given up
    asyncio.run(main())

# prints: a callback saw [b'1', b'2']
# prints: asked, and heard HI
# prints: refused: no responders: nothing is subscribed to 'svc': start a service, or check the subject
# prints: log: app: disconnected from ...
# prints: log: app: reconnected to ...
# prints: told: Connected, Disconnected, Reconnecting, Reconnected
# prints: nats://127.0.0.1:... is nats-server ..., and takes 1048576 bytes
# prints: ORDERS begins with b'1', orders.eu ends with b'3'
# prints: number 1 came 2 times
# prints: handled [6]; in order: [b'1', b'3', b'5', b'6']
# prints: of ['eu.tax', 'session'], eu.tax is 20
# prints: eu.tax: DEL
# prints: missing: key 'eu.tax' at revision 4 in bucket 'cfg': deleted
# prints: ['again: 8', 'report: 8']
# prints: b'3', or error 400: numbers, please
# prints: log: callback of 'oops' failed: ValueError('oops')
# prints: ...
# prints: told, and logged: ValueError('oops')
