"""The state of fast batches against a model of the stream, over a network that cuts, loses and forgets."""

from __future__ import annotations

import json
from collections import deque

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from natsproto.errors import LocalProtocolError, PublishFailed, PublishUncertain, RequestTimeout
from natsproto.jetstream._publish.fast_batch_state import (
    Command,
    FastBatchState,
    FastOptions,
    Messages,
    Operation,
)
from natsproto.jetstream._publish.headers import id_block
from tests.kit.examples import examples

FLOW = 4


class ModelStream:
    """What a stream does with a batch, as ADR-50 has it and nats-server 2.14 does it."""

    def __init__(self, *, gap_ok: bool) -> None:
        self.stored: list[int] = []
        self._gap_ok = gap_ok
        self._ids: set[bytes] = set()
        self._expected: dict[bytes, int] = {}

    def forget(self) -> None:
        """The server was restarted."""
        self._expected.clear()

    def hear(self, batch: bytes, command: Command) -> list[tuple[int, dict[str, object]]]:
        """The answers, each with the sequence of the message it goes to."""
        operation, sequence, _ = command
        if sequence == 1 and operation in (Operation.START, Operation.COMMIT) and batch not in self._expected:
            self._expected[batch] = 1
        if batch not in self._expected:
            error = {"code": 400, "err_code": 10208, "description": "batch publish ID unknown"}
            return [(sequence, {"error": error})]
        answers: list[tuple[int, dict[str, object]]] = []
        expected = self._expected[batch]
        highest = sequence if operation is Operation.PING else sequence - 1
        if highest >= expected:
            answers.append((sequence, {"type": "gap", "last_seq": expected, "seq": highest + 1}))
            if not self._gap_ok:
                return [*answers, (sequence, self._end(batch, expected - 1))]
            self._expected[batch] = expected = highest + 1
        if operation is Operation.PING:
            return [*answers, (sequence, {"type": "ack", "seq": expected - 1, "msgs": FLOW})]
        if operation is not Operation.END and sequence == expected:
            self._store(command)
            self._expected[batch] = expected + 1
            if operation is Operation.START:
                answers.append((sequence, {"type": "ack", "seq": 0, "msgs": FLOW}))
            elif sequence % FLOW == 0:
                answers.append((sequence, {"type": "ack", "seq": sequence, "msgs": FLOW}))
        if operation in (Operation.COMMIT, Operation.END):
            answers.append((sequence, self._end(batch, self._expected[batch] - 1)))
        return answers

    def _store(self, command: Command) -> None:
        _, payload, block = command.message
        if block is not None:
            if block in self._ids:
                return
            self._ids.add(block)
        self.stored.append(int(payload))

    def _end(self, batch: bytes, count: int) -> dict[str, object]:
        del self._expected[batch]
        return {"stream": "S", "seq": len(self.stored), "batch": batch.decode(), "count": count}


class Stage:
    """A publisher's state, the stream, and what is on its way between them."""

    def __init__(self, *, gap_ok: bool, ids: bool) -> None:
        self.messages = Messages()
        self.state = FastBatchState(b"B", FastOptions(gap_ok, FLOW, 2, 1000, 150.0, 1.0, 2, 0.25), self.messages)
        self.stream = ModelStream(gap_ok=gap_ok)
        self._ids = ids
        self._outbox: deque[tuple[bytes, Command]] = deque()
        self._there: deque[tuple[bytes, Command]] = deque()
        self._back: deque[tuple[bytes, int, bytes]] = deque()

    def pump(self) -> None:
        while (command := self.state.next_command()) is not None:
            self._outbox.append((self.state.batch, command))
            self.state.on_sent(command)
        self.state.flow()

    def take(self) -> None:
        state, number = self.state, self.messages.count + 1
        if state.full or self.messages.end is not None:
            return
        message = ("s", b"%d" % number, id_block(str(number)) if self._ids else None)
        if state.sent < state.until:
            self._outbox.append((state.batch, Command(Operation.APPEND, state.sent + 1, message)))
            assert state.append(*message) == number
        else:
            assert self.messages.add(*message) == number
            self.pump()

    def last(self) -> None:
        """The next message ends the batch, as publisher.commit() has it."""
        if not self.state.full and self.messages.end is None:
            self.state.commit()
            self.take()

    def write(self) -> None:
        self._there.extend(self._outbox)
        self._outbox.clear()

    def arrive(self) -> None:
        if self._there:
            batch, command = self._there.popleft()
            replies = self.stream.hear(batch, command)
            self._back.extend((batch, sequence, json.dumps(reply).encode()) for sequence, reply in replies)

    def answer(self) -> None:
        if self._back:
            self.state.on_reply(*self._back.popleft())
            self.pump()

    def lose(self) -> None:
        """One message disappears between servers."""
        if self._there:
            self._there.popleft()

    def deafen(self) -> None:
        """One answer does."""
        if self._back:
            self._back.popleft()

    def cut(self) -> None:
        """The connection breaks and is back at once; what was on its way is gone."""
        unsent = [command.operation for batch, command in self._outbox if batch == self.state.batch]
        for queue in (self._outbox, self._there, self._back):
            queue.clear()
        self.state.on_disconnect(unsent, "connection lost")
        self.state.on_reconnect()
        self.pump()

    def restart(self) -> None:
        self.stream.forget()
        self.cut()

    def tick(self) -> None:
        self.state.on_silence(can_send=True)
        self.pump()

    def check(self) -> None:
        """What holds at any time."""
        stored = self.stream.stored
        assert len(self.messages.pending) <= 2 * FLOW
        assert len(set(stored)) == len(stored), "stored twice"
        assert stored == sorted(stored), "out of order"

    def flush(self) -> None:
        """As the end of the block: everything is settled, or it ends."""
        for _ in range(400):
            if self.state.idle or self.messages.end is not None:
                return
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


