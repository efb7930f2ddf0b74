"""connect(), and the client it returns."""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator, Coroutine, Generator, Mapping, Sequence
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, overload

from natsproto import errors
from natsproto._core.connection import Connection
from natsproto._core.socket.transport import dial
from natsproto._core.socket.wire import Runtime
from natsproto._durations import positive_seconds
from natsproto._help.async_hints import AwaitHint, items
from natsproto._help.guesses import explain_publish, wrong_keywords
from natsproto._help.introspection import import_late_types
from natsproto._options.options import DEFAULT_SERVER, OptionArgs, Options
from natsproto.errors._base import hide_arguments, hide_locals
from natsproto.protocol.frames import Message, Payload
from natsproto.protocol.headers import HeadersLike

if TYPE_CHECKING:
    from natsproto.codecs import Codec, TypeForm
    from natsproto.health import Health
    from natsproto.jetstream._api.trace import TraceCallback
    from natsproto.jetstream._context import JetStream
    from natsproto.service._endpoint import StatsHandler
    from natsproto.service._responses import ServiceInfo, ServicePing, ServiceStats
    from natsproto.service._service import Service
    from natsproto.service._stream_request import ResponseStream
    from natsproto.system import System
    from natsproto.tracing import MessageTrace
    from natsproto.typed import Typed

T = TypeVar("T")
R = TypeVar("R")


DEFAULT_RUNTIME = Runtime(dial=dial, rng=random.SystemRandom())
"""Real sockets and randomness. It holds no state."""


