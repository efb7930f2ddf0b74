"""The blocking client's publishers, and what it does with streams beyond one message at a time."""

from __future__ import annotations

import queue
import random
import threading
from itertools import islice
from pathlib import Path

import pytest

from natsproto import sync
from natsproto.errors import (
    BatchRefused,
    ConfigError,
    ConnectionClosed,
    ConsumerNotFound,
    FailedMessage,
    InvalidHeader,
    InvalidSubject,
    LocalProtocolError,
    MessageNotFound,
    NoStream,
    PayloadTooLarge,
    PublishFailed,
    PublishUncertain,
    RequestTimeout,
    WrongLastSequence,
)
from natsproto.jetstream import advisories as advisory
from natsproto.sync import _publish_queue as publish_queue
from natsproto.sync._portal import Portal
from natsproto.testing import Server
from tests.server.helpers import loops


@pytest.fixture
def js(nc: sync.Client) -> sync.JetStream:
    return nc.jetstream(timeout=5)


# ---------------------------------------------------------------- windows


def test_a_window_acknowledges_every_message_in_order(js: sync.JetStream) -> None:
    stream = js.create_stream(name="S", subjects=["s.>"], storage="memory")
    with js.publisher(max_pending=100) as publisher:
        futures = [publisher.publish("s.a", b"%d" % number) for number in range(10_000)]
        assert publisher.published == 10_000
        publisher.flush()
        assert (publisher.pending, publisher.acknowledged) == (0, 10_000)
        assert all(future.done() for future in futures)
        assert [future.result().seq for future in futures] == list(range(1, 10_001))
        later = publisher.publish("s.b", b"x", msg_id="once", headers={"Tag": "a"})
        assert later.result(timeout=5).seq == 10_001
        again = publisher.publish("s.b", b"x", msg_id="once")
        assert (again.result(timeout=5).duplicate, again.duplicate, again.exception()) == (True, True, None)
        last = publisher.publish("s.c", bytes(100_000))
    assert last.result(timeout=0).seq == 10_002
    assert stream.get_message(10_001).headers["Tag"] == "a"
    assert stream.info().state.messages == 10_002


def test_window_checks_and_copies_arguments(js: sync.JetStream) -> None:
    stream = js.create_stream(name="S", subjects=["s.>"], storage="memory")
    publisher = js.publisher()
    with pytest.raises(LocalProtocolError, match="inside the publisher's block"):
        publisher.publish("s.a")
    with publisher:
        for error, subject, arguments in (
            (InvalidSubject, "s a", {}),
            (TypeError, "s.a", {"payload": "text"}),
            (InvalidHeader, "s.a", {"headers": {"a b": "c"}}),
            (ConfigError, "s.a", {"expected_last_seq": -1}),
            (ConfigError, "s.a", {"msg_id": "a", "headers": {"Nats-Msg-Id": "b"}}),
            (PayloadTooLarge, "s.a", {"payload": bytes(2 * 2**20)}),
        ):
            with pytest.raises(error):
                publisher.publish(subject, **arguments)
        headers, payload = {"Tag": "first"}, bytearray(b"first")
        future = publisher.publish("s.a", payload, headers=headers)
        headers["Tag"], payload[:] = "later", b"LATER"
        assert future.result(timeout=5).seq == 1
    stored = stream.get_message(1)
    assert (stored.data, stored.headers["Tag"]) == (b"first", "first")
    with pytest.raises(LocalProtocolError, match="inside the publisher's block"):
        publisher.publish("s.a")
    with pytest.raises(LocalProtocolError, match="once"), publisher:
        pass


