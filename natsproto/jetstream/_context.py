"""The JetStream context: the front door of streams, consumers and publishing with acknowledgement.

Owns nothing but its Api; every verb is a thin, documented call into the module that knows.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from contextlib import aclosing, asynccontextmanager
from functools import partial
from os import PathLike
from typing import TYPE_CHECKING, ClassVar, Literal, TypeVar, overload

from natsproto._async_hints import items
from natsproto._core.connection import Connection
from natsproto._durations import positive_seconds, seconds
from natsproto.errors import ConfigError, NoStream, StreamNameInUse, StreamNotFound
from natsproto.jetstream._api import Api
from natsproto.jetstream._codec import Duration, amended
from natsproto.jetstream._config import (
    KV_STREAM,
    OBJECT_STREAM,
    OBJECT_SUBJECTS,
    KeyValueConfig,
    ObjectStoreConfig,
    StreamConfig,
    stream_name,
)
from natsproto.jetstream._counter import INCREMENT_HEADER, CounterValue, increment, parse_value
from natsproto.jetstream._info import AccountInfo, PubAck, StreamInfo, StreamNamesPage, StreamPage
from natsproto.jetstream._listing import Listing, Page
from natsproto.jetstream._message import JsMessage
from natsproto.jetstream._publish.async_publish import Publisher, PublisherOptions
from natsproto.jetstream._publish.atomic_batch import MAX_BATCH_MESSAGES, AtomicBatch
from natsproto.jetstream._publish.fast_batch import DEFAULT_OUTSTANDING_ACKS, FAST_API_LEVEL, MAX_FLOW, FastPublisher
from natsproto.jetstream._publish.fast_batch_state import FastOptions
from natsproto.jetstream._publish.headers import required_feature
from natsproto.jetstream._publish.publish import publish
from natsproto.jetstream._publish.retry_policy import RETRY_ATTEMPTS, RETRY_WAIT_S
from natsproto.jetstream._publish.schedule import SCHEDULE_NEXT_HEADER, SCHEDULER_HEADER
from natsproto.jetstream._stream import Stream, write_stream
from natsproto.protocol.frames import Message, Payload
from natsproto.protocol.headers import Headers
from natsproto.protocol.subject import publish_subject, subscribe_subject

if TYPE_CHECKING:
    from typing import Unpack

    from natsproto.codecs import Codec
    from natsproto.jetstream._admin import Admin
    from natsproto.jetstream._advisory import Advisories
    from natsproto.jetstream._api_trace import TraceCallback
    from natsproto.jetstream._arguments import KeyValueArgs, ObjectStoreArgs, StreamArgs
    from natsproto.jetstream._backup import Progress
    from natsproto.jetstream._publish.headers import MessageArgs
    from natsproto.jetstream._typed import TypedJetStream
    from natsproto.jetstream.kv._bucket import KeyValue
    from natsproto.jetstream.kv._keys import KeyCodec
    from natsproto.jetstream.kv._status import KeyValueStatus
    from natsproto.jetstream.objectstore._status import ObjectStoreStatus
    from natsproto.jetstream.objectstore._store import ObjectStore
    from natsproto.protocol.headers import HeadersLike

T = TypeVar("T")

_ALL_STORES = f"{OBJECT_SUBJECTS}*.C.>"
"""What every object store listens on."""


class JetStream:
    """JetStream of one account or domain. Made by ``nc.jetstream()``; as cheap as a subject prefix."""

    # What it makes; a context that is instrumented makes its own.
    _windowed: ClassVar[type[Publisher]] = Publisher
    _atomic: ClassVar[type[AtomicBatch]] = AtomicBatch
    _fast: ClassVar[type[FastPublisher]] = FastPublisher

    def __init__(
        self,
        connection: Connection,
        *,
        domain: str | None = None,
        prefix: str | None = None,
        timeout: Duration = 5.0,
        trace: TraceCallback | None = None,
        inbox_prefix: str | None = None,
    ) -> None:
        self._connection = connection
        self._api = Api(
            connection, domain=domain, prefix=prefix, timeout=timeout, trace=trace, inbox_prefix=inbox_prefix
        )

    @property
    def connection(self) -> Connection:
        """The client it was made by."""
        return self._connection

    def typed(self, kind: type[T], /, *, codec: Codec | None = None) -> TypedJetStream[T]:
        """Streams whose messages hold a ``kind``: publishing, reading and handling values, checked by type checkers.

        ``codec`` (default: ``natsproto.codecs.JSON``) makes payloads of values and values of payloads. Sends nothing.
        ConfigError for what is no codec.
        """
        from natsproto.codecs import JSON
        from natsproto.jetstream._typed import TypedJetStream

        return TypedJetStream(self._connection, self.publish, kind, JSON if codec is None else codec)

    async def account_info(self, *, timeout: Duration | None = None) -> AccountInfo:
        """What the account uses and may use. Raises what Api.call raises."""
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

        ``gap="fail"``: what the stream holds is in order and complete. What is lost on the way, when a connection or
        the stream's leader is, is sent again behind the last message that arrived; a message that the stream refuses
        ends the publisher. When nobody can tell any more which was the last one to arrive (a server was restarted),
        the publisher goes on if all messages have an id, and ends with PublishUncertain if not. ``auto_msg_id``
        gives an id to every message that has none.

        ``gap="ok"``: what is lost is counted in ``lost``, what is refused is reported at the end, and it goes on.

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

    # ---------------------------------------------------------------- streams

    async def create_stream(
        self,
        config: StreamConfig | None = None,
        /,
        *,
        pedantic: bool = False,
        timeout: Duration | None = None,
        **fields: Unpack[StreamArgs],
    ) -> Stream:
        """Creates a stream from a StreamConfig, from its fields, or from both (the fields win).

        The same stream may be created twice; StreamNameInUse when the one of that name is configured otherwise.
        ConfigError (InvalidSubject for names) before anything is sent; InvalidStreamConfig, SubjectsOverlap,
        LimitReached; UnsupportedByServer when an older server does not know what was asked for; and what every call
        raises, see Stream. ``pedantic`` (server 2.11) makes the server refuse what it would adapt.
        """
        wanted = amended(StreamConfig, config, fields)
        return self._stream(wanted.name, await write_stream(self._api, "CREATE", wanted, pedantic, timeout))

    async def update_stream(
        self,
        config: StreamConfig | None = None,
        /,
        *,
        pedantic: bool = False,
        timeout: Duration | None = None,
        **fields: Unpack[StreamArgs],
    ) -> Stream:
        """Changes a stream to this whole configuration: what is not said gets its default.

        Use ``Stream.update`` to change single fields. StreamNotFound; InvalidStreamConfig for what cannot be changed;
        else as ``create_stream``.
        """
        wanted = amended(StreamConfig, config, fields)
        return self._stream(wanted.name, await write_stream(self._api, "UPDATE", wanted, pedantic, timeout))

    async def create_or_update_stream(
        self,
        config: StreamConfig | None = None,
        /,
        *,
        pedantic: bool = False,
        timeout: Duration | None = None,
        **fields: Unpack[StreamArgs],
    ) -> Stream:
        """Changes the stream of that name to this whole configuration, or creates it. Raises what both raise."""
        wanted = amended(StreamConfig, config, fields)
        try:
            info = await write_stream(self._api, "UPDATE", wanted, pedantic, timeout)
        except StreamNotFound:
            try:
                info = await write_stream(self._api, "CREATE", wanted, pedantic, timeout)
            except StreamNameInUse:  # somebody else was faster
                info = await write_stream(self._api, "UPDATE", wanted, pedantic, timeout)
        return self._stream(wanted.name, info)

    async def stream(self, name: str, *, bind: bool = False, timeout: Duration | None = None) -> Stream:
        """The stream of that name; StreamNotFound. With ``bind`` nothing is asked, so that it may not exist."""
        stream = self._stream(name, None)
        if not bind:
            await stream.info(timeout=timeout)
        return stream

    async def delete_stream(self, name: str, *, timeout: Duration | None = None) -> None:
        """Deletes a stream with its messages and consumers. StreamNotFound."""
        stream = self._stream(name, None)
        await self._api.do(f"STREAM.DELETE.{stream.name}", asked=f"delete stream {name!r}", timeout=timeout)

    def streams(self, *, subject: str = "", timeout: Duration | None = None) -> Listing[StreamInfo]:
        """The info of every stream, or of those that listen on ``subject``: read it with ``async for``."""
        return Listing(self._stream_pages(_filter(subject), timeout))

    async def _stream_pages(
        self, body: dict[str, object], timeout: Duration | None
    ) -> AsyncGenerator[Page[StreamInfo]]:
        pages = self._api.pages(
            StreamPage,
            "STREAM.LIST",
            body,
            asked="list of streams",
            size=lambda page: len(page.streams) + len(page.missing) + len(page.offline),
            total=lambda page: page.total,
            timeout=timeout,
        )
        async with aclosing(pages):
            async for page in pages:
                yield page.streams, page.missing, page.offline

    @items
    def stream_names(self, *, subject: str = "", timeout: Duration | None = None) -> AsyncGenerator[str]:
        """Yields the name of every stream, or of those that listen on ``subject``."""
        return self._names(_filter(subject), timeout)

    async def _names(self, body: dict[str, object], timeout: Duration | None) -> AsyncGenerator[str]:
        pages = self._api.pages(
            StreamNamesPage,
            "STREAM.NAMES",
            body,
            asked="names of streams",
            size=lambda page: len(page.streams),
            total=lambda page: page.total,
            timeout=timeout,
        )
        async with aclosing(pages):
            async for page in pages:
                for name in page.streams:
                    yield name

    async def stream_name_by_subject(self, subject: str, *, timeout: Duration | None = None) -> str:
        """The name of the stream that listens on the subject; NoStream when none does."""
        body = _filter(subject)
        page = await self._api.get(
            StreamNamesPage, "STREAM.NAMES", body, asked=f"stream that listens on {subject!r}", timeout=timeout
        )
        if not page.streams:
            raise NoStream(subject)
        return page.streams[0]

    async def restore_stream(
        self,
        path: str | PathLike[str],
        *,
        progress: Callable[[Progress], object] | None = None,
        timeout: Duration | None = None,
        **changes: Unpack[StreamArgs],
    ) -> Stream:
        """Brings back a stream, its consumers included, from a folder of ``Stream.backup`` or ``nats stream backup``.

        ``changes`` are fields of its configuration that shall be others (replicas, placement; on server 2.15 also the
        name). ``progress`` is called after every chunk; ``timeout`` is for every answer, not for the whole. ConfigError
        when the folder is no backup;
        StreamNameInUse when the stream exists; ApiError when the server cannot use it; RequestTimeout; ConnectionLost;
        OSError of the files. Cancelling leaves no stream, once the server has noticed (5 s).
        """
        from natsproto.jetstream import _backup as backup  # this and the two below: hardly anybody needs them

        info = await backup.restore(
            self._api, path, lambda config: config.replace(**changes), progress=progress, timeout=timeout
        )
        return self._stream(info.name, info)

    def _stream(self, name: str, info: StreamInfo | None) -> Stream:
        """The one place where streams are made."""
        return Stream(self._api, name, info)

    # ---------------------------------------------------------------- key/value buckets

    async def create_key_value(
        self,
        config: KeyValueConfig | None = None,
        /,
        *,
        key_codec: KeyCodec | None = None,
        timeout: Duration | None = None,
        **fields: Unpack[KeyValueArgs],
    ) -> KeyValue:
        """Creates a key/value bucket (ADR-8) from a KeyValueConfig, from its fields, or from both (the fields win).

        ``key_codec``: how the keys of this handle are written (ADR-54). The same bucket may be created twice;
        StreamNameInUse when the one of that name is configured otherwise. Else as ``create_stream``.
        """
        from natsproto.jetstream.kv import _buckets as buckets  # loaded by those who use it, as everything of buckets

        return await buckets.write(self._api, "CREATE", amended(KeyValueConfig, config, fields), key_codec, timeout)

    async def update_key_value(
        self,
        config: KeyValueConfig | None = None,
        /,
        *,
        key_codec: KeyCodec | None = None,
        timeout: Duration | None = None,
        **fields: Unpack[KeyValueArgs],
    ) -> KeyValue:
        """Changes a bucket to this whole configuration: what is not said gets its default. BucketNotFound;
        InvalidStreamConfig for what cannot be changed; else as ``create_key_value``.
        """
        from natsproto.jetstream.kv import _buckets as buckets

        return await buckets.write(self._api, "UPDATE", amended(KeyValueConfig, config, fields), key_codec, timeout)

    async def create_or_update_key_value(
        self,
        config: KeyValueConfig | None = None,
        /,
        *,
        key_codec: KeyCodec | None = None,
        timeout: Duration | None = None,
        **fields: Unpack[KeyValueArgs],
    ) -> KeyValue:
        """Changes the bucket of that name to this whole configuration, or creates it. Raises what both raise."""
        from natsproto.jetstream.kv import _buckets as buckets

        return await buckets.create_or_update(self._api, amended(KeyValueConfig, config, fields), key_codec, timeout)

    @overload
    async def key_value(
        self,
        bucket: str,
        *,
        key_codec: KeyCodec | None = None,
        bind: bool = False,
        timeout: Duration | None = None,
    ) -> KeyValue: ...

    @overload
    async def key_value(
        self,
        bucket: str,
        *,
        kind: type[T],
        codec: Codec | None = None,
        key_codec: KeyCodec | None = None,
        bind: bool = False,
        timeout: Duration | None = None,
    ) -> KeyValue[T]: ...

    async def key_value(
        self,
        bucket: str,
        *,
        kind: type[T] | None = None,
        codec: Codec | None = None,
        key_codec: KeyCodec | None = None,
        bind: bool = False,
        timeout: Duration | None = None,
    ) -> KeyValue | KeyValue[T]:
        """The bucket of that name; BucketNotFound.

        ``kind`` is the type of its values (bytes unless given) and ``codec`` how they are written (default JSON), see
        ``KeyValue.typed``; ``key_codec`` how keys are (ADR-54). With ``bind`` nothing is asked, so that it may not
        exist; where it is a mirror, do not bind: only the server knows where its keys are written.
        """
        from natsproto.jetstream.kv import _buckets as buckets

        found = await buckets.opened(self._api, bucket, key_codec, bind, timeout)
        if kind is None:
            return found
        return found.typed(kind) if codec is None else found.typed(kind, codec)

    async def delete_key_value(self, bucket: str, *, timeout: Duration | None = None) -> None:
        """Deletes a bucket with all it holds. BucketNotFound."""
        from natsproto.jetstream.kv import _buckets as buckets

        await buckets.delete(self._api, bucket, timeout)

    @items
    async def key_value_names(self, *, timeout: Duration | None = None) -> AsyncGenerator[str]:
        """Yields the name of every bucket, mirrors included."""
        async with aclosing(self.stream_names(timeout=timeout)) as names:
            async for name in names:
                if name.startswith(KV_STREAM):
                    yield name.removeprefix(KV_STREAM)

    @items
    async def key_value_statuses(self, *, timeout: Duration | None = None) -> AsyncGenerator[KeyValueStatus]:
        """Yields the configuration and state of every bucket, mirrors included."""
        from natsproto.jetstream.kv._status import KeyValueStatus

        async for info in self.streams(timeout=timeout):
            if info.config.name.startswith(KV_STREAM):
                yield KeyValueStatus.of(info)

    # ---------------------------------------------------------------- object stores

    async def create_object_store(
        self,
        config: ObjectStoreConfig | None = None,
        /,
        *,
        timeout: Duration | None = None,
        **fields: Unpack[ObjectStoreArgs],
    ) -> ObjectStore:
        """Creates an object store (ADR-20) from an ObjectStoreConfig, from its fields, or from both (the fields win).

        The same store may be created twice; StreamNameInUse when the one of that name is configured otherwise. Else as
        ``create_stream``.
        """
        from natsproto.jetstream.objectstore import (
            _stores as stores,  # loaded by those who use it, as everything of stores
        )

        return await stores.write(self._api, "CREATE", amended(ObjectStoreConfig, config, fields), timeout)

    async def update_object_store(
        self,
        config: ObjectStoreConfig | None = None,
        /,
        *,
        timeout: Duration | None = None,
        **fields: Unpack[ObjectStoreArgs],
    ) -> ObjectStore:
        """Changes an object store to this whole configuration: what is not said gets its default. BucketNotFound;
        InvalidStreamConfig for what cannot be changed; else as ``create_object_store``.
        """
        from natsproto.jetstream.objectstore import _stores as stores

        return await stores.write(self._api, "UPDATE", amended(ObjectStoreConfig, config, fields), timeout)

    async def create_or_update_object_store(
        self,
        config: ObjectStoreConfig | None = None,
        /,
        *,
        timeout: Duration | None = None,
        **fields: Unpack[ObjectStoreArgs],
    ) -> ObjectStore:
        """Changes the object store of that name to this whole configuration, or creates it. Raises what both raise."""
        from natsproto.jetstream.objectstore import _stores as stores

        return await stores.create_or_update(self._api, amended(ObjectStoreConfig, config, fields), timeout)

    async def object_store(self, bucket: str, *, bind: bool = False, timeout: Duration | None = None) -> ObjectStore:
        """The object store of that name; BucketNotFound. With ``bind`` nothing is asked, so that it may not exist (and
        that it takes fast ingest is not known).
        """
        from natsproto.jetstream.objectstore import _stores as stores

        return await stores.opened(self._api, bucket, bind, timeout)

    async def delete_object_store(self, bucket: str, *, timeout: Duration | None = None) -> None:
        """Deletes an object store with all it holds. BucketNotFound."""
        from natsproto.jetstream.objectstore import _stores as stores

        await stores.delete(self._api, bucket, timeout)

    @items
    async def object_store_names(self, *, timeout: Duration | None = None) -> AsyncGenerator[str]:
        """Yields the name of every object store."""
        async with aclosing(self.stream_names(subject=_ALL_STORES, timeout=timeout)) as names:
            async for name in names:
                if name.startswith(OBJECT_STREAM):
                    yield name.removeprefix(OBJECT_STREAM)

    @items
    async def object_store_statuses(self, *, timeout: Duration | None = None) -> AsyncGenerator[ObjectStoreStatus]:
        """Yields the configuration and state of every object store."""
        from natsproto.jetstream.objectstore._status import ObjectStoreStatus

        async for info in self.streams(subject=_ALL_STORES, timeout=timeout):
            if info.config.name.startswith(OBJECT_STREAM):
                yield ObjectStoreStatus.of(info)

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
        """What JetStream tells of itself from now on: advisories and metrics as typed events.

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


def _filter(subject: str) -> dict[str, object]:
    if not subject:
        return {}
    subscribe_subject(subject)
    return {"subject": subject}
