"""nats.js for the tests that hold natsproto against it.

Owns the installation of its packages, once, in pytest's cache. Where node or npm is missing the tests that ask for
it are skipped; everything else that goes wrong is an error.
"""

from __future__ import annotations

import os
import shutil
import subprocess
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
    stamp = folder / "installed"
    wanted = "\n".join(PACKAGES)
    if not stamp.exists() or stamp.read_text() != wanted:
        done = subprocess.run(
            [
                str(programs["npm"]),
                "install",
                "--no-audit",
                "--no-fund",
                "--loglevel=error",
                "--prefix",
                ".",
                *PACKAGES,
            ],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=240,
            env={**os.environ, "npm_config_update_notifier": "false"},
        )
        assert done.returncode == 0, done.stdout + done.stderr
        stamp.write_text(wanted)
    return Node(str(programs["node"]), folder / "node_modules")
