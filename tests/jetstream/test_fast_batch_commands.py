"""What a fast batch sends next: what asks for a reply, what is sent again, and what waits. No server, no network."""

from __future__ import annotations

import json

import pytest

from natsproto.errors import (
    ApiError,
    LocalProtocolError,
    NoStream,
    PublishTimeout,
    PublishUncertain,
    RequestTimeout,
)
from natsproto.jetstream._publish.fast.fast_batch_state import BatchOperation, BatchPhase, Command
from natsproto.jetstream._publish.headers import msg_id_block
from natsproto.jetstream._values.error_codes import ErrCode
from tests.jetstream.test_fast_batch_endings import Batch
from tests.jetstream.test_fast_batch_state import error

APPEND, COMMIT, END, PING, START = (
    BatchOperation.APPEND,
    BatchOperation.COMMIT,
    BatchOperation.END,
    BatchOperation.PING,
    BatchOperation.START,
)


def sent(batch: Batch) -> list[tuple[BatchOperation, int]]:
    """Operation and sequence of all that is due; it is sent."""
    found = []
    while (command := batch.state.next_command()) is not None:
        found.append((command.operation, command.sequence))
        batch.state.on_sent(command)
    return found


def encoded(said: dict[str, object]) -> bytes:
    return json.dumps(said).encode()


def committing(count: int, *, gap_ok: bool = False) -> Batch:
    """A batch whose last message is out, and commits it."""
    batch = Batch(count - 1, gap_ok=gap_ok)
    batch.messages.add(f"s{count}", b"%d" % count, None)
    batch.state.commit()
    assert sent(batch) == [(COMMIT, count)]
    return batch


def test_operations_are_the_numbers_of_adr_50() -> None:
    assert [int(operation) for operation in (START, APPEND, COMMIT, END, PING)] == [0, 1, 2, 3, 4]


def test_messages_beyond_the_acks_awaited_wait() -> None:
    """Four messages to an acknowledgement, two of them awaited."""
    batch = Batch(12)
    assert batch.state.sent == 1 + 2 * 4
    batch.reply({"type": "ack", "seq": 4, "msgs": 4})
    assert sent(batch) == [(APPEND, 10), (APPEND, 11), (APPEND, 12)]


def test_silence_asks_with_a_ping_of_the_last_message() -> None:
    batch = Batch(3)
    batch.state.resend()
    assert sent(batch) == [(PING, 3)]
    assert batch.state.phase is BatchPhase.PINGING
    batch.messages.add("s4", b"4", None)
    assert sent(batch) == [], "the stream says first how far it is"
    batch.reply({"type": "ack", "seq": 3, "msgs": 4})
    assert sent(batch) == [(APPEND, 4)]


def test_silence_after_one_message_ends_its_batch() -> None:
    """nats-server 2.14 begins a batch with a ping of sequence 1."""
    batch = Batch(1)
    batch.state.resend()
    assert sent(batch) == [(END, 2)]
    assert batch.state.phase is BatchPhase.ENDING


def test_commit_is_sent_again_with_its_message() -> None:
    batch = committing(3)
    batch.state.resend()
    assert batch.state.next_command() == Command(COMMIT, 3, ("s3", b"3", None))


def test_stored_commit_is_asked_for_by_an_end() -> None:
    batch = committing(3)
    batch.reply({"type": "ack", "seq": 3, "msgs": 4})
    batch.state.resend()
    assert sent(batch) == [(END, 4)]


@pytest.mark.parametrize("gap_ok", [False, True])
def test_first_message_is_sent_again_if_unknown(gap_ok: bool) -> None:
    """A copy of a message that is still to be stored would be told as stored."""
    batch = Batch(0, gap_ok=gap_ok)
    batch.messages.add("s", b"1", msg_id_block("1"))
    assert sent(batch) == [(START, 1)]
    name = batch.state.batch
    for _ in range(2):
        batch.state.resend()
        assert sent(batch) == [(END, 2)]
    batch.reply(error(ErrCode.BATCH_PUBLISH_UNKNOWN_BATCH_ID))
    assert sent(batch) == [(START, 1)]
    assert batch.state.batch != name, "in another batch"


