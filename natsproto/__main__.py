"""``python -m natsproto``: the same as the command ``natsproto``."""

import sys

from natsproto._cli import main

if __name__ == "__main__":
    sys.exit(main())
