"""The sum of each customer's orders, each order counted once, although a worker is killed while it counts.

Run it with ``python docs/examples/processor.py`` where ``natsproto[server]`` is installed.
"""

import asyncio
import json
import logging
import sys
from collections.abc import AsyncIterator

import natsproto
from natsproto.jetstream import JetStream, JsMessage, Stream, SubjectTransform
from natsproto.processor import KeyedState, Outputs, Processor
from natsproto.retry import RetryPolicy
from natsproto.testing import run_server

logging.getLogger("natsproto").setLevel(logging.CRITICAL)  # the bad order is no surprise here
PARTITIONS, ORDERS = 2, 3000


async def count(message: JsMessage, state: KeyedState, out: Outputs) -> None:
    """Add an order to the sum of its customer; the sum and the output are stored together, or not at all."""
    customer = message.subject.removeprefix("orders.")
    total = int(state.get(customer, b"0")) + json.loads(message.data)["euros"]
    state[customer] = b"%d" % total
    out.add(f"totals.{customer}", json.dumps({"order": message.seq, "total": total}).encode())


async def work(url: str) -> None:
    """A worker: it shares the partitions with those that run beside it."""
    async with natsproto.connect(url) as nc:
        policy = RetryPolicy(dead_letter_subject="bad.orders", max_attempts=1)
        await Processor(
            nc.jetstream(), "totals", count, source="ORDERS", sink="TOTALS", partitions=PARTITIONS, retry=policy
        ).run(until=natsproto.stop_event())


async def create_streams(js: JetStream) -> tuple[Stream, Stream]:
    """The orders, whose subjects get the partition of their customer, and the totals."""
    transform = SubjectTransform(src="orders.*", dest=f"{{{{Partition({PARTITIONS},1)}}}}.orders.{{{{Wildcard(1)}}}}")
    orders = await js.create_stream("ORDERS", subjects=["orders.*"], subject_transform=transform)
    totals = await js.create_stream(
        "TOTALS", subjects=["totals.*", "bad.*", "$CURSOR.TOTALS.>"], allow_atomic=True, allow_rollup_hdrs=True
    )
    return orders, totals


async def main() -> None:
    """Three thousand orders and one that is none; one of two workers is killed in the middle."""
    async with run_server(jetstream=True) as server, natsproto.connect(server.url) as nc:
        js = nc.jetstream()
        _, totals = await create_streams(js)
        command = [sys.executable, __file__, server.url]
        workers = [await asyncio.create_subprocess_exec(*command) for _ in range(2)]
        await js.publish("orders.customer1", b"no order")
        async with js.publisher() as publisher:
            for number in range(ORDERS):
                await publisher.publish(f"orders.customer{number % 5}", b'{"euros": 2}')
        async for counted in outputs(totals):
            if counted == 1 and len(workers) == 2:
                workers.pop(0).kill()
            if counted == ORDERS:
                break
        for number in range(5):
            last = await totals.get_last_message(f"totals.customer{number}")
            print(f"customer{number}:", json.loads(last.data)["total"], "euros")
        print("orders that could not be counted:", (await totals.info(subjects_filter="bad.*")).state.subjects)
        workers[0].terminate()
        await workers[0].wait()


async def outputs(totals: Stream) -> AsyncIterator[int]:
    """Yield how many outputs there are."""
    counted = 0
    async with totals.ordered_consumer(filter_subjects=["totals.*"]).messages() as messages:
        async for _ in messages:
            counted += 1
            yield counted


if __name__ == "__main__":
    asyncio.run(work(sys.argv[1]) if len(sys.argv) > 1 else main())

# prints: customer0: 1200 euros
# prints: customer1: 1200 euros
# prints: customer2: 1200 euros
# prints: customer3: 1200 euros
# prints: customer4: 1200 euros
# prints: orders that could not be counted: {'bad.orders': 1}
