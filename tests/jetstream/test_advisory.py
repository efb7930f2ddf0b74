"""What JetStream tells of itself arrives as typed events, the unknown and the unreadable included."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pytest

from natsproto import Client, errors
from natsproto.jetstream import advisories as advisory
from natsproto.jetstream._values.timestamp import Timestamp
from natsproto.jetstream.advisories import Advisories, Advisory

if TYPE_CHECKING:
    from natsproto.jetstream._context import JetStream

A = TypeVar("A", bound=Advisory)


class Ear:
    """Hears events of different kinds in whatever order they come, each kind in its own order."""

    def __init__(self, events: Advisories) -> None:
        self._events = events
        self._heard: list[Advisory] = []

    async def next(self, kind: type[A]) -> A:
        """The next event of this kind; every event on the way must be known to the last field."""
        while True:
            for event in self._heard:
                if type(event) is kind:
                    self._heard.remove(event)
                    return event
            event = await self._events.next(20)
            assert type(event) is not Advisory, f"unknown: {event}"
            assert event.extra == {}, f"{type(event).__name__} has more fields: {event.extra}"
            client = getattr(event, "client", None)
            assert client is None or client.extra == {}, f"the client has more fields: {client.extra}"
            assert event.id
            assert event.time > Timestamp(2020, 1, 1)
            self._heard.append(event)


async def test_life_of_a_stream_and_a_consumer_is_reported(
    jetstream: JetStream, nats_client: Client, tmp_path: Path
) -> None:
    async with jetstream.advisories() as events:
        ear = Ear(events)
        stream = await jetstream.create_stream(name="S", subjects=["s.>"])
        created = await ear.next(advisory.StreamAction)
        assert (created.stream, created.action) == ("S", "create")
        audit = await ear.next(advisory.ApiAudit)
        assert audit.subject == "$JS.API.STREAM.CREATE.S"
        assert json.loads(audit.request)["name"] == "S"
        assert audit.client is not None
        assert (audit.client.account, audit.client.id) == ("$G", nats_client.client_id)
        await stream.update(max_msgs=100)
        assert (await ear.next(advisory.StreamAction)).action == "modify"
        consumer = await stream.create_consumer(
            durable_name="c", max_deliver=1, ack_wait=60, sample_freq="100%", priority_groups=["g"],
            priority_policy="pinned_client", priority_timeout=60,
        )  # fmt: skip
        assert (await ear.next(advisory.ConsumerAction)).consumer == "c"

        for subject in ("s.ack", "s.nak", "s.term"):
            await nats_client.request(subject)
        pull = json.dumps({"batch": 3, "group": "g", "expires": 60_000_000_000}).encode()
        async with nats_client.subscribe("got") as got:
            await nats_client.publish("$JS.API.CONSUMER.MSG.NEXT.S.c", pull, reply="got")
            await (await got.next(20)).respond(b"+ACK")
            pinned = await ear.next(advisory.GroupPinned)
            assert (pinned.consumer, pinned.group) == ("c", "g")
            assert pinned.pinned_id
            metric = await ear.next(advisory.ConsumerAck)
            assert (metric.stream, metric.consumer, metric.stream_seq, metric.deliveries) == ("S", "c", 1, 1)
            assert 0 < metric.ack_time < 20
            await (await got.next(20)).respond(b"-NAK")
            assert (await ear.next(advisory.MessageNaked)).stream_seq == 2
            await (await got.next(20)).respond(b"+TERM because")
            terminated = await ear.next(advisory.MessageTerminated)
            assert (terminated.stream_seq, terminated.reason) == (3, "because")
        await consumer.unpin("g")
        assert (await ear.next(advisory.GroupUnpinned)).reason == "admin"

        await consumer.pause(Timestamp(2100, 1, 1))
        paused = await ear.next(advisory.ConsumerPaused)
        assert (paused.paused, paused.pause_until) == (True, Timestamp(2100, 1, 1))
        await consumer.resume()
        assert not (await ear.next(advisory.ConsumerPaused)).paused

        await stream.backup(tmp_path / "s")
        started = await ear.next(advisory.SnapshotStarted)
        assert started.state is not None
        assert started.state.last_seq == 3
        assert (await ear.next(advisory.SnapshotCompleted)).error == ""
        await consumer.delete()
        assert (await ear.next(advisory.ConsumerAction)).action == "delete"
        await jetstream.create_stream(name="KEEP", subjects=["k"])  # the folder of the last stream is removed late
        assert (await ear.next(advisory.StreamAction)).stream == "KEEP"
        await jetstream.delete_stream("S")
        assert (await ear.next(advisory.StreamAction)).action == "delete"
        await jetstream.restore_stream(tmp_path / "s")
        assert (await ear.next(advisory.RestoreStarted)).stream == "S"
        assert (await ear.next(advisory.RestoreCompleted)).bytes > 0


async def test_message_that_is_given_up_is_reported(jetstream: JetStream, nats_client: Client) -> None:
    async with jetstream.advisories("$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.>") as events:
        ear = Ear(events)
        stream = await jetstream.create_stream(name="S", subjects=["s"], storage="memory")
        await stream.create_consumer(durable_name="c", max_deliver=1, ack_wait=0.1)
        await nats_client.request("s")
        async with nats_client.subscribe("got") as got:
            await nats_client.publish("$JS.API.CONSUMER.MSG.NEXT.S.c", b"1", reply="got")
            await got.next(20)
            await nats_client.publish("$JS.API.CONSUMER.MSG.NEXT.S.c", b"1", reply="got")
            event = await ear.next(advisory.MaxDeliveries)
            assert (event.stream, event.consumer, event.stream_seq, event.deliveries) == ("S", "c", 1, 1)


async def test_abandoned_batch_is_reported(jetstream: JetStream, nats_client: Client) -> None:
    async with jetstream.advisories() as events:
        ear = Ear(events)
        await jetstream.create_stream(name="S", subjects=["s"], storage="memory", allow_atomic=True)
        for seq in ("1", "3"):
            await nats_client.request("s", headers={"Nats-Batch-Id": "b", "Nats-Batch-Sequence": seq})
        event = await ear.next(advisory.BatchAbandoned)
        assert (event.stream, event.batch, event.reason) == ("S", "b", "incomplete")


async def test_advisory_of_a_newer_server_is_kept_raw(jetstream: JetStream, nats_client: Client) -> None:
    said = {
        "type": "io.nats.jetstream.advisory.v9.moon_phase",
        "id": "x",
        "timestamp": "2024-01-02T03:04:05Z",
        "new": [1],
    }
    async with jetstream.advisories() as events:
        await nats_client.publish("$JS.EVENT.ADVISORY.MOON", json.dumps(said).encode())
        event = await events.next(20)
    assert type(event) is Advisory
    assert (event.type, event.id, event.time, event.extra) == (
        *(said["type"], "x", Timestamp(2024, 1, 2, 3, 4, 5), {"new": [1]}),
    )


@pytest.mark.parametrize("text", [b"", b"not JSON", b"[]", b"\xff"])
async def test_advisory_that_cannot_be_read_is_kept_as_text(text: bytes) -> None:
    event = advisory.read_advisory(text)
    assert (type(event), event.type, event.extra) == (Advisory, "", {"data": text.decode("utf-8", "replace")})


def test_advisory_with_changed_fields_is_kept_raw() -> None:
    said = {"type": "io.nats.jetstream.advisory.v1.nak", "id": "x", "stream_seq": "a string now"}
    event = advisory.read_advisory(json.dumps(said).encode())
    assert (type(event), event.extra) == (Advisory, {"stream_seq": "a string now"})
    said["id"] = 5  # type: ignore[assignment]
    event = advisory.read_advisory(json.dumps(said).encode())
    assert "a string now" in str(event.extra["data"])


def test_every_kind_is_reported_apart() -> None:
    assert len(set(advisory.ADVISORY_TYPES.values())) == len(advisory.ADVISORY_TYPES)
    for name, kind in advisory.ADVISORY_TYPES.items():
        assert type(advisory.read_advisory(json.dumps({"type": name}).encode())) is kind


async def test_reading_ends_when_it_is_stopped(jetstream: JetStream, nats_client: Client) -> None:
    events = await jetstream.advisories()
    await nats_client.publish("$JS.EVENT.ADVISORY.X", b"{}")
    found = []
    async for event in events:
        found.append(event)
        await events.stop()
    assert len(found) == 1
    with pytest.raises(errors.SubscriptionClosed):
        await events.next()
