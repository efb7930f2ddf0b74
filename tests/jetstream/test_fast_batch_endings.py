"""How a fast batch ends: which message gets which error, and when silence is enough. No server, no network."""

from __future__ import annotations

import json

import pytest

from natsproto.errors import (
    ApiError,
    JetStreamError,
    NatsError,
    NoStream,
    PublishFailed,
    PublishUncertain,
    RequestTimeout,
)
from natsproto.jetstream._publish.batch_messages import BatchMessages
from natsproto.jetstream._publish.fast.fast_batch_state import BatchOperation, BatchPhase, FastBatchState, FastOptions
from natsproto.jetstream._publish.headers import msg_id_block
from natsproto.jetstream._values.error_codes import ErrCode
from tests.jetstream.test_fast_batch_state import error


class Batch:
    """A batch of messages to the subjects s1, s2, ..., of which a stream may have acknowledged some."""

    def __init__(
        self, count: int, *, acked: int = 1, gap_ok: bool = False, timeout: float = 10.0, max_bytes: int = 1 << 20
    ) -> None:
        self.messages = BatchMessages()
        options = FastOptions(gap_ok, 4, 2, max_bytes, timeout, 2, 0.25)
        self.state = FastBatchState(b"B", options, self.messages, pytest.fail)
        for number in range(1, count + 1):
            self.messages.add(f"s{number}", b"%d" % number, None)
            self.send()
            if number == 1 and acked:
                self.reply({"type": "ack", "seq": 1, "msgs": 4})
        if acked > 1:
            self.reply({"type": "ack", "seq": acked, "msgs": 4})

    def send(self) -> list[BatchOperation]:
        """Sends what is due."""
        sent = []
        while (command := self.state.next_command()) is not None:
            sent.append(command.operation)
            self.state.on_sent(command)
        return sent

    def reply(self, said: dict[str, object], sequence: int = 1) -> None:
        self.state.on_reply(self.state.batch, sequence, json.dumps(said).encode())

    def errors(self) -> dict[int, NatsError]:
        """What became of those that failed."""
        outcome = self.messages.take_error()
        assert isinstance(outcome, PublishFailed)
        return {failed.number: failed.error for failed in outcome.failures}


@pytest.mark.parametrize("acked", [1, 2])
def test_errors_around_a_refused_message(acked: int) -> None:
    """Before it: may be stored, unless acknowledged. Behind it: not stored."""
    batch = Batch(5, acked=acked)
    batch.reply(error(ErrCode.BATCH_PUBLISH_INVALID_PATTERN), sequence=4)
    errors = batch.errors()
    assert sorted(errors) == list(range(acked + 1, 6))
    assert all(isinstance(errors[number], PublishUncertain) for number in range(acked + 1, 4))
    assert [errors[number].subject for number in range(acked + 1, 4)] == [f"s{n}" for n in range(acked + 1, 4)]  # type: ignore[attr-defined]
    assert isinstance(errors[4], ApiError)
    assert type(errors[5]) is JetStreamError
    assert str(errors[5]) == "not stored, because message 4 (sent earlier) was rejected"
    assert "message 4 was rejected" in str(batch.messages.fatal_error)


def with_ids(*, sent: int) -> Batch:
    """A batch whose messages have ids; ``sent`` of three went out, without any reply."""
    batch = Batch(0)
    for number in range(1, 4):
        batch.messages.add(f"s{number}", b"%d" % number, msg_id_block(f"id{number}"))
        if number <= sent:
            batch.send()
    return batch


@pytest.mark.parametrize("way", ["disconnect", "silence", "timeout"])
def test_copies_without_a_stream_are_in_doubt(way: str) -> None:
    """First copies went out, and the stream is gone for the second ones: the first may be stored."""
    batch = with_ids(sent=1)
    state = batch.state
    if way == "disconnect":
        batch.reply({"type": "ack", "seq": 1, "msgs": 4})
        state.on_sent(command) if (command := state.next_command()) else None
        state.on_disconnect([], "cut")
        state.on_reconnect()
        batch.reply(error(ErrCode.BATCH_PUBLISH_UNKNOWN_BATCH_ID), sequence=2)
    else:
        state.on_tick(can_send=True)
    in_doubt = 2 if way == "disconnect" else 1
    batch.send()
    for _ in range(1 if way == "timeout" else 40):
        state.on_no_responders(state.batch)
        if batch.messages.fatal_error is None and way != "timeout":
            batch.send()
    while batch.messages.fatal_error is None:
        state.on_tick(can_send=False)
    errors = batch.errors()
    assert isinstance(errors[in_doubt], PublishUncertain)
    assert sorted(errors) == list(range(in_doubt, 4))
    assert not any(isinstance(errors[number], PublishUncertain) for number in errors if number > in_doubt)


