"""Streams that do not fit a processor, and sources that changed since its last run: an error by name."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from natsproto.errors import (
    ConfigError,
    InvalidReply,
    InvalidSubject,
    SourceChanged,
    StreamNotFound,
    UnsupportedByServer,
)
from natsproto.jetstream import JetStream, JsMessage, Stream, StreamSource, SubjectTransform
from natsproto.processor import KeyedState, Outputs, Processor
from natsproto.retry import RetryPolicy
from tests.kit.servers import client_of
from tests.processor.helpers import copy, copying, outputs, publish_inputs, run_until, running
from tests.processor.processes import create_streams

SINK = {"subjects": ["out.>", "$CURSOR.OUT.>"], "allow_atomic": True}


async def test_arguments_are_checked(jetstream: JetStream) -> None:
    with pytest.raises(ConfigError, match="another stream"):
        Processor(jetstream, "p", copy, source="IN", sink="IN")
    for partitions in (0, 257, True, 1.0):
        with pytest.raises(ConfigError, match="1 to 256"):
            copying(jetstream, copy, partitions=partitions)
    with pytest.raises(ConfigError, match="max_state_bytes"):
        copying(jetstream, copy, max_state_bytes=0)
    with pytest.raises(InvalidSubject):
        Processor(jetstream, "a.b", copy, source="IN", sink="OUT")
    with pytest.raises(TypeError, match="async def"):
        copying(jetstream, lambda message, state, out: None)  # type: ignore[arg-type,return-value]
    with pytest.raises(TypeError, match="one message, state and outputs"):
        copying(jetstream, lambda message: None)  # type: ignore[arg-type,misc]
    with pytest.raises(TypeError, match="until"):
        await copying(jetstream, copy).run(until=True)  # type: ignore[arg-type]


async def test_streams_must_exist_and_fit(jetstream: JetStream) -> None:
    async def refused(error: type[Exception], match: str, **options: Any) -> None:
        with pytest.raises(error, match=match):
            await copying(jetstream, copy, **options).run()

    await refused(StreamNotFound, "not found")
    await jetstream.create_stream("IN", subjects=["in.>"])
    await refused(StreamNotFound, "not found")
    sink = await jetstream.create_stream("OUT", subjects=["out.>"])
    await refused(ConfigError, "has no atomic batches")
    await jetstream.update_stream("OUT", subjects=["out.>"], allow_atomic=True)
    await refused(ConfigError, r"\$CURSOR.OUT.p.0.cursor")
    await jetstream.update_stream("OUT", **SINK)  # type: ignore[arg-type]
    await refused(ConfigError, "dead_letter_subject", retry=RetryPolicy(dead_letter_subject="elsewhere"))
    await refused(ConfigError, r"Partition\(4,1\)", partitions=4)
    await jetstream.delete_stream("IN")
    await jetstream.create_stream("IN", subjects=["in.>"], retention="workqueue")
    await refused(ConfigError, "consumers that remove messages")
    assert (await sink.info()).state.messages == 0


@pytest.mark.parametrize(
    ("fields", "fits"),
    [
        ({"subjects": ["in.>"], "src": ">", "dest": "{{Partition(2,1)}}.{{Wildcard(1)}}"}, False),
        ({"subjects": ["in.*"], "src": "in.*", "dest": "{{partition(2,1)}}.in.{{wildcard(1)}}"}, True),
        ({"subjects": ["in.*", "x.*"], "src": "in.*", "dest": "{{partition(2,1)}}.in.{{wildcard(1)}}"}, False),
        ({"subjects": ["in.*"], "src": "in.*", "dest": "{{partition(3,1)}}.in.{{wildcard(1)}}"}, False),
        ({"subjects": ["in.*"], "src": "in.*", "dest": "x.{{partition(2,1)}}.{{wildcard(1)}}"}, False),
    ],
)
async def test_partitions_of_the_source(jetstream: JetStream, fields: dict[str, Any], fits: bool) -> None:
    fields = dict(fields)
    if fields["src"] == ">":
        fields["dest"] = "{{Partition(2)}}.>"
        fits = True
    transform = SubjectTransform(src=fields.pop("src"), dest=fields.pop("dest"))
    await jetstream.create_stream("OUT", **SINK)  # type: ignore[arg-type]
    await jetstream.create_stream("IN", subject_transform=transform, **fields)
    await publish_inputs(jetstream, range(4), "in.a")
    processor = copying(jetstream, copy, partitions=2)
    if not fits:
        with pytest.raises(ConfigError, match="do not all begin with one of 2 partitions"):
            await processor.run()
        return
    await run_until(processor, lambda: processor.handled == 4)


async def test_source_that_copies_another_stream(jetstream: JetStream) -> None:
    """The original has other consumers, which know nothing of partitions."""
    seen: list[str] = []

    async def handle(message: JsMessage, state: KeyedState, out: Outputs) -> None:
        seen.append(message.subject)

    await jetstream.create_stream("ORIGINAL", subjects=["in.*"])
    transform = SubjectTransform(src="in.*", dest="{{Partition(2,1)}}.in.{{Wildcard(1)}}")
    await jetstream.create_stream("IN", sources=[StreamSource(name="ORIGINAL", subject_transforms=[transform])])
    await jetstream.create_stream("OUT", **SINK)  # type: ignore[arg-type]
    for key in "abcd":
        await publish_inputs(jetstream, range(3), f"in.{key}")
    processor = copying(jetstream, handle, partitions=2)
    await run_until(processor, lambda: processor.handled == 12)
    assert sorted(seen) == [f"in.{key}" for key in "abcd" for _ in range(3)]


async def test_number_of_partitions_cannot_change(jetstream: JetStream) -> None:
    await create_streams(jetstream, 1)
    await publish_inputs(jetstream, range(4))
    processor = copying(jetstream, copy)
    await run_until(processor, lambda: processor.handled == 4)
    await jetstream.delete_stream("IN")
    transform = SubjectTransform(src="in.*", dest="{{Partition(2,1)}}.in.{{Wildcard(1)}}")
    await jetstream.create_stream("IN", subjects=["in.*"], subject_transform=transform)
    with pytest.raises(ConfigError, match="was 1: it cannot change"):
        await copying(jetstream, copy, partitions=2).run()


async def test_source_that_was_recreated_is_an_error(jetstream: JetStream, streams: tuple[Stream, Stream]) -> None:
    await publish_inputs(jetstream, range(4))
    processor = copying(jetstream, copy)
    with pytest.raises((SourceChanged, StreamNotFound)):  # noqa: PT012
        async with running(processor) as task, asyncio.timeout(60):
            while processor.handled < 4:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            await jetstream.delete_stream("IN")
            await jetstream.create_stream("IN", subjects=["in.>"])
            await publish_inputs(jetstream, range(10))
            await asyncio.wait({task})
    with pytest.raises(SourceChanged, match=r"was created again.*OUT.p.source") as caught:
        await copying(jetstream, copy).run()
    assert (caught.value.processor, caught.value.source) == ("p", "IN")
    assert await outputs(streams[1]) == [b"0", b"1", b"2", b"3"]
    await jetstream.create_stream("IN2", subjects=["in2"])
    with pytest.raises(SourceChanged, match="is not 'IN', which it read before"):
        await Processor(jetstream, "p", copy, source="IN2", sink="OUT").run()


async def test_source_that_was_restored_goes_on(
    jetstream: JetStream, streams: tuple[Stream, Stream], tmp_path: Path
) -> None:
    await publish_inputs(jetstream, range(4))
    processor = copying(jetstream, copy)
    await run_until(processor, lambda: processor.handled == 4)
    await publish_inputs(jetstream, range(4, 8))
    await streams[0].backup(tmp_path / "IN")
    await jetstream.delete_stream("IN")
    await jetstream.restore_stream(tmp_path / "IN")
    with pytest.raises(SourceChanged, match="was created again"):
        await copying(jetstream, copy).run()
    await streams[1].purge(subject="$CURSOR.OUT.p.source")
    processor = copying(jetstream, copy)
    await run_until(processor, lambda: processor.handled == 4)
    assert await outputs(streams[1]) == [b"%d" % one for one in range(8)]


async def test_source_that_went_back_is_an_error(
    jetstream: JetStream, streams: tuple[Stream, Stream], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("natsproto.processor._partition._LONGEST_PAUSE_S", 0.05)
    await publish_inputs(jetstream, range(4))
    processor = copying(jetstream, copy)
    await run_until(processor, lambda: processor.handled == 4)
    cursor = await jetstream.cursor("OUT", "p-0", subject="$CURSOR.OUT.p.0.cursor")
    async with cursor.advance(to=9):
        pass
    with pytest.raises(SourceChanged, match="went back to message 4, while 9 was processed"):
        await copying(jetstream, copy).run()


async def test_messages_that_were_removed_are_reported(
    jetstream: JetStream, streams: tuple[Stream, Stream], caplog: pytest.LogCaptureFixture
) -> None:
    await publish_inputs(jetstream, range(4))
    processor = copying(jetstream, copy)
    await run_until(processor, lambda: processor.handled == 4)
    await publish_inputs(jetstream, range(4, 10))
    await streams[0].purge(keep=2)
    processor = copying(jetstream, copy)
    with caplog.at_level(logging.WARNING, "natsproto.processor"):
        await run_until(processor, lambda: processor.handled == 2)
    assert "messages 5 to 8 of stream 'IN' were removed before they were processed" in caplog.text
    assert await outputs(streams[1]) == [b"0", b"1", b"2", b"3", b"8", b"9"]


async def test_state_without_its_cursor_is_an_error(jetstream: JetStream, streams: tuple[Stream, Stream]) -> None:
    async def handle(message: JsMessage, state: KeyedState, out: Outputs) -> None:
        state["n"] = message.data

    await publish_inputs(jetstream, range(4))
    processor = copying(jetstream, handle)
    await run_until(processor, lambda: processor.handled == 4)
    await streams[1].purge(subject="$CURSOR.OUT.p.0.cursor")
    with pytest.raises(InvalidReply, match="its state is there"):
        await copying(jetstream, handle).run()


@pytest.mark.variant
@pytest.mark.slow
async def test_older_servers_are_refused_by_name() -> None:
    async with client_of("2.11") as nc:
        js = nc.jetstream()
        await js.create_stream("IN", subjects=["in.>"])
        await js.create_stream("OUT", subjects=["out.>", "$CURSOR.OUT.>"])
        with pytest.raises((UnsupportedByServer, ConfigError)):
            await copying(js, copy).run()
