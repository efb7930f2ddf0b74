"""What the replies of a stream, and none, do to a fast batch: no server, no network."""

from __future__ import annotations

import json

import pytest

from natsproto.errors import (
    InvalidReply,
    JetStreamError,
    LocalProtocolError,
    NoStream,
    PermissionDenied,
    PublishUncertain,
    RequestTimeout,
    UnsupportedByServer,
    WrongLastSequence,
)
from natsproto.jetstream._publish.fast.fast_batch_state import BatchPhase
from natsproto.jetstream._publish.headers import msg_id_block
from natsproto.jetstream._values.error_codes import ErrCode
from tests.jetstream.test_fast_batch_commands import APPEND, COMMIT, END, PING, START, committing, sent
from tests.jetstream.test_fast_batch_endings import Batch
from tests.jetstream.test_fast_batch_state import error

END_OF_ONE: dict[str, object] = {"stream": "S", "batch": "B-1", "count": 1, "seq": 1}


def added(batch: Batch, *numbers: int, block: bytes | None = None) -> None:
    for number in numbers:
        batch.messages.add(f"s{number}", b"%d" % number, block)


def second_batch() -> Batch:
    """The first message of a second batch was sent."""
    batch = committing(2)
    batch.reply({"stream": "S", "batch": "B-1", "count": 2, "seq": 2})
    added(batch, 3)
    assert sent(batch) == [(START, 1)]
    return batch


# ---------------------------------------------------------------- acknowledgements


def test_reply_to_an_earlier_batch_is_ignored() -> None:
    batch = second_batch()
    for said in ({"type": "ack", "seq": 1, "msgs": 4}, {"type": "gap", "last_seq": 1, "seq": 2}, END_OF_ONE):
        assert batch.state.on_reply(b"B-1", 1, json.dumps(said).encode()) == 0
    assert (batch.state.phase, batch.messages.settled) == (BatchPhase.STARTING, 2)


def test_open_batch_without_messages_is_not_idle() -> None:
    batch = Batch(2, acked=2)
    assert (batch.messages.pending, batch.state.idle) == ([], False)


def test_ack_makes_a_planned_ping_needless() -> None:
    batch = Batch(3)
    batch.state.resend()
    batch.reply({"type": "ack", "seq": 3, "msgs": 4})
    assert sent(batch) == []


def test_ack_flow_is_at_least_one() -> None:
    batch = Batch(1)
    batch.reply({"type": "ack", "seq": 1, "msgs": 0})
    added(batch, 2, 3, 4)
    assert sent(batch) == [(APPEND, 2), (APPEND, 3)], "two acknowledgements are awaited"
    alone = Batch(0)
    alone.state.commit()
    added(alone, 1)
    sent(alone)
    alone.reply(END_OF_ONE)
    assert alone.state.ack_flow == 1
    assert alone.messages.ack is not None
    assert alone.messages.ack.seq == 1


@pytest.mark.parametrize("end", ["ack", "end"])
def test_pauses_begin_anew_after_success(end: str) -> None:
    batch = Batch(2)
    busy = json.dumps(error(ErrCode.BATCH_PUBLISH_TOO_MANY_INFLIGHT, 429)).encode()
    pauses = [batch.state.on_reply(b"B-1", 2, busy) for _ in range(2)]
    if end == "ack":
        batch.reply({"type": "ack", "seq": 2, "msgs": 4})
    else:
        batch.reply({"stream": "S", "batch": "B-1", "count": 2, "seq": 2})
        added(batch, 3)
        assert sent(batch) == [(START, 1)]
    pauses.append(batch.state.on_reply(batch.state.batch, 1, busy))
    assert pauses == [0.25 / 8, 0.25 / 4, 0.25 / 8]


def test_server_without_batches_ends_the_publisher() -> None:
    """It stores the first message and replies as to any publish."""
    batch = Batch(1, acked=0)
    added(batch, 2)
    batch.reply({"stream": "S", "seq": 7})
    assert isinstance(batch.messages.fatal_error, UnsupportedByServer)
    assert "'S' stored the message alone" in str(batch.messages.fatal_error)
    assert list(batch.errors()) == [2], "the first is stored"


