"""``natsproto pub``, ``sub``, ``req`` and ``services``: messages of subjects, and who answers requests."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from natsproto import Event, Message, PermissionViolation
from natsproto._cli._arguments import (
    add_command,
    add_dry_run,
    add_message,
    announce,
    connecting,
    count,
    payload_of,
    positive,
    server_of,
    until_signal,
)
from natsproto._cli._output import (
    Column,
    header_fields,
    json_text,
    number,
    payload_fields,
    payload_text,
    printable,
    seconds,
    show,
)
from natsproto.service import error_of

SERVICES = (
    Column("service"),
    Column("version"),
    Column("id"),
    Column("endpoint"),
    Column("subject"),
    Column("requests", number, right=True),
    Column("errors", number, right=True),
    Column("average", seconds, right=True),
    Column("last_error"),
)


def add_commands(commands: Any) -> None:
    """Add ``pub``, ``sub``, ``req`` and ``services``."""
    pub = add_command(commands, "pub", _pub, "publish a message")
    add_message(pub)
    pub.add_argument("--stream", action="store_true", help="wait until a stream has stored it")
    add_dry_run(pub)

    sub = add_command(commands, "sub", _sub, "print the messages of a subject, until Ctrl-C")
    sub.add_argument("subject", help="the subject (* and > are wildcards; quote them)")
    sub.add_argument("--queue", metavar="GROUP", help="share the messages with others of this queue group")
    sub.add_argument("--count", type=count, metavar="N", help="end after N messages")

    request = add_command(commands, "req", _request, "send a request and print the reply")
    add_message(request)
    request.add_argument("--timeout", type=positive, default=5.0, metavar="SECONDS", help="default: 5")
    request.add_argument("--replies", type=count, metavar="N", help="print up to N replies until the timeout")

    services = add_command(commands, "services", _services, "list the endpoints of services and their statistics")
    services.add_argument("name", nargs="?", help="only services of this name (default: all)")
    services.add_argument("--timeout", type=positive, default=2.0, metavar="SECONDS", help="default: 2")


async def _pub(args: argparse.Namespace) -> int:
    payload = payload_of(args.payload)
    events = list[Event]()
    async with connecting(args, events.append) as nc:
        if announce(args, f"publish {len(payload)} bytes on {args.subject} to {server_of(nc)}"):
            return 0
        if args.stream:
            ack = await nc.jetstream().publish(args.subject, payload, headers=args.header)
            stored = {"stream": ack.stream, "seq": ack.seq, "duplicate": ack.duplicate}
            text = f"stream {ack.stream} has stored {len(payload)} bytes as message {ack.seq}"
            print(json_text(stored) if args.json else printable(text))
            return 0
        await nc.publish(args.subject, payload, headers=args.header)
        await nc.flush()
    for refusal in (event for event in events if isinstance(event, PermissionViolation)):
        raise refusal.error
    published = {"subject": args.subject, "bytes": len(payload)}
    print(json_text(published) if args.json else printable(f"published {len(payload)} bytes on {args.subject}"))
    return 0


async def _sub(args: argparse.Namespace) -> int:
    async with (
        connecting(args) as nc,
        nc.subscribe(args.subject, queue=args.queue, max_messages=args.count) as subscription,
        until_signal(subscription.unsubscribe),
    ):
        await nc.flush()
        print(f"listening on {printable(args.subject)}, until Ctrl-C", file=sys.stderr, flush=True)
        async for message in subscription:
            _print_message(message, as_json=args.json)
    return 0


async def _request(args: argparse.Namespace) -> int:
    payload = payload_of(args.payload)
    async with connecting(args) as nc:
        if args.replies is None:
            reply = await nc.request(args.subject, payload, headers=args.header, timeout=args.timeout)
            return 0 if _print_reply(reply, as_json=args.json) else 1
        replies = failures = 0
        async for reply in nc.request_many(
            args.subject, payload, headers=args.header, timeout=args.timeout, max_messages=args.replies
        ):
            replies += 1
            failures += not _print_reply(reply, as_json=args.json)
    if replies < args.replies:
        print(f"{replies} replies within {args.timeout:g} s", file=sys.stderr)
    return 1 if failures or not replies else 0


async def _services(args: argparse.Namespace) -> int:
    rows: list[dict[str, Any]] = []
    async with connecting(args) as nc:
        async for one in nc.service_stats(args.name, timeout=args.timeout):
            identity = {"service": one.name, "version": one.version, "id": one.id}
            rows += [
                {
                    **identity,
                    "endpoint": endpoint.name,
                    "subject": endpoint.subject,
                    "requests": endpoint.num_requests,
                    "errors": endpoint.num_errors,
                    "average": endpoint.average_processing_time if endpoint.num_requests else None,
                    "last_error": endpoint.last_error,
                }
                for endpoint in one.endpoints
            ] or [{**dict.fromkeys(column.key for column in SERVICES), **identity}]
    rows.sort(key=lambda row: (row["service"], row["id"], row["endpoint"] or ""))
    show(SERVICES, rows, as_json=args.json, empty="no service answers")
    return 0 if rows or args.name is None else 1


def _print_reply(reply: Message, *, as_json: bool) -> bool:
    """Print a reply. False for the error of a service, whose text goes to the standard error instead of its headers."""
    error = error_of(reply)
    if error is None or as_json:
        _print_message(reply, as_json=as_json, is_reply=True)
        return error is None
    print(f"natsproto req: error of the service: {printable(str(error))}", file=sys.stderr, flush=True)
    if reply.data:
        print(payload_text(reply.data, lines=True), flush=True)
    return False


def _print_message(message: Message, *, as_json: bool, is_reply: bool = False) -> None:
    if as_json:
        place = {"subject": message.subject, "reply": message.reply or None}
        print(json_text(place | {"headers": header_fields(message.headers)} | payload_fields(message.data)), flush=True)
        return
    head = "".join(f"{name}: {value}; " for name, value in message.headers.pairs())
    subject = "" if is_reply else f"{message.subject}: "
    print(printable(f"{subject}{head}") + payload_text(message.data, lines=is_reply), flush=True)
