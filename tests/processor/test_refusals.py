"""What a processor refuses: outputs that no batch can take, wrong arguments, and verdicts without enough looks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from natsproto.jetstream import JetStream, JsMessage, Stream
from natsproto.processor import KeyedState, Outputs, Processor
from natsproto.retry import RetryPolicy
from tests.kit.waiting import until
from tests.processor.helpers import copy, copying, publish_inputs, run_until, running


def _long_key(state: KeyedState, out: Outputs) -> None:
    state["k" * 5000] = b"x"


def _long_subject(state: KeyedState, out: Outputs) -> None:
    out.add(f"out.{'x' * 5000}")


def _large(state: KeyedState, out: Outputs) -> None:
    out.add("out.x", b"x" * 2000)


def _header(name: str, value: str) -> Callable[[KeyedState, Outputs], None]:
    return lambda state, out: out.add("out.x", headers={name: value})


@pytest.mark.parametrize(
    "poison",
    [
        *(_long_key, _long_subject, _large, _header("Nats-Msg-Id", "same"), _header("Nats-Rollup", "all")),
        *(_header("Nats-Batch-Commit", "1"), _header("Nats-Expected-Last-Sequence", "7"), _header("nats-ttl", "5")),
    ],
)
async def test_message_with_an_impossible_output_fails_alone(
    jetstream: JetStream, poison: Callable[[KeyedState, Outputs], None]
) -> None:
    await jetstream.create_stream("IN", subjects=["in.>"])
    sink = await jetstream.create_stream(
        "OUT", subjects=["out.>", "$CURSOR.OUT.>"], allow_atomic=True, allow_rollup_hdrs=True, max_msg_size=1000
    )

    async def handle(message: JsMessage, state: KeyedState, out: Outputs) -> None:
        if message.data == b"1":
            poison(state, out)
        out.add("out.x", message.data)

    await publish_inputs(jetstream, range(3))
    processor = copying(jetstream, handle, retry=RetryPolicy(dead_letter_subject="out.dead", max_attempts=1))
    await run_until(processor, lambda: processor.handled == 3)
    stored = [(message.subject, message.data) async for message in sink.get_batch(subject="out.>")]
    assert stored == [("out.x", b"0"), ("out.dead", b"1"), ("out.x", b"2")]


async def test_leaving_while_the_source_lags_is_no_verdict(
    jetstream: JetStream, streams: tuple[Stream, Stream]
) -> None:
    """A new leader may lack the last messages for a moment, in which the worker is stopped."""
    cursor = await jetstream.cursor("OUT", "p-0", subject="$CURSOR.OUT.p.0.cursor")
    async with cursor.advance(to=3):
        pass
    processor = copying(jetstream, copy)
    async with running(processor):
        await until(lambda: bool(processor.partitions), 30)
        await asyncio.sleep(0.05)


async def test_cancelled_run_keeps_its_count(jetstream: JetStream, streams: tuple[Stream, Stream]) -> None:
    await publish_inputs(jetstream, range(3))
    processor = copying(jetstream, copy)
    run = asyncio.create_task(processor.run())
    await until(lambda: processor.handled == 3, 30)
    run.cancel()
    await asyncio.wait({run})
    assert processor.handled == 3


def test_wrong_arguments_are_refused_at_once(jetstream: JetStream) -> None:
    with pytest.raises(TypeError, match="retry must be a RetryPolicy"):
        copying(jetstream, copy, retry=5)
    with pytest.raises(TypeError, match="js must be a JetStream"):
        Processor(jetstream.connection, "p", copy, source="IN", sink="OUT")  # type: ignore[arg-type]
