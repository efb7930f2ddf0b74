"""nats.js for the tests that hold natsproto against it.

Owns the installation of its packages, once, in pytest's cache. Where node or npm is missing the tests that ask for
it are skipped; everything else that goes wrong is an error.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from tests.interop.node import Node

PACKAGES = (
    "@nats-io/transport-node@3.4.0",
    "@nats-io/services@3.0.0-25",
    "@nats-io/kv@3.4.0",
    "@nats-io/obj@3.4.0",
)


@pytest.fixture(scope="session")
def node(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Node:
    """Runs the programs of tests/interop/js."""
    programs = {name: shutil.which(name) for name in ("node", "npm")}
    missing = [name for name, path in programs.items() if path is None]
    if missing:
        pytest.skip(f"{' and '.join(missing)} not found: nats.js cannot be run")
    cache = getattr(request.config, "cache", None)
    folder = tmp_path_factory.mktemp("nats.js") if cache is None else Path(cache.mkdir("nats.js"))
    installed = folder / hashlib.sha256("\n".join(PACKAGES).encode()).hexdigest()[:16]
    if not installed.exists():
        _install(str(programs["npm"]), installed)
    return Node(str(programs["node"]), installed / "node_modules")


def _install(npm: str, folder: Path) -> None:
    """Makes the folder whole or not at all, as another worker of the tests may install at the same time."""
    with tempfile.TemporaryDirectory(dir=folder.parent) as name:
        mine = Path(name) / "packages"
        mine.mkdir()
        done = subprocess.run(
            [npm, "install", "--no-audit", "--no-fund", "--loglevel=error", "--prefix", ".", *PACKAGES],
            cwd=mine,
            capture_output=True,
            text=True,
            timeout=240,
            env={**os.environ, "npm_config_update_notifier": "false"},
        )
        assert done.returncode == 0, done.stdout + done.stderr
        try:
            mine.rename(folder)
        except OSError:
            if not folder.exists():  # otherwise the other worker was first
                raise
