"""Requests to the JetStream API: subject, JSON and errors.

Owns the API prefix (and with it domain and account), the default timeout and the translation of error replies into
exceptions. It knows which requests are idempotent and keeps no state between calls.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping
from itertools import chain, repeat
from time import monotonic, perf_counter
from typing import NoReturn, TypeVar

from natsproto import errors
from natsproto._core.cleanups import IN_CLEANUP
from natsproto._core.connection import Connection
from natsproto._core.deadline import Backoff, Deadline
from natsproto._core.events import HandlerFailed
from natsproto._core.inbox.subscription import Subscription
from natsproto._core.replies.pending_replies import AFTER_LOSS, Resending
from natsproto._durations import positive_seconds
from natsproto.errors._base import Transience
from natsproto.jetstream._api.known_streams import KnownStreams
from natsproto.jetstream._api.retry import retry_request
from natsproto.jetstream._api.sequence_log import SequenceLog
from natsproto.jetstream._api.trace import ApiTrace, TraceCallback, redacted
from natsproto.jetstream._values.codec import Duration, Record, decode, dumps, parse
from natsproto.jetstream._values.error_codes import ErrCode, api_error
from natsproto.jetstream._values.features import RequiredFeature
from natsproto.jetstream._values.info import AccountInfo, StreamInfo, api_level
from natsproto.protocol.frames import Message
from natsproto.protocol.subject import publish_subject, subscribe_subject

P = TypeVar("P")
R = TypeVar("R", bound=Record)

DEFAULT_PREFIX = "$JS.API"

REQUIRED_LEVEL_HEADER = "Nats-Required-Api-Level"
"""Header for the API level that a request requires (ADR-44); servers know it since 2.12."""

IDEMPOTENT_ENDPOINTS = (
    "INFO",
    "STREAM.CREATE.",
    "STREAM.INFO.",
    "STREAM.NAMES",
    "STREAM.MSG.GET.",
    "CONSUMER.CREATE.",
    "CONSUMER.INFO.",
    "CONSUMER.NAMES.",
)
"""Requests that are safe to repeat: they change nothing, or a repetition gets the same reply. Lists are excluded
because each of them is work for every server.
"""
RETRY_AFTER_S = (1.0, 2.0)
"""Seconds without a reply before the first repetition, and before each further one."""
MIN_RETRY_PAUSE_S = 0.1
"""Seconds before the first repetition of a request that a server without a leader refused."""

LEAST_TIMEOUT_S = 0.1
"""Seconds that the last request of a call gets, so that the caller gets its answer and no timeout."""

log = logging.getLogger("natsproto")


async def raise_closed(connection: Connection, subscription: Subscription, operation: str) -> NoReturn:
    """Raise the error that ended an inbox: a permission violation, or the closing of the client."""
    try:
        await subscription.next(0)
    except errors.SubscriptionClosed:
        pass
    raise connection._outbox.closed_error(operation)


class Api:
    """The JetStream API of one account or domain, over one connection."""

    def __init__(
        self,
        connection: Connection,
        *,
        domain: str | None,
        prefix: str | None,
        timeout: Duration,
        trace: TraceCallback | None = None,
        inbox_prefix: str | None = None,
    ) -> None:
        if trace is not None and not callable(trace):
            raise errors.ConfigError("trace", trace, "must be a callable with one ApiTrace")
        if domain is not None and prefix is not None:
            raise errors.ConfigError("prefix", prefix, "cannot be given together with a domain: a domain is a prefix")
        if domain is not None:
            if "." in publish_subject(domain, "domain").decode():
                raise errors.ConfigError("domain", domain, "must be one word, without dots")
            prefix = f"$JS.{domain}.API"
        elif prefix is not None and not isinstance(prefix, str):
            raise TypeError(f"prefix must be a str, not {type(prefix).__name__}")
        self.connection = connection
        self.domain = domain
        self.prefix: str = (prefix or DEFAULT_PREFIX).removesuffix(".")
        self.timeout: float = positive_seconds("timeout", timeout)
        self.sequences: SequenceLog = SequenceLog()
        """The highest acknowledged sequence of each stream."""
        self.streams: KnownStreams = KnownStreams(self._name_of, self._info_of)
        """The streams that are known."""
        self._trace = trace
        publish_subject(self.prefix, "JetStream API prefix")
        self.on_silence: Callable[[], None] = connection._outages.cut_off.on_silence
        """To be called when the servers of JetStream do not answer."""
        connection._outages.cut_off.use(self.prefix)
        if inbox_prefix is not None:
            publish_subject(inbox_prefix, "inbox_prefix")
        self._inbox_prefix = connection._options.inbox_prefix if inbox_prefix is None else inbox_prefix

    async def _name_of(self, subject: str) -> str:
        """Return the name of the stream of a subject."""
        found = await self.call("STREAM.NAMES", {"subject": subject}, operation=f"stream of {subject!r}")
        names = found.get("streams")
        if not isinstance(names, list) or not names:
            raise errors.NoStream(subject)
        return str(names[0])

    async def _info_of(self, name: str) -> StreamInfo:
        """Return the info of a stream."""
        return await self.call_for(StreamInfo, f"STREAM.INFO.{name}", operation=f"info of stream {name!r}")

    async def await_leader(self, subject: str, seconds: float) -> None:
        """Wait up to ``seconds`` for an answer of the leader of the stream of a subject, if the stream is known.

        NoStream for a known stream that was deleted.
        """
        stream = self.streams.of_subject(subject)
        if stream is None or not stream.name:
            return
        try:
            await self.call_for(StreamInfo, f"STREAM.INFO.{stream.name}", operation="leader", timeout=seconds)
        except errors.StreamNotFound as exc:
            self.streams.remove(stream.name)
            raise errors.NoStream(subject) from exc
        except errors.NatsError:
            return  # there may be an election

    def new_inbox(self) -> str:
        """Return a unique deliver subject."""
        return f"{self._inbox_prefix}.{self.connection._runtime.new_id()}"

    def on_ack_timeout(self, waited: float) -> int:
        """A message got no acknowledgement for these seconds. Return how many in a row, while pings are answered."""
        return self.sequences.on_timeout(monotonic() - waited, self.connection._round_trips.confirmed_at)

    async def call(
        self,
        endpoint: str,
        body: Record | Mapping[str, object] | bytes = b"",
        *,
        operation: str,
        timeout: Duration | None = None,
        level: int = 0,
        retry: bool = True,
    ) -> dict[str, object]:
        """Send a request to ``<prefix>.<endpoint>`` and return the reply's JSON object.

        ``operation`` describes the request in errors. ``level`` is the API level that the request requires; servers
        before 2.12 ignore it. A cluster without a leader drops requests, so idempotent ones are repeated while there is
        no reply, or while the reply says that JetStream is temporarily unavailable or that its leader has not heard
        from a peer yet; ``retry=False`` prevents that.

        Raises ApiError (or the subclass for its code) when the server rejects it; JetStreamNotEnabled at once when no
        server answers on the prefix: JetStream is off, the account may not use it, or the domain does not exist;
        RequestTimeout, PermissionDenied and, unless it is idempotent, ConnectionLost of the request; InvalidReply.
        Cancelling drops the reply; the request may have taken effect.
        """
        wait, clock = self.seconds(timeout), asyncio.get_running_loop().time
        began = clock()
        data = body if isinstance(body, bytes) else dumps(body)
        headers = {REQUIRED_LEVEL_HEADER: str(level)} if level else None
        is_idempotent = retry and endpoint.startswith(IDEMPOTENT_ENDPOINTS)
        deadline: Deadline | None = None
        while True:
            payload = parse(
                (await self._reply(endpoint, data, wait, headers, is_idempotent, operation)).data, operation
            )
            if "error" not in payload:
                return payload
            error = api_error(payload, operation)
            if error.err_code == ErrCode.CLUSTER_NOT_AVAIL:
                self.on_silence()
            if not is_idempotent or error._transience is not Transience.ELECTION:
                raise error
            if deadline is None:  # nearly no call needs one
                deadline = Deadline(wait - (clock() - began))
                backoff = Backoff(MIN_RETRY_PAUSE_S, RETRY_AFTER_S[0])
            if not await backoff.pause(deadline):
                raise error
            wait = deadline.left

    async def _reply(
        self,
        endpoint: str,
        data: bytes,
        wait: float,
        headers: Mapping[str, str] | None,
        is_idempotent: bool,
        operation: str,
    ) -> Message:
        """Return the reply to a request; an idempotent request is repeated while there is no reply."""

        def ask(patience: float) -> Awaitable[Message]:
            return self.request(endpoint, data, patience, headers, AFTER_LOSS if is_idempotent else None)

        try:
            if not is_idempotent or wait <= RETRY_AFTER_S[0]:
                return await ask(wait)
            return await retry_request(
                ask,
                chain(RETRY_AFTER_S, repeat(RETRY_AFTER_S[-1])),
                wait,
                f"request to {f'{self.prefix}.{endpoint}'!r}",
                self.connection._outages,
                on_silence=self.on_silence,
            )
        except errors.RequestTimeout:
            self.on_silence()
            raise
        except errors.NoResponders:
            self.on_silence()
            reason = (
                f"nobody serves {self.prefix}: JetStream is off, the domain does not exist, or this is a leaf node "
                "whose hub is away"
            )
            raise errors.JetStreamNotEnabled(503, ErrCode.NOT_ENABLED, reason, operation) from None
        except errors.ConnectionClosed as exc:
            raise errors.ConnectionClosed(operation, exc.reason) from exc.reason

    def seconds(self, timeout: Duration | None) -> float:
        """Return a checked timeout in seconds; None is the default one."""
        return self.timeout if timeout is None else positive_seconds("timeout", timeout)

    def left(self, timeout: Duration | None, began: float) -> float:
        """Return how many seconds of a timeout are left since a time of time.monotonic; enough for one more answer."""
        return max(LEAST_TIMEOUT_S, round(self.seconds(timeout) - (monotonic() - began), 2))

    def request(
        self,
        endpoint: str,
        payload: bytes,
        timeout: float,
        headers: Mapping[str, str] | None = None,
        resending: Resending | None = None,
    ) -> Awaitable[Message]:
        """Send one request to ``<prefix>.<endpoint>``, in which wildcards are literal; await it for the reply.
        ``timeout`` in checked seconds. Raises the errors of ``Connection.request``, but no ConnectionLost for
        AFTER_LOSS and READ_AGAIN: then it is sent again after the reconnect.
        """
        subject = f"{self.prefix}.{endpoint}"
        return self.request_encoded(subject, subscribe_subject(subject), payload, timeout, headers, resending)

    def request_encoded(
        self,
        subject: str,
        encoded_subject: bytes,
        payload: bytes,
        timeout: float,
        headers: Mapping[str, str] | None = None,
        resending: Resending | None = None,
    ) -> Awaitable[Message]:
        """``request`` to an encoded subject, which includes the prefix; reads have AFTER_LOSS or READ_AGAIN."""
        connection = self.connection
        if self._trace is None:
            return connection._request_encoded(
                subject, encoded_subject, payload, timeout=timeout, headers=headers, resending=resending
            )
        return self._traced_request(self._trace, subject, encoded_subject, payload, timeout, headers, resending)

    async def _traced_request(
        self,
        trace: TraceCallback,
        subject: str,
        encoded_subject: bytes,
        payload: bytes,
        timeout: float,
        headers: Mapping[str, str] | None,
        resending: Resending | None,
    ) -> Message:
        begun = perf_counter()
        response, status = b"", 0
        error: BaseException | None = None
        try:
            reply = await self.connection._request_encoded(
                subject, encoded_subject, payload, timeout=timeout, headers=headers, resending=resending
            )
            response, status = redacted(subject, reply.data), reply.headers._status
            return reply
        except BaseException as exc:
            error = exc
            raise
        finally:
            api_trace = ApiTrace(
                subject=subject,
                request=payload,
                response=response,
                status=status,
                duration=perf_counter() - begun,
                error=error,
            )
            token = IN_CLEANUP.set(False)  # the tasks that a callback starts are no cleanups
            try:
                trace(api_trace)
            except Exception as exc:  # its errors must not affect the call
                log.error("trace of %s failed: %r", subject, exc, exc_info=exc)
                self.connection._event_bus.emit(HandlerFailed(handler="trace of the JetStream API", error=exc))
            finally:
                IN_CLEANUP.reset(token)

    async def require_api_level(self, level: int, version: str, operation: str, timeout: Duration | None) -> None:
        """Raise UnsupportedByServer when the API is older than ``level``; an older server does not reply to requests
        it does not know.
        """
        if not await self.supports_api_level(level, operation, timeout):
            raise errors.UnsupportedByServer(operation, f"needs nats-server {version} or newer")

    async def require_feature(self, needed: RequiredFeature, operation: str, timeout: Duration | None) -> None:
        """Raise UnsupportedByServer when the API does not have the feature that the operation needs."""
        await self.require_api_level(needed.level, needed.version, f"{operation} with {needed.description}", timeout)

    async def supports_api_level(self, level: int, operation: str, timeout: Duration | None) -> bool:
        """True if the API has at least this level (1 since nats-server 2.11), or if its level cannot be found out.

        The level of the connected server decides if it is high enough. Otherwise another server may serve JetStream,
        and its level is requested.
        """
        if api_level(self.connection.server_info) >= level:
            return True
        try:
            found = await self.call("INFO", operation=operation, timeout=timeout)
        except errors.NatsError:
            return True  # perhaps without permission; the next request will show it
        return decode(AccountInfo, found).api.level >= level

    async def call_for(
        self,
        kind: type[R],
        endpoint: str,
        body: Record | Mapping[str, object] | bytes = b"",
        *,
        operation: str,
        timeout: Duration | None = None,
        level: int = 0,
        retry: bool = True,
    ) -> R:
        """``call``, and decode the reply as a record."""
        return decode(
            kind, await self.call(endpoint, body, operation=operation, timeout=timeout, level=level, retry=retry)
        )

    async def call_expecting_success(
        self,
        endpoint: str,
        body: Record | Mapping[str, object] | bytes = b"",
        *,
        operation: str,
        timeout: Duration | None = None,
    ) -> None:
        """``call`` for a request whose reply only reports success. InvalidReply for any other reply."""
        payload = await self.call(endpoint, body, operation=operation, timeout=timeout)
        if payload.get("success") is not True:
            raise errors.InvalidReply(
                operation, "success", payload.get("success"), "must be true where there is no error"
            )

    def pages(
        self,
        kind: type[R],
        endpoint: str,
        body: Mapping[str, object],
        *,
        operation: str,
        names: Callable[[R], Collection[str]],
        total: Callable[[R], int],
        timeout: Duration | None = None,
    ) -> AsyncGenerator[tuple[R, set[str]]]:
        """Yield every page of a paged reply, with its new names; see ``walk_pages``."""

        async def fetch(offset: int) -> R:
            return await self.call_for(kind, endpoint, {**body, "offset": offset}, operation=operation, timeout=timeout)

        return walk_pages(fetch, names, total)


async def walk_pages(
    fetch: Callable[[int], Awaitable[P]], names: Callable[[P], Collection[str]], total: Callable[[P], int]
) -> AsyncGenerator[tuple[P, set[str]]]:
    """Yield every page of a list, with those of its names that no page had before.

    ``fetch`` gets the page at an offset, ``total`` is the length of the whole list. The server sorts it by name and
    counts from its beginning, so that whatever is deleted between two pages moves the rest forward. Each page therefore
    begins with the last name of the one before; if it does not, it is requested again from further back.
    """
    seen: set[str] = set()
    offset = longest = 0
    while True:
        page = await fetch(offset)
        found = names(page)
        longest = max(longest, len(found))
        if offset and seen.isdisjoint(found):
            offset = max(0, offset - longest)
            continue
        new = set(found) - seen
        seen |= new
        yield page, new
        if not found or offset + len(found) >= total(page):
            return
        offset += len(found) - (1 if new else 0)
