"""The place of a stored message has the same names wherever a user meets it."""

from __future__ import annotations

import inspect

import pytest

from natsproto import sync
from natsproto.jetstream import JetStream, JsMessage, PullConsumer, PushConsumer, RawMessage, Stream
from natsproto.jetstream.kv import KeyValueEntry

CLASSES = (JetStream, Stream, PullConsumer, PushConsumer, sync.JetStream, sync.Stream, sync.PullConsumer)
OLD = {
    "stream_seq",
    "sequence",
    "start_sequence",
    "up_to_sequence",
    "last_sequence",
    "seqno",
}  # opt_start_seq is a field of the server


async def test_raw_and_delivered_message_say_the_same(jetstream: JetStream) -> None:
    stream = await jetstream.create_stream("S", subjects=["s"])
    await jetstream.publish("s", b"1")
    await jetstream.publish("s", b"2")
    delivered = await (await stream.create_consumer("c", deliver_policy="last")).next()
    stored = [await stream.get_message(2), await stream.get_last_message("s"), await stream.get_last_message("s")]
    assert isinstance(delivered, JsMessage)
    for raw in stored:
        assert isinstance(raw, RawMessage)
        assert (raw.seq, raw.time, raw.stream) == (delivered.seq, delivered.time, delivered.stream)
    assert (delivered.seq, delivered.stream) == (2, "S")


@pytest.mark.parametrize("kind", CLASSES)
def test_arguments_have_the_names_of_the_place(kind: type[object]) -> None:
    for name, member in inspect.getmembers(kind, callable):
        if not name.startswith("_"):
            assert OLD.isdisjoint(inspect.signature(member).parameters), name


def test_entry_of_a_bucket_calls_it_a_revision() -> None:
    assert not hasattr(KeyValueEntry, "seq")
    assert isinstance(inspect.getattr_static(KeyValueEntry, "revision"), property)