@pytest.mark.parametrize(("code", "description"), [(10071, "wrong last sequence: 3"), (10164, "wrong last sequence")])
@pytest.mark.parametrize("gap_ok", [False, True])
def test_refusal_of_a_stale_server_is_in_doubt(code: int, description: str, gap_ok: bool) -> None:
    batch = Batch(1, gap_ok=gap_ok)
    batch.reply({"stream": "S", "batch": "B-1", "count": 1, "seq": 9})
    batch.messages.add("s2", b"2", b"NATS/1.0\r\nNats-Expected-Last-Subject-Sequence: 9\r\n\r\n")
    batch.send()
    batch.reply({"type": "err", "seq": 1, **refusal(code, description)})
    batch.reply({"stream": "S", "batch": "B-2", "count": 0, "seq": 9})
    assert isinstance(batch.errors()[2], PublishUncertain)


def refusal(code: int, description: str) -> dict[str, object]:
    return {"error": {"code": 400, "err_code": code, "description": description}}


def test_refusal_of_a_first_message_is_its_own() -> None:
    batch = Batch(3, acked=0)
    batch.reply(error(10077), sequence=1)
    refusal = batch.messages.take_error_of(1)
    assert isinstance(refusal, ApiError)
    assert refusal.err_code == 10077


@pytest.mark.parametrize(("timeout", "ticks"), [(10.0, 10), (2.0, 4), (150.0, 150)])
def test_silence_ends_a_batch_after_its_timeout(timeout: float, ticks: int) -> None:
    batch = Batch(2, timeout=timeout)
    for _ in range(ticks):
        batch.state.on_tick(can_send=True)
        batch.send()
        assert batch.messages.fatal_error is None
    batch.state.on_tick(can_send=True)
    assert isinstance(batch.messages.fatal_error, RequestTimeout)


def test_any_reply_ends_silence() -> None:
    batch = Batch(2, timeout=10.0)
    for _ in range(10):
        batch.state.on_tick(can_send=True)
    batch.reply({"type": "ack", "seq": 1, "msgs": 4})
    batch.state.on_tick(can_send=True)
    assert batch.messages.fatal_error is None


def test_silence_of_a_stream_that_is_gone() -> None:
    batch = Batch(1)
    batch.messages.add("s2", b"2", None)
    batch.state.commit()
    batch.send()
    batch.reply({"stream": "S", "batch": "B-1", "count": 2, "seq": 2})
    for number in (3, 4):
        batch.messages.add(f"s{number}", b"%d" % number, None)
    for _ in range(12):
        batch.send()
        batch.state.on_no_responders(batch.state.batch)
        if batch.state.phase is BatchPhase.IDLE and batch.messages.fatal_error is None:
            batch.state.on_tick(can_send=False)
    errors = batch.errors()
    assert (sorted(errors), type(errors[3])) == ([3, 4], NoStream)
    assert "'s3'" in str(errors[3])


@pytest.mark.parametrize(("count", "commits"), [(4, True), (5, False)])
def test_short_batch_is_committed_when_somebody_waits(count: int, commits: bool) -> None:
    """The stream acknowledges by itself every four messages."""
    batch = Batch(count)
    batch.state.commit_if_short()
    assert (batch.send() == [BatchOperation.END]) is commits


def test_refused_message_that_was_to_commit_is_counted() -> None:
    """With gaps allowed: the batch ends with the messages before it, and it is not sent again."""
    batch = Batch(2, gap_ok=True)
    batch.messages.add("s3", b"3", None)
    batch.state.commit()
    batch.send()
    batch.reply({**error(10071), "type": "err", "seq": 3}, sequence=3)
    batch.reply({"stream": "S", "batch": "B-1", "count": 2, "seq": 2}, sequence=3)
    assert list(batch.errors()) == [3]
    assert (batch.messages.pending, batch.state.idle, batch.messages.settled) == ([], True, 3)


# ---------------------------------------------------------------- what is counted


def test_bytes_fill_a_publisher() -> None:
    batch = Batch(1, max_bytes=10)
    seen = []
    for payload in (b"1234", b"1234", b"12345"):
        batch.send()
        batch.state.allow_append()
        seen.append((batch.state.full, batch.state.append_until > 0))
        batch.state.append("s", payload, None)
    seen.append((batch.state.full, batch.state.append_until > 0))
    batch.reply({"type": "ack", "seq": 3, "msgs": 4})
    batch.state.allow_append()
    seen.append((batch.state.full, batch.state.append_until > 0))
    assert seen == [(False, True), (False, True), (False, True), (True, False), (False, True)]


def test_numbers_go_on_over_both_ways_to_send() -> None:
    batch = Batch(3)
    batch.state.allow_append()
    assert [batch.state.append("s", b"x", None) for _ in range(2)] == [4, 5]
    assert batch.messages.count == 5


