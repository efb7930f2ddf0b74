"""Programs on frameworks that were written for nats-py, and what they print.

``python -m tests.compat.programs`` runs each twice on one server: the second start finds what the first one left.
"""

from __future__ import annotations

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
