"""``make frameworks``: start, work, stop, and start again, with the pinned frameworks of requirements.txt."""

from __future__ import annotations

import sys

from natsproto.testing import run_server
from tests.compat.programs import PRINTED, STARTS, complaint


def main() -> int:
    """Run every program and return how many starts failed."""
    failed = 0
    for name in PRINTED:
        with run_server(jetstream=True) as server:
            for start in range(1, STARTS + 1):
                found = complaint(name, server.url)
                failed += bool(found)
                print(f"{name}, start {start}: {found or 'as with nats-py'}")
    return failed


if __name__ == "__main__":
    sys.exit(main())
