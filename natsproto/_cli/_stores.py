"""``natsproto kv`` and ``natsproto object``: keys and objects of buckets."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from pathlib import Path
from typing import Any

from natsproto import errors
from natsproto._cli._arguments import (
    FROM_INPUT,
    add_command,
    add_dry_run,
    add_group,
    announce,
    connecting,
    count,
    jetstream_of,
    payload_of,
    server_of,
    until_signal,
)
from natsproto._cli._output import (
    Column,
    age_of,
    check_raw_output,
    json_text,
    number,
    payload_fields,
    payload_text,
    printable,
    progress_bar,
    seconds,
    show,
    size,
    write_content,
)
from natsproto.jetstream.kv import KeyValueEntry

KEY_BUCKETS = (
    Column("bucket"),
    Column("values", number, right=True),
    Column("bytes", size, right=True),
    Column("history", number, right=True),
    Column("ttl", seconds, right=True),
)
OBJECT_BUCKETS = (Column("bucket"), Column("bytes", size, right=True), Column("ttl", seconds, right=True))
OBJECTS = (
    Column("object"),
    Column("bytes", size, right=True),
    Column("modified", seconds, right=True),
    Column("description"),
)


def add_commands(commands: Any) -> None:
    """Add ``kv`` and ``object``."""
    keys = add_group(commands, "kv", "list buckets and keys, read, write and watch values")
    listing = add_command(keys, "ls", _list_keys, "list the buckets, or the keys of one")
    listing.add_argument("bucket", nargs="?")
    get = add_command(keys, "get", _get_value, "print the value of a key; the exit code is 1 when there is none")
    put = add_command(keys, "put", _put_value, "write a value: the key has it afterwards instead of the present one")
    watch = add_command(keys, "watch", _watch_keys, "print the values of keys, then each change, until Ctrl-C")
    for command in (get, put, watch):
        command.add_argument("bucket")
    for command in (get, put):
        command.add_argument("key")
    get.add_argument("--revision", type=count, help="the value that it had with this revision")
    get.add_argument("--raw", action="store_true", help="write the bytes of the value alone, to a file or a pipe")
    put.add_argument("value", nargs="?", help=f"the value; {FROM_INPUT}")
    only = put.add_mutually_exclusive_group()
    only.add_argument("--create", action="store_true", help="only when the key has no value yet")
    only.add_argument("--revision", type=count, help="only when this is still the revision of the key")
    add_dry_run(put)
    watch.add_argument("keys", nargs="*", metavar="key", help="keys or patterns: orders.* (default: all)")
    watch.add_argument("--count", type=count, metavar="N", help="end after N changes")

    objects = add_group(commands, "object", "list object stores and objects, read and write files")
    listing = add_command(objects, "ls", _list_objects, "list the object stores, or the objects of one")
    listing.add_argument("bucket", nargs="?")
    fetch = add_command(objects, "get", _get_object, "write an object to a file, which must not exist")
    fetch.add_argument("bucket")
    fetch.add_argument("object")
    fetch.add_argument(
        "file", nargs="?", help="the file (default: the last part of the object's name); - is the standard output"
    )
    fetch.add_argument("--overwrite", action="store_true", help="replace a file that exists")
    store = add_command(objects, "put", _put_object, "store a file as an object, instead of one of that name")
    store.add_argument("bucket")
    store.add_argument("file")
    store.add_argument("object", nargs="?", help="its name (default: the name of the file)")
    add_dry_run(store)


# ---------------------------------------------------------------- keys


async def _list_keys(args: argparse.Namespace) -> int:
    async with jetstream_of(args) as js:
        if args.bucket is not None:
            kv = await js.key_value(args.bucket)
            rows: list[dict[str, Any]] = [{"key": key} async for key in kv.keys()]  # noqa: SIM118
            rows.sort(key=lambda row: row["key"])
            show((Column("key"),), rows, as_json=args.json, empty=f"bucket {args.bucket} has no keys")
            return 0
        rows = [
            {
                "bucket": status.bucket,
                "values": status.values,
                "bytes": status.bytes,
                "history": status.history,
                "ttl": status.ttl or None,
            }
            async for status in js.key_value_statuses()
        ]
    show(KEY_BUCKETS, sorted(rows, key=lambda row: row["bucket"]), as_json=args.json, empty="there are no buckets")
    return 0


async def _get_value(args: argparse.Namespace) -> int:
    async with jetstream_of(args) as js:
        entry = await (await js.key_value(args.bucket)).get(args.key, revision=args.revision)
    if args.json:
        print(json_text(_entry_fields(entry)))
    else:
        write_content(entry.data, raw=args.raw)
    return 0


async def _put_value(args: argparse.Namespace) -> int:
    if args.value is None and sys.stdin.isatty():
        raise errors.ConfigError("value", None, "is missing: give one, or - to type it")
    value = payload_of(args.value)
    async with connecting(args) as nc:
        kv = await nc.jetstream().key_value(args.bucket)
        place = f"{len(value)} bytes under key {args.key} of bucket {args.bucket} on {server_of(nc)}"
        if announce(args, f"put {place}"):
            return 0
        if args.create:
            revision = await kv.create(args.key, value)
        elif args.revision is not None:
            revision = await kv.update(args.key, value, args.revision)
        else:
            revision = await kv.put(args.key, value)
    print(json_text({"key": args.key, "revision": revision}) if args.json else f"revision {revision}")
    return 0


async def _watch_keys(args: argparse.Namespace) -> int:
    left = args.count
    async with jetstream_of(args) as js:
        kv = await js.key_value(args.bucket)
        async with kv.watch(*args.keys) as watch, until_signal(watch.stop):
            async for entry in watch:
                if args.json:
                    print(json_text(_entry_fields(entry)), flush=True)
                elif entry.is_deleted:
                    print(f"{printable(entry.key)} is deleted (revision {entry.revision})", flush=True)
                else:
                    print(f"{printable(entry.key)} = {payload_text(entry.data)}", flush=True)
                if left is not None and (left := left - 1) == 0:
                    break
    return 0


def _entry_fields(entry: KeyValueEntry[Any]) -> dict[str, Any]:
    fields = {"key": entry.key, "revision": entry.revision, "created": entry.created, "operation": str(entry.operation)}
    return fields | ({} if entry.is_deleted else payload_fields(entry.data))


# ---------------------------------------------------------------- objects


async def _list_objects(args: argparse.Namespace) -> int:
    async with jetstream_of(args) as js:
        if args.bucket is not None:
            store = await js.object_store(args.bucket)
            rows: list[dict[str, Any]] = [
                {
                    "object": info.name,
                    "bytes": info.size,
                    "modified": age_of(info.mtime),
                    "description": info.description,
                }
                async for info in store.list()
            ]
            rows.sort(key=lambda row: row["object"])
            show(OBJECTS, rows, as_json=args.json, empty=f"bucket {args.bucket} has no objects")
            return 0
        rows = [
            {"bucket": status.bucket, "bytes": status.bytes, "ttl": status.ttl or None}
            async for status in js.object_store_statuses()
        ]
    rows.sort(key=lambda row: row["bucket"])
    show(OBJECT_BUCKETS, rows, as_json=args.json, empty="there are no object stores")
    return 0


async def _get_object(args: argparse.Namespace) -> int:
    if args.file == "-":
        check_raw_output()
        async with jetstream_of(args) as js, (await js.object_store(args.bucket)).get(args.object) as chunks:
            async for chunk in chunks:
                sys.stdout.buffer.write(chunk)
        return 0
    path = Path(args.file or args.object.replace("\\", "/").rpartition("/")[2])
    if not args.overwrite and await asyncio.to_thread(os.path.lexists, path):
        raise FileExistsError(f"{path} exists: name another file, or pass --overwrite")
    async with jetstream_of(args) as js:
        store = await js.object_store(args.bucket)
        with progress_bar(args.object) as progress:
            info = await store.get_file(args.object, path, progress=progress)
    fields = {"object": info.name, "bytes": info.size, "file": str(path)}
    print(json_text(fields) if args.json else printable(f"{path} has the {size(info.size)} of object {info.name}"))
    return 0


async def _put_object(args: argparse.Namespace) -> int:
    path = Path(args.file)
    name = args.object or path.name
    length = (await asyncio.to_thread(path.stat)).st_size
    async with connecting(args) as nc:
        store = await nc.jetstream().object_store(args.bucket)
        place = f"object {name} of bucket {args.bucket} on {server_of(nc)}"
        if announce(args, f"store the {size(length)} of {path} as {place}"):
            return 0
        with progress_bar(name) as progress:
            info = await store.put_file(path, name, progress=progress)
    fields = {"object": info.name, "bytes": info.size, "digest": info.digest}
    print(json_text(fields) if args.json else printable(f"object {info.name} has {size(info.size)}"), file=sys.stdout)
    return 0
