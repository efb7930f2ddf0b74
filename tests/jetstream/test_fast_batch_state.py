"""The state of fast batches against a model of the stream, over a network that cuts, loses and forgets."""

from __future__ import annotations

import json
from collections import deque

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from natsproto.errors import LocalProtocolError, NatsError, NoStream, PublishFailed, PublishUncertain, RequestTimeout
from natsproto.jetstream._publish.batch_messages import BatchMessages, PendingMessage
from natsproto.jetstream._publish.fast.fast_batch_state import (
    IGNORED,
    TRANSITIONS,
    BatchEvent,
    BatchOperation,
    BatchPhase,
    Command,
    FastBatchState,
    FastOptions,
)
from natsproto.jetstream._publish.headers import msg_id_block
from tests.kit.examples import examples, lists_up_to

MAX_FLOW = 4


class ModelStream:
    """What a stream does with fast batches: ADR-50, and nats-server 2.14 and 2.15 as they are.

    A message of sequence 1 begins a batch that is not known, be it a START, a COMMIT or (2.14) a ping. A message that
    comes again, or behind a gap where none is allowed, ends the batch. One whose id is known, or whose headers are
    wrong, counts in its batch and is not stored.
    """

    def __init__(self, *, gap_ok: bool) -> None:
        self.stored: list[int] = []
        self.refuses: str = ""
        """How it refuses the next message: "headers" or "size", then and always, or "busy"."""
        self._refused: dict[bytes, str] = {}
        self._gap_ok = gap_ok
        self._ids: set[bytes] = set()
        self._batches: dict[bytes, ModelBatch] = {}
        self._newest: ModelBatch | None = None  # the batch of the message that was stored last

    def restart(self) -> None:
        """The server is another one, or was killed: it remembers what it has stored."""
        self._batches.clear()
        self._newest = None

    def elect(self, batch: bytes) -> list[dict[str, object]]:
        """There is another leader, who has lost what was not acknowledged last, in whatever batch, and says how far the
        batch is.
        """
        newest, self._newest = self._newest, None
        if newest is not None and newest.last_stored is not None:
            if newest.last_stored[0] == newest.sequence > newest.acked:
                self._ids.discard(newest.last_stored[1])
                self.stored.pop()
                newest.sequence -= 1
            newest.last_stored = None
        if (known := self._batches.get(batch)) is None:
            return []
        known.acked, known.last_stored = known.sequence, None
        return [known.ack()]

    def hear(self, batch: bytes, command: Command) -> list[dict[str, object]]:
        """The replies, all to the subject of this message."""
        operation, sequence, message = command
        refusal, known = "", self._batches.get(batch)
        if operation not in (BatchOperation.END, BatchOperation.PING):
            payload = message[1]
            refusal, self.refuses = self._refused.get(payload, self.refuses), ""
            if refusal in REFUSALS:  # of what is stored a copy is a duplicate, before anything else is read
                self._refused[payload] = refusal = "" if int(payload) in self.stored else refusal
        if refusal == "size":
            return [error(10054)]
        if known is None:
            if sequence != 1:
                return [error(10208)]
            if refusal == "busy":
                return [error(10211, 429)]
            known = self._batches[batch] = ModelBatch()
        if operation is BatchOperation.PING:
            return self._ping(batch, known, sequence)
        replies: list[dict[str, object]] = []
        known.sequence += 1
        if sequence != known.sequence:
            if sequence > known.sequence:
                replies.append({"type": "gap", "last_seq": known.sequence, "seq": sequence})
            if sequence < known.sequence or not self._gap_ok:
                known.sequence -= 1
                return [*replies, self._end(batch)]
            known.sequence = sequence
        if operation is BatchOperation.END:
            known.sequence -= 1
            return [*replies, self._end(batch)]
        if operation is BatchOperation.START:
            replies.append(known.ack())
        return replies + self._store(batch, known, operation, message, refusal == "headers")

    def _ping(self, batch: bytes, known: ModelBatch, sequence: int) -> list[dict[str, object]]:
        if sequence <= known.sequence:
            return [known.ack()]
        gap: dict[str, object] = {"type": "gap", "last_seq": known.sequence + 1, "seq": sequence + 1}
        if not self._gap_ok:
            return [gap, self._end(batch)]
        known.sequence = sequence
        return [gap, known.ack()]

    def _store(
        self, batch: bytes, known: ModelBatch, operation: BatchOperation, message: PendingMessage, refused: bool
    ) -> list[dict[str, object]]:
        _, payload, block = message
        replies: list[dict[str, object]] = []
        commits = operation is BatchOperation.COMMIT
        if refused:
            if known.sequence == 1 and not self._gap_ok:
                del self._batches[batch]
                return [error(10071)]
            replies.append({"type": "err", "seq": known.sequence, "error": error(10071)["error"]})
            if self._gap_ok and not commits:
                return replies
            known.sequence -= 1
            return [*replies, self._end(batch)]
        if block is None or block not in self._ids:
            self.stored.append(int(payload))
            known.last_stored = known.sequence, block or b""
            self._newest = known
            self._ids |= {block} if block is not None else set()
        if commits:
            return [self._end(batch)]
        if known.sequence >= known.acked + MAX_FLOW:
            known.acked = known.sequence
            replies.append(known.ack())
        return replies

    def _end(self, batch: bytes) -> dict[str, object]:
        count = self._batches.pop(batch).sequence
        self._newest = None  # it says so once everything is stored
        return {"stream": "S", "seq": len(self.stored), "batch": batch.decode(), "count": count}


