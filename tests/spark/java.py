"""Whether there is a Java that Spark runs on. ``python -m tests.spark.java WORDS`` says if not, in one line."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from functools import cache

LEAST = 17


@cache
def missing(home: str = os.environ.get("JAVA_HOME", "")) -> str:
    """What is wrong with the Java of this machine; empty when nothing is."""
    command = os.path.join(home, "bin", "java") if home else shutil.which("java")
    try:
        said = subprocess.run([command or "", "-version"], capture_output=True, text=True, timeout=50).stderr
    except OSError:
        said = ""
    found = re.search(r'version "(?:1\.)?(\d+)', said)
    if found is None:
        return f"Spark needs Java {LEAST} or newer, and there is none (java on the PATH, or JAVA_HOME)"
    return "" if int(found[1]) >= LEAST else f"Spark needs Java {LEAST} or newer, and this is Java {found[1]}"


if __name__ == "__main__":
    problem = missing()
    if problem:
        sys.exit(": ".join([problem, *sys.argv[1:]]))
