"""``natsproto server``, ``doctor`` and ``dead-letters``: for the first hour and the bad night."""

from __future__ import annotations

import argparse
import sys
from typing import Any

import natsproto
from natsproto import Event, errors
from natsproto._cli._arguments import (
    add_command,
    add_connection,
    add_dry_run,
    add_group,
    announce,
    connecting,
    count,
    options_of,
    server_of,
)
from natsproto._cli._doctor import Step, examine
from natsproto._cli._output import json_text, payload_fields, printable
from natsproto.retry import DeadLetter, DeadLetterLeft, replay
from natsproto.testing import run_server

DEAD_LETTER_FIELDS = ("subject", "stream", "consumer", "attempts", "error_type", "error", "left_out")


def add_commands(commands: Any) -> None:
    """Add ``server``, ``doctor`` and ``dead-letters``."""
    server = add_command(
        commands, "server", _server, "run a nats-server to try things, until Ctrl-C", connects=False, json=False
    )
    server.add_argument("--port", type=int, default=4222, help="port for clients (default: %(default)s)")
    server.add_argument("--store-dir", metavar="DIR", help="keep streams in DIR (default: they are gone at the end)")

    what = "say in words what works of a connection, and what does not"
    doctor = add_command(commands, "doctor", _doctor, what, connects=False)
    add_connection(doctor, default=argparse.SUPPRESS, positional=True)
    doctor.add_argument("--no-jetstream", action="store_true", help="do not look at JetStream and its replicas")

    actions = add_group(commands, "dead-letters", "list or replay the dead letters of a stream")
    listing = add_command(actions, "ls", _list_dead_letters, "list the dead letters of a stream, oldest first")
    listing.add_argument("--limit", type=count, default=100, metavar="N", help="list at most N (default: %(default)s)")
    what = "publish dead letters on their subjects again, and delete them"
    again = add_command(actions, "replay", _replay_dead_letters, what)
    again.add_argument("--to", metavar="SUBJECT", help="publish them on this subject instead")
    again.add_argument("--target", action="append", metavar="STREAM", help="only on subjects of this one; repeatable")
    add_dry_run(again)
    for action in (listing, again):
        action.add_argument("stream", help="the stream of the dead letter subject")
        action.add_argument("--subject", default=">", help="only those on this subject (wildcards allowed)")


async def _server(args: argparse.Namespace) -> int:
    stop = natsproto.stop_event()
    async with run_server(jetstream=True, port=args.port, store_dir=args.store_dir) as server:
        print(f"nats-server with JetStream on {server.url}, until Ctrl-C", flush=True)
        await stop.wait()
    return 0


async def _doctor(args: argparse.Namespace) -> int:
    steps = list[Step]()

    def note(step: Step) -> None:
        steps.append(Step(step.name, step.status, printable(step.text), step.advice))
        if not args.json:
            print(f"{step.status:7} {step.name:11} {steps[-1].text}", flush=True)
            if step.advice:
                print(f"{'':19} -> {step.advice}", flush=True)

    try:
        async for step in examine(options_of(args), jetstream=not args.no_jetstream):
            note(step)
    except errors.ConfigError as exc:
        note(Step("options", "failed", str(exc), "correct the URL, the context or the NATS_ variables"))
    failed = [step.name for step in steps if step.status == "failed"]
    if args.json:
        shown = [dict(zip(Step._fields, step, strict=True)) for step in steps]
        print(json_text({"ok": not failed, "steps": shown}, indent=2))
    else:
        print(f"failed: {', '.join(failed)}" if failed else "all is well")
    return 1 if failed else 0


async def _list_dead_letters(args: argparse.Namespace) -> int:
    async with connecting(args) as nc:
        js, number = nc.jetstream(), 0
        unread = dict[str, errors.NatsError]()
        async for message in (await js.stream(args.stream)).get_batch(subject=args.subject):
            try:
                letter = DeadLetter.of(message)
            except errors.LocalProtocolError:
                continue  # another message
            if (number := number + 1) > args.limit:
                continue
            if letter.stream not in unread:  # else each would take the time of a request
                try:
                    letter = await DeadLetter.load(js, message)
                except errors.NatsError as exc:
                    unread[letter.stream] = exc
            error = f"{letter.error_type}: {letter.error}".removeprefix("builtins.").removeprefix(": ")
            if args.json:
                fields = {name: getattr(letter, name) for name in DEAD_LETTER_FIELDS}
                fields |= {"seq": message.seq, "stream_seq": letter.seq}
                print(json_text(fields | payload_fields(letter.data)))
            else:
                tried = f"{letter.attempts} attempts" if letter.attempts != 1 else "1 attempt"
                name = letter.subject or f"message {letter.seq} of {letter.stream}"
                print(printable(f"{message.seq:6} {name} after {tried}: {error}"))
    if number > args.limit:
        print(f"{args.limit} of {number} dead letters: raise --limit", file=sys.stderr if args.json else sys.stdout)
    elif not args.json:
        print(f"{number} dead letters")
    for stream, failure in unread.items():
        print(printable(f"messages of stream {stream!r} cannot be read, try again: {failure}"), file=sys.stderr)
    return 1 if unread else 0


async def _replay_dead_letters(args: argparse.Namespace) -> int:
    events = list[Event]()
    async with connecting(args, events.append) as nc:
        where = "on their own subjects" if args.to is None else f"on {args.to}"
        chosen = "" if args.subject == ">" else f" on {args.subject}"
        what = f"publish the dead letters of stream {args.stream}{chosen} {where} and delete them from the stream"
        if announce(args, f"{what}, on {server_of(nc)}"):
            return 0
        number = await replay(nc.jetstream(), args.stream, subject=args.subject, to=args.to, streams=args.target)
    left = sum(isinstance(event, DeadLetterLeft) for event in events)  # each is in the log
    if args.json:
        print(json_text({"replayed": number, "left": left}))
    else:
        print(f"{number} dead letters replayed" + (f", {left} left" if left else ""))
    return 1 if left else 0
