"""``python -m tests.fuzz [--seconds 60] [target …]``: fuzzes each target for so long, one after the other.

Ends with 1 when a promise was broken; the bytes that broke it are in the file that is named. Give its path after
the target's name and ``--replay`` to see it again.
"""

from __future__ import annotations

import argparse
import importlib
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

FOUND = Path("fuzz-found")


def _fuzz(name: str, seconds: int, folder: str) -> None:
    """In a process of its own: libFuzzer never returns."""
    atheris: Any = importlib.import_module("atheris")  # not needed by anything else, and not on every platform
    with atheris.instrument_imports(include=["natsproto"]):
        targets = importlib.import_module("tests.fuzz.targets")
    FOUND.mkdir(exist_ok=True)
    limits = [f"-max_total_time={seconds}", "-max_len=4096", "-timeout=10", "-rss_limit_mb=512"]
    atheris.Setup([sys.argv[0], *limits, f"-artifact_prefix={FOUND}/{name}-", folder], targets.TARGETS[name])
    atheris.Fuzz()


def main() -> int:
    """Runs the targets; 1 when one of them found something."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", help="parser, link, headers, info, refusal, servers (default all)")
    parser.add_argument("--seconds", type=int, default=60, help="for each target (default 60)")
    parser.add_argument("--replay", type=Path, help="a file of bytes to give to the target")
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.folder:
        _fuzz(given.targets[0], given.seconds, given.folder)
        return 0
    from tests.fuzz import targets  # here, as atheris has to see the import of what it instruments

    names = given.targets or list(targets.TARGETS)
    unknown = set(names) - set(targets.TARGETS)
    if unknown:
        parser.error(f"unknown targets: {', '.join(sorted(unknown))}; there are {', '.join(targets.TARGETS)}")
    if given.replay:
        for name in names:
            targets.TARGETS[name](given.replay.read_bytes())
        return 0
    failed = []
    for name in names:
        print(f"--- {name}", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            for number, seed in enumerate(targets.seeds(name)):
                Path(folder, f"seed-{number}").write_bytes(seed)
            command = [sys.executable, "-m", "tests.fuzz", name, f"--seconds={given.seconds}", f"--folder={folder}"]
            if subprocess.run(command, check=False).returncode:
                failed.append(name)
    print(f"broken: {', '.join(failed)}; see {FOUND}/" if failed else "no promise was broken")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