def test_unseen_failures_are_raised_at_the_end(js: sync.JetStream) -> None:
    js.create_stream(name="S", subjects=["s.>"], storage="memory")
    with pytest.raises(PublishFailed) as failed, js.publisher() as publisher:  # noqa: PT012  # it is left
        seen = publisher.publish("s.a", expected_last_seq=77)
        assert isinstance(seen.exception(timeout=5), WrongLastSequence)
        with pytest.raises(WrongLastSequence):
            seen.result()
        publisher.publish("s.b", b"good")
        publisher.publish("s.c", b"bad", expected_last_seq=77)
    assert [(failure.number, failure.subject) for failure in failed.value.failures] == [(3, "s.c")]

    with pytest.raises(ZeroDivisionError), js.publisher() as publisher:  # noqa: PT012  # it is left with an error
        unknown = [publisher.publish("s.d", b"%d" % number) for number in range(100)]
        raise ZeroDivisionError
    outcomes = [future.exception(timeout=5) for future in unknown]
    assert all(error is None or isinstance(error, (LocalProtocolError, PublishUncertain)) for error in outcomes)


def test_window_full_of_failures_loses_no_message(js: sync.JetStream) -> None:
    stream = js.create_stream(name="S", subjects=["s.>"], storage="memory")
    reported: list[int] = []
    with js.publisher(max_pending=10) as publisher:
        published = 0
        while published < 300:
            try:
                publisher.publish("s.a", expected_last_seq=7777 if published % 2 else None)
                published += 1
            except PublishFailed as exc:
                reported += [failure.number for failure in exc.failures]
        try:
            publisher.flush()
        except PublishFailed as exc:
            reported += [failure.number for failure in exc.failures]
    assert sorted(reported) == list(range(2, 301, 2)), "each failure is told once"
    assert stream.info().state.messages == 150


def test_concurrent_failures_are_raised_once(monkeypatch: pytest.MonkeyPatch) -> None:
    portal = Portal()
    reported: list[int] = []

    async def send(item: str) -> None: ...

    def publish() -> None:
        try:
            queue.put("a message", 0)
        except PublishFailed as exc:
            reported.extend(failure.number for failure in exc.failures)

    def merge_errors(first: Exception | None, then: Exception) -> Exception:
        """Another thread publishes in the middle of it."""
        monkeypatch.undo()
        thread = threading.Thread(target=publish)
        thread.start()
        thread.join(10)
        return merge(first, then)

    merge, queue = publish_queue.merge_errors, publish_queue.PublishQueue(portal, send)
    queue.fail(PublishFailed([FailedMessage(1, "s.a", 0, LocalProtocolError())]))
    monkeypatch.setattr(publish_queue, "merge_errors", merge_errors)
    queue.fail(PublishFailed([FailedMessage(2, "s.b", 0, LocalProtocolError())]))
    publish()
    assert sorted(reported) == [1, 2]
    portal.stop()


def test_what_waits_for_room_in_a_window_is_pending(js: sync.JetStream) -> None:
    js.create_stream(name="S", subjects=["s.>"], storage="memory", no_ack=True)
    with pytest.raises(ZeroDivisionError), js.publisher(max_pending=1) as publisher:  # noqa: PT012
        for _ in range(3):
            publisher.publish("s.a")
        assert js.account_info().streams == 1  # by now the loop has one in the window and one in its hands
        assert publisher.pending == 3
        raise ZeroDivisionError


