"""taskiq-nats, unchanged: run with the URL of a server; prints what its tasks returned."""

import asyncio
import sys

import natsproto.compat

natsproto.compat.install()

from taskiq import ScheduledTask  # noqa: E402
from taskiq.api import run_receiver_task  # noqa: E402
from taskiq_nats import (  # noqa: E402
    NatsBroker,
    NATSKeyValueScheduleSource,
    NATSObjectStoreResultBackend,
    PullBasedJetStreamBroker,
    PushBasedJetStreamBroker,
)

URL = sys.argv[1]


async def add(one: int, two: int) -> int:
    return one + two


async def main() -> None:
    brokers = {
        "core": NatsBroker(URL, subject="core", queue="workers"),
        "push": PushBasedJetStreamBroker(servers=URL, subject="push", stream_name="PUSH", queue="workers"),
        "pull": PullBasedJetStreamBroker(servers=URL, subject="pull", stream_name="PULL", pull_consume_batch=5),
    }
    for name, broker in brokers.items():
        broker = broker.with_result_backend(NATSObjectStoreResultBackend(URL, bucket_name=f"results_{name}"))
        task = broker.register_task(add, task_name=f"add_{name}")
        broker.is_worker_process = True
        await broker.startup()
        worker = asyncio.create_task(run_receiver_task(broker))
        while not worker.done():
            waiting = await task.kiq(1, 2)
            try:
                print(name, (await waiting.wait_result(timeout=1)).return_value)
                break
            except Exception as exc:  # core NATS keeps nothing for a worker that comes later
                print(f"again: {exc!r}", file=sys.stderr)
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)
        await broker.shutdown()
    source = NATSKeyValueScheduleSource(URL)
    await source.startup()
    schedule = ScheduledTask(task_name="add", labels={}, args=[1], kwargs={}, schedule_id="one", cron="* * * * *")
    await source.add_schedule(schedule)
    print("schedules", [schedule.schedule_id for schedule in await source.get_schedules()])
    await source.delete_schedule("one")
    print("schedules", await source.get_schedules())
    await source.shutdown()


asyncio.run(main())