def test_nothing_is_accepted_before_the_first_answer() -> None:
    batch = Batch(2, acked=0)
    assert not batch.state.ack_flow
    batch.reply({"type": "ack", "seq": 0, "msgs": 4})
    assert batch.state.ack_flow


@pytest.mark.parametrize("failed", [7, 8, 9])
def test_too_many_failures(failed: int) -> None:
    """As many as may be pending: four messages to an acknowledgement, two of them awaited."""
    batch = Batch(failed + 1, gap_ok=True)
    for number in range(2, failed + 2):
        batch.reply({**error(10071), "type": "err", "seq": number}, sequence=number)
    assert batch.state.has_too_many_failures is (failed >= 8)


def test_own_refusal_is_reported_alone() -> None:
    """With gaps allowed: the others are told later."""
    batch = Batch(4, gap_ok=True)
    for number in (2, 3, 4):
        batch.reply({**error(10071), "type": "err", "seq": number}, sequence=number)
    assert batch.messages.take_error_of(1) is None
    refusal = batch.messages.take_error_of(3)
    assert isinstance(refusal, ApiError)
    assert sorted(batch.errors()) == [2, 4]


def test_lost_messages_are_those_that_were_not_refused() -> None:
    batch = Batch(6, gap_ok=True)
    batch.reply({**error(10071), "type": "err", "seq": 3}, sequence=3)
    batch.reply({"type": "gap", "last_seq": 2, "seq": 5})
    assert batch.messages.lost == 2
    batch.reply({"type": "gap", "last_seq": 6, "seq": 100})
    assert batch.messages.lost == 3, "no more than were sent"


def test_unsent_messages_are_in_no_doubt() -> None:
    batch = Batch(0)
    for number in (1, 2):
        batch.messages.add("s", b"%d" % number, None)
    batch.state.give_up("closed", NoStream("s"))
    assert [type(failed) for failed in batch.errors().values()] == [NoStream, NoStream]


@pytest.mark.parametrize(
    "said",
    [{"type": "ack", "seq": 1, "msgs": 4}, {"type": "gap", "last_seq": 1, "seq": 2}, error(10077), {"type": "ack"}],
)
def test_replies_that_ask_for_no_pause(said: dict[str, object]) -> None:
    batch = Batch(2)
    assert batch.state.on_reply(batch.state.batch, 2, json.dumps(said).encode()) == 0
    assert batch.state.on_reply(b"another", 2, json.dumps(said).encode()) == 0


@pytest.mark.parametrize("end", ["disconnect", "unknown batch", "give up", "the same report"])
def test_reported_gap_is_counted_once(end: str) -> None:
    batch = Batch(6, acked=1, gap_ok=True)
    gap: dict[str, object] = {"type": "gap", "last_seq": 2, "seq": 5}
    batch.reply(gap, 5)
    assert batch.messages.lost == 3  # 2 to 4
    if end == "disconnect":
        batch.state.on_disconnect([], "cut")
        assert (batch.messages.lost, len(batch.messages.pending)) == (5, 0)
    elif end == "unknown batch":
        batch.reply(error(10208), 6)
        assert (batch.messages.lost, len(batch.messages.pending)) == (5, 0)
    elif end == "give up":
        batch.state.give_up("no reply", RequestTimeout("fast ingest", 4.0))
        assert (set(batch.errors()), batch.messages.lost) == ({5, 6}, 3)
    else:
        batch.reply(gap, 5)
        assert batch.messages.lost == 3


def test_commit_after_a_rejected_one_is_taken_back() -> None:
    """It is not written when the connection is lost: no copy of it can have been."""
    batch = Batch(1, gap_ok=True)
    batch.messages.add("s2", b"2", None)
    batch.state.commit()
    assert batch.send() == [BatchOperation.COMMIT]
    batch.reply(error(10054), 2)
    batch.messages.add("s3", b"3", None)
    assert batch.send() == [BatchOperation.COMMIT]
    batch.state.on_disconnect([BatchOperation.COMMIT], "cut")
    assert [subject for subject, _, _ in batch.messages.pending] == ["s3"]
    assert batch.messages.lost == 0  # the first was acknowledged, the second rejected


def test_rejection_ends_with_its_batch() -> None:
    """The next batch, with the same messages, is not ended by it."""
    batch = Batch(0)
    for number in range(1, 4):
        batch.messages.add("s", b"%d" % number, msg_id_block(str(number)))
        batch.send()
        if number == 1:
            batch.reply({"type": "ack", "seq": 1, "msgs": 4})
    batch.reply(error(10071), 2)
    batch.reply(error(10208), 3)  # the batch is unknown
    assert batch.send() == [BatchOperation.START]
    batch.reply({"type": "ack", "seq": 0, "msgs": 4})
    batch.state.commit()
    batch.send()
    batch.reply({"stream": "S", "seq": 3, "batch": "B", "count": 2})
    assert (batch.messages.fatal_error, batch.messages.settled) == (None, 3)