class ModelBatch:
    """A batch that a stream knows."""

    def __init__(self) -> None:
        self.sequence = 0
        """Of the last message that counted."""
        self.acked = 0
        """Up to which the stream has said so."""
        self.last_stored: tuple[int, bytes] | None = None

    def ack(self) -> dict[str, object]:
        return {"type": "ack", "seq": self.acked, "msgs": MAX_FLOW}


def error(err_code: int, code: int = 400) -> dict[str, object]:
    return {"error": {"code": code, "err_code": err_code, "description": "made by the model"}, "stream": "S", "seq": 0}


class Stage:
    """A publisher's state, the stream, and what is on its way between them."""

    def __init__(self, *, gap_ok: bool, ids: bool) -> None:
        self.messages = BatchMessages()
        options = FastOptions(gap_ok, MAX_FLOW, 2, 1000, 150.0, 2, 0.25)
        self.state = FastBatchState(b"B", options, self.messages, pytest.fail)
        self.stream = ModelStream(gap_ok=gap_ok)
        self._gap_ok, self._ids = gap_ok, ids
        self._outbox: deque[tuple[bytes, Command]] = deque()
        self._there: deque[tuple[bytes, Command]] = deque()
        self._back: deque[tuple[bytes, int, bytes | None]] = deque()
        self._paused = self._leaderless = False
        self.failed: dict[int, NatsError] = {}
        self.unheard = 0
        """Messages whose loss or rejection the stream has reported in a reply that was lost between servers."""

    def pump(self) -> None:
        if self._paused:
            self.state.append_until = 0
            return
        while (command := self.state.next_command()) is not None:
            self._outbox.append((self.state.batch, command))
            self.state.on_sent(command)
        self.state.allow_append()

    def take(self) -> None:
        state, number = self.state, self.messages.count + 1
        if state.full or self.messages.fatal_error is not None:
            return
        message = ("s", b"%d" % number, msg_id_block(str(number)) if self._ids else None)
        if state.sent < state.append_until:
            self._outbox.append((state.batch, Command(BatchOperation.APPEND, state.sent + 1, message)))
            assert state.append(*message) == number
        else:
            assert self.messages.add(*message) == number
            self.pump()

    def last(self) -> None:
        """The next message ends the batch, as publisher.commit() has it."""
        if not self.state.full and self.messages.fatal_error is None:
            self.state.commit()
            self.take()

    def write(self) -> None:
        self._there.extend(self._outbox)
        self._outbox.clear()

    def arrive(self) -> None:
        if self._there:
            batch, command = self._there.popleft()
            if self._leaderless:
                self._leaderless = False
                self._back.append((batch, command.sequence, None))
            else:
                self._reply(batch, command.sequence, self.stream.hear(batch, command))

    def _reply(self, batch: bytes, sequence: int, replies: list[dict[str, object]]) -> None:
        self._back.extend((batch, sequence, json.dumps(reply).encode()) for reply in replies)

    def answer(self) -> None:
        if self._back:
            batch, sequence, payload = self._back.popleft()
            if payload is None:
                pause = self.state.on_no_responders(batch)
            else:
                pause = self.state.on_reply(batch, sequence, payload)
            self._paused = self._paused or pause > 0
            self.pump()

    def resume(self) -> None:
        """The pause is over."""
        if self._paused:
            self._paused = False
            self.state.on_pause_end()
            self.pump()

    def leaderless(self) -> None:
        """The next message reaches nobody."""
        self._leaderless = True

    def elect(self) -> None:
        """Another leader goes on with the batch."""
        self._reply(self.state.batch, max(1, self.state.sent), self.stream.elect(self.state.batch))

    def forget(self) -> None:
        """Another leader knows nothing of the batch."""
        self.stream.restart()

    def headers(self) -> None:
        """The next message has headers that the stream refuses."""
        self.stream.refuses = "headers"

    def size(self) -> None:
        """The next message is too large for the stream."""
        self.stream.refuses = "size"

    def busy(self) -> None:
        """The stream has as many batches as it takes."""
        self.stream.refuses = "busy"

    def lose(self) -> None:
        """One message disappears between servers."""
        if self._there:
            self._there.popleft()

    def deafen(self) -> None:
        """One answer does."""
        if self._back:
            reply = json.loads(self._back.popleft()[2] or b"{}")
            if reply.get("type") == "gap":
                self.unheard += reply["seq"] - reply["last_seq"]
            self.unheard += reply.get("type") == "err"

    def cut(self) -> None:
        """The connection breaks and is back at once; what was on its way is gone."""
        unsent = [command.operation for batch, command in self._outbox if batch == self.state.batch]
        for queue in (self._outbox, self._there, self._back):
            queue.clear()
        self.state.on_disconnect(unsent, "connection lost")
        self.state.on_reconnect()
        self.pump()

    def restart(self) -> None:
        self.stream.restart()
        self.cut()

    def tick(self) -> None:
        if not self.state.idle:
            self.state.on_tick(can_send=not self._paused)
            self.pump()

    def check(self) -> None:
        """What holds at any time."""
        stored = self.stream.stored
        assert len(self.messages.pending) <= 2 * MAX_FLOW
        assert len(set(stored)) == len(stored), "stored twice"
        assert stored == sorted(stored), "out of order"
        outcome = self.messages.take_error()
        if isinstance(outcome, PublishFailed):
            assert self.failed.keys().isdisjoint(failed.number for failed in outcome.failures), "told twice"
            self.failed |= {failed.number: failed.error for failed in outcome.failures}
        surely_not = {number for number, error in self.failed.items() if not isinstance(error, PublishUncertain)}
        assert surely_not.isdisjoint(stored), "stored, and told that it is not"
        if not self._gap_ok:
            acknowledged = set(range(1, self.messages.settled + 1)) - self.failed.keys()
            assert acknowledged <= set(stored), "acknowledged, and not stored"
            assert stored == list(range(1, len(stored) + 1)), "a gap where none is allowed"

    def flush(self) -> None:
        """As the end of the block: everything is settled, or it ends."""
        for _ in range(400):
            if self.state.idle or self.messages.fatal_error is not None:
                return
            self.resume()
            self.state.commit()
            self.pump()
            self.write()
            while self._there:
                self.arrive()
            while self._back:
                self.answer()
                self.write()
            self.tick()
        raise AssertionError("it never comes to an end")


