"""nats.js beside the Python clients, where node and npm are: installed once into a cache folder."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.scenarios import Scenario

__all__ = ["command", "install", "versions"]

_PACKAGES = ("@nats-io/transport-node@3.4.0", "@nats-io/jetstream@3.4.0", "@nats-io/kv@3.4.0")
_FOLDER = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "natsproto-benchmarks"
_SCRIPT = Path(__file__).with_name("client_natsjs.cjs")


def install() -> bool:
    """Whether nats.js can be run; says why not."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        sys.stderr.write("node or npm not found: nats.js is left out\n")
        return False
    stamp, wanted = _FOLDER / "installed", "\n".join(_PACKAGES)
    if stamp.exists() and stamp.read_text(encoding="utf-8") == wanted:
        return True
    _FOLDER.mkdir(parents=True, exist_ok=True)
    options = ["--no-audit", "--no-fund", "--loglevel=error", "--prefix", "."]
    done = subprocess.run([npm, "install", *options, *_PACKAGES], cwd=_FOLDER, capture_output=True, text=True)
    if done.returncode:
        sys.stderr.write(f"nats.js is left out: {done.stderr}\n")
        return False
    stamp.write_text(wanted, encoding="utf-8")
    return True


def versions() -> str:
    """Of nats.js and node."""
    said = subprocess.run(["node", "--version"], capture_output=True, text=True, check=True).stdout.strip()
    return f"nats.js {_PACKAGES[0].rpartition('@')[2]}, node {said}"


def command(scenario: Scenario, url: str, prefix: str, count: int) -> tuple[list[str], dict[str, str]]:
    """What runs it, and the environment that goes with it."""
    spec = {
        "does": scenario.does,
        "how": scenario.how,
        "url": url,
        "prefix": prefix,
        "count": count,
        "subscriptions": scenario.subscriptions,
        "fan_out": scenario.fan_out,
        "headers": scenario.traffic.headers,
    }
    return ["node", "--expose-gc", str(_SCRIPT), json.dumps(spec)], {"NODE_PATH": str(_FOLDER / "node_modules")}
