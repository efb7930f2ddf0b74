"""Create a stream: subjects, limits, retention."""

import asyncio

import natsproto.jetstream
from natsproto.errors import StreamExists
from natsproto.testing import run_server


async def main() -> None:
    async with run_server(jetstream=True) as server, natsproto.connect(server.url) as nc:
        js = nc.jetstream()
        stream = await js.create_stream(
            "ORDERS",
            subjects=["orders.>"],
            storage="file",
            retention="limits",
            discard="old",
            max_age=7 * 24 * 3600,  # seconds
            max_bytes=2**30,
            num_replicas=1,
        )
        print(stream.cached_info.config.subjects, stream.cached_info.config.max_age)
        try:
            await js.create_stream("ORDERS", subjects=["other"])
        except StreamExists as error:
            print("refused:", type(error).__name__)


asyncio.run(main())

# origin: NATS docs, Stream management; Python tutorial, Create a stream; nats.go JetStream guide, Stream management
# about: `js.create_stream` names subjects and limits. For a name that exists with another configuration it raises
# about: `StreamExists`.
# prints: ('orders.>',) 604800.0
# prints: refused: StreamExists