CALM = ["take", "take", "take", "last", "write", "arrive", "arrive", "answer", "answer", "tick", "hurry", "flush"]
ROUNDS = [["take", "write", "arrive", "answer"], ["take"] * 3, ["write"] + ["arrive"] * 4, ["answer"] * 4]


def play(stage: Stage, actions: list[str]) -> None:
    for action in actions:
        if action == "hurry":
            stage.state.commit_if_short()
            stage.pump()
        else:
            getattr(stage, action)()
        stage.check()
    stage.flush()
    stage.check()


def steps(*faults: str) -> st.SearchStrategy[list[str]]:
    """Single actions and faults between whole rounds."""
    single = st.sampled_from([*CALM, *faults]).map(lambda action: [action])
    parts = lists_up_to(60, single | st.sampled_from(ROUNDS))
    return parts.map(lambda drawn: [action for part in drawn for action in part])


@examples(100)
@given(steps(), st.booleans(), st.booleans())
@example(["last", "tick"], False, False)  # a lone COMMIT that was sent twice
def test_without_faults_everything_is_stored_in_order(actions: list[str], gap_ok: bool, ids: bool) -> None:
    stage = Stage(gap_ok=gap_ok, ids=ids)
    play(stage, actions)
    assert stage.stream.stored == list(range(1, stage.messages.count + 1))
    assert (stage.messages.fatal_error, stage.messages.lost, stage.messages.pending) == (None, 0, [])


FAULTS = ["cut", "lose", "deafen", "restart", "forget", "elect", "leaderless", "busy", "resume"]
REFUSALS = ["headers", "size"]
COPY_IN_PROCESS = ["take", "write", "tick", "write", "arrive", "arrive"]
"""The first message is sent again in another batch, and told as stored, as its id is known; its first copy is lost."""


@examples(300)
@given(steps(*FAULTS))
@example([*COPY_IN_PROCESS, "elect", *["answer"] * 3, "take", "write", "arrive", "answer"])
def test_with_ids_messages_arrive_once_and_in_order(actions: list[str]) -> None:
    stage = Stage(gap_ok=False, ids=True)
    play(stage, actions)
    if isinstance(stage.failed.get(1), NoStream):
        return  # a stream that never was there
    assert stage.messages.fatal_error is None
    assert stage.stream.stored == list(range(1, stage.messages.count + 1))