def test_first_message_without_id_is_not_sent_again() -> None:
    batch = Batch(1, acked=0)
    batch.state.resend()
    assert sent(batch) == [(END, 2)]
    batch.reply(error(ErrCode.BATCH_PUBLISH_UNKNOWN_BATCH_ID))
    assert sent(batch) == []
    assert isinstance(batch.errors()[1], PublishUncertain)


@pytest.mark.parametrize("has_id", [False, True])
def test_only_message_is_sent_again_with_an_id(has_id: bool) -> None:
    batch = Batch(0)
    batch.state.commit()
    batch.messages.add("s", b"1", msg_id_block("1") if has_id else None)
    assert sent(batch) == [(COMMIT, 1)]
    batch.state.resend()
    assert sent(batch) == ([(COMMIT, 1)] if has_id else [])


def test_batches_are_numbered() -> None:
    batch = committing(2)
    assert batch.state.batch == b"B-1"
    batch.reply({"stream": "S", "batch": "B-1", "count": 2, "seq": 2})
    assert (batch.state.batch, batch.state.idle) == (b"B-2", True)
    batch.messages.add("s3", b"3", None)
    assert sent(batch) == [(START, 1)], "nobody has asked for the end of this one"


@pytest.mark.parametrize("count", [1, 2])
def test_commit_of_one_message_is_alone(count: int) -> None:
    batch = Batch(0)
    batch.state.commit()
    for number in range(count):
        batch.messages.add("s", b"%d" % number, None)
    assert sent(batch) == [(COMMIT if count == 1 else START, 1)]


# ---------------------------------------------------------------- silence


@pytest.mark.parametrize(("ticks", "expected"), [(1, []), (2, [(END, 3)])])
def test_idle_batch_is_committed_after_two_ticks(ticks: int, expected: list[tuple[BatchOperation, int]]) -> None:
    batch = Batch(2)
    for _ in range(ticks):
        batch.state.on_tick(can_send=True)
    assert sent(batch) == expected


def test_no_tick_sends_without_a_connection() -> None:
    batch = Batch(2)
    for _ in range(3):
        batch.state.on_tick(can_send=False)
    assert sent(batch) == []


@pytest.mark.parametrize("reason", ["full", "commit"])
def test_tick_asks_at_once_where_somebody_waits(reason: str) -> None:
    batch = Batch(9 if reason == "full" else 3)
    if reason == "commit":
        batch.state.commit()
        assert sent(batch) == [(END, 4)]
    batch.state.on_tick(can_send=True)
    assert sent(batch) == ([(PING, 9)] if reason == "full" else [(END, 4)])


def test_silence_of_an_open_batch_is_a_timeout() -> None:
    """Also where it had no leader for a while."""
    batch = Batch(2, timeout=10.0)
    batch.state.on_no_responders(batch.state.batch)
    for _ in range(11):
        batch.state.on_tick(can_send=True)
    assert isinstance(batch.messages.fatal_error, RequestTimeout)
    assert {number: type(failure) for number, failure in batch.errors().items()} == {2: PublishTimeout}


def test_silence_without_a_batch_is_a_timeout() -> None:
    """Nothing was sent and nothing was refused."""
    batch = Batch(0, timeout=10.0)
    batch.messages.add("s", b"1", None)
    for _ in range(11):
        batch.state.on_tick(can_send=False)
    assert {type(failure) for failure in batch.errors().values()} == {RequestTimeout}


# ---------------------------------------------------------------- pauses


def test_pause_of_a_busy_stream() -> None:
    batch = Batch(2, acked=0)
    said = error(ErrCode.BATCH_PUBLISH_TOO_MANY_INFLIGHT, 429)
    pauses = [batch.state.on_reply(batch.state.batch, 1, encoded(said))]
    assert batch.state.phase is BatchPhase.IDLE, "nothing of it is stored"
    batch.state.on_pause_end()
    assert sent(batch) == [(START, 1)]
    pauses.append(batch.state.on_reply(batch.state.batch, 1, encoded(said)))
    assert pauses == [0.25 / 8, 0.25 / 4]


