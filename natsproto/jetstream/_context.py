"""The JetStream context: the entry to streams, consumers and acknowledged publishing.

Owns only its Api; every method documents a call of another module.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import aclosing, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Literal, TypeVar

from natsproto._async_hints import items
from natsproto._durations import positive_seconds, seconds
from natsproto.errors import ConfigError
from natsproto.jetstream._bucket_manager import BucketManager
from natsproto.jetstream._codec import Duration
from natsproto.jetstream._config import stream_name
from natsproto.jetstream._counter import INCREMENT_HEADER, CounterValue, increment, parse_value
from natsproto.jetstream._info import AccountInfo, PubAck, StreamInfo
from natsproto.jetstream._message import JsMessage
from natsproto.jetstream._publish.atomic_batch import MAX_BATCH_MESSAGES, AtomicBatch
from natsproto.jetstream._publish.fast_batch import DEFAULT_OUTSTANDING_ACKS, FAST_API_LEVEL, MAX_FLOW, FastPublisher
from natsproto.jetstream._publish.fast_batch_state import FastOptions
from natsproto.jetstream._publish.headers import required_feature
from natsproto.jetstream._publish.publish import publish
from natsproto.jetstream._publish.publish_window import PublisherOptions
from natsproto.jetstream._publish.publisher import Publisher
from natsproto.jetstream._publish.retry_policy import RETRY_ATTEMPTS, RETRY_WAIT_S
from natsproto.jetstream._publish.schedule import SCHEDULE_NEXT_HEADER, SCHEDULER_HEADER
from natsproto.protocol.frames import Message, Payload
from natsproto.protocol.headers import Headers
from natsproto.protocol.subject import publish_subject

if TYPE_CHECKING:
    from typing import Unpack

    from natsproto.codecs import Codec
    from natsproto.jetstream._admin import Admin
    from natsproto.jetstream._advisory import Advisories
    from natsproto.jetstream._publish.headers import MessageArgs
    from natsproto.jetstream._typed import TypedJetStream
    from natsproto.protocol.headers import HeadersLike

T = TypeVar("T")


class JetStream(BucketManager):
    """JetStream of one account or domain. Made by ``nc.jetstream()``; as cheap as a subject prefix."""

    # What it makes; a context that is instrumented makes its own.
    _windowed: ClassVar[type[Publisher]] = Publisher
    _atomic: ClassVar[type[AtomicBatch]] = AtomicBatch
    _fast: ClassVar[type[FastPublisher]] = FastPublisher

    def typed(self, kind: type[T], /, *, codec: Codec | None = None) -> TypedJetStream[T]:
        """Streams whose messages hold a ``kind``: publishing, reading and handling values, checked by type checkers.

        ``codec`` (default: ``natsproto.codecs.JSON``) makes payloads of values and values of payloads. Sends nothing.
        ConfigError for what is no codec.
        """
        from natsproto.codecs import JSON
        from natsproto.jetstream._typed import TypedJetStream

        return TypedJetStream(self._connection, self.publish, kind, JSON if codec is None else codec)

    async def account_info(self, *, timeout: Duration | None = None) -> AccountInfo:
        """Gets the usage and the limits of the account. Raises the errors of every API call; see Stream."""
        return await self._api.get(AccountInfo, "INFO", asked="account info", timeout=timeout)

    # ---------------------------------------------------------------- publishing

    async def publish(
        self,
        subject: str,
        payload: Payload = b"",
        *,
        headers: HeadersLike | None = None,
        timeout: Duration | None = None,
        retry_attempts: int | None = None,
        retry_wait: Duration = RETRY_WAIT_S,
        **args: Unpack[MessageArgs],
    ) -> PubAck:
        """Publishes a message and waits until a stream has stored it.

        ``timeout`` in seconds for everything (default: the context's). The named arguments are ``msg_id``, the
        expectations ``expected_stream``, ``expected_last_seq``, ``expected_last_msg_id``,
        ``expected_last_subject_seq`` and ``expected_last_subject_seq_subject``, ``ttl``, ``rollup``, ``schedule``
        and ``schedule_target``: see ``natsproto.jetstream._publish.headers.ExpectationArgs``. ``headers`` are sent
        as they are.

        When no stream listens it is tried again ``retry_attempts`` times (-1: until the timeout; default: twice, and
        with a ``msg_id`` until the timeout), ``retry_wait`` seconds apart (ADR-22); then NoStream. While the server is
        busy (429, err_code 10167, and 10163) it is tried again until the timeout. With a ``msg_id`` it is also sent
        again over a reconnect and after every second of silence, since a stream stores one id once. Without, a lost
        connection is PublishUncertain and silence is PublishTimeout (a PublishUncertain): a stream may have the
        message. A stream with ``no_ack`` never answers: use ``nc.publish`` for it.

        WrongExpectation (WrongLastSequence) and any other ApiError when the stream refuses; ConfigError for
        arguments that break a rule or contradict the headers; UnsupportedByServer for those that the server would not
        heed; PermissionDenied; and what ``nc.publish`` raises. Cancelling leaves open whether it is stored.
        """
        check_server = None
        if (new := required_feature(args)) is not None:
            asked = f"publish to {subject!r} with {new.what}"
            check_server = partial(self._api.require_api_level, new.level, new.version, asked, timeout)
            await check_server()
        return await publish(
            self._connection,
            subject,
            payload,
            headers,
            args,
            timeout=self._timeout(timeout),
            retry_attempts=None if retry_attempts is None else _attempts(retry_attempts),
            retry_wait=seconds("retry_wait", retry_wait),
            check_server=check_server,
        )

    def publisher(
        self,
        *,
        max_pending: int = 1000,
        max_pending_bytes: int = 64 * 2**20,
        timeout: Duration | None = None,
        retry_attempts: int | None = None,
        retry_wait: Duration = RETRY_WAIT_S,
        auto_msg_id: bool = False,
    ) -> Publisher:
        """A publisher that does not wait for each acknowledgement; use it with ``async with``.

        At most ``max_pending`` messages, and ``max_pending_bytes`` bytes of payload or one message, are not
        acknowledged at any time; then ``publish`` waits. ``timeout`` in seconds (default: the context's) is for
        each message. Refusals and silence are met as in ``publish``; once a stream has acknowledged something,
        an election is waited for until the timeout. After a lost connection messages with an id are sent again in
        their order; the others fail with PublishUncertain unless they had not left. ``auto_msg_id`` gives every
        message that has none an id of its own, so that all survive reconnects.

        ConfigError for limits that are not positive.
        """
        _check_positive(max_pending=max_pending, max_pending_bytes=max_pending_bytes)
        limits = PublisherOptions(
            max_pending=max_pending,
            max_pending_bytes=max_pending_bytes,
            timeout=self._timeout(timeout),
            retry_attempts=None if retry_attempts is None else _attempts(retry_attempts),
            retry_wait=seconds("retry_wait", retry_wait),
        )
        return self._windowed(self._connection, limits, auto_msg_id=auto_msg_id)

    def atomic_batch(
        self,
        *,
        timeout: Duration | None = None,
        max_messages: int = MAX_BATCH_MESSAGES,
        retry_attempts: int = RETRY_ATTEMPTS,
        retry_wait: Duration = RETRY_WAIT_S,
    ) -> AtomicBatch:
        """Messages that are stored all together or not at all (ADR-50); use it with ``async with``, leaving commits.

        They go to subjects of one stream, which needs ``allow_atomic`` and nats-server 2.12. ``max_messages`` is
        the server's own limit unless it was configured otherwise. ``timeout`` in seconds (default: the context's)
        is for each answer that is waited for. The batch is kept here until it is committed, and told again when a
        connection, or the stream's leader, was lost before that.
        """
        _check_positive(max_messages=max_messages)
        return self._atomic(
            self._connection,
            timeout=self._timeout(timeout),
            max_messages=max_messages,
            retry_attempts=_attempts(retry_attempts),
            retry_wait=seconds("retry_wait", retry_wait),
        )

    def fast_publisher(
        self,
        *,
        gap: Literal["fail", "ok"] = "fail",
        flow: int = MAX_FLOW,
        outstanding: int = DEFAULT_OUTSTANDING_ACKS,
        max_pending_bytes: int = 64 * 2**20,
        timeout: Duration | None = None,
        retry_attempts: int = RETRY_ATTEMPTS,
        retry_wait: Duration = RETRY_WAIT_S,
        auto_msg_id: bool = False,
    ) -> FastPublisher:
        """A publisher by fast ingest (ADR-50): the stream acknowledges hundreds of messages at a time.

        All go to subjects of one stream, which needs ``allow_batched`` and nats-server 2.14.

        ``gap="fail"``: what the stream holds is in order and complete. Messages that are lost with a connection or with
        the stream's leader are sent again, after the last one that arrived. A message that the stream refuses ends the
        publisher. When nobody can tell any more which was the last one to arrive (a server was restarted), the
        publisher goes on if all messages have an id, and ends with PublishUncertain if not. ``auto_msg_id`` gives an id
        to every message that has none.

        ``gap="ok"``: what is lost is counted in ``lost``, what is refused is reported at the end, and it goes on. A
        refusal whose report is lost with the connection is not known: the stream counts the message as taken.

        ``flow`` is how many messages an acknowledgement may stand for, at most (the stream decides, and never goes
        beyond 500), ``outstanding`` how many acknowledgements are awaited at a time; their product, and
        ``max_pending_bytes``, bound what is kept here. ``timeout`` in seconds (default: the context's) is the
        longest silence of the stream. A batch that is idle for two seconds is committed.

        ConfigError for bad arguments; UnsupportedByServer on entering when the server is too old.
        """
        if gap not in ("fail", "ok"):
            raise ConfigError("gap", gap, 'must be "fail" or "ok"')
        _check_positive(flow=flow, outstanding=outstanding, max_pending_bytes=max_pending_bytes)
        if flow > 65_535:
            raise ConfigError("flow", flow, "must be 65,535 at most")
        options = FastOptions(
            gap_ok=gap == "ok",
            flow=flow,
            outstanding=outstanding,
            max_pending_bytes=max_pending_bytes,
            timeout=self._timeout(timeout),
            retry_attempts=_attempts(retry_attempts),
            retry_wait=seconds("retry_wait", retry_wait),
        )
        return self._fast(self._connection, options, auto_msg_id=auto_msg_id)

    @asynccontextmanager
    async def best_publisher(
        self, stream: str, *, timeout: Duration | None = None, auto_msg_id: bool = False
    ) -> AsyncIterator[FastPublisher | Publisher]:
        """The fastest publisher that a stream allows: a fast one if it has ``allow_batched``, else a windowed one.

        Both have ``publish``, ``flush``, ``published`` and ``pending``. StreamNotFound; ConfigError for a stream with
        ``no_ack``, which acknowledges nothing: use ``nc.publish``.
        """
        info = await self._api.get(
            StreamInfo, f"STREAM.INFO.{stream_name(stream)}", asked=f"stream {stream!r}", timeout=timeout
        )
        if info.config.no_ack:
            raise ConfigError("stream", stream, "acknowledges nothing (no_ack): use nc.publish")
        publisher: FastPublisher | Publisher = (
            self.fast_publisher(timeout=timeout, auto_msg_id=auto_msg_id)
            if info.config.allow_batched and self._connection.server_info.api_lvl >= FAST_API_LEVEL
            else self.publisher(timeout=timeout, auto_msg_id=auto_msg_id)
        )
        async with publisher as entered:
            yield entered

    # ---------------------------------------------------------------- counters and schedules

    async def counter_add(
        self, subject: str, n: int = 1, *, msg_id: str | None = None, timeout: Duration | None = None
    ) -> int:
        """Adds ``n`` (of any size, and any sign) to a counter and returns its new value (ADR-49).

        The stream needs ``allow_msg_counter`` and nats-server 2.12. With a ``msg_id`` the same step is added once,
        and what is returned is the value right after it. Raises what ``publish`` raises; after PublishUncertain the
        step may have been added or not.
        """
        await self._api.require_api_level(2, "2.12", f"counter {subject!r}", timeout)
        ack = await self.publish(subject, headers={INCREMENT_HEADER: increment(n)}, msg_id=msg_id, timeout=timeout)
        if ack.val:
            return parse_value(ack.val)
        stored = await self._stream(ack.stream, None).get_message(ack.seq, timeout=timeout)  # it was added before
        return CounterValue.read(stored).value

    async def counter_get(
        self, subject: str, *, stream: str | None = None, timeout: Duration | None = None
    ) -> CounterValue:
        """A counter's value, last step and sources; MessageNotFound when nothing was added yet.

        Without ``stream`` the one that listens on the subject is looked up; an aggregate that only sources others
        listens on none. NoStream, StreamNotFound; InvalidReply when it is no counter.
        """
        name = await self.stream_name_by_subject(subject, timeout=timeout) if stream is None else stream
        return CounterValue.read(await self._stream(name, None).get_last_message(subject, timeout=timeout))

    @items
    async def counters(
        self, stream: str, subjects: Iterable[str] = (">",), *, timeout: Duration | None = None
    ) -> AsyncGenerator[CounterValue]:
        """Every counter of a stream whose subject matches, all as of one moment. See Stream.get_last_messages."""
        async with aclosing(self._stream(stream, None).get_last_messages(subjects, timeout=timeout).batches()) as found:
            async for batch in found:
                for message in batch:
                    yield CounterValue.read(message)

    async def cancel_schedule(
        self, subject: str, *, stream: str | None = None, timeout: Duration | None = None
    ) -> bool:
        """Removes the schedule stored under this subject; False when there was none (any more).

        Without ``stream`` the one that listens on the subject is looked up. NoStream, StreamNotFound.
        """
        name = await self.stream_name_by_subject(subject, timeout=timeout) if stream is None else stream
        return await self._stream(name, None).purge(subject=subject, timeout=timeout) > 0

    async def replace_schedule(
        self,
        replaced: str,
        subject: str,
        payload: Payload = b"",
        *,
        headers: HeadersLike | None = None,
        timeout: Duration | None = None,
        **args: Unpack[MessageArgs],
    ) -> PubAck:
        """Publishes a message and ends the schedule stored under the subject ``replaced``, both or neither (2.14).

        ``subject`` is the schedule's target, to publish it earlier, or any other of the stream but the schedule's
        own. With ``expected_last_subject_seq`` and ``expected_last_subject_seq_subject=replaced`` only a schedule
        that has not fired yet is ended. Raises what ``publish`` raises, ScheduleRefused among it.
        """
        own = Headers(headers or ())
        for name in (SCHEDULER_HEADER, SCHEDULE_NEXT_HEADER):
            if name in own:
                raise ConfigError("headers", name, "is what this call says")
        publish_subject(replaced, "replaced")
        if replaced == subject:
            raise ConfigError("subject", subject, "must not be that of the schedule: publish a schedule to change it")
        await self._api.require_api_level(4, "2.14", f"replace schedule {replaced!r}", timeout)
        pairs = [*own.pairs(), (SCHEDULER_HEADER, replaced), (SCHEDULE_NEXT_HEADER, "purge")]
        return await self.publish(subject, payload, headers=pairs, timeout=timeout, **args)

    def _timeout(self, timeout: Duration | None) -> float:
        if timeout is None:
            return self._api.timeout
        return positive_seconds("timeout", timeout)

    # ---------------------------------------------------------------- messages

    def message(self, message: Message) -> JsMessage:
        """A core message that came from a stream (by a push consumer, say), as one that can be acknowledged.

        LocalProtocolError when its reply subject is no ack subject.
        """
        return JsMessage.of(message, self._api.prefix)

    # ---------------------------------------------------------------- the cluster

    @property
    def admin(self) -> Admin:
        """The administrative calls: leaders, peers, servers, accounts."""
        from natsproto.jetstream._admin import Admin

        return Admin(self._api)

    def advisories(self, subject: str = "$JS.EVENT.>") -> Advisories:
        """Subscribes to the advisories and metrics of JetStream as typed events.

        ``subject`` narrows it ("$JS.EVENT.ADVISORY.CONSUMER.>"); those of other domains come under the same subjects.
        Use with ``async with`` or ``await``. InvalidSubject; ConnectionClosed.
        """
        from natsproto.jetstream._advisory import Advisories

        return Advisories(self._connection, subject)


def _attempts(number: int) -> int:
    if type(number) is not int or number < -1:
        raise ConfigError("retry_attempts", number, "must be a number of attempts, or -1 for as many as it takes")
    return number


def _check_positive(**numbers: int) -> None:
    for name, value in numbers.items():
        if type(value) is not int or value < 1:
            raise ConfigError(name, value, "must be a positive number")