@examples(300)
@given(steps(*FAULTS))
@example(["take", "write", "arrive", "answer", "restart", "take"])  # a ping of sequence 1 to a stream that forgot it
def test_without_ids_nothing_is_doubled(actions: list[str]) -> None:
    stage = Stage(gap_ok=False, ids=False)
    play(stage, actions)
    assert set(range(1, stage.messages.count + 1)) - set(stage.stream.stored) <= stage.failed.keys()


@examples(300)
@given(steps(*FAULTS, *REFUSALS), st.booleans())
def test_refusals_are_reported_with_what_follows(actions: list[str], ids: bool) -> None:
    stage = Stage(gap_ok=False, ids=ids)
    play(stage, actions)
    assert set(range(1, stage.messages.count + 1)) - set(stage.stream.stored) <= stage.failed.keys()


@examples(300)
@given(steps(*FAULTS, *REFUSALS), st.booleans())
@example(["take", "write", "headers", "arrive", "deafen", "answer"], False)  # refused, and then given up
@example([*ROUNDS[0], *ROUNDS[1], "write", "cut", "write", "arrive", "cut"], False)  # the report of a gap is cut off
@example(["take", "take", "last", "write", "arrive", "answer", "write", "cut", "write", "arrive", "cut"], True)
@example(["last", "headers", "write", "arrive", "answer", "restart"], True)  # refused, and the end of the batch cut off
@example(["take", "write", "arrive", "answer", "last", "tick", "size", "write", "arrive", "answer"], True)
@example(["take", "take", "take", "write", "arrive", "answer", "cut", "size"], True)  # its refusal comes behind an END
def test_with_gaps_allowed_the_losses_are_counted(actions: list[str], ids: bool) -> None:
    stage = Stage(gap_ok=True, ids=ids)
    play(stage, actions)
    messages = stage.messages
    error = messages.fatal_error
    assert error is None or isinstance(error, RequestTimeout | LocalProtocolError), "a first message only"
    assert len(stage.stream.stored) + messages.lost + len(stage.failed) + stage.unheard >= messages.count
    assert messages.lost + len(stage.failed) <= messages.count, "counted twice"


@pytest.mark.parametrize("gap_ok", [False, True])
def test_numbers_that_no_stream_says_do_no_harm(gap_ok: bool) -> None:
    stage = Stage(gap_ok=gap_ok, ids=False)
    messages = stage.messages
    for _ in range(3):
        stage.take()
    for said in (
        {"type": "ack", "seq": 10**30, "msgs": 0},
        {"type": "gap", "last_seq": 0, "seq": 10**30},
        {"type": "ack", "seq": 0, "msgs": 10**30},
        {"type": "err", "seq": 10**30, "error": {"code": 400, "err_code": 10071}},
        {"stream": "S", "batch": "B-1", "count": 10**30, "seq": 1},
    ):
        stage.state.on_reply(stage.state.batch, 10**30, json.dumps(said).encode())
        stage.pump()
    assert messages.lost <= messages.count
    assert len(messages.pending) <= 3
    for payload in (
        b"",
        b"[]",
        b'{"a":' + b"[" * 100_000,
        b'{"type": "ack", "seq": -1}',
        b'{"type": "ack", "seq": true, "msgs": 1}',
    ):
        other = Stage(gap_ok=gap_ok, ids=False)
        other.take()
        other.state.on_reply(other.state.batch, 1, payload)
        assert other.messages.fatal_error is not None
        assert other.messages.pending == []


def test_commit_sent_twice_and_withdrawn_once() -> None:
    stage = Stage(gap_ok=False, ids=False)
    stage.take()
    stage.write()
    stage.arrive()
    stage.answer()
    stage.state.commit()
    stage.take()
    stage.write()  # the commit is on its way, and arrives
    stage.arrive()
    stage.deafen()
    stage.tick()  # it is said again, and the connection breaks before that leaves
    stage.cut()
    stage.write()
    stage.arrive()
    stage.answer()
    assert stage.stream.stored == [1, 2]
    assert isinstance(stage.messages.fatal_error, LocalProtocolError)
    stage.check()
    assert {type(error) for error in stage.failed.values()} == {PublishUncertain}


def test_ignored_pairs_are_no_transitions() -> None:
    assert not IGNORED & set(TRANSITIONS)


def test_unlisted_pair_is_reported_and_changes_nothing() -> None:
    reported: list[str] = []
    state = FastBatchState(b"B", FastOptions(False, 4, 2, 1000, 5.0, 2, 0.25), BatchMessages(), reported.append)
    state._transition(BatchEvent.COMMIT_REJECTED)
    assert reported == ["BatchEvent.COMMIT_REJECTED in the phase IDLE"]
    assert state.phase is BatchPhase.IDLE
