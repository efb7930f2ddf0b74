"""FastStream's NATS broker, unchanged: run with the URL of a server; prints what its subscribers got."""

import asyncio
import sys

import natsproto.compat

natsproto.compat.install()

from faststream import FastStream  # noqa: E402
from faststream.nats import JStream, NatsBroker, NatsMessage, ObjWatch, PullSub  # noqa: E402
from nats.js.api import ConsumerConfig  # noqa: E402

broker = NatsBroker(sys.argv[1])
app = FastStream(broker)
stream = JStream(name="orders")
seen: dict[str, object] = {}
arrived = asyncio.Event()
WANTED = {"core", "queue", "push", "shared", "pull", "kv", "objects"}


def got(name: str, value: object) -> None:
    seen[name] = value
    if seen.keys() >= WANTED:
        arrived.set()


@broker.subscriber("core.*")
async def core(body: str, msg: NatsMessage) -> None:
    got("core", (body, msg.headers["trace"]))


@broker.subscriber("work", queue="workers")
@broker.publisher("done")
async def work(body: int) -> int:
    return body + 1


@broker.subscriber("done")
async def done(body: int) -> None:
    got("queue", body)


@broker.subscriber("sum")
async def answer(body: list[int]) -> int:
    return sum(body)


@broker.subscriber("orders.push", stream=stream, durable="pushed")
async def pushed(body: dict[str, int]) -> None:
    got("push", body)


@broker.subscriber("orders.shared", stream=stream, queue="workers", config=ConsumerConfig(durable_name="shared"))
async def shared(body: str) -> None:
    got("shared", body)


@broker.subscriber("orders.pull", stream=stream, durable="pulled", pull_sub=PullSub(batch_size=2))
async def pulled(body: str) -> None:
    got("pull", body)


@broker.subscriber("key", kv_watch="bucket")
async def watched(body: str) -> None:
    got("kv", body)


@broker.subscriber("files", obj_watch=ObjWatch(declare=True))
async def stored(name: str) -> None:
    store = await broker.object_storage("files")
    got("objects", (await store.get(name)).data)


@app.after_startup
async def use() -> None:
    await broker.publish("hello", "core.a", headers={"trace": "t-1"})
    await broker.publish(1, "work")
    await broker.publish({"id": 7}, "orders.push", stream="orders")
    await broker.publish("shared", "orders.shared", stream="orders")
    await broker.publish("pulled", "orders.pull", stream="orders")
    await (await broker.key_value("bucket")).put("key", b"value")
    await (await broker.object_storage("files")).put("report", b"content")
    response = await broker.request([1, 2, 3], "sum", timeout=5)
    seen["request"] = await response.decode()
    await asyncio.wait_for(arrived.wait(), 60)
    for name in sorted(seen):
        print(name, seen[name])
    app.exit()


asyncio.run(app.run())
