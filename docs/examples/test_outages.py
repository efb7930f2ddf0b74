"""Testing what a worker does when NATS fails: its connection is cut again and again."""

import asyncio
from collections.abc import Awaitable, Callable

import natsproto
from natsproto.jetstream import JsMessage
from natsproto.testing import End, FaultProxy, Recorder, Server


async def ack_before(nc: natsproto.Client, order: JsMessage) -> None:  # wrong
    await order.ack()
    await nc.request("mail", order.data)


async def ack_after(nc: natsproto.Client, order: JsMessage) -> None:  # acknowledged when this has returned
    await nc.request("mail", order.data)


async def outages(server: Server, work: Callable[[natsproto.Client, JsMessage], Awaitable[None]]) -> Recorder:
    recorder = Recorder()

    async def send(mail: natsproto.Message) -> None:
        recorder.handled(mail.data)
        await mail.respond(b"sent")

    async with natsproto.connect(server.url) as shop, FaultProxy(server.host, server.port) as proxy:
        shop.subscribe("mail", cb=send)
        stream = await shop.jetstream().create_stream("ORDERS", subjects=["orders"], retention="workqueue")
        for number in range(300):
            await shop.jetstream().publish("orders", b"%d" % number)
            recorder.sent(b"%d" % number)
        proxy.delay(0.01)  # so that something is on its way when the connection is cut
        async with natsproto.connect(proxy.url, reconnect_wait=0.01) as nc:
            workers = await (await nc.jetstream().stream("ORDERS")).create_consumer(durable_name="w", ack_wait=1)
            async with workers.consume(lambda order: work(nc, order), concurrency=8):
                while (await stream.info()).state.messages:
                    await asyncio.sleep(0.2)
                    proxy.cut(End.RST)
    return recorder


async def test_every_order_gets_a_mail(nats_server: Server) -> None:
    (await outages(nats_server, ack_after)).check_each_once(allow_repeats=True)


# prints: ...
# prints: 1 passed in ...
