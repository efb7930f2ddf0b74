"""The subscription table, against a model of the server's own counts, through losses and reconnects."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from natsproto.errors import InvalidSubject
from natsproto.protocol.frames import Message, Route
from natsproto.protocol.parser import Parser
from natsproto.protocol.subject import matches
from natsproto.protocol.subscription_table import SubscriptionEntry, SubscriptionTable
from tests.kit.examples import examples


def ignore_message(message: Message) -> None:
    """An owner who does not care."""


# ---------------------------------------------------------------- the model of a server


@dataclass
class Subscribed:
    """What a server knows of one SUB."""

    subject: str
    queue: str | None
    delivered: int = 0
    limit: int | None = None


class Server:
    """One connection as a nats-server sees it: SUB, UNSUB, and who gets what."""

    def __init__(self) -> None:
        self.subs: dict[str, Subscribed] = {}
        self.seen: set[str] = set()
        self.sent = b""

    def read(self, line: bytes) -> None:
        verb, *words = line.decode().removesuffix("\r\n").split(" ")
        if verb == "SUB":
            sid = words[-1]
            assert sid not in self.seen, f"sid {sid} comes twice on one connection"
            self.seen.add(sid)
            self.subs[sid] = Subscribed(words[0], words[1] if len(words) == 3 else None)
            return
        assert verb == "UNSUB"
        sub = self.subs.get(words[0])
        if sub is None:
            return  # silent
        if len(words) == 1:
            del self.subs[words[0]]
            return
        sub.limit = int(words[1])
        assert sub.limit > 0, "an UNSUB with the count 0 would end the subscription at once"
        if sub.delivered >= sub.limit:
            del self.subs[words[0]]

    def publish(self, subject: str, payload: bytes) -> None:
        for sid, sub in list(self.subs.items()):
            if not matches(sub.subject, subject):
                continue
            self.sent += b"MSG %b %b %d\r\n%b\r\n" % (subject.encode(), sid.encode(), len(payload), payload)
            sub.delivered += 1
            if sub.limit is not None and sub.delivered >= sub.limit:
                del self.subs[sid]


@dataclass
class Owner:
    """The user's side of a subscription: an inbox, and what the table may put into it at most."""

    subject: str
    queue: str | None
    inbox: list[Message] = field(default_factory=list)
    settled: int = 0
    most: int | None = None
    ended: bool = False