@pytest.mark.parametrize(
    "said",
    [
        {"type": "ack", "seq": -1, "msgs": 4},
        {"type": "ack", "seq": True, "msgs": 4},
        {"type": "ack", "seq": 1},
        {"type": "gap", "last_seq": "1", "seq": 2},
    ],
    ids=str,
)
def test_invalid_number_in_a_reply_ends_the_publisher(said: dict[str, object]) -> None:
    batch = Batch(2)
    batch.reply(said)
    assert isinstance(batch.messages.fatal_error, InvalidReply)
    zero = Batch(2)
    zero.reply({"type": "ack", "seq": 0, "msgs": 4})
    assert zero.messages.fatal_error is None


# ---------------------------------------------------------------- rejected and missing messages


def test_rejected_message_ends_a_batch_at_its_number() -> None:
    """The stream ends the batch before it. The messages behind it are not stored."""
    batch = Batch(5)
    batch.reply(error(ErrCode.STREAM_WRONG_LAST_SEQUENCE), sequence=3)
    assert sent(batch) == [(PING, 5)]
    batch.reply({"stream": "S", "batch": "B-1", "count": 2, "seq": 2})
    errors = batch.errors()
    assert {number: type(one) for number, one in errors.items()} == {
        3: WrongLastSequence,
        4: JetStreamError,
        5: JetStreamError,
    }
    assert "message 3 was rejected" in str(batch.messages.fatal_error)


def test_report_of_a_rejection_has_its_own_number() -> None:
    batch = Batch(5, gap_ok=True)
    batch.reply({**error(ErrCode.STREAM_TOO_MANY_REQUESTS), "type": "err", "seq": 3}, sequence=5)
    assert list(batch.errors()) == [3]
    strict = Batch(5)
    strict.reply({**error(ErrCode.STREAM_WRONG_LAST_SEQUENCE), "type": "err", "seq": 3}, sequence=5)
    assert (strict.state.phase, sent(strict)) == (BatchPhase.GAP_FOUND, [])
    strict.reply({"stream": "S", "batch": "B-1", "count": 2, "seq": 2})
    assert list(strict.errors()) == [3, 4, 5]


def test_batch_with_gaps_goes_on_after_a_rejection() -> None:
    batch = Batch(4, gap_ok=True)
    batch.reply(error(ErrCode.STREAM_WRONG_LAST_SEQUENCE), sequence=3)
    assert (batch.state.batch, len(batch.messages.pending), sent(batch)) == (b"B-1", 3, [])
    assert list(batch.errors()) == [3]


def test_rejected_commit_is_not_sent_again() -> None:
    batch = committing(3, gap_ok=True)
    batch.reply({**error(ErrCode.STREAM_WRONG_LAST_SEQUENCE), "type": "err", "seq": 3}, sequence=3)
    batch.reply({"stream": "S", "batch": "B-1", "count": 2, "seq": 2}, sequence=3)
    assert (batch.messages.pending, batch.state.batch, sent(batch)) == ([], b"B-2", [])
    assert list(batch.errors()) == [3]


@pytest.mark.parametrize(("first", "following", "lost"), [(1, 4, 1), (3, 5, 2), (3, 9, 3), (9, 12, 0)])
def test_gap_counts_sent_messages_without_outcome(first: int, following: int, lost: int) -> None:
    """Five were sent, two of them acknowledged."""
    batch = Batch(5, acked=2, gap_ok=True)
    batch.reply({"type": "gap", "last_seq": first, "seq": following})
    assert (batch.messages.lost, batch.state.phase) == (lost, BatchPhase.OPEN)


def test_gap_ends_a_batch_where_none_is_allowed() -> None:
    batch = Batch(5, acked=2)
    batch.reply({"type": "gap", "last_seq": 3, "seq": 5})
    assert (batch.messages.lost, batch.state.phase) == (0, BatchPhase.GAP_FOUND)
    added(batch, 6)
    assert sent(batch) == [], "the stream says first how far it is"
    batch.reply({"stream": "S", "batch": "B-1", "count": 3, "seq": 3})
    assert sent(batch) == [(START, 1)]
    batch.reply({"type": "ack", "seq": 1, "msgs": 4})
    assert sent(batch) == [(APPEND, 2), (APPEND, 3)]
    assert batch.messages.take_error() is None


