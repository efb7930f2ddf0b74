"""``make frameworks``: start, work, stop, and start again, with the pinned frameworks of requirements.txt."""

from __future__ import annotations

import subprocess
import sys

from natsproto.testing import run_server
from tests.compat.programs import FOLDER, PRINTED

STARTS = 2
TIMEOUT_S = 120


def main() -> int:
    """Run every program and return how many starts failed."""
    failed = 0
    for name, wanted in PRINTED.items():
        with run_server(jetstream=True) as server:
            for start in range(1, STARTS + 1):
                command = [sys.executable, "-W", "ignore", str(FOLDER / name), server.url]
                done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
                printed = [line for line in done.stdout.splitlines() if line in wanted]
                is_good = done.returncode == 0 and printed == wanted
                failed += not is_good
                print(f"{name}, start {start}: {'as with nats-py' if is_good else 'FAILED'}")
                if not is_good:
                    print(done.stdout, done.stderr, sep="\n")
    return failed


if __name__ == "__main__":
    sys.exit(main())
