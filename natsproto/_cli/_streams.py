"""``natsproto stream`` and ``natsproto consumer``: what is stored, and how far behind its readers are."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Mapping
from datetime import datetime
from itertools import chain
from typing import Any

from natsproto import JetStream, errors
from natsproto._cli._arguments import add_command, add_group, count, jetstream_of
from natsproto._cli._output import (
    Column,
    age_of,
    header_fields,
    json_text,
    number,
    payload_fields,
    print_fields,
    printable,
    seconds,
    show,
    size,
    write_content,
)
from natsproto.jetstream import ClusterInfo, ConsumerInfo, Stream, StreamInfo

MAX_LOOKUPS = 16
"""Requests at a time."""

STREAM_COLUMNS = (
    Column("stream"),
    Column("subjects", ", ".join),
    Column("messages", number, right=True),
    Column("bytes", size, right=True),
    Column("consumers", number, right=True),
    Column("last_message", seconds, right=True),
)

CONSUMER_COLUMNS = (
    Column("stream"),
    Column("consumer"),
    Column("kind"),
    Column("lag", number, right=True),
    Column("oldest", seconds, right=True),
    Column("unacked", number, right=True),
    Column("redelivered", number, right=True),
    Column("waiting", number, right=True),
)


def add_commands(commands: Any) -> None:
    """Add ``stream`` and ``consumer``."""
    streams = add_group(commands, "stream", "list streams, describe one, read a message")
    add_command(streams, "ls", _list_streams, "list the streams with their messages and the age of the last one")
    info = add_command(streams, "info", _stream_info, "describe a stream: its configuration, content and replicas")
    info.add_argument("stream")
    get = add_command(streams, "get", _get_message, "print a message of a stream; it stays where it is")
    get.add_argument("stream")
    which = get.add_mutually_exclusive_group(required=True)
    which.add_argument("seq", nargs="?", type=count, help="its number in the stream")
    which.add_argument("--last", metavar="SUBJECT", help="the last message of this subject instead")
    get.add_argument("--raw", action="store_true", help="write the bytes of its payload alone, to a file or a pipe")
    consumers = add_group(commands, "consumer", "list consumers and what waits for them")
    listing = add_command(
        consumers,
        "ls",
        _list_consumers,
        "list consumers, their lag and the workers that wait",
        more=" LAG: messages that were not delivered yet. OLDEST: the age of the first message that is not "
        "acknowledged. UNACKED: messages that workers have. REDELIVERED: those of them that were delivered more than "
        "once. WAITING: open pulls; 0 while no worker asks for messages.",
    )
    listing.add_argument("stream", nargs="?", help="only those of this stream (default: of all)")


# ---------------------------------------------------------------- streams


async def _list_streams(args: argparse.Namespace) -> int:
    async with jetstream_of(args) as js:
        rows = [_stream_row(info) async for info in js.streams()]
    show(STREAM_COLUMNS, sorted(rows, key=lambda row: row["stream"]), as_json=args.json, empty="there are no streams")
    return 0


def _stream_row(info: StreamInfo) -> dict[str, Any]:
    return {
        "stream": info.name,
        "subjects": info.config.subjects,
        "messages": info.state.messages,
        "bytes": info.state.bytes,
        "consumers": info.state.consumer_count,
        "last_message": age_of(info.state.last_ts),
    }


async def _stream_info(args: argparse.Namespace) -> int:
    async with jetstream_of(args) as js:
        info = await (await js.stream(args.stream, bind=True)).info()
    if args.json:
        print(json_text(info, indent=2))
        return 0
    config, state = info.config, info.state
    limits = {
        "messages": "" if config.max_msgs < 0 else number(config.max_msgs),
        "bytes": "" if config.max_bytes < 0 else size(config.max_bytes),
        "age": seconds(config.max_age) if config.max_age else "",
        "messages of a subject": "" if config.max_msgs_per_subject < 0 else number(config.max_msgs_per_subject),
    }
    fields = {
        "stream": config.name,
        "description": config.description,
        "subjects": ", ".join(config.subjects),
        "mirror of": "" if config.mirror is None else config.mirror.name,
        "sources": ", ".join(source.name for source in config.sources),
        "retention": f"{config.retention}, on {config.storage}, discards the {config.discard} when full",
        "limits": ", ".join(f"{name}: {value}" for name, value in limits.items() if value) or "none",
        "messages": f"{number(state.messages)} of {number(state.num_subjects)} subjects, {size(state.bytes)}",
        "first": _position(state.first_seq, state.first_ts) if state.messages else "",
        "last": _position(state.last_seq, state.last_ts),
        "deleted": number(state.num_deleted) if state.num_deleted else "",
        "consumers": number(state.consumer_count),
        "replicas": _replicas(config.num_replicas, info.cluster),
    }
    print_fields({name: value for name, value in fields.items() if value})
    return 0


def _position(seq: int, moment: datetime | None) -> str:
    age = age_of(moment)
    return (
        f"message {seq}" if moment is None or age is None else f"message {seq}, {seconds(age)} ago ({moment:%F %T} UTC)"
    )


def _replicas(configured: int, cluster: ClusterInfo | None) -> str:
    if cluster is None:
        return str(configured)
    behind = [
        f"{peer.name} is {'away' if peer.offline else f'{number(peer.lag)} operations behind'}"
        for peer in cluster.replicas
        if peer.offline or not peer.current
    ]
    return ", ".join([f"{configured}", f"leader {cluster.leader or 'none'}", *behind])


async def _get_message(args: argparse.Namespace) -> int:
    async with jetstream_of(args) as js:
        stream = await js.stream(args.stream, bind=True)
        message = await (stream.get_message(args.seq) if args.last is None else stream.get_last_message(args.last))
    if args.json:
        place = {"stream": args.stream, "seq": message.seq, "subject": message.subject, "time": message.time}
        print(json_text(place | {"headers": header_fields(message.headers)} | payload_fields(message.data)))
        return 0
    if not args.raw:
        print(printable(f"message {message.seq} on {message.subject}, {seconds(age_of(message.time))} ago"))
        for name, value in message.headers.pairs():
            print(printable(f"{name}: {value}"))
        print()
    write_content(message.data, raw=args.raw)
    return 0


# ---------------------------------------------------------------- consumers


async def _list_consumers(args: argparse.Namespace) -> int:
    async with jetstream_of(args) as js:
        found = await consumers_of(js, args.stream)
        turn = asyncio.Semaphore(MAX_LOOKUPS)

        async def row(info: ConsumerInfo) -> dict[str, Any]:
            async with turn:
                return {**consumer_row(info), "oldest": await _oldest(js, info)}

        rows = await asyncio.gather(*map(row, found))
    where = "" if args.stream is None else f" of stream {args.stream}"
    show(CONSUMER_COLUMNS, rows, as_json=args.json, empty=f"there are no consumers{where}")
    return 0


async def consumers_of(js: JetStream, stream: str | None = None) -> list[ConsumerInfo]:
    """Return the consumers of a stream, or of all, in the order of their names.

    A stream that is deleted meanwhile has none. StreamNotFound when the one that was named does not exist.
    """
    if stream is not None:
        return sorted([info async for info in (await js.stream(stream)).consumers()], key=_place)
    turn = asyncio.Semaphore(MAX_LOOKUPS)

    async def read(name: str) -> list[ConsumerInfo]:
        async with turn:
            try:
                return [info async for info in (await js.stream(name, bind=True)).consumers()]
            except errors.StreamNotFound:
                return []

    names = [info.name async for info in js.streams() if info.state.consumer_count]
    return sorted(chain.from_iterable(await asyncio.gather(*map(read, names))), key=_place)


def _place(info: ConsumerInfo) -> tuple[str, str]:
    return info.stream_name, info.name


def consumer_row(info: ConsumerInfo) -> Mapping[str, Any]:
    """Return what a table says about a consumer."""
    push = bool(info.config.deliver_subject)
    kind = "push" if push else "pull"
    return {
        "stream": info.stream_name,
        "consumer": info.name,
        "kind": "paused" if info.paused else kind,
        "lag": info.num_pending,
        "unacked": info.num_ack_pending,
        "redelivered": info.num_redelivered,
        "waiting": None if push else info.num_waiting,
    }


async def _oldest(js: JetStream, info: ConsumerInfo) -> float | None:
    """Return the age of the first message that the consumer has not acknowledged; None when there is none."""
    if not info.num_pending and not info.num_ack_pending:
        return None
    config = info.config
    stream: Stream = await js.stream(info.stream_name, bind=True)
    ages = []
    for subject in config.filter_subjects or (config.filter_subject or ">",):
        try:
            message = await stream.get_next_message(subject, start_seq=info.ack_floor.stream_seq + 1, headers=False)
        except errors.MessageNotFound:
            continue
        ages.append(age_of(message.time) or 0.0)
    return max(ages, default=None)
