"""The streams of an account or domain: creating, changing, finding and listing them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from os import PathLike
from typing import TYPE_CHECKING

from natsproto._async_hints import items
from natsproto._core.connection import Connection
from natsproto.errors import NoStream
from natsproto.jetstream._api import Api
from natsproto.jetstream._codec import Duration, amended
from natsproto.jetstream._config import StreamConfig
from natsproto.jetstream._info import StreamInfo, StreamNamesPage, StreamPage
from natsproto.jetstream._listing import Listing, Page
from natsproto.jetstream._stream import Stream, create_or_update_stream, write_stream
from natsproto.protocol.subject import subscribe_subject

if TYPE_CHECKING:
    from typing import Unpack

    from natsproto.jetstream._api_trace import TraceCallback
    from natsproto.jetstream._arguments import StreamArgs
    from natsproto.jetstream._backup import Progress


class StreamManager:
    """Manages the streams of one account or domain. A part of JetStream."""

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
        return self._stream(wanted.name, await create_or_update_stream(self._api, wanted, pedantic, timeout))

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
        from natsproto.jetstream import _backup as backup  # hardly anybody needs it

        info = await backup.restore(
            self._api, path, lambda config: config.replace(**changes), progress=progress, timeout=timeout
        )
        return self._stream(info.name, info)

    def _stream(self, name: str, info: StreamInfo | None) -> Stream:
        """The one place where streams are made."""
        return Stream(self._api, name, info)


def _filter(subject: str) -> dict[str, object]:
    if not subject:
        return {}
    subscribe_subject(subject)
    return {"subject": subject}