def test_threads_share_a_window(js: sync.JetStream) -> None:
    stream = js.create_stream(name="S", subjects=["s.>"], storage="memory")
    acks: list[list[int]] = [[] for _ in range(8)]
    with js.publisher(max_pending=50) as publisher:

        def publish(number: int) -> None:
            futures = [publisher.publish(f"s.{number}", b"%d" % count) for count in range(500)]
            acks[number] = [future.result(timeout=20).seq for future in futures]

        threads = [threading.Thread(target=publish, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive()
    assert all(sequences == sorted(sequences) for sequences in acks), "what one thread publishes keeps its order"
    assert sorted(sequence for sequences in acks for sequence in sequences) == list(range(1, 4001))
    assert stream.info().state.messages == 4000


def test_done_callbacks_of_acknowledgements(js: sync.JetStream, caplog: pytest.LogCaptureFixture) -> None:
    js.create_stream(name="S", subjects=["s.>"], storage="memory")
    done: queue.Queue[sync.AckFuture] = queue.Queue()

    def fail(future: sync.AckFuture) -> None:
        raise ValueError(future.subject)

    with pytest.raises(PublishFailed), js.publisher(retry_attempts=0) as publisher:  # noqa: PT012
        stored, lost = publisher.publish("s.a"), publisher.publish("none")
        with pytest.raises(TypeError, match="callback must be callable, not NoneType"):
            stored.add_done_callback(None)  # type: ignore[arg-type]
        for future in (stored, lost):
            future.add_done_callback(done.put)
            future.add_done_callback(fail)
        assert {done.get(timeout=30), done.get(timeout=30)} == {stored, lost}
        for future in (stored, lost):
            future.add_done_callback(done.put)  # it is done
        assert [done.get(timeout=30), done.get(timeout=30)] == [stored, lost]
        unpublished = sync.AckFuture(publisher._portal, "s.b")
        error = ConnectionClosed("publish")
        unpublished.add_done_callback(done.put)
        publisher._portal.run(unpublished._set_published, error)
        assert done.get(timeout=30).exception() is error
    assert stored.result().seq == 1
    assert isinstance(lost.exception(), NoStream)
    logged = [str(record.exc_info[1]) for record in caplog.records if record.exc_info]
    assert sorted(logged) == ["none", "s.a"]


def test_unacknowledged_messages_fail_on_close(nats_server: Server) -> None:
    nc = sync.connect(nats_server.url)
    js = nc.jetstream(timeout=30)
    js.create_stream(name="S", subjects=["s.>"], storage="memory", no_ack=True)
    ended: list[BaseException] = []
    with pytest.raises(ConnectionClosed), js.publisher() as publisher:  # noqa: PT012
        future = publisher.publish("s.a")
        with pytest.raises(RequestTimeout):
            future.result(timeout=0.01)

        def wait() -> None:
            try:
                future.result()
            except PublishUncertain as exc:
                ended.append(exc)

        waiter = threading.Thread(target=wait)
        waiter.start()
        nc.close()
        waiter.join(5)
        assert not waiter.is_alive()
        assert len(ended) == 1
        with pytest.raises(ConnectionClosed):
            publisher.publish("s.a")
    assert loops() == []


def test_future_settled_by_closing_client(monkeypatch: pytest.MonkeyPatch) -> None:
    portal = Portal()
    futures = [sync.AckFuture(portal, "s.a") for _ in range(2)]
    uncertain = PublishUncertain("s.a", "the client was closed")

    def call(*_: object) -> None:
        """The client ends before the thread is in its loop."""
        futures[0]._set_published(uncertain)
        portal.stop()
        raise ConnectionClosed

    monkeypatch.setattr(portal, "call", call)
    assert futures[0].exception() is uncertain
    with pytest.raises(ConnectionClosed):
        futures[1].result()


# ---------------------------------------------------------------- fast ingest and batches


def test_fast_ingest_takes_thousands_and_commits(js: sync.JetStream) -> None:
    stream = js.create_stream(name="S", subjects=["s.>"], storage="memory", allow_batched=True)
    with js.fast_publisher() as publisher:
        assert [publisher.publish("s.a", b"%d" % number) for number in range(5000)] == list(range(1, 5001))
        assert publisher.publish("s.b", bytes(100_000), headers={"Tag": "a"}) == 5001
        publisher.flush()
        assert (publisher.published, publisher.pending, publisher.lost) == (5001, 0, 0)
        publisher.publish("s.c")
        ack = publisher.commit("s.d", b"last")
        assert (ack.seq, publisher.ack) == (5003, ack)
    assert [stream.get_message(sequence).data for sequence in (1, 5000, 5003)] == [b"0", b"4999", b"last"]
    js.create_stream(name="T", subjects=["t.>"], storage="memory")
    with pytest.raises(BatchRefused), js.fast_publisher() as publisher:
        publisher.publish("t.a")
    with pytest.raises(NoStream), js.fast_publisher(retry_attempts=0) as publisher:
        publisher.publish("u.a")


def test_atomic_batch_is_all_or_nothing(js: sync.JetStream) -> None:
    stream = js.create_stream(name="S", subjects=["s.>"], storage="memory", allow_atomic=True)
    with js.atomic_batch() as batch:
        for number in range(10):
            batch.publish("s.a", b"%d" % number)
        batch.flush()
        assert stream.info().state.messages == 0
    assert (len(batch), batch.ack.count, batch.ack.seq) == (10, 10, 10)
    with pytest.raises(ZeroDivisionError), js.atomic_batch() as batch:  # noqa: PT012
        batch.publish("s.a")
        raise ZeroDivisionError
    with pytest.raises(WrongLastSequence), js.atomic_batch() as batch:
        batch.publish("s.b", expected_last_subject_seq=77)
    assert stream.info().state.messages == 10


# ---------------------------------------------------------------- everything else of streams


def test_counters_count_and_schedules_are_replaced(js: sync.JetStream) -> None:
    js.create_stream(name="C", subjects=["c.>"], storage="memory", allow_msg_counter=True, allow_direct=True)
    assert [js.counter_add("c.a", number) for number in (1, 10, -2)] == [1, 11, 9]
    assert js.counter_add("c.b") == 1
    assert js.counter_get("c.a").value == 9
    assert sorted((counter.subject, counter.value) for counter in js.counters("C")) == [("c.a", 9), ("c.b", 1)]
    js.create_stream(name="L", subjects=["l.>"], storage="memory", allow_msg_schedules=True)
    js.publish("l.schedule", b"x", schedule="@every 1h", schedule_target="l.target")
    assert js.cancel_schedule("l.schedule")
    assert not js.cancel_schedule("l.schedule")


def test_a_stream_is_looked_through_saved_and_restored(js: sync.JetStream, tmp_path: Path) -> None:
    stream = js.create_stream(name="S", subjects=["s.>"], storage="file", allow_direct=True)
    for number in range(20):
        js.publish(f"s.{number % 4}", b"%d" % number)
    assert stream.cached_info.config.name == "S"
    assert dict(stream.subjects("s.>")) == {f"s.{number}": 5 for number in range(4)}
    assert stream.get_next_message("s.3", start_seq=5).data == b"7"
    assert [stored.data for stored in stream.get_last_messages(["s.>"])] == [b"16", b"17", b"18", b"19"]
    found = js.streams()
    assert ([info.config.name for info in found], list(found.missing), dict(found.offline)) == (["S"], [], {})
    saved = stream.backup(tmp_path / "s.backup")
    assert saved.bytes > 0
    js.create_stream(name="KEEP", storage="file", subjects=["k"])  # a server removes the folder of the last stream late
    js.delete_stream("S")
    restored = js.restore_stream(tmp_path / "s.backup")
    assert restored.info().state.messages == 20
    assert restored.seal().config.sealed


def test_consumers_are_changed_paused_reset_and_listed(js: sync.JetStream) -> None:
    stream = js.create_stream(name="S", subjects=["s.>"], storage="memory")
    for number in range(5):
        js.publish("s.a", b"%d" % number)
    consumer = stream.create_consumer(durable_name="d", max_deliver=3)
    assert (consumer.name, consumer.stream_name, consumer.cached_info.config.max_deliver) == ("d", "S", 3)
    assert stream.update_consumer(durable_name="d", max_deliver=5).cached_info.config.max_deliver == 5
    assert [info.name for info in stream.consumers()] == ["d"]
    first = consumer.next(timeout=5)
    second = consumer.next(timeout=5, acking=first)
    assert (first.is_acked, second.data) == (True, b"1")
    with second.keep_alive(0.01):
        assert not second.is_acked
    assert [message.data for message in consumer.fetch(2, timeout=5, heartbeat=1)] == [b"2", b"3"]
    assert consumer.reset(1) is not None
    assert consumer.next(timeout=5).data == b"0"
    assert stream.consumer_info("d").num_ack_pending >= 1
    stream.delete_consumer("d")
    with pytest.raises(ConsumerNotFound):
        stream.consumer_info("d")
    with pytest.raises(MessageNotFound):
        stream.get_message(77)


def test_given_up_fast_messages_are_all_listed(nats_server: Server, nc: sync.Client, seed: int) -> None:
    """Each one is stored and acknowledged, or in the error: uncertain if it was sent, and else never stored."""
    js, chance = nc.jetstream(), random.Random(seed)
    stream = js.create_stream(name="S", subjects=["s.>"], storage="memory", allow_batched=True)
    publisher, size, count = js.fast_publisher(timeout=0.3), chance.randrange(3000, 9000), chance.randrange(2500, 3500)
    publisher.__enter__()
    publisher.publish("s.a", b"1")
    publisher.flush()
    nats_server.freeze()
    for number in range(2, count + 1):
        assert publisher.publish("s.a", b"%d " % number + bytes(size)) == number
    with pytest.raises(PublishFailed) as caught:
        publisher.__exit__(None, None, None)
    nats_server.thaw()
    failures = caught.value.failures
    uncertain = [failure for failure in failures if isinstance(failure.error, PublishUncertain)]
    unsent = failures[len(uncertain) :]
    assert [failure.number for failure in failures] == list(range(2, count + 1))
    assert uncertain
    assert unsent
    assert all(isinstance(failure.error, RequestTimeout) and not failure.error.sent for failure in unsent)
    assert caught.value.__cause__ is failures[0].error
    nc.flush(timeout=30)
    assert stream.info().state.messages <= 1 + len(uncertain)
    assert (publisher.published, publisher.pending) == (count, 0)


def test_ordered_and_push_consumers_are_read(js: sync.JetStream) -> None:
    stream = js.create_stream(name="S", subjects=["s.>"], storage="memory")
    for number in range(100):
        js.publish("s.a", b"%d" % number)
    with stream.ordered_consumer(start_seq=11) as ordered:
        assert ordered.next(timeout=5).data == b"10"
        assert [message.data for message in ordered.fetch(3, timeout=5)] == [b"11", b"12", b"13"]
        assert [message.data for message in ordered.messages(stop_after=3)] == [b"14", b"15", b"16"]
        with ordered.messages() as messages:
            assert messages.next(timeout=5).data == b"17"
            assert [int(message.data) for message in islice(messages, 82)] == list(range(18, 100))
            with pytest.raises(RequestTimeout):
                messages.next(timeout=0.01)
        assert (ordered.last_seq, ordered.stream_name) == (100, "S")
    pushed = stream.create_push_consumer(durable_name="p", ack_policy="explicit")
    with pushed.messages() as messages:
        for number in range(100):
            message = messages.next(timeout=5)
            assert message.data == b"%d" % number
            message.ack_sync()
    assert stream.consumer_info("p").num_ack_pending == 0


def test_messages_left_by_a_loop_go_to_next_reader(js: sync.JetStream) -> None:
    stream = js.create_stream(name="S", subjects=["s.>"], storage="memory")
    for number in range(50):
        js.publish("s.a", b"%d" % number)
    consumer = stream.create_consumer(durable_name="d", ack_policy="none")
    for message in consumer.messages():
        if message.data == b"9":
            break
    assert consumer.next(timeout=5).data == b"10"
    with consumer.messages() as messages:
        assert messages.next(timeout=5).data == b"11"
    assert [int(message.data) for message in consumer.fetch(38, timeout=5)] == list(range(12, 50))
    with consumer.messages() as messages:
        messages.stop()
        assert list(messages) == []
        assert messages.closed


def test_the_system_and_advisories_are_listened_to(nc: sync.Client, js: sync.JetStream) -> None:
    assert nc.system().user_info().data["account"] == "$G"
    assert nc.client_id == nc.server_info.client_id
    assert nc.servers
    assert nc.new_inbox() != nc.new_inbox()
    with js.advisories("$JS.EVENT.ADVISORY.STREAM.>") as events:
        nc.flush()
        js.create_stream(name="S", subjects=["s.>"], storage="memory")
        event = events.next(timeout=5)
        assert isinstance(event, advisory.StreamAction)
        assert event.stream == "S"
    assert list(events) == []