class Client(Connection):
    """A connected client; see Connection for the verbs."""

    @classmethod
    async def _connect(cls, options: Options, runtime: Runtime) -> Client:
        """Connect with another runtime (tests); applications use ``connect``."""
        options._check_files()
        client = cls(options, runtime)
        await client._start()
        return client

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Drain the client; after an exception in the block close it at once."""
        if exc is None:
            await self.drain()
        else:
            explain_publish(exc)
        await self.close()  # also after a drain inside of a loop that is kept

    def jetstream(
        self,
        *,
        domain: str | None = None,
        prefix: str | None = None,
        timeout: float | timedelta = 5.0,
        trace: TraceCallback | None = None,
        inbox_prefix: str | None = None,
    ) -> JetStream:
        """JetStream of this account, of a ``domain``, or with an API ``prefix`` (of another account).

        ``timeout`` in seconds, more than 0, is the default of every call. ``trace`` is called with an ApiTrace for
        every request to the JetStream API, after its response or failure; errors of the callback are logged and
        reported as HandlerFailed events. ``inbox_prefix`` is the prefix of the deliver subjects of consumers and
        batches (default: the option of the connection, which is always used for replies). Sends nothing. ConfigError
        for bad arguments.

        Args:
            domain: The JetStream domain, as of a leaf node; None: the option ``jetstream_domain``, or that of the
                server.
            prefix: The prefix of the API's subjects, as another account exports it; None: the option
                ``jetstream_api_prefix``, or ``$JS.API``.
            timeout: Seconds that each request to the API waits for its reply, unless it gets a ``timeout``.
            trace: Called with an ApiTrace for every request to the API, with secrets hidden; None: no tracing.
            inbox_prefix: The first tokens of the subjects to which messages of consumers are sent; None: the option of
                the same name.
        """
        from natsproto.jetstream._context import JetStream  # not everybody needs it; importing natsproto is fast

        options = self._options
        if domain is None and prefix is None:
            domain, prefix = options.jetstream_domain, options.jetstream_api_prefix
        return JetStream(self, domain=domain, prefix=prefix, timeout=timeout, trace=trace, inbox_prefix=inbox_prefix)

    # ---------------------------------------------------------------- diagnostics

    async def health(
        self,
        *,
        timeout: float | timedelta = 2.0,
        jetstream: bool = False,
        stream: str | None = None,
        consumer: str | None = None,
    ) -> Health:
        """Check that the client works from end to end, with a message to the server and back.

        With ``jetstream`` the account's JetStream must answer as well, with ``stream`` and ``consumer`` they must
        exist. The result is true when all is well; see Health for probes. Takes at most ``timeout`` seconds, and
        returns at once while disconnected. Raises only ConfigError, for a consumer without a stream and for bad
        timeouts; cancelling changes nothing.

        Args:
            timeout: Seconds for everything together.
            jetstream: Ask JetStream, too.
            stream: A stream that must exist; None: no stream is asked for.
            consumer: A consumer of ``stream`` that must exist, too.
        """
        from natsproto.health import check

        if timeout is None:
            raise errors.ConfigError("timeout", None, "a health check always ends: give a number of seconds")
        wait = positive_seconds("timeout", timeout)
        context = self.jetstream(timeout=wait) if jetstream or stream is not None else None
        return await check(self, context, stream, consumer, wait)

    async def trace(
        self,
        subject: str,
        payload: Payload = b"",
        *,
        headers: HeadersLike | None = None,
        deliver: bool = False,
        timeout: float | timedelta = 2.0,
    ) -> MessageTrace:
        """Send a message and collect a report from every server it passes (ADR-41, server 2.11).

        Without ``deliver`` the message is not delivered and not stored; the servers report its destinations. Returns
        when all servers have answered, or after ``timeout`` seconds with the reports so far; RequestTimeout without
        any. UnsupportedByServer for an older server, which would deliver and store the message; nothing is sent then.
        ConfigError for headers that the trace uses itself; and the errors of ``publish``. A subject without permission
        is not an error: the trace reports it. At most 1,000 reports are read, each up to 1 MiB.

        Args:
            subject: Where the traced message goes, without wildcards.
            payload: The content as bytes, bytearray or memoryview, up to the server's ``max_payload`` together with the
                headers.
            headers: A mapping of names to values (a str or a list of str), pairs, or Headers; None: no headers.
            deliver: Deliver the message, too; False (default) shows its way without delivering it.
            timeout: Seconds to wait for the reports of all servers on the way.
        """
        from natsproto.tracing import trace

        if timeout is None:
            raise errors.ConfigError("timeout", None, "a trace always ends: give a number of seconds")
        wait = positive_seconds("timeout", timeout)
        return await trace(self, subject, payload, headers=headers, deliver=deliver, timeout=wait)

    def system(self) -> System:
        """Query the servers' monitoring data, for users of the system account. Sends nothing."""
        from natsproto.system import System

        return System(self)

    # ---------------------------------------------------------------- values

    @overload
    def typed(self, kind: type[T], /, *, codec: Codec | None = None) -> Typed[T, T]: ...

    @overload
    def typed(self, kind: type[T], reply: type[R], /, *, codec: Codec | None = None) -> Typed[T, R]: ...

    @overload
    def typed(self, kind: TypeForm[T], /, *, codec: Codec | None = None) -> Typed[T, T]: ...

    @overload
    def typed(self, kind: TypeForm[T], reply: TypeForm[R], /, *, codec: Codec | None = None) -> Typed[T, R]: ...

    def typed(self, kind: Any, reply: Any = None, /, *, codec: Codec | None = None) -> Typed[Any, Any]:
        """Return the methods for messages with values of the type ``kind``, and replies of the type ``reply`` (default:
        the same).

        ``codec`` (default: ``natsproto.codecs.JSON``) encodes and decodes payloads. Sends nothing; create it once and
        keep it. ConfigError for an invalid codec, and for a type that it cannot read.

        Args:
            kind: The type of what is sent and received: a dataclass, a TypedDict, a model, or any type that the codec
                knows.
            reply: The type of responses; None: the same.
            codec: Converts values to payloads and back; None: JSON, ``natsproto.codecs.JSON``.
        """
        from natsproto.codecs import JSON
        from natsproto.typed import Typed

        used = JSON if codec is None else codec
        return Typed(self, kind, kind, used) if reply is None else Typed(self, kind, reply, used)

    # ---------------------------------------------------------------- services

    def add_service(
        self,
        name: str,
        version: str,
        *,
        description: str = "",
        metadata: Mapping[str, str] | None = None,
        queue_group: str | None = "q",
        stats_handler: StatsHandler | None = None,
        prefix: str = "$SRV",
    ) -> Service:
        """Return an instance of a service (ADR-32): await it to start it, or enter it to stop it at the end as well.

        ``name`` has letters, digits, dash and underscore, ``version`` is a semantic version. ``queue_group`` is the
        default of its endpoints; None: every instance gets every request. ``stats_handler`` returns the ``data`` of an
        endpoint's statistics, any JSON value. ``prefix`` replaces ``$SRV`` in the subjects for discovery.

        ConfigError, InvalidSubject, TypeError for bad arguments; ConnectionClosed when it is started. Draining the
        client stops it.

        Args:
            name: What clients find the service by: A-Z, a-z, 0-9, ``-`` and ``_``.
            version: The version of the service, as semantic versioning writes it: "1.2.0".
            description: A text for people who look the service up.
            metadata: Labels of the instance that ``discover_services`` shows.
            queue_group: The default queue group of the endpoints, "q": each request goes to one instance. None: to all
                instances.
            stats_handler: Called with each endpoint when statistics are asked for; returns what ``data`` is to hold.
                None: no data.
            prefix: The first token of the subjects on which the service answers questions about itself.
        """
        from natsproto.service._service import Service

        return Service(
            self,
            name,
            version,
            description=description,
            metadata=metadata,
            queue_group=queue_group,
            stats_handler=stats_handler,
            prefix=prefix,
        )

    @items
    def discover_services(
        self,
        name: str | None = None,
        id: str | None = None,
        *,
        timeout: float | timedelta | None = 2.0,
        stall: float | timedelta | None = 0.5,
        prefix: str = "$SRV",
    ) -> AsyncGenerator[ServiceInfo]:
        """Yield the description of every service instance of the account: all, those of a name, or one.

        Ends ``timeout`` seconds after the request, or when no further response comes for ``stall`` seconds (None: no
        limit; one of them must be set); at once without services. Unreadable responses are logged and skipped. Errors
        and cancelling are those of ``request_many``; ConfigError for an id without a name.

        Args:
            name: Ask only services with this name; None: every service of the account.
            id: Only the instance with this id, which needs ``name``; None: all.
            timeout: Seconds for all answers together; None: until ``stall`` ends it.
            stall: Seconds without another reply after which the replies count as complete. None: no such limit.
            prefix: The first token of the subjects on which services answer.
        """
        from natsproto.service._discovery import request_services
        from natsproto.service._responses import decode_info

        return request_services(self, "INFO", decode_info, name, id, timeout=timeout, stall=stall, prefix=prefix)

    @items
    def ping_services(
        self,
        name: str | None = None,
        id: str | None = None,
        *,
        timeout: float | timedelta | None = 2.0,
        stall: float | timedelta | None = 0.5,
        prefix: str = "$SRV",
    ) -> AsyncGenerator[ServicePing]:
        """Yield every service instance with the seconds its response took; otherwise as ``discover_services``.

        Args:
            name: Ask only services with this name; None: every service of the account.
            id: Only the instance with this id, which needs ``name``; None: all.
            timeout: Seconds for all answers together; None: until ``stall`` ends it.
            stall: Seconds without another reply after which the replies count as complete. None: no such limit.
            prefix: The first token of the subjects on which services answer.
        """
        from natsproto.service._discovery import request_services
        from natsproto.service._responses import decode_ping

        return request_services(self, "PING", decode_ping, name, id, timeout=timeout, stall=stall, prefix=prefix)

    @items
    def service_stats(
        self,
        name: str | None = None,
        id: str | None = None,
        *,
        timeout: float | timedelta | None = 2.0,
        stall: float | timedelta | None = 0.5,
        prefix: str = "$SRV",
    ) -> AsyncGenerator[ServiceStats]:
        """Yield the statistics of every service instance; otherwise as ``discover_services``.

        Args:
            name: Ask only services with this name; None: every service of the account.
            id: Only the instance with this id, which needs ``name``; None: all.
            timeout: Seconds for all answers together; None: until ``stall`` ends it.
            stall: Seconds without another reply after which the replies count as complete. None: no such limit.
            prefix: The first token of the subjects on which services answer.
        """
        from natsproto.service._discovery import request_services
        from natsproto.service._responses import decode_stats

        return request_services(self, "STATS", decode_stats, name, id, timeout=timeout, stall=stall, prefix=prefix)

    async def call(
        self,
        subject: str,
        payload: Payload = b"",
        *,
        timeout: float | timedelta | None = None,
        headers: HeadersLike | None = None,
    ) -> Message:
        """Send a request to a service endpoint; raises the ServiceError of its response.

        Args:
            subject: The subject of the service's endpoint.
            payload: The content as bytes, bytearray or memoryview, up to the server's ``max_payload`` together with the
                headers.
            timeout: Seconds to wait for the reply; None: the option ``request_timeout``.
            headers: A mapping of names to values (a str or a list of str), pairs, or Headers; None: no headers.
        """
        from natsproto.service._responses import error_of

        reply = await self.request(subject, payload, timeout=timeout, headers=headers)
        error = error_of(reply)
        if error is not None:
            raise error
        return reply

    def stream(
        self,
        subject: str,
        payload: Payload = b"",
        *,
        window: int | None = 1 << 20,
        heartbeat: float | timedelta = 5.0,
        headers: HeadersLike | None = None,
    ) -> ResponseStream[Message]:
        """Send a request that is answered in parts, and read them with ``async for`` (experimental).

        The responder is an endpoint with an async generator, or any program that sends several replies and then an
        empty one. An endpoint sends at most ``window`` bytes (and one part) that were not read yet; None: it does not
        wait, and learns nothing of the end of the reading. Both sides send a sign of life every ``heartbeat`` seconds
        (0.05 to 60), and give up after three without one from the other side.

        The request is sent when the reading begins, or ``async with`` is entered. NoResponders; ServiceError of the
        responder; RequestTimeout without any answer for three heartbeats; StreamBroken when a part was lost, the
        responder is gone or silent, or the server rejects credit; ConnectionLost when the connection breaks;
        PermissionDenied, ConnectionClosed and the errors of ``publish``. Parts that arrived before are yielded first.
        Bad arguments raise at the call. Cancelling, and leaving the block of ``async with``, cancel the generator of
        the endpoint; without the block, leaving the loop does in the next turn of the event loop. See
        docs/adr-response-streams.md.

        Args:
            subject: Where the endpoint listens, such as its name after the prefix of its group.
            payload: The content as bytes, bytearray or memoryview, up to the server's ``max_payload`` together with the
                headers.
            window: Bytes that the responder may send ahead of the reading; None: any number, and then it does not learn
                when the reading ends.
            heartbeat: Seconds between two signs of life of each side, 0.05 to 60; three missing ones end it.
            headers: A mapping of names to values (a str or a list of str), pairs, or Headers; None: no headers.
        """
        from natsproto.service._stream_request import ResponseStream

        return ResponseStream(self, subject, payload, headers, window, heartbeat)


