"""The state of an ordered consumer without a server: virtual time, and an API that answers what the test says."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from natsproto import errors
from natsproto._core.engine.engine import State
from natsproto._core.replies.outages import Outages
from natsproto.errors import LocalProtocolError, NatsError, RequestTimeout
from natsproto.jetstream._consumer.messages import ConsumerNotice
from natsproto.jetstream._consumer.ordered.consumer_deletion import READER_ID_METADATA
from natsproto.jetstream._consumer.ordered.ordered_state import (
    FIRST_CREATE_TIMEOUT_S,
    KEEP_CONSUMER_S,
    OrderedState,
)
from natsproto.jetstream._values.config import ConsumerConfig
from natsproto.jetstream._values.info import ConsumerInfo, SequenceInfo
from natsproto.jetstream._values.timestamp import Timestamp
from tests.kit.clock import advance, virtual_clock

THEN = Timestamp.parse("2026-01-01T00:00:00Z")


@dataclass
class FakeApi:
    """Answers the requests that create consumers: after so many seconds, or never (None)."""

    prefix: str = "$JS.API"
    delays: list[float | None] = field(default_factory=lambda: [0.0])
    asked: list[tuple[float, str, Any]] = field(default_factory=list)
    notices: list[Any] = field(default_factory=list)
    connected: asyncio.Event | None = None
    """Set when there is a connection; None: there always is."""
    delete_errors: list[NatsError] = field(default_factory=list)
    deletes: list[tuple[float, str]] = field(default_factory=list)
    owner: str = "unique"
    """The reader whose id is in the metadata of existing consumers."""

    @property
    def deleted(self) -> list[str]:
        """The endpoints of the deletions so far."""
        return [endpoint for _, endpoint in self.deletes]

    async def _wait_connected(self, deadline: float, *, in_drain: bool = False) -> None:
        if self.connected is not None:
            await self.connected.wait()

    @property
    def connection(self) -> Any:
        outages = Outages(lambda: 0.0, self._wait_connected)
        outages.end()
        return SimpleNamespace(
            _runtime=SimpleNamespace(new_id=lambda: "unique"),
            _event_bus=SimpleNamespace(emit=self.notices.append),
            _cleanups=SimpleNamespace(start=asyncio.ensure_future),
            is_connected=True,
            state=State.OPEN,
            _outages=outages,
        )

    async def call(self, endpoint: str, **_: Any) -> None:
        self.deletes.append((asyncio.get_running_loop().time(), endpoint))
        if self.delete_errors:
            raise self.delete_errors.pop(0)

    async def call_for(self, kind: type[ConsumerInfo], endpoint: str, body: Any = None, **options: Any) -> ConsumerInfo:
        if endpoint.startswith("CONSUMER.INFO.S."):
            return self._info(ConsumerConfig(name=endpoint[16:], metadata={READER_ID_METADATA: self.owner}))
        assert options["retry"] is False, "the caller repeats it"
        self.asked.append((asyncio.get_running_loop().time(), endpoint, body))
        delay = self.delays.pop(0) if len(self.delays) > 1 else self.delays[0]
        if delay is None:
            await asyncio.get_running_loop().create_future()
        await asyncio.sleep(delay or 0)
        return self._info(body["config"])

    def _info(self, config: ConsumerConfig) -> ConsumerInfo:
        index = SequenceInfo(consumer_seq=0, stream_seq=0)
        return ConsumerInfo(
            stream_name="S", name=config.name, created=THEN, config=config, delivered=index, ack_floor=index
        )


class Subscription:
    """The subscription of a consumer that is kept."""

    closed = False

    def detach(self) -> None:
        """Nothing arrives."""

    def close(self) -> None:
        self.closed = True


def state(api: FakeApi, **options: Any) -> OrderedState:
    given: Any = {"push": False, "stream_created": THEN, **options}
    return OrderedState(api, "S", ConsumerConfig(metadata={"m": "1"}), **given)  # type: ignore[arg-type]  # in its place


async def create_ordered(ordered: OrderedState, timeout: float = 5.0) -> None:
    await ordered.create(ordered.cursor.next_consumer(), timeout)


def test_leftover_messages_are_read_in_order() -> None:
    ordered: Any = state(FakeApi())
    ordered.put_back([3, 4])
    ordered.put_back([1, 2])
    assert ordered.take_leftover(3) == [1, 2, 3]
    assert ordered.take_leftover(3) == [4]
    assert ordered.take_leftover(3) == []


def test_name_prefix_marks_the_reader() -> None:
    named, unnamed = state(FakeApi(), name_prefix="shop"), state(FakeApi())
    assert (named.prefix, named.is_named, unnamed.prefix, unnamed.is_named) == ("shop", True, "unique", False)
    assert named.description == "ordered consumer 'shop' of stream 'S'"
    assert named.cursor.next_consumer().metadata == {"m": "1", READER_ID_METADATA: "unique"}
    assert unnamed.cursor.next_consumer().metadata == {"m": "1"}
    with pytest.raises(errors.ConfigError):
        state(FakeApi(), name_prefix="a.b")


@virtual_clock
async def test_one_reader_at_a_time() -> None:
    ordered: Any = state(FakeApi())
    first, second = object(), object()
    assert ordered.attach(first) is None
    with pytest.raises(LocalProtocolError, match="being read already"):
        ordered.attach(second)
    ordered.detach(second, None)  # it is not the one
    assert ordered.reader is first
    ordered.detach(first, None)
    assert ordered.attach(second) is None


@virtual_clock
async def test_kept_consumer_is_for_the_next_reader() -> None:
    api = FakeApi()
    ordered: Any = state(api)
    await create_ordered(ordered)
    kept = Subscription()
    for _ in range(2):  # the time begins anew with every fetch
        reader = object()
        ordered.attach(reader)
        ordered.detach(reader, kept)
        await advance(KEEP_CONSUMER_S * 0.9)
        reader = object()
        assert ordered.attach(reader) is kept
        await advance(KEEP_CONSUMER_S * 2)
        assert (kept.closed, api.deleted) == (False, [])
        ordered.detach(reader, None)
        assert ordered._kept is None
    ordered.attach(reader)
    ordered.detach(reader, kept)
    await advance(KEEP_CONSUMER_S * 1.1)
    assert (kept.closed, api.deleted) == (True, ["CONSUMER.DELETE.S.unique_1"])
    assert ordered.attach(reader) is None


@virtual_clock
async def test_kept_consumer_is_dropped_once() -> None:
    api = FakeApi()
    ordered: Any = state(api)
    ordered.drop_kept_consumer()
    assert api.deleted == []
    reader, kept = object(), Subscription()
    ordered.attach(reader)
    ordered.detach(reader, kept)
    ordered.drop_kept_consumer()
    await advance(0.01)
    assert (kept.closed, len(api.deleted)) == (True, 1)
    await advance(KEEP_CONSUMER_S * 2)
    assert len(api.deleted) == 1


@virtual_clock
async def test_create_is_repeated_in_growing_pauses() -> None:
    api = FakeApi(delays=[None])
    ordered = state(api)
    began = asyncio.get_running_loop().time()
    with pytest.raises(RequestTimeout, match="create ordered consumer 'unique' of stream 'S'"):
        await create_ordered(ordered, timeout=5.0)
    assert asyncio.get_running_loop().time() - began == pytest.approx(5.0)
    times = [at - began for at, _, _ in api.asked]
    pauses = [after - before for before, after in itertools.pairwise(times)]
    assert pauses[0] == pytest.approx(0.15)
    assert all(pause == pytest.approx(0.15 + 0.04 * at) for at, pause in zip(times, pauses, strict=False))
    assert {endpoint for _, endpoint, _ in api.asked} == {"CONSUMER.CREATE.S.unique_1"}
    assert (api.asked[0][2]["stream_name"], api.asked[0][2]["action"]) == ("S", "create")
    assert (ordered.info, ordered.create_timeout) == (None, FIRST_CREATE_TIMEOUT_S)


@pytest.mark.parametrize(("took", "timeout"), [(0.0, 0.15), (0.02, 0.15), (0.1, 0.5), (0.14, 0.7)])
@virtual_clock
async def test_create_timeout_is_five_times_the_last(took: float, timeout: float) -> None:
    ordered = state(FakeApi(delays=[took]))
    assert ordered.create_timeout == 1.0
    await create_ordered(ordered)
    assert ordered.create_timeout == pytest.approx(timeout)


@virtual_clock
async def test_created_waits_for_the_first_consumer() -> None:
    ordered = state(FakeApi(delays=[0.1]))
    waiting = [asyncio.ensure_future(ordered.wait_created()) for _ in range(3)]
    await advance(0.01)
    waiting[1].cancel()
    await create_ordered(ordered)
    first, cancelled, last = await asyncio.gather(*waiting, return_exceptions=True)
    assert first is last is ordered.info
    assert isinstance(cancelled, asyncio.CancelledError)
    assert await ordered.wait_created() is ordered.info


@virtual_clock
async def test_created_fails_until_the_next_reader() -> None:
    ordered: Any = state(FakeApi())
    waiting = [asyncio.ensure_future(ordered.wait_created()) for _ in range(2)]
    await advance(0.01)
    waiting[0].cancel()
    error = errors.StreamNotFound(404, 10059, "stream not found")
    ordered.fail_creation(error)
    assert (await asyncio.gather(*waiting, return_exceptions=True))[1] is error
    with pytest.raises(errors.StreamNotFound):
        await ordered.wait_created()
    ordered.attach(object())  # this one may have more luck
    again = asyncio.ensure_future(ordered.wait_created())
    await create_ordered(ordered)
    assert await again is ordered.info


@virtual_clock
async def test_deletion_is_repeated_until_it_is_confirmed() -> None:
    """The connection may break, or its server stop, with the request."""
    failures: list[NatsError] = [errors.ConnectionLost("cut"), RequestTimeout("delete", 1.0)]
    api = FakeApi(delete_errors=failures)
    state(api).deletion.delete("a")
    await advance(5.0)
    assert api.deleted == ["CONSUMER.DELETE.S.a"] * 3
    assert not failures


@virtual_clock
async def test_deletion_waits_for_a_connection() -> None:
    api = FakeApi(connected=asyncio.Event())
    deletion = state(api).deletion
    deletion.delete("a")
    deletion.delete("b", may_come=True)
    await advance(60.0)
    assert api.deleted == []
    assert api.connected is not None
    api.connected.set()
    await advance(5.0)
    assert api.deleted == ["CONSUMER.DELETE.S.a", "CONSUMER.DELETE.S.b"]


@virtual_clock
async def test_deletion_ends_with_a_final_refusal() -> None:
    api = FakeApi(delete_errors=[errors.PermissionDenied("no", "publish", "a")])
    state(api).deletion.delete("a", may_come=True)
    await advance(60.0)
    assert api.deleted == ["CONSUMER.DELETE.S.a"]


@virtual_clock
async def test_abandoned_consumer_is_deleted_late() -> None:
    missing = errors.ConsumerNotFound(404, 10014, "consumer not found")
    api = FakeApi(delete_errors=[missing] * 5)
    ordered = state(api)
    began = asyncio.get_running_loop().time()
    ordered.deletion.delete("unique_1", may_come=True)
    await advance(5.0)
    assert [at - began for at, _ in api.deletes] == pytest.approx([0.0, 0.02, 0.1, 0.3, 1.0])
    assert {endpoint for _, endpoint in api.deletes} == {"CONSUMER.DELETE.S.unique_1"}


@pytest.mark.parametrize("dropped", [False, True])
@virtual_clock
async def test_kept_consumer_lives_for_its_own_time(dropped: bool) -> None:
    """The timer of an earlier one does not end it."""
    ordered: Any = state(FakeApi())
    for _ in range(3):
        reader, kept = object(), Subscription()
        ordered.attach(reader)
        ordered.detach(reader, kept)
        await advance(KEEP_CONSUMER_S * 0.7)
        assert not kept.closed
        if dropped:
            ordered.drop_kept_consumer()


@virtual_clock
async def test_cursor_and_identity_know_created_consumers() -> None:
    api = FakeApi()
    ordered = OrderedState(api, "S", ConsumerConfig(deliver_policy="new"), push=False, stream_created=THEN)  # type: ignore[arg-type]  # in its place
    await create_ordered(ordered)
    assert not (ordered.identity and ordered.identity.unverified)
    await create_ordered(ordered)
    assert api.asked[1][2]["config"].opt_start_seq == 1
    assert bool(ordered.identity and ordered.identity.unverified)


@pytest.mark.parametrize(("owner", "is_deleted"), [("unique", True), ("another", False)])
@virtual_clock
async def test_consumer_of_another_reader_is_not_deleted(owner: str, is_deleted: bool) -> None:
    """Readers with the same name prefix take turns with the numbers."""
    api = FakeApi(owner=owner)
    ordered = state(api, name_prefix="shop")
    ordered.deletion.delete("shop_1", may_come=True)
    await advance(5.0)
    assert api.deleted == ["CONSUMER.DELETE.S.shop_1"] * is_deleted


FINAL: list[tuple[Callable[[], NatsError], bool, bool, bool]] = [
    # error, final for the first consumer, for the first one of a named reader, for a later one
    (lambda: errors.StreamNotFound(404, 10059, "no"), True, True, True),
    (lambda: errors.PermissionDenied("no", "publish", "a"), True, True, True),
    (lambda: errors.ConnectionClosed(), True, True, True),
    (lambda: RequestTimeout("ask", 1.0), False, False, False),
    (lambda: errors.JetStreamUnavailable(503, 10008, "no"), False, False, False),
    (lambda: errors.ConsumerExists(400, 10148, "no"), True, False, False),
    (lambda: errors.ApiError(400, 10000, "no"), True, True, False),
]


@pytest.mark.parametrize(("make", "first", "named", "later"), FINAL)
@virtual_clock
async def test_create_error_is_final_or_not(
    make: Callable[[], NatsError], first: bool, named: bool, later: bool
) -> None:
    ordered = state(FakeApi())
    assert ordered.is_final(make()) is first
    assert state(FakeApi(), name_prefix="shop").is_final(make()) is named
    await create_ordered(ordered)
    assert ordered.is_final(make()) is later


@virtual_clock
async def test_notice_names_the_consumer() -> None:
    api = FakeApi()
    ordered = state(api)
    await create_ordered(ordered)
    error = RequestTimeout("ask", 1.0)
    ordered.emit_notice(error)
    assert api.notices == [ConsumerNotice(stream="S", consumer="unique_1", error=error)]