def steps(*more: str) -> st.SearchStrategy[list[str]]:
    return st.lists(st.sampled_from([*CALM, *more]), max_size=120)


@examples(100)
@given(steps(), st.booleans(), st.booleans())
@example(["last", "tick"], False, False)  # a lone COMMIT that was sent twice
def test_without_faults_everything_is_stored_in_order(actions: list[str], gap_ok: bool, ids: bool) -> None:
    stage = Stage(gap_ok=gap_ok, ids=ids)
    play(stage, actions)
    assert stage.stream.stored == list(range(1, stage.messages.count + 1))
    assert (stage.messages.end, stage.messages.lost, stage.messages.pending) == (None, 0, [])


@examples(150)
@given(steps("cut", "lose", "deafen", "restart"))
def test_with_ids_nothing_is_lost_doubled_or_out_of_order_whatever_happens(actions: list[str]) -> None:
    stage = Stage(gap_ok=False, ids=True)
    play(stage, actions)
    assert stage.messages.end is None
    assert stage.stream.stored == list(range(1, stage.messages.count + 1))


@examples(150)
@given(steps("cut", "lose", "deafen", "restart"))
def test_without_ids_what_is_not_stored_is_told_and_nothing_is_doubled(actions: list[str]) -> None:
    stage = Stage(gap_ok=False, ids=False)
    play(stage, actions)
    messages, stored = stage.messages, set(stage.stream.stored)
    outcome = messages.outcome()
    failures = outcome.failures if isinstance(outcome, PublishFailed) else ()
    told = {failed.number for failed in failures}
    assert set(range(1, messages.count + 1)) - stored <= told, "lost without a word"
    assert {failed.number for failed in failures if not isinstance(failed.error, PublishUncertain)}.isdisjoint(stored)
    assert stage.stream.stored == list(range(1, len(stored) + 1)), "a gap where none is allowed"


@examples(150)
@given(steps("cut", "lose", "deafen", "restart"), st.booleans())
def test_with_gaps_allowed_the_losses_are_counted(actions: list[str], ids: bool) -> None:
    stage = Stage(gap_ok=True, ids=ids)
    play(stage, actions)
    messages = stage.messages
    assert messages.end is None or isinstance(messages.end, RequestTimeout), (
        "only a first message can be met with silence"
    )
    outcome = messages.outcome()
    failures = outcome.failures if isinstance(outcome, PublishFailed) else ()
    assert len(stage.stream.stored) + messages.lost + len(failures) >= messages.count


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
        assert other.messages.end is not None
        assert other.messages.pending == []


def test_a_commit_that_was_said_twice_and_withdrawn_once_is_not_said_to_be_unsent() -> None:
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
    assert isinstance(stage.messages.end, LocalProtocolError)
    outcome = stage.messages.outcome()
    assert isinstance(outcome, PublishFailed)
    assert {type(failed.error) for failed in outcome.failures} == {PublishUncertain}
