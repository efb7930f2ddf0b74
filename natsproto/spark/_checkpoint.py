"""Finds out whether a micro-batch was planned before, and when: Spark passes a sink nothing of the kind.

When a micro-batch is planned, its number is that of the newest file in ``offsets`` of the query's checkpoint. The first
plan leaves a file in a folder of its own there, before any task runs. A plan that finds the file is one of a repeated
micro-batch, of which nothing was stored before the time of the file.
"""

from __future__ import annotations

import logging
import time
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple, Protocol
from urllib.parse import unquote, urlsplit

from natsproto import errors

log = logging.getLogger("natsproto")

FOLDER = "natsproto"
_LOCAL = ("", "file")


class Planned(NamedTuple):
    """A micro-batch that is planned now; ``since`` is when it was planned first, as ``time.time()``."""

    epoch: int
    since: float
    is_repeated: bool


class _Files(Protocol):
    """The files of a checkpoint."""

    def times(self, folder: str) -> dict[str, float]:
        """Return the names in a folder, and when each was written; {} if there is no folder."""
        ...

    def create(self, folder: str, name: str) -> None:
        """Create an empty file in a folder, which is made."""
        ...

    def delete(self, folder: str, name: str) -> None:
        """Delete a file."""
        ...


class _LocalFiles:
    def __init__(self, root: Path) -> None:
        self._root = root

    def times(self, folder: str) -> dict[str, float]:
        path = self._root / folder
        return {one.name: one.stat().st_mtime for one in path.iterdir()} if path.is_dir() else {}

    def create(self, folder: str, name: str) -> None:
        (self._root / folder).mkdir(exist_ok=True)
        (self._root / folder / name).touch(exist_ok=False)

    def delete(self, folder: str, name: str) -> None:
        (self._root / folder / name).unlink()


class _RemoteFiles:
    """Those that pyarrow can reach: HDFS and the stores of clouds."""

    def __init__(self, location: str) -> None:
        from pyarrow import fs

        self._fs, self._root = fs.FileSystem.from_uri(location.replace("s3a://", "s3://", 1))
        self._selector = fs.FileSelector

    def times(self, folder: str) -> dict[str, float]:
        found = self._fs.get_file_info(self._selector(f"{self._root}/{folder}", allow_not_found=True))
        return {one.base_name: one.mtime.replace(tzinfo=one.mtime.tzinfo or UTC).timestamp() for one in found}

    def create(self, folder: str, name: str) -> None:
        self._fs.create_dir(f"{self._root}/{folder}")
        with self._fs.open_output_stream(f"{self._root}/{folder}/{name}") as file:
            file.write(datetime.now(UTC).isoformat().encode())

    def delete(self, folder: str, name: str) -> None:
        self._fs.delete_file(f"{self._root}/{folder}/{name}")


def plan(location: str, writer: str) -> Planned | None:
    """Note that the newest micro-batch of a checkpoint is planned; None if its files cannot be read and written.

    ``writer`` distinguishes the writers of one query.
    """
    if not location:
        return None
    try:
        return _plan(_files(location), sha256(writer.encode()).hexdigest()[:12])
    except Exception as exc:  # of any kind: file systems and their clients have their own
        log.warning("the checkpoint %s cannot be used: %s: %s", location, type(exc).__name__, exc)
        return None


def unknown_plan(name: str, location: str, *ways: str) -> errors.ConfigError:
    """The error for a micro-batch of which nothing says whether it was planned before."""
    return errors.ConfigError(
        name,
        location,
        "must be a folder that the driver can read and write, to tell a repeated micro-batch, whose rows could be "
        f"stored twice, from a new one. Otherwise use {' or '.join(ways)}",
    )


def _files(location: str) -> _Files:
    url = urlsplit(location)
    return _LocalFiles(Path(unquote(url.path))) if url.scheme in _LOCAL else _RemoteFiles(location)


def _plan(files: _Files, writer: str) -> Planned | None:
    numbers = [int(name) for name in files.times("offsets") if name.isdigit()]
    if not numbers:
        return None
    epoch = max(numbers)
    name, marks = f"{writer}-{epoch}", files.times(FOLDER)
    if name in marks:
        return Planned(epoch, marks[name], is_repeated=True)
    now = time.time()
    files.create(FOLDER, name)
    for old in marks:
        if old.startswith(f"{writer}-"):
            files.delete(FOLDER, old)
    return Planned(epoch, now, is_repeated=False)