def test_failed_messages_keep_their_error_at_the_end() -> None:
    batch = Batch(4, gap_ok=True)
    batch.reply(error(ErrCode.STREAM_WRONG_LAST_SEQUENCE), sequence=3)
    batch.state.give_up("gone", LocalProtocolError("gone"))
    assert {number: type(one) for number, one in batch.errors().items()} == {
        2: PublishUncertain,
        3: WrongLastSequence,
        4: PublishUncertain,
    }


def test_denied_subject_ends_the_publisher() -> None:
    batch = Batch(3)
    batch.state.on_permission_error(PermissionDenied("no", "publish", "elsewhere"))
    assert batch.messages.fatal_error is None
    denied = PermissionDenied("no", "publish", "s3")
    batch.state.on_permission_error(denied)
    errors = batch.errors()
    assert isinstance(errors[2], PublishUncertain)
    assert errors[3] is batch.messages.fatal_error is denied


# ---------------------------------------------------------------- room


@pytest.mark.parametrize(("size", "full"), [(8, False), (9, True)])
def test_publisher_is_full_with_its_last_byte(size: int, full: bool) -> None:
    batch = Batch(2, max_bytes=10)
    batch.messages.add("s", b"x" * size, None)
    assert batch.state.full is full


@pytest.mark.parametrize(("size", "until"), [(8, 9), (9, 0)])
def test_appending_stops_with_the_last_byte(size: int, until: int) -> None:
    batch = Batch(2, max_bytes=10)
    batch.state.allow_append()
    batch.state.append("s", b"x" * size, None)
    assert batch.state.append_until == until


def test_publisher_with_too_many_failures_is_full() -> None:
    batch = Batch(8, gap_ok=True)
    for sequence in range(1, 9):
        batch.reply({**error(ErrCode.STREAM_WRONG_LAST_SEQUENCE), "type": "err", "seq": sequence}, sequence=sequence)
    batch.reply({"type": "ack", "seq": 8, "msgs": 4})
    assert batch.messages.pending == []
    assert (batch.state.full, batch.messages.failures) == (False, 7)
    added(batch, 9)
    sent(batch)
    batch.reply({**error(ErrCode.STREAM_WRONG_LAST_SEQUENCE), "type": "err", "seq": 9}, sequence=9)
    batch.reply({"type": "ack", "seq": 9, "msgs": 4})
    assert batch.state.full


def test_nothing_is_appended_to_a_starting_batch() -> None:
    batch = second_batch()
    batch.state.allow_append()
    assert batch.state.append_until == 0
    batch.state.commit_if_short()
    batch.reply({"type": "ack", "seq": 1, "msgs": 4})
    assert sent(batch) == [], "it is not to be committed"


def test_last_of_the_waiting_messages_commits() -> None:
    batch = Batch(1)
    added(batch, 2, 3)
    batch.state.commit()
    assert sent(batch) == [(APPEND, 2), (COMMIT, 3)]


def test_ping_has_no_payload() -> None:
    batch = Batch(2)
    batch.state.resend()
    command = batch.state.next_command()
    assert command is not None
    assert command.message == ("s2", b"", None)


def test_nothing_is_sent_after_the_end_of_a_publisher() -> None:
    batch = Batch(2)
    batch.state.give_up("gone", LocalProtocolError("gone"))
    added(batch, 3)
    assert sent(batch) == []


# ---------------------------------------------------------------- silence and the connection


@pytest.mark.parametrize("reconnects", [False, True])
def test_silence_is_counted_from_the_connection_on(reconnects: bool) -> None:
    batch = Batch(0, timeout=10.0)
    added(batch, 1)
    if reconnects:
        for _ in range(7):
            batch.state.on_tick(can_send=False)
        batch.state.on_disconnect([], "connection lost")
        batch.state.on_reconnect()
    for _ in range(10):
        batch.state.on_tick(can_send=False)
    assert batch.messages.fatal_error is None
    batch.state.on_tick(can_send=False)
    assert isinstance(batch.messages.fatal_error, RequestTimeout)


def test_tick_repeats_a_ping() -> None:
    batch = Batch(3)
    batch.state.resend()
    assert sent(batch) == [(PING, 3)]
    batch.state.on_tick(can_send=True)
    assert sent(batch) == [(PING, 3)]