class Connecting(AwaitHint):
    """A connection being made, created by ``connect``: ``await`` it, or enter it to drain it at the end."""

    _unused_warning = "connect(...) was never awaited or entered"

    if not TYPE_CHECKING:

        def __enter__(self) -> None:
            self._begun = True
            raise TypeError("connect() is asynchronous: use async with, or natsproto.sync.connect with with")

        def __exit__(self, *args: object) -> None: ...

    def __init__(self, options: Options, runtime: Runtime) -> None:
        self._options = options
        self._runtime = runtime
        self._client: Client | None = None
        self._begun = False

    def __await__(self) -> Generator[object, None, Client]:
        self._begun = True
        return self._open().__await__()

    @hide_locals  # which hides the frames too: the error says what they would
    async def _open(self) -> Client:
        self._client = await Client._connect(self._options, self._runtime)
        return self._client

    if TYPE_CHECKING:

        async def __aenter__(self) -> Client: ...  # pyright wants it for AbstractAsyncContextManager
    else:

        def __aenter__(self) -> Coroutine[Any, Any, Client]:
            self._begun = True
            return self._open()  # one frame less in a traceback

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._client is not None
        await self._client.__aexit__(kind, exc, trace)


@hide_arguments
@wrong_keywords("give one URL: connect('nats://host:4222')")
def connect(
    servers: str | Sequence[str] | Options | None = None,
    *,
    context: str | None = None,
    **options: Unpack[OptionArgs],
) -> Connecting:
    """Connect to a NATS server or cluster.

    ``servers`` is one URL, a comma-separated list or a sequence (``nats://``, ``tls://``, bare ``host:port``; default:
    ``nats://127.0.0.1:4222``), or an Options value. ``context`` is the name of a context of the ``nats`` command line
    tool (ADR-21), or its absolute path: its servers are used unless others are given. Keyword options override either;
    they are those of ``Options``.

    Returns an object to ``await`` (then close the client yourself) or to enter with ``async with`` (drained at the end,
    closed at once when the block raised). ConfigError for bad options before any connection; ConnectFailed with the
    cause of every server after one pass over the pool, each with ``connect_timeout`` seconds; with
    ``retry_connect_for=30`` after 30 more seconds of attempts. LoginRefused, which is also NotAuthorized, when all
    servers rejected the credentials. Cancelling closes everything.

    Args:
        servers: One URL, a comma-separated list, a sequence, or Options. None: those of the context or
            ``nats://127.0.0.1:4222``.
        context: The name of a context of the ``nats`` tool, whose settings are the defaults of the other options; None:
            no context.
        **options: The fields of Options, by keyword.
    """
    return Connecting(options_for(servers, context, options), DEFAULT_RUNTIME)


def options_for(servers: str | Sequence[str] | Options | None, context: str | None, options: OptionArgs) -> Options:
    """Return the Options for the arguments of ``connect``."""
    if context is not None:
        if isinstance(servers, Options):
            raise errors.ConfigError(
                "context", context, "cannot be given together with Options: use Options.from_context"
            )
        chosen = Options.from_context(context)
        return chosen.replace(**options) if servers is None else chosen.replace(servers=servers, **options)
    if isinstance(servers, Options):
        return servers.replace(**options) if options else servers
    return Options(DEFAULT_SERVER if servers is None else servers, **options)


import_late_types(__name__)
