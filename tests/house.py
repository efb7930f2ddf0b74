"""``python -m tests.house``: the command of tests/tools/house.py."""

from __future__ import annotations

import sys

from tests.tools.house import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