@pytest.mark.parametrize("sent_messages", [2, 3])
def test_pause_of_an_open_batch_ends_with_a_ping(sent_messages: int) -> None:
    batch = Batch(sent_messages)
    assert batch.state.on_no_responders(batch.state.batch) == 0.25
    assert batch.state.phase is BatchPhase.PINGING
    batch.state.on_pause_end()
    assert sent(batch) == [(PING, sent_messages)]


def test_pause_of_another_kind_asks_nothing() -> None:
    batch = Batch(2)
    batch.state.on_pause_end()
    assert sent(batch) == []


def test_no_responders_of_another_batch_are_not_heard() -> None:
    batch = Batch(2)
    assert batch.state.on_no_responders(b"B-0") == 0
    assert batch.state.phase is BatchPhase.OPEN


def test_no_stream_ends_a_publisher_after_its_attempts() -> None:
    batch = Batch(0)
    for number in (1, 2):
        batch.messages.add(f"s{number}", b"%d" % number, None)
    for _ in range(2):
        assert sent(batch) == [(START, 1)]
        assert batch.state.on_no_responders(batch.state.batch) == 0.25
    assert sent(batch) == [(START, 1)]
    assert batch.state.on_no_responders(batch.state.batch) == 0
    assert "message 1 was rejected" in str(batch.messages.fatal_error)
    errors = batch.errors()
    assert isinstance(errors[1], NoStream)
    assert not isinstance(errors[2], NoStream)


# ---------------------------------------------------------------- the connection


@pytest.mark.parametrize(
    ("unsent", "left"),
    [([], 4), ([APPEND], 3), ([APPEND, APPEND], 2), ([PING], 4), ([APPEND, PING], 3)],
)
def test_what_had_not_left_is_sent_first(unsent: list[BatchOperation], left: int) -> None:
    batch = Batch(4)
    batch.state.on_disconnect(unsent, "connection lost")
    assert batch.state.sent == left
    batch.state.on_reconnect()
    assert sent(batch) == [(PING, left)]
    batch.reply({"type": "ack", "seq": left, "msgs": 4})
    assert sent(batch) == [(APPEND, sequence) for sequence in range(left + 1, 5)]


def test_batch_of_which_nothing_left_is_begun_again() -> None:
    batch = Batch(0)
    batch.messages.add("s", b"1", None)
    assert sent(batch) == [(START, 1)]
    batch.state.on_disconnect([START], "connection lost")
    assert (batch.state.phase, batch.messages.fatal_error) == (BatchPhase.IDLE, None)
    assert sent(batch) == [(START, 1)]


def ending(operation: BatchOperation) -> Batch:
    """A batch of three stored messages whose end is to be sent: with a fourth message or without one."""
    batch = Batch(3)
    batch.state.commit()
    if operation is COMMIT:
        batch.messages.add("s4", b"4", None)
    return batch


@pytest.mark.parametrize("operation", [COMMIT, END])
def test_unsent_end_of_a_batch_is_taken_back(operation: BatchOperation) -> None:
    batch = ending(operation)
    ends = sent(batch)
    assert ends == [(operation, 4)]
    batch.state.on_disconnect([operation], "connection lost")
    assert (batch.state.phase, batch.state.sent) == (BatchPhase.OPEN, 3)


@pytest.mark.parametrize("operation", [COMMIT, END])
def test_end_of_a_batch_that_left_is_not_taken_back(operation: BatchOperation) -> None:
    batch = ending(operation)
    sent(batch)
    batch.state.resend()
    assert sent(batch) == [(operation, 4)]
    phase, last = batch.state.phase, batch.state.sent
    batch.state.on_disconnect([operation], "connection lost")
    assert (batch.state.phase, batch.state.sent) == (phase, last)


