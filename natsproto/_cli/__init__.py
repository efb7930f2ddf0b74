"""The command ``natsproto``, also ``python -m natsproto``: to look at NATS where there is Python and no ``nats``.

Owns the exit codes: 0, 1 for a failure and for what does not exist, 2 for wrong arguments, 130 after Ctrl-C, 141 when
nobody reads the output. The modules of this package own a group of commands each. They use what every program may use,
and nothing imports them.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import sys
from collections.abc import Sequence

import natsproto
from natsproto import errors
from natsproto._cli import _messages, _operations, _stores, _streams, _top
from natsproto._cli._arguments import NATS_CLI, Command, CommandParser, add_connection, shown_action
from natsproto._cli._output import printable, shell_text

__all__ = ["main"]

_WHAT = (
    "Look at NATS and JetStream: streams, consumers and their lag, buckets, services. Nothing here deletes or changes "
    "what exists, except pub, put and replay, which say what they will do."
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal without Unicode is no reason to fail
    args, unknown = (parser := _parser()).parse_known_args(arguments)
    if unknown:  # they may hold a password
        parser.error(
            f"too many arguments, or an unknown option (a URL is --server URL): see {shown_action(args)} --help"
        )
    command: Command = args.run
    try:
        code = asyncio.run(command(args))
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # as after "| head"
        sys.stdout = sys.stderr  # for the flush at the end of the interpreter
        return 141  # as after SIGPIPE
    except (errors.NatsError, OSError) as exc:
        print(f"natsproto {shown_action(args)}: {printable(shell_text(str(exc)))}", file=sys.stderr)
        return 2 if isinstance(exc, errors.ConfigError) else 1
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(prog="natsproto", description=_WHAT, epilog=NATS_CLI, allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"natsproto {natsproto.__version__}")
    add_connection(parser)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=CommandParser)
    for module in (_streams, _top, _stores, _messages, _operations):
        module.add_commands(commands)
    return parser
