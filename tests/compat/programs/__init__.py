"""Programs on frameworks that were written for nats-py, and what they print.

``python -m tests.compat.programs`` runs each twice on one server: the second start finds what the first one left.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent

PRINTED = {
    "faststream_app.py": [
        *["core ('hello', 't-1')", "kv value", "objects b'content'", "pull pulled", "push {'id': 7}", "queue 2"],
        *["request 6", "shared shared"],
    ],
    "taskiq_app.py": ["core 3", "push 3", "pull 3", "schedules ['one']", "schedules []"],
    "agents_app.py": ["found echo tests", "['TWO', 'WORDS']", "status echo", "closed True True"],
}
"""The lines of each program, without those of the framework's log."""
STARTS = 2
TIMEOUT_S = 120


def run_python(*arguments: str) -> subprocess.CompletedProcess[str]:
    """A run of Python in a process of its own."""
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=TIMEOUT_S)


def complaint(name: str, url: str) -> str:
    """Start a program, and return "" if it printed what it prints with nats-py, or all that it printed."""
    done = run_python("-W", "ignore", str(FOLDER / name), url)
    printed = [line for line in done.stdout.splitlines() if line in PRINTED[name]]
    is_good = done.returncode == 0 and printed == PRINTED[name]
    return "" if is_good else f"{done.stdout}\n{done.stderr}"
