"""A JetStream worker in Kubernetes: probes, and an end that gives waiting messages back."""

import asyncio
import signal

import natsproto
from natsproto.jetstream import JsMessage
from natsproto.testing import run_server


async def ship(message: JsMessage) -> None:
    print("shipped", message.text)
    signal.raise_signal(signal.SIGTERM)  # as Kubernetes does, so that this example ends


async def work(options: natsproto.Options, probe_port: int) -> None:
    stop = natsproto.stop_event()  # set by SIGTERM or Ctrl-C, which end connect, too
    async with natsproto.connect(options, retry_connect_for=60, drain_timeout=20) as nc:
        js = nc.jetstream(timeout=30)  # as long as an election or a restart may take
        orders = await js.create_stream("ORDERS", subjects=["orders.>"])
        shipping = await orders.create_consumer("shipping")
        await js.publish("orders.eu", b"seven roses", msg_id="order-7")

        async def probe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            live = (await reader.readline()).startswith(b"GET /live")  # else /ready
            health = await nc.health(timeout=2)
            writer.write(b"HTTP/1.1 %d -\r\n\r\n" % (200 if (health.alive if live else health.ok) else 503))
            writer.close()

        async with await asyncio.start_server(probe, port=probe_port):
            await shipping.consume(ship, concurrency=8).run(until=stop)  # a deleted consumer ends the process


with run_server(jetstream=True) as server:  # in Kubernetes: natsproto.Options.from_env(), and port 8080
    asyncio.run(work(natsproto.Options(server.url), 0))

# origin: how-to guide
# about: `run(until=stop)` ends the worker at SIGTERM: running handlers finish within `drain_timeout`, and messages that
# about: wait go back to the server for the next pod.
# prints: shipped seven roses
