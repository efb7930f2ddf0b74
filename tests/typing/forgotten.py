"""What is forgotten is an error to a type checker too: the hints at runtime do not hide it.

Every line is wrong, and an ignore that nothing needs is an error.
"""

from __future__ import annotations

import natsproto
from natsproto.jetstream import JetStream, PullConsumer
from natsproto.jetstream.kv import KeyValue


async def forgotten(nc: natsproto.Client, js: JetStream, consumer: PullConsumer, kv: KeyValue) -> None:
    print(natsproto.connect("a").publish)  # type: ignore[attr-defined]
    print(consumer.fetch(1).append)  # type: ignore[attr-defined]
    print(consumer.consume(print).next)  # type: ignore[attr-defined]
    await consumer.consume(print)  # type: ignore[misc]
    await kv.watch(cb=print)  # type: ignore[misc]
    await kv.keys()  # type: ignore[misc]
    await kv.watch()  # type: ignore[misc]
    await consumer.messages()  # type: ignore[misc]
    await js.stream_names()  # type: ignore[misc]
    for key in kv.keys("a"):  # type: ignore[attr-defined]
        print(key)
    for message in consumer.fetch(1):  # type: ignore[attr-defined]
        print(message)
    for other in nc.subscribe("a"):  # type: ignore[attr-defined]
        print(other)
    list(kv.keys())  # type: ignore[call-overload]
