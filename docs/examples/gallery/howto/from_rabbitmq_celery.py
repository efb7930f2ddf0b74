"""From RabbitMQ and Celery: a task queue with retries, a countdown and a dead letter queue."""

import asyncio

import natsproto
from natsproto.jetstream import JsMessage, Schedule
from natsproto.middleware import with_middleware
from natsproto.retry import DeadLetter, Retry, RetryPolicy
from natsproto.testing import run_server


async def main() -> None:
    async with run_server(jetstream=True) as server, natsproto.connect(server.url) as nc:
        js = nc.jetstream()
        # A durable queue: a message is gone when its worker has acknowledged it.
        tasks = await js.create_stream("TASKS", subjects=["tasks.*"], retention="workqueue", allow_msg_schedules=True)
        dead = await js.create_stream("DEAD", subjects=["dead.>"])

        await js.publish("tasks.mail", b"ann", msg_id="welcome-ann")  # task.delay("ann")
        await js.publish("tasks.mail", b"ann", msg_id="welcome-ann")  # sent twice, stored once
        await js.publish("tasks.mail", b"nobody")
        # task.apply_async(countdown=1)
        await js.publish("tasks.later", b"bob", schedule=Schedule.after(1), schedule_target="tasks.mail")

        async def send_mail(message: JsMessage) -> None:  # acks_late: a return acknowledges
            if message.data == b"nobody":
                raise ValueError("no such address")
            print(f"mail to {message.text}")

        # prefetch_count is the concurrency; autoretry_for, max_retries and the dead letter exchange are the policy.
        queue = await tasks.create_consumer("mail", filter_subject="tasks.mail")
        policy = RetryPolicy(dead_letter_subject="dead.mail", max_attempts=2, first_delay=0.1)
        await queue.consume(with_middleware(send_mail, Retry(js, policy)), concurrency=10, stop_after=4).run()

        letter = DeadLetter.of(await dead.get_message(1))
        print(f"{letter.data.decode()}: {letter.error} after {letter.attempts} attempts")


asyncio.run(main())

# origin: how-to guide
# about: A `RetryPolicy` says how often and when a task is tried again, and where it goes in the end, as a
# about: `DeadLetter`.
# prints: mail to ann
# prints: mail to bob
# prints: nobody: no such address after 2 attempts