def test_first_message_lost_on_its_way_is_uncertain() -> None:
    batch = Batch(2, acked=0)
    batch.state.on_disconnect([], "connection lost")
    assert isinstance(batch.messages.fatal_error, LocalProtocolError)
    errors = batch.errors()
    assert isinstance(errors[1], PublishUncertain)
    assert errors[1].__cause__ is batch.messages.fatal_error
    assert errors[2] is batch.messages.fatal_error, "it was never sent"


# ---------------------------------------------------------------- refusals, where gaps are allowed


def test_unknown_batch_without_ids_is_lost() -> None:
    batch = Batch(4, gap_ok=True)
    batch.reply({**error(10071), "type": "err", "seq": 3}, sequence=3)
    batch.reply(error(ErrCode.BATCH_PUBLISH_UNKNOWN_BATCH_ID), sequence=4)
    assert batch.messages.lost == 2, "the second and the fourth"
    assert (batch.messages.pending, batch.messages.fatal_error, batch.state.batch) == ([], None, b"B-2")
    assert list(batch.errors()) == [3]


def test_unknown_batch_without_ids_and_gaps_ends_it() -> None:
    batch = Batch(4)
    batch.reply(error(ErrCode.BATCH_PUBLISH_UNKNOWN_BATCH_ID), sequence=4)
    assert batch.messages.lost == 0
    assert list(batch.errors()) == [2, 3, 4]
    assert isinstance(batch.messages.fatal_error, LocalProtocolError)


def test_refused_first_message_costs_its_batch() -> None:
    batch = Batch(0, gap_ok=True)
    for number in (1, 2):
        batch.messages.add("s", b"%d" % number, None)
    sent(batch)
    batch.reply(error(10077), sequence=1)
    assert (len(batch.messages.pending), batch.messages.settled, batch.state.batch) == (1, 1, b"B-2")
    assert isinstance(batch.errors()[1], ApiError)
    assert sent(batch) == [(START, 1)]
    batch.reply({"type": "ack", "seq": 1, "msgs": 4})
    assert batch.messages.take_error() is None, "what was refused is not counted in the next batch"


def test_refusals_of_one_batch_are_not_of_the_next() -> None:
    batch = Batch(3, gap_ok=True)
    batch.reply({**error(10071), "type": "err", "seq": 2}, sequence=2)
    batch.state.commit()
    sent(batch)
    batch.reply({"stream": "S", "batch": "B-1", "count": 3, "seq": 2})
    for number in (4, 5, 6):
        batch.messages.add(f"s{number}", b"%d" % number, None)
    sent(batch)
    batch.reply({"type": "ack", "seq": 1, "msgs": 4})
    sent(batch)
    batch.reply({"type": "gap", "last_seq": 2, "seq": 4})
    assert batch.messages.lost == 2


def test_appending_stops_with_too_many_failures() -> None:
    batch = Batch(8, gap_ok=True)
    batch.reply({"type": "ack", "seq": 8, "msgs": 4})
    batch.state.allow_append()
    assert batch.state.append_until > 0
    for _ in range(8):
        batch.state.append("s", b"x", None)
    batch.state.append_until = 99
    for sequence in range(9, 17):
        assert batch.state.append_until == 99
        batch.reply({**error(10071), "type": "err", "seq": sequence}, sequence=sequence)
    assert (batch.state.has_too_many_failures, batch.state.append_until) == (True, 0)


@pytest.mark.parametrize("why", ["sending", "commit", "full"])
def test_no_message_is_appended_before_what_waits(why: str) -> None:
    batch = Batch(9 if why == "full" else 2)
    if why == "sending":
        batch.messages.add("s", b"x", None)
    elif why == "commit":
        batch.state.commit()
    batch.state.allow_append()
    assert batch.state.append_until == 0


def test_what_has_ended_a_publisher_stays() -> None:
    batch = Batch(2)
    first = LocalProtocolError("first")
    batch.state.give_up("first", first)
    batch.state.give_up("second", LocalProtocolError("second"))
    assert batch.messages.fatal_error is first
    assert sent(batch) == []
