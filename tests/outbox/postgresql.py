"""A PostgreSQL server of a test's own, from the binaries of the system."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


def binaries() -> Path:
    """The folder of ``initdb`` and ``pg_ctl``; skips the test where there is none."""
    for found in (shutil.which("pg_ctl"), *sorted(Path("/usr/lib/postgresql").glob("*/bin/pg_ctl"), reverse=True)):
        if found is not None:
            return Path(found).parent
    pytest.skip("there is no PostgreSQL: install the package postgresql")


@contextmanager
def run_postgresql(folder: Path) -> Iterator[str]:
    """Start a server in this folder and yield its DSN. It refuses to run as root, so root hands it to ``postgres``."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    data, tools = folder / "data", binaries()
    user: list[str] = []
    if os.getuid() == 0:
        user = ["runuser", "-u", "postgres", "--"]
        shutil.chown(folder, "postgres")
        for parent in (folder, *folder.parents):
            if parent.stat().st_uid == 0 and parent.is_relative_to("/tmp") and parent != Path("/tmp"):
                parent.chmod(parent.stat().st_mode | 0o011)

    def call(*words: str) -> None:
        done = subprocess.run([*user, *words], cwd=folder, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr

    call(f"{tools}/initdb", "-D", str(data), "-U", "postgres", "--auth=trust", "--no-sync")
    options = f"-p {port} -k {folder} -c listen_addresses=127.0.0.1 -c fsync=off"
    call(f"{tools}/pg_ctl", "-D", str(data), "-o", options, "-l", str(folder / "log"), "-w", "start")
    try:
        yield f"host=127.0.0.1 port={port} user=postgres dbname=postgres"
    finally:
        call(f"{tools}/pg_ctl", "-D", str(data), "-m", "immediate", "-w", "stop")
