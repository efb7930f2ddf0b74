"""The arguments that several commands have, and the client that they ask for.

Owns the options of the connection, ``--json`` and the texts of help. A command is a coroutine function that takes the
parsed arguments and returns the exit code.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, NoReturn, TypeAlias

import natsproto
from natsproto import Client, Connecting, Event, JetStream, Options
from natsproto._cli._output import printable

NATS_CLI = (
    "To create, change and delete streams, consumers and buckets, use the nats command line tool: "
    "https://github.com/nats-io/natscli"
)

FROM_INPUT = "- reads the standard input, the default for a pipe or a file"

Command: TypeAlias = Callable[[argparse.Namespace], Coroutine[Any, Any, int]]


class CommandParser(argparse.ArgumentParser):
    """A parser whose errors show no password of a URL and no control characters."""

    def error(self, message: str) -> NoReturn:
        """Print the usage and the message, and exit with 2."""
        super().error(printable(re.sub(r"(?<=//)[^@/\s']+@", "***@", message)))


def add_group(commands: Any, name: str, what: str) -> Any:
    """Add a command that has commands of its own, and return the place for them."""
    parser = commands.add_parser(name, help=what, description=_sentence(what), epilog=NATS_CLI, allow_abbrev=False)
    return parser.add_subparsers(dest="action", required=True, metavar="ACTION", parser_class=CommandParser)


def add_command(
    commands: Any, name: str, run: Command, what: str, *, more: str = "", connects: bool = True, json: bool = True
) -> argparse.ArgumentParser:
    """Add a command, with the options of the connection unless it has its own, and ``--json``.

    ``what`` it does is in the list of commands, too; ``more`` only in its own help.
    """
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=what, description=_sentence(what) + more, epilog=NATS_CLI, allow_abbrev=False
    )
    parser.set_defaults(run=run)
    if connects:
        add_connection(parser, default=argparse.SUPPRESS)
    if json:
        parser.add_argument("--json", action="store_true", help="print JSON, for scripts")
    return parser


def add_connection(parser: argparse.ArgumentParser, *, default: str | None = None, positional: bool = False) -> None:
    """Add ``--server`` and ``--context``; a ``positional`` URL may stand for the first."""
    what = (
        "URL of the server, or a comma-separated list (default: $NATS_URL, or nats://127.0.0.1:4222); "
        "it gets the credentials of the NATS_ variables, too"
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument("-s", "--server", metavar="URL", default=default, help=what)
    if positional:
        where.add_argument("server", nargs="?", metavar="URL", default=argparse.SUPPRESS, help="the same")
    where.add_argument("--context", metavar="NAME", default=default, help="a context of the nats command line tool")
    what = "JetStream domain, such as that of a leaf node (default: that of the context or the server)"
    parser.add_argument("--js-domain", metavar="DOMAIN", default=default, help=what)


def add_message(parser: argparse.ArgumentParser) -> None:
    """Add a subject, a payload and headers."""
    parser.add_argument("subject")
    parser.add_argument("payload", nargs="?", help=f"the content; {FROM_INPUT}; on a terminal the default is empty")
    parser.add_argument("--header", action="append", default=[], type=_header, metavar="NAME:VALUE", help="repeatable")


def add_dry_run(parser: argparse.ArgumentParser) -> None:
    """Add an option for a command that changes something; ``announce`` obeys it."""
    parser.add_argument("--dry-run", action="store_true", help="only say what would be done")


def announce(args: argparse.Namespace, what: str) -> bool:
    """Say what is about to be done. True when it is not to be done."""
    print(f"{'would' if args.dry_run else 'will'} {printable(what)}", file=sys.stderr, flush=True)
    return bool(args.dry_run)


def shown_action(args: argparse.Namespace) -> str:
    """Return the words of the command: ``stream ls``."""
    return f"{args.command} {args.action}" if getattr(args, "action", None) else str(args.command)


def payload_of(given: str | None) -> bytes:
    """Return the payload of an argument: without one or for ``-`` the standard input, but a terminal only for ``-``."""
    if given is None and sys.stdin.isatty():
        return b""
    return given.encode("utf-8", "surrogateescape") if given not in (None, "-") else sys.stdin.buffer.read()


def positive(text: str) -> float:
    """Read a number of seconds above 0."""
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError("must be more than 0")
    return value


def count(text: str) -> int:
    """Read a whole number above 0."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return value


def options_of(args: argparse.Namespace) -> Options:
    """Return the options of the context; or of the URL and the environment, which may hold the credentials."""
    options = Options.from_env() if args.context is None else Options.from_context(args.context)
    if args.server is not None:
        options = options.replace(servers=args.server)
    return options if args.js_domain is None else options.replace(jetstream_domain=args.js_domain)


def connecting(args: argparse.Namespace, on_event: Callable[[Event], object] | None = None) -> Connecting:
    """Return the connection of the arguments, to enter."""
    options = options_of(args)
    return natsproto.connect(options if on_event is None else options.replace(on_event=on_event))


@asynccontextmanager
async def jetstream_of(args: argparse.Namespace) -> AsyncIterator[JetStream]:
    """Connect, and yield the JetStream of the account."""
    async with connecting(args) as nc:
        yield nc.jetstream()


@asynccontextmanager
async def until_signal(end: Callable[[], Awaitable[object]]) -> AsyncIterator[None]:
    """Call ``end`` at Ctrl-C and SIGTERM. Enter it before what takes time."""
    stop = natsproto.stop_event()

    async def wait() -> None:
        await stop.wait()
        await end()

    waiting = asyncio.create_task(wait())
    try:
        yield
    finally:
        waiting.cancel()


def server_of(nc: Client) -> str:
    """Return the address of the server, for texts."""
    return nc.connected_url.rpartition("@")[2].rpartition("//")[2]


def _sentence(what: str) -> str:
    return f"{what[0].upper()}{what[1:]}."


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon:
        raise argparse.ArgumentTypeError("must be NAME:VALUE")
    return name, value.strip()
