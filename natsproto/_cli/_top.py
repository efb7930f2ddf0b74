"""``natsproto top``: the lag of all consumers and how fast it changes, again and again."""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
import time
from collections.abc import Mapping
from typing import Any

import natsproto
from natsproto import JetStream
from natsproto._cli._arguments import add_command, connecting, count, positive, server_of
from natsproto._cli._output import Column, json_text, number, print_table, rate, show
from natsproto._cli._streams import consumer_row, consumers_of
from natsproto.jetstream import ConsumerInfo

HEADING_LINES = 4
"""Lines of the terminal that the table's rows do not get."""

CLEAR_SCREEN = "\x1b[H\x1b[2J"

COLUMNS = (
    Column("stream"),
    Column("consumer"),
    Column("lag", number, right=True),
    Column("lag_per_s", rate, right=True),
    Column("delivered_per_s", rate, right=True),
    Column("acked_per_s", rate, right=True),
    Column("unacked", number, right=True),
    Column("redelivered", number, right=True),
    Column("waiting", number, right=True),
)


def add_commands(commands: Any) -> None:
    """Add ``top``."""
    top = add_command(
        commands,
        "top",
        _top,
        "show the lag of consumers and how fast it changes, until Ctrl-C",
        more=" The largest lag comes first. LAG grows while messages come faster than workers take them. WAITING is 0 "
        "while no worker asks for messages.",
    )
    top.add_argument("stream", nargs="?", help="only the consumers of this stream (default: of all)")
    top.add_argument("--interval", type=positive, default=2.0, metavar="SECONDS", help="default: 2")
    top.add_argument("--count", type=count, metavar="N", help="end after N tables")


async def _top(args: argparse.Namespace) -> int:
    stop = natsproto.stop_event()
    before = dict[tuple[str, str], tuple[float, ConsumerInfo]]()
    shown = 0
    async with connecting(args) as nc:
        js = nc.jetstream()
        while not stop.is_set():
            began = time.monotonic()
            before, rows = await _measure(js, args.stream, before)
            _show(args, rows, f"{server_of(nc)} {nc.server_info.server_name}", time.monotonic() - began)
            if (shown := shown + 1) == args.count:
                break
            try:
                async with asyncio.timeout(max(0.0, began + args.interval - time.monotonic())):
                    await stop.wait()
            except TimeoutError:
                continue
    return 0


async def _measure(
    js: JetStream, stream: str | None, before: Mapping[tuple[str, str], tuple[float, ConsumerInfo]]
) -> tuple[dict[tuple[str, str], tuple[float, ConsumerInfo]], list[dict[str, Any]]]:
    """Return the consumers of now with their time, and the rows of the table; rates need the consumers of before."""
    infos = await consumers_of(js, stream)
    moment = time.monotonic()
    found, rows = {}, []
    for info in infos:
        place = info.stream_name, info.name
        found[place] = moment, info
        then, old = before.get(place, (moment, info))
        if old.created != info.created:  # another consumer of this name
            then, old = moment, info
        took = moment - then
        changes = {
            "lag_per_s": info.num_pending - old.num_pending,
            "delivered_per_s": info.delivered.consumer_seq - old.delivered.consumer_seq,
            "acked_per_s": info.ack_floor.consumer_seq - old.ack_floor.consumer_seq,
        }
        rates = {name: change / took if took else None for name, change in changes.items()}
        rows.append({**consumer_row(info), **rates})
    rows.sort(key=lambda row: (-row["lag"], -row["unacked"], row["stream"], row["consumer"]))
    return found, rows


def _show(args: argparse.Namespace, rows: list[dict[str, Any]], server: str, took: float) -> None:
    if args.json:
        print(json_text({"consumers": rows}), flush=True)
        return
    total = sum(row["lag"] for row in rows)
    heading = f"{server}: {number(len(rows))} consumers, lag {number(total)}, read in {took * 1000:.0f} ms"
    if not sys.stdout.isatty():
        print(heading)
        show(COLUMNS, rows, as_json=False, empty="there are no consumers")
        print(flush=True)
        return
    print(f"{CLEAR_SCREEN}{heading}, every {args.interval:g} s until Ctrl-C\n")
    room = max(1, shutil.get_terminal_size().lines - HEADING_LINES - 1)
    if rows:
        print_table(COLUMNS, rows[:room])
    print(f"and {len(rows) - room} more" if len(rows) > room else "", end="", flush=True)