def test_tick_asks_for_acks_that_a_commit_waits_for() -> None:
    """The stream acknowledges every message, and two acknowledgements are awaited."""
    batch = Batch(1)
    batch.reply({"type": "ack", "seq": 1, "msgs": 1})
    added(batch, 2, 3, 4)
    batch.state.commit()
    assert sent(batch) == [(APPEND, 2), (APPEND, 3)]
    batch.state.on_tick(can_send=True)
    assert sent(batch) == [(PING, 3)]


def test_id_of_a_later_message_repeats_nothing() -> None:
    batch = Batch(0)
    batch.state.commit()
    added(batch, 1)
    assert sent(batch) == [(COMMIT, 1)]
    added(batch, 2, block=msg_id_block("2"))
    batch.state.resend()
    assert sent(batch) == []


def test_attempts_without_a_stream_begin_anew() -> None:
    batch = Batch(0)
    added(batch, 1)
    for _ in range(2):
        for _ in range(2):
            assert sent(batch) == [(START, 1)]
            assert batch.state.on_no_responders(batch.state.batch) == 0.25
        batch.state.on_disconnect([], "connection lost")
    assert batch.messages.fatal_error is None


def test_no_stream_for_a_message_alone() -> None:
    batch = Batch(0)
    batch.state.commit()
    added(batch, 1)
    for _ in range(3):
        assert sent(batch) == [(COMMIT, 1)]
        batch.state.on_no_responders(batch.state.batch)
    assert isinstance(batch.errors()[1], NoStream)


def test_nothing_is_appended_without_a_connection() -> None:
    batch = Batch(2)
    batch.state.allow_append()
    assert batch.state.append_until == 9
    batch.state.on_disconnect([], "connection lost")
    assert batch.state.append_until == 0


def test_commit_of_which_no_copy_left_is_taken_back() -> None:
    batch = committing(3)
    batch.state.resend()
    assert sent(batch) == [(COMMIT, 3)]
    batch.state.on_disconnect([COMMIT, COMMIT], "connection lost")
    assert (batch.state.phase, batch.state.sent) == (BatchPhase.OPEN, 2)
    batch.state.on_reconnect()
    assert sent(batch) == [(PING, 2)]


def test_message_alone_that_has_not_left_begins_again() -> None:
    batch = Batch(0)
    batch.state.commit()
    added(batch, 1)
    assert sent(batch) == [(COMMIT, 1)]
    batch.state.on_disconnect([COMMIT], "connection lost")
    assert (batch.state.phase, batch.state.batch) == (BatchPhase.IDLE, b"B-2")
    assert sent(batch) == [(COMMIT, 1)]


def test_end_of_an_unsent_batch_is_not_an_end() -> None:
    batch = Batch(2)
    batch.state.commit()
    assert sent(batch) == [(END, 3)]
    batch.state.on_disconnect([END], "connection lost")
    batch.state.on_reconnect()
    batch.reply({"type": "ack", "seq": 2, "msgs": 4})
    assert sent(batch) == [(END, 3)]


# ---------------------------------------------------------------- one batch after the other


def test_planned_ping_is_not_sent_in_the_next_batch() -> None:
    batch = Batch(2)
    batch.state.resend()
    batch.reply({"stream": "S", "batch": "B-1", "count": 2, "seq": 2})
    assert sent(batch) == []
    added(batch, 3)
    assert sent(batch) == [(START, 1)]


def test_late_ack_takes_nothing_back() -> None:
    batch = Batch(6, acked=3)
    batch.state.allow_append()
    batch.reply({"type": "ack", "seq": 1, "msgs": 4})
    assert (batch.messages.settled, len(batch.messages.pending)) == (3, 3)
    assert batch.state.append_until > 6, "messages can be appended further on"


def test_messages_of_all_unknown_batches_are_lost() -> None:
    """All but the rejected ones, which have their error, and the acknowledged ones."""
    batch = Batch(5, gap_ok=True)
    batch.reply({**error(ErrCode.STREAM_WRONG_LAST_SEQUENCE), "type": "err", "seq": 3}, sequence=3)
    batch.reply({"type": "ack", "seq": 3, "msgs": 4})
    batch.reply(error(ErrCode.BATCH_PUBLISH_UNKNOWN_BATCH_ID), sequence=5)
    assert batch.messages.lost == 2
    added(batch, 6)
    sent(batch)
    batch.reply(error(ErrCode.BATCH_PUBLISH_UNKNOWN_BATCH_ID), sequence=1)
    assert batch.messages.lost == 3
