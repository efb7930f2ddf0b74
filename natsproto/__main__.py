"""``python -m natsproto``: a server to try things, a doctor for connections, dead letters, ``pub`` and ``sub``.

Owns the command line: its arguments, what it prints and its exit codes (0, 1 for a failure, 2 for wrong arguments). It
uses what every program may use.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import natsproto
from natsproto import Event, Options, PermissionViolation, Subscription
from natsproto._doctor import Step, examine
from natsproto.errors import ConfigError, NatsError
from natsproto.retry import DeadLetter, DeadLetterLeft, replay
from natsproto.testing import run_server

NATS_CLI = "For everything else use the nats command line tool: https://github.com/nats-io/natscli"
FIELDS = ("subject", "stream", "consumer", "attempts", "error_type", "error")

Command = Callable[[argparse.Namespace], Coroutine[Any, Any, int]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    args, unknown = (parser := _parser()).parse_known_args(arguments)
    if unknown:  # they may hold a password
        parser.error(f"too many arguments, or an unknown option (a URL is --server URL): see {args.command} --help")
    command: Command = args.run
    try:
        code = asyncio.run(command(args))
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # nobody reads the output any more, as after "| head"
        sys.stdout = sys.stderr  # for the flush at the end of the interpreter
        return 141  # as after SIGPIPE
    except (NatsError, OSError) as exc:
        print(f"natsproto {args.command}: {_printable(str(exc))}", file=sys.stderr)
        return 2 if isinstance(exc, ConfigError) else 1
    except KeyboardInterrupt:
        return 130


# ---------------------------------------------------------------- arguments


def _parser() -> argparse.ArgumentParser:
    what = "For the first hour and the bad night with NATS."
    parser = argparse.ArgumentParser(prog="python -m natsproto", description=what, epilog=NATS_CLI)
    parser.add_argument("--version", action="version", version=f"natsproto {natsproto.__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    server = _command(commands, "server", _server, "run a nats-server to try things, until Ctrl-C")
    server.add_argument("--port", type=int, default=4222, help="port for clients (default: %(default)s)")
    server.add_argument("--store-dir", metavar="DIR", help="keep streams in DIR (default: they are gone at the end)")

    doctor = _command(commands, "doctor", _doctor, "say in words what works of a connection, and what does not")
    _add_connection(doctor, "server")
    doctor.add_argument("--no-jetstream", action="store_true", help="do not look at JetStream and its replicas")
    doctor.add_argument("--json", action="store_true", help="print JSON, for scripts")

    dead = commands.add_parser("dead-letters", help="list or replay the dead letters of a stream")
    actions = dead.add_subparsers(dest="action", required=True, metavar="ACTION")
    listing = _command(actions, "ls", _list_dead_letters, "list the dead letters of a stream, oldest first")
    again = _command(actions, "replay", _replay_dead_letters, "publish them on their subjects again, and delete them")
    again.add_argument("--to", metavar="SUBJECT", help="publish them on this subject instead")
    again.add_argument("--target", action="append", metavar="STREAM", help="only on subjects of this one; repeatable")
    listing.add_argument("--limit", type=int, default=100, help="list at most so many (default: %(default)s)")
    listing.add_argument("--json", action="store_true", help="print a line of JSON for each, for scripts")
    for action in (listing, again):
        action.add_argument("stream", help="the stream of the dead letter subject")
        action.add_argument("--subject", default=">", help="only those on this subject (wildcards allowed)")
        _add_connection(action)

    pub = _command(commands, "pub", _pub, "publish a message")
    pub.add_argument("subject")
    pub.add_argument("payload", nargs="?", default="-", help="- reads it from the standard input (default)")
    pub.add_argument("--header", action="append", default=[], type=_header, metavar="NAME:VALUE", help="repeatable")
    pub.add_argument("--stream", action="store_true", help="wait until a stream has stored it")
    _add_connection(pub)

    sub = _command(commands, "sub", _sub, "print the messages of a subject, until Ctrl-C")
    sub.add_argument("subject", help="the subject (* and > are wildcards; quote them)")
    sub.add_argument("--queue", help="share the messages with others of this queue group")
    sub.add_argument("--count", type=int, help="end after so many messages")
    _add_connection(sub)
    return parser


def _command(commands: Any, name: str, run: Command, what: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(name, help=what, description=what, epilog=NATS_CLI)
    parser.set_defaults(run=run)
    return parser


def _add_connection(parser: argparse.ArgumentParser, name: str = "--server") -> None:
    what = "URL of the server, or a comma-separated list (default: $NATS_URL, or nats://127.0.0.1:4222)"
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--server", nargs="?", metavar="URL", help=what)
    if name != "--server":
        where.add_argument(name, nargs="?", metavar="URL", default=argparse.SUPPRESS, help="the same")
    where.add_argument("--context", metavar="NAME", help="a context of the nats command line tool")


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon:
        raise argparse.ArgumentTypeError("must be NAME:VALUE")
    return name, value.strip()


def _options(args: argparse.Namespace) -> Options:
    """Return the options of the context; or of the URL and the environment, which may hold the credentials."""
    if args.context is not None:
        return Options.from_context(args.context)
    return Options.from_env() if args.server is None else Options.from_env().replace(servers=args.server)


# ---------------------------------------------------------------- commands


async def _server(args: argparse.Namespace) -> int:
    stop = natsproto.stop_event()
    async with run_server(jetstream=True, port=args.port, store_dir=args.store_dir) as server:
        print(f"nats-server with JetStream on {server.url}, until Ctrl-C", flush=True)
        await stop.wait()
    return 0


async def _doctor(args: argparse.Namespace) -> int:
    steps = list[Step]()

    def note(step: Step) -> None:
        steps.append(Step(step.name, step.status, _printable(step.text), step.advice))
        if not args.json:
            print(f"{step.status:7} {step.name:11} {steps[-1].text}", flush=True)
            if step.advice:
                print(f"{'':19} -> {step.advice}", flush=True)

    try:
        async for step in examine(_options(args), jetstream=not args.no_jetstream):
            note(step)
    except ConfigError as exc:
        note(Step("options", "failed", str(exc), "correct the URL, the context or the NATS_ variables"))
    failed = [step.name for step in steps if step.status == "failed"]
    if args.json:
        shown = [dict(zip(Step._fields, step, strict=True)) for step in steps]
        print(json.dumps({"ok": not failed, "steps": shown}, indent=2))
    else:
        print(f"failed: {', '.join(failed)}" if failed else "all is well")
    return 1 if failed else 0


async def _list_dead_letters(args: argparse.Namespace) -> int:
    async with natsproto.connect(_options(args)) as nc:
        number, stream = 0, await nc.jetstream().stream(args.stream)
        async for message in stream.get_batch(subject=args.subject):
            try:
                letter = DeadLetter.of(message)
            except NatsError:
                continue  # another message
            if (number := number + 1) > args.limit:
                continue
            error = f"{letter.error_type}: {letter.error}".removeprefix("builtins.").removeprefix(": ")
            if args.json:
                content = {"data": letter.data.decode(errors="backslashreplace"), "seq": message.seq}
                print(json.dumps({name: getattr(letter, name) for name in FIELDS} | content))
            else:
                tried = f"{letter.attempts} attempts" if letter.attempts != 1 else "1 attempt"
                print(_printable(f"{message.seq:6} {letter.subject} after {tried}: {error}"))
    if number > args.limit:
        print(f"{args.limit} of {number} dead letters: raise --limit", file=sys.stderr if args.json else sys.stdout)
    elif not args.json:
        print(f"{number} dead letters")
    return 0


async def _replay_dead_letters(args: argparse.Namespace) -> int:
    events = list[Event]()
    async with natsproto.connect(_options(args), on_event=events.append) as nc:
        number = await replay(nc.jetstream(), args.stream, subject=args.subject, to=args.to, streams=args.target)
    left = sum(isinstance(event, DeadLetterLeft) for event in events)  # each is in the log
    print(f"{number} dead letters replayed" + (f", {left} left" if left else ""))
    return 1 if left else 0


async def _pub(args: argparse.Namespace) -> int:
    payload = (sys.stdin.buffer.read() if args.payload == "-" else args.payload.encode()) or b""
    events = list[Event]()
    async with natsproto.connect(_options(args), on_event=events.append) as nc:
        if args.stream:
            ack = await nc.jetstream().publish(args.subject, payload, headers=args.header)
            print(f"stream {ack.stream} has stored {len(payload)} bytes as message {ack.seq}")
            return 0
        await nc.publish(args.subject, payload, headers=args.header)
        await nc.flush()
    for refusal in (event for event in events if isinstance(event, PermissionViolation)):
        raise refusal.error
    print(f"published {len(payload)} bytes on {args.subject}")
    return 0


async def _sub(args: argparse.Namespace) -> int:
    stop = natsproto.stop_event()

    async def end(subscription: Subscription) -> None:
        await stop.wait()
        await subscription.unsubscribe()

    async with (
        natsproto.connect(_options(args)) as nc,
        nc.subscribe(args.subject, queue=args.queue, max_messages=args.count) as subscription,
    ):
        await nc.flush()
        print(f"listening on {args.subject}, until Ctrl-C", file=sys.stderr, flush=True)
        ending = asyncio.create_task(end(subscription))
        async for message in subscription:
            head = "".join(f" {name}: {value};" for name, value in message.headers.pairs())
            print(_printable(f"{message.subject}:{head} {message.data.decode(errors='backslashreplace')}"), flush=True)
        ending.cancel()
    return 0


# ---------------------------------------------------------------- texts


def _printable(text: str) -> str:
    """Return a text without characters that a terminal would obey."""
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


if __name__ == "__main__":
    sys.exit(main())