class SubscriptionTableMachine(RuleBasedStateMachine):
    """A client with a table, a pipe in each direction, and a server. Anything may be late, and may get lost."""

    def __init__(self) -> None:
        super().__init__()
        self.table: SubscriptionTable[Owner] = SubscriptionTable()
        self.parser = Parser(self.table.routes)
        self.server = Server()
        self.commands: deque[bytes] = deque()
        self.entries: list[SubscriptionEntry[Owner]] = []
        self.stopped: set[int] = set()
        self.slices: Iterator[bytes] | None = None
        self.number = 0

    @property
    def live(self) -> list[SubscriptionEntry[Owner]]:
        return [entry for entry in self.entries if not entry.owner.ended]

    def send(self, wire: bytes) -> None:
        if wire:
            self.commands.append(wire)

    def pick(self, data: st.DataObject, entries: list[SubscriptionEntry[Owner]]) -> SubscriptionEntry[Owner]:
        return data.draw(st.sampled_from(entries))

    # ------------------------------------------------------------ the user

    @initialize()
    def one_subscription(self) -> None:
        self.subscribe("a", None)

    @rule(subject=st.sampled_from(("a", "b", "*", ">")), queue=st.sampled_from((None, "q")))
    def subscribe(self, subject: str, queue: str | None) -> None:
        owner = Owner(subject, queue)
        entry, wire = self.table.add(subject, queue, owner.inbox.append, owner)
        assert entry.owner is owner
        assert all(entry.sid > other.sid for other in self.entries), "a sid was given twice"
        self.entries.append(entry)
        self.send(wire)

    @rule()
    def subscribe_badly(self) -> None:
        before = dict(self.table.routes)
        with pytest.raises(InvalidSubject):
            self.table.add("a..b", None, ignore_message, Owner("", None))
        assert self.table.routes == before

    @precondition(lambda self: self.entries)
    @rule(data=st.data())
    def unsubscribe(self, data: st.DataObject) -> None:
        entry = self.pick(data, self.entries)
        wire = self.table.remove(entry)
        assert bool(wire) is not entry.owner.ended
        entry.owner.ended = True
        self.send(wire)

    @precondition(lambda self: self.entries)
    @rule(data=st.data(), max_msgs=st.integers(0, 6))
    def limit(self, data: st.DataObject, max_msgs: int) -> None:
        entry = self.pick(data, self.entries)
        owner = entry.owner
        before = entry.max_msgs
        if before is not None and max_msgs > before and (self.commands or self.server.sent):
            return  # a limit the server may have reached already cannot be raised any more
        wire = self.table.limit(entry, max_msgs)
        if owner.ended:
            assert wire == b""
            return
        owner.most = max(max_msgs, owner.settled)
        owner.ended = owner.settled >= max_msgs
        assert wire, "the server must hear of a limit"
        if before is not None and max_msgs > before:
            self.server.read(wire)  # if it came after the message that reached the old one, it would change nothing
        else:
            self.send(wire)

    @precondition(lambda self: self.entries)
    @rule(data=st.data())
    def stop_delivery(self, data: st.DataObject) -> None:
        entry = self.pick(data, self.entries)
        stopped = entry.stopped or entry.owner.ended  # a second one says nothing more
        wire = self.table.stop_delivery(entry)
        assert bool(wire) is not stopped
        self.stopped.add(entry.sid)
        self.send(wire)

    # ------------------------------------------------------------ the server and the wire

    @precondition(lambda self: self.commands)
    @rule(data=st.data())
    def server_reads(self, data: st.DataObject) -> None:
        for _ in range(data.draw(st.integers(1, len(self.commands)))):
            self.server.read(self.commands.popleft())

    @rule(subject=st.sampled_from(("a", "b")), times=st.integers(1, 5))
    def server_publishes(self, subject: str, times: int) -> None:
        for _ in range(times):
            self.number += 1
            self.server.publish(subject, b"%06d" % self.number)

    @precondition(lambda self: self.server.sent)
    @rule(data=st.data())
    def client_reads(self, data: st.DataObject) -> None:
        sent = self.server.sent
        size = data.draw(st.sampled_from((len(sent), len(sent) // 2, 1)) | st.integers(1, len(sent)))
        chunk, self.server.sent = sent[:size], sent[size:]
        self.receive(chunk)

    def receive(self, chunk: bytes) -> None:
        before = {entry.sid: len(entry.owner.inbox) for entry in self.entries}
        self.parser.feed(chunk)
        touched, self.parser.touched = self.parser.touched, []
        for route in touched:
            assert isinstance(route, SubscriptionEntry)
            owner: Owner = route.owner
            fresh = len(owner.inbox) - before[route.sid]
            count, octets, excess, ended = self.table.take_arrived(route)
            assert count == fresh
            assert octets == sum(message.size for message in owner.inbox[-fresh:]) if fresh else octets == 0
            assert 0 <= excess <= count
            assert not (owner.ended and (count or ended)), "what had ended ends again, or gets more"
            del owner.inbox[len(owner.inbox) - excess :]
            owner.settled += count - excess
            owner.ended |= ended
            assert ended is (owner.most is not None and owner.settled == owner.most and count > 0)
            assert self.table.take_arrived(route) == (0, 0, 0, False), "an account is settled once"

    @rule()
    def reconnect(self) -> None:
        """All that was on its way is lost, in both directions."""
        self.commands.clear()
        self.server, self.parser = Server(), Parser(self.table.routes)
        self.slices = self.table.resubscribe(most=2)
        self.send_slice()

    @precondition(lambda self: self.slices is not None)
    @rule()
    def send_slice(self) -> None:
        """The next subscriptions; the user goes on between two slices."""
        assert self.slices is not None
        lines = next(self.slices, None)
        if lines is None:
            self.slices = None
        else:
            self.commands += lines.splitlines(keepends=True)

    @rule()
    def all_arrives(self) -> None:
        while self.slices is not None:
            self.send_slice()
        while self.commands:
            self.server.read(self.commands.popleft())
        chunk, self.server.sent = self.server.sent, b""
        self.receive(chunk)

    # ------------------------------------------------------------ what holds at any time

    @invariant()
    def auto_unsubscribe_never_delivers_more_than_max_in_all(self) -> None:
        for entry in self.entries:
            owner = entry.owner
            assert owner.most is None or len(owner.inbox) <= owner.most
            assert len(owner.inbox) == owner.settled

    @invariant()
    def every_message_is_the_owners_and_in_order(self) -> None:
        for entry in self.entries:
            owner = entry.owner
            assert all(matches(owner.subject, message.subject) for message in owner.inbox)
            numbers = [message.data for message in owner.inbox]
            assert numbers == sorted(set(numbers))

    @invariant()
    def the_table_holds_what_lives(self) -> None:
        live = self.live
        assert list(self.table) == live
        assert len(self.table) == len(live)
        assert self.table.routes == {b"%d" % entry.sid: entry for entry in live}
        for entry in self.entries:
            assert self.table.by_sid(str(entry.sid)) is (None if entry.owner.ended else entry)

    @invariant()
    def client_and_server_agree_when_nothing_is_on_its_way(self) -> None:
        if self.commands or self.server.sent or self.slices is not None:
            return
        expected = {
            str(entry.sid): (
                entry.subject,
                entry.queue,
                None if entry.max_msgs is None else entry.max_msgs - entry.received,
            )
            for entry in self.live
            if entry.sid not in self.stopped
        }
        known = {
            sid: (sub.subject, sub.queue, None if sub.limit is None else sub.limit - sub.delivered)
            for sid, sub in self.server.subs.items()
        }
        assert known == expected


SubscriptionTableMachine.TestCase.settings = examples(150, steps=40)
TestSubscriptionTable = SubscriptionTableMachine.TestCase


# ---------------------------------------------------------------- by example


def message(sid: int, number: int) -> bytes:
    return b"MSG a %d 1\r\n%d\r\n" % (sid, number)


def test_resubscribe_sends_remaining_limits() -> None:
    table: SubscriptionTable[None] = SubscriptionTable()
    taken: list[Message] = []
    plain, _ = table.add("a", None, taken.append, None)
    queued, _ = table.add("b.*", "q", taken.append, None)
    gone, _ = table.add("c", None, taken.append, None)
    stopped, _ = table.add("d", None, taken.append, None)
    limited, _ = table.add("a", None, taken.append, None)
    assert table.limit(limited, 5) == b"UNSUB 5 5\r\n"
    assert table.remove(gone) == b"UNSUB 3\r\n"
    assert table.stop_delivery(stopped) == b"UNSUB 4\r\n"
    parser = Parser(table.routes)
    parser.feed(message(5, 1) + message(5, 2))
    assert table.take_arrived(limited) == (2, 4, 0, False)
    assert list(table.resubscribe()) == [b"SUB a 1\r\nSUB b.* q 2\r\nSUB a 5\r\nUNSUB 5 3\r\n"]
    assert table.limit(limited, 4) == b"UNSUB 5 2\r\n", "counted from the new connection on"
    assert [plain.received_before, queued.received_before, limited.received_before] == [0, 0, 2]


def test_messages_beyond_limit_spare_earlier_ones() -> None:
    """The server had sent eight when it heard of the limit of five, and they come in two chunks."""
    table: SubscriptionTable[None] = SubscriptionTable()
    inbox: list[Message] = []
    entry, _ = table.add("a", None, inbox.append, None)
    parser = Parser(table.routes)
    table.limit(entry, 5)
    parser.feed(b"".join(message(1, number) for number in range(6)))
    assert table.take_arrived(entry) == (6, 12, 1, True)
    del inbox[-1:]
    parser.feed(message(1, 6) + message(1, 7))
    assert table.take_arrived(entry) == (0, 0, 0, False)
    assert [item.data for item in inbox] == [b"0", b"1", b"2", b"3", b"4"]


def test_messages_of_removed_subscription_are_dropped() -> None:
    table: SubscriptionTable[None] = SubscriptionTable()
    inbox: list[Message] = []
    entry, _ = table.add("a", None, inbox.append, None)
    parser = Parser(table.routes)
    parser.feed(message(1, 0))
    assert table.remove(entry) == b"UNSUB 1\r\n"
    parser.feed(message(1, 1))
    assert len(inbox) == 1
    assert table.remove(entry) == table.stop_delivery(entry) == table.limit(entry, 3) == b""


def test_reached_limit_ends_subscription_at_once() -> None:
    table: SubscriptionTable[None] = SubscriptionTable()
    entry, _ = table.add("a", None, ignore_message, None)
    parser = Parser(table.routes)
    parser.feed(message(1, 0) + message(1, 1))
    table.take_arrived(entry)
    assert table.limit(entry, 2) == b"UNSUB 1\r\n"
    assert len(table) == 0
    assert list(table.resubscribe()) == []


@pytest.mark.parametrize("sid", ["", "x", "2", "-1", "1x", "²", "9" * 5000])
def test_a_sid_that_is_not_ours_finds_nothing(sid: str) -> None:
    table: SubscriptionTable[None] = SubscriptionTable()
    table.add("a", None, ignore_message, None)
    assert table.by_sid(sid) is None
    assert table.by_sid("1") is not None


def test_the_table_may_change_while_it_is_walked_over() -> None:
    table: SubscriptionTable[None] = SubscriptionTable()
    for _ in range(3):
        table.add("a", None, ignore_message, None)
    for entry in table:
        table.remove(entry)
    assert len(table) == 0


def test_an_interest_is_a_sink() -> None:
    table: SubscriptionTable[str] = SubscriptionTable()
    entry, wire = table.add("a", "q", ignore_message, "owner", note="note")
    assert isinstance(entry, Route)
    assert (entry.message_class, entry.note, entry.owner, wire) == (Message, "note", "owner", b"SUB a q 1\r\n")


# ---------------------------------------------------------------- the rest of a chunk


def test_removed_subscription_drops_what_is_in_flight() -> None:
    """The parser may still have its route, and delivers the rest of a chunk to it."""
    table: SubscriptionTable[str] = SubscriptionTable()
    delivered: list[Message] = []
    entry, _ = table.add("a", None, delivered.append, "owner")
    other, _ = table.add("b", None, ignore_message, "owner")
    assert table.last_sid == other.sid == 2
    parser = Parser(dict(table.routes))
    parser.feed(b"MSG a 1 1\r\nx\r\n")
    assert table.remove(entry) == b"UNSUB 1\r\n"
    parser.feed(b"MSG a 1 1\r\ny\r\n")
    assert [message.data for message in delivered] == [b"x"]
    assert entry.max_msgs == 0


@pytest.mark.parametrize("last", [1, 2, 5])
def test_limit_counts_the_messages_of_all_chunks(last: int) -> None:
    table: SubscriptionTable[str] = SubscriptionTable()
    entry, _ = table.add("a", None, ignore_message, "owner")
    assert table.limit(entry, 3) == b"UNSUB 1 3\r\n"
    taken = []
    for count in (2, last):
        entry.arrived, entry.nbytes = count, count * 10
        taken.append(table.take_arrived(entry))
    assert taken == [(2, 20, 0, False), (last, last * 10, last - 1, True)]
    assert (entry.received, len(table)) == (3, 0)


def test_resubscribed_subscription_ends_first() -> None:
    table: SubscriptionTable[str] = SubscriptionTable()
    entry, _ = table.add("a", "q", ignore_message, "owner")
    table.limit(entry, 3)
    entry.arrived = 2
    table.take_arrived(entry)
    assert table.resubscribe_one(entry) == b"UNSUB 1\r\nSUB a q 1\r\nUNSUB 1 1\r\n"
