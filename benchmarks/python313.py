"""natsio, and natsproto beside it, on Python 3.13, the oldest one for natsio: installed once into a cache folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

__all__ = ["PYTHON", "install", "versions"]

_PACKAGES = ("natsio==1.0.1", "uvloop==0.23.0")
_FOLDER = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "natsproto-benchmarks-313"
PYTHON = str(_FOLDER / "bin" / "python")


def install() -> bool:
    """Whether natsio can be run; says why not."""
    python = shutil.which("python3.13")
    if python is None:
        sys.stderr.write("python3.13 not found: natsio is left out\n")
        return False
    stamp, wanted = _FOLDER / "installed", "\n".join(_PACKAGES)
    if stamp.exists() and stamp.read_text(encoding="utf-8") == wanted:
        return True
    for command in ([python, "-m", "venv", str(_FOLDER)], [PYTHON, "-m", "pip", "install", "--quiet", *_PACKAGES]):
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            sys.stderr.write(f"natsio is left out: {done.stderr}\n")
            return False
    stamp.write_text(wanted, encoding="utf-8")
    return True


def versions() -> str:
    """Of natsio and of its Python."""
    said = subprocess.run([PYTHON, "--version"], capture_output=True, text=True, check=True).stdout.split()
    return f"{_PACKAGES[0].replace('==', ' ')} on CPython {said[1]}"
