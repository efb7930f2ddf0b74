"""A lock between the processes of one machine."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import BinaryIO

log = logging.getLogger("natsproto")

RETRY_INTERVAL_S = 0.02


@asynccontextmanager
async def file_lock(path: Path) -> AsyncGenerator[bool]:
    """Holds the lock of this file, which is made. Gives False, without a lock, if the file cannot be written.

    The system releases the lock of a process that ends.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("ab")
    except OSError as exc:
        log.warning("each worker looks for stored rows, because their folder cannot be written: %s", exc)
        yield False
        return
    with file:
        while not _try_lock(file):  # noqa: ASYNC110  # another process releases it
            await asyncio.sleep(RETRY_INTERVAL_S)
        yield True


if sys.platform == "win32":

    def _try_lock(file: BinaryIO) -> bool:
        """Without locks processes may do the same work."""
        return True

else:
    from fcntl import LOCK_EX, LOCK_NB, flock

    def _try_lock(file: BinaryIO) -> bool:
        """False while another process holds the lock."""
        try:
            flock(file, LOCK_EX | LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as exc:  # some file systems know no locks
            log.info("several workers may look for stored rows: %s", exc)
        return True
