"""A worker of a processor that tests kill: ``python -m tests.processor.processes URLS PARTITIONS HEARING``.

It adds up the numbers of each key. An output says which message it belongs to and the sum after it, and the state of a
key is a number and the last message, so that a message that was left out, handled twice or in another order shows.
"""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import tempfile
from collections import defaultdict
from typing import NamedTuple

import natsproto
from natsproto.jetstream import JetStream, JsMessage, Stream, SubjectTransform
from natsproto.processor import KeyedState, Outputs, Processor
from natsproto.processor._members import Members
from natsproto.retry import RetryPolicy

KEYS = 24


class Poisoned(Exception):
    """A message that no handler can handle."""


async def total(message: JsMessage, state: KeyedState, out: Outputs) -> None:
    """Add the number of a message to the sum of its key."""
    key = message.subject.removeprefix("in.")
    value = int(message.data)
    before, last = map(int, state.get(key, b"0 0").split())
    if message.seq <= last:
        raise AssertionError(f"message {message.seq} of {key} comes after {last}")
    state[key] = b"%d %d" % (before + value, message.seq)
    out.add(f"out.{key}", b"%d %d" % (message.seq, before + value))
    if value % 100 == 13:
        raise Poisoned(f"{value} is bad luck")


def sums(js: JetStream, partitions: int) -> Processor:
    """The processor."""
    policy = RetryPolicy(dead_letter_subject="dead.sums", max_attempts=2, first_delay=0.001)
    return Processor(js, "sums", total, source="IN", sink="OUT", partitions=partitions, retry=policy)


async def create_streams(js: JetStream, partitions: int, replicas: int = 1) -> tuple[Stream, Stream]:
    """The source and the sink."""
    transform = SubjectTransform(src="in.*", dest=f"{{{{Partition({partitions},1)}}}}.in.{{{{Wildcard(1)}}}}")
    source = await js.create_stream(
        "IN", subjects=["in.*"], subject_transform=transform if partitions > 1 else None, num_replicas=replicas
    )
    subjects = ["out.>", "dead.>", "$CURSOR.OUT.>"]
    sink = await js.create_stream(
        "OUT", subjects=subjects, allow_atomic=True, allow_rollup_hdrs=True, num_replicas=replicas
    )
    return source, sink


async def publish_sums(js: JetStream, rng: random.Random, count: int) -> None:
    """Publish numbers to random keys. Some may be missing after a fault: the source says which are there."""
    async with js.publisher(auto_msg_id=True) as publisher:
        for _ in range(count):
            await publisher.publish(f"in.k{rng.randrange(KEYS)}", b"%d" % rng.randrange(1000))


class Content(NamedTuple):
    """What a sink has, or should have."""

    outputs: dict[str, list[tuple[int, int]]]
    """Of each key, in their order: the message of the source and the sum after it."""
    state: dict[str, bytes]
    dead: list[int]
    """Messages that became dead letters."""


async def single_run(source: Stream) -> Content:
    """What a single run without faults makes of a source."""
    content = Content(defaultdict(list), {}, [])
    async for message in source.get_batch():
        key, value = message.subject.rpartition("in.")[2], int(message.data)
        if value % 100 == 13:
            content.dead.append(message.seq)
            continue
        done = content.outputs[key]
        done.append((message.seq, value + (done[-1][1] if done else 0)))
        content.state[key] = b"%d %d" % (done[-1][1], message.seq)
    return content


async def content_of(sink: Stream) -> Content:
    """What a sink has."""
    content = Content(defaultdict(list), {}, [])
    async for message in sink.get_batch():
        subject = message.subject
        if subject.startswith("out."):
            seq, value = map(int, message.data.split())
            content.outputs[subject.removeprefix("out.")].append((seq, value))
        elif subject == "dead.sums":
            content.dead.append(int(message.headers["Dead-Letter-Sequence"]))
        elif ".state." in subject:
            content.state[subject.partition(".state.")[2]] = bytes(message.data)
    content.dead.sort()
    return content


async def check_sink(source: Stream, sink: Stream) -> str:
    """Compare the sink with a single run: nothing lost, nothing twice, in order, and the same state."""
    wanted, found = await single_run(source), await content_of(sink)
    numbers = [[seq for of_key in one.outputs.values() for seq, _ in of_key] + one.dead for one in (wanted, found)]
    lost, doubled = len({*numbers[0]} - {*numbers[1]}), len(numbers[1]) - len({*numbers[1]})
    figures = f"{len(numbers[0])} messages, {len(wanted.dead)} of them dead letters: lost {lost}, doubled {doubled}"
    assert found == wanted, figures
    return figures


async def is_complete(source: Stream, sink: Stream) -> bool:
    """True when the sink has as many outputs and dead letters as the source has messages."""
    found = (await sink.info(subjects_filter=">")).state.subjects or {}
    done = sum(number for subject, number in found.items() if not subject.startswith("$"))
    return done >= (await source.info()).state.messages


class Workers:
    """Worker processes, for tests; none is left at the end of the block.

    A part of them is deaf: they take all partitions and fight with the others.
    """

    def __init__(self, url: str, partitions: int, rng: random.Random) -> None:
        self._arguments = [sys.executable, "-W", "ignore", "-m", __spec__.name, url, str(partitions)]
        self._rng = rng
        self._running: list[subprocess.Popen[bytes]] = []
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  # closed at the end of the block

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._running:
            worker.kill()
            worker.wait()
        self._log.close()

    def start(self) -> None:
        """Start one more."""
        hearing = self._rng.choice(("deaf", "hearing"))
        self._running.append(subprocess.Popen([*self._arguments, hearing], stderr=self._log))

    def check(self) -> None:
        """AssertionError when one has ended by itself."""
        ended = [code for worker in self._running if (code := worker.poll()) is not None]
        if ended:
            self._log.seek(max(0, self._log.seek(0, 2) - 4000))
            raise AssertionError(f"exit codes {ended}: {self._log.read().decode(errors='replace')}")

    def replace(self) -> None:
        """Kill one of them with SIGKILL, and start another one."""
        self.check()
        worker = self._running.pop(self._rng.randrange(len(self._running)))
        worker.kill()
        worker.wait()
        self.start()


async def process_forever(url: str, partitions: int, *, is_deaf: bool) -> None:
    """Process for ever."""
    if is_deaf:
        Members._on_message = lambda *_: None  # type: ignore[method-assign]
    async with natsproto.connect(url, retry_connect_for=60, reconnect_wait=0.05) as nc:
        await sums(nc.jetstream(), partitions).run()


if __name__ == "__main__":
    asyncio.run(process_forever(sys.argv[1], int(sys.argv[2]), is_deaf=sys.argv[3] == "deaf"))
