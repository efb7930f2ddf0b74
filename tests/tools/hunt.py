"""``python -m tests.tools.hunt [--minutes 10] [--seed N]``: everything random, with a fresh seed each round.

Properties and models draw ten times the examples of the full run; the generators behind the ``seed`` fixture
(cancellations, cuts, kills) get a new seed; the fuzz targets get a share of the time where atheris is installed. What
fails is written to hunt-found/ as a test that can be moved into tests/ as it stands. Ends with 1 when there is any.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import inspect
import random
import re
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import is_hypothesis_test

FOUND = Path("hunt-found")
FUZZED = Path("fuzz-found")
NOTHING_COLLECTED = 5
FUZZ_SECONDS = 10
"""For each fuzz target in a round."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keeps what is random."""
    config.hook.pytest_deselected(items=[item for item in items if not _is_random(item)])
    items[:] = [item for item in items if _is_random(item)]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Writes down what fails."""
    report = yield
    if report.when == "call" and report.failed and isinstance(item, pytest.Function):
        path = write_test(item, f"{report.longreprtext}\n{getattr(item, 'hypothesis_report_information', '')}")
        report.sections.append(("found", f"as a test in {path}"))
    return report


def _is_random(item: pytest.Item) -> bool:
    function = getattr(item, "obj", None)
    model = item.name == "runTest" or item.path.name == "test_model.py"
    return is_hypothesis_test(function) or model or "seed" in getattr(item, "fixturenames", ())


def write_test(item: pytest.Function, text: str) -> Path:
    """A file with one test that fails as this one did; its path."""
    FOUND.mkdir(exist_ok=True)
    body = _seeded(item) or _stateful(item, text) or _explicit(item, text) or _blob(item, text)
    name = re.sub(r"\W+", "_", item.name)[:40].strip("_").removeprefix("test_")
    digest = zlib.crc32(body.encode())
    path = FOUND / f"test_found_{name}_{digest:08x}.py"
    path.write_text(f'"""Found by make hunt in {item.nodeid}."""\n\n{body.replace("FOUND", f"test_found_{name}")}')
    return path


def _seeded(item: pytest.Function) -> str:
    """A call with the seed it had, other fixtures by name and parameters as they were."""
    if "seed" not in item.fixturenames or is_hypothesis_test(item.obj):
        return ""
    given = {"seed": item.funcargs["seed"], **(item.callspec.params if hasattr(item, "callspec") else {})}
    names = [name for name in item._fixtureinfo.argnames if name not in given]
    arguments = ", ".join([f"{name}={name}" for name in names] + [f"{name}={given[name]!r}" for name in given])
    is_async = inspect.iscoroutinefunction(getattr(item.module, item.originalname))
    head, call = ("async def", "await ") if is_async else ("def", "")
    return f"from {_module(item)} import {item.originalname} as found\n\n\n" + (
        f"{head} FOUND({', '.join(names)}):\n    {call}found({arguments})\n"
    )


def _stateful(item: pytest.Function, text: str) -> str:
    """The steps of a state machine, as Hypothesis prints them."""
    steps = re.search(r"^(?:E +)?state = (\w+)\(\)\n((?:.*\n)*?(?:E +)?state\.teardown\(\))", text, re.MULTILINE)
    if steps is None:
        return ""
    lines = [f"state = {steps[1]}()", *(re.sub(r"^E +", "", line) for line in steps[2].splitlines())]
    body = "\n".join(f"    {line}" for line in lines)
    return f"from {_module(item)} import {steps[1]}\n\n\ndef FOUND():\n{body}\n" if _is_python(body) else ""


def _explicit(item: pytest.Function, text: str) -> str:
    """The falsifying example as arguments, where they are literals."""
    example = re.search(r"(?:Falsifying example|Failing test case): \w+\(\n((?:.*\n)*?)(?:E +)?\)", text)
    if example is None:
        return ""
    lines = [re.sub(r"^E +", "", line).strip() for line in example[1].splitlines()]
    call = f"found.hypothesis.inner_test({' '.join(line.partition('  # ')[0] for line in lines)})"
    try:
        parsed = ast.parse(call, mode="eval").body
        assert isinstance(parsed, ast.Call)
        for argument in parsed.keywords:
            ast.literal_eval(argument.value)
    except (SyntaxError, ValueError):
        return ""
    head = f"from {_module(item)} import {item.originalname} as found"
    return f"{head}\n\n\ndef FOUND():\n    {ast.unparse(parsed)}\n"


def _blob(item: pytest.Function, text: str) -> str:
    """The choices of Hypothesis, for what cannot be written out; they hold for this version of it."""
    blob = re.search(r"@reproduce_failure\((.+)\)", text)
    head = f"from {_module(item)} import {item.originalname} as found\n"
    if blob is None:  # the whole of it again
        return f"{head}\nFOUND = found\n"
    return f"from hypothesis import reproduce_failure\n\n{head}\nFOUND = reproduce_failure({blob[1]})(found)\n"


def _module(item: pytest.Function) -> str:
    """Its name seen from the root, as not every folder of tests is a package."""
    return ".".join(item.path.relative_to(item.config.rootpath).with_suffix("").parts)


def _is_python(body: str) -> bool:
    try:
        ast.parse("def found():\n" + body)
    except SyntaxError:
        return False
    return True


def _write_fuzz(path: Path) -> None:
    """A test of what broke a promise of a fuzz target."""
    target, data = path.name.partition("-")[0], path.read_bytes()
    FOUND.mkdir(exist_ok=True)
    name = f"test_found_{target}_{zlib.crc32(data):08x}"
    (FOUND / f"{name}.py").write_text(
        f'"""Found by make hunt in the fuzz target {target}."""\n\nfrom tests.fuzz.targets import TARGETS\n\n\n'
        f'def {name}():\n    TARGETS["{target}"]({data!r})\n'
    )


def _run(command: list[str], seconds: float) -> int:
    """Its exit status; it is interrupted, and 0, when the time is over."""
    process = subprocess.Popen([sys.executable, "-m", *command])
    try:
        return process.wait(max(seconds, 0))
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
        process.wait()
        return 0


def main() -> int:
    """Rounds until the time is over; 1 when one of them found something."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, help="of the first round (default: a fresh one)")
    parser.add_argument("tests", nargs="*", help="files or folders of tests (default: all)")
    given = parser.parse_args()
    ends = time.monotonic() + 60 * given.minutes
    before, known, failed = set(FOUND.glob("*.py")), set(FUZZED.glob("*")), False
    seed = given.seed
    while time.monotonic() < ends:
        seed = random.SystemRandom().randrange(2**32) if seed is None else seed
        print(f"--- round with --seed={seed}", flush=True)
        command = ["pytest", "-p", "tests.tools.hunt", "-m", "not spark_full", "-n", "auto", "--dist", "loadgroup"]
        command += ["--hypothesis-profile=hunt", f"--hypothesis-seed={seed}", "-o", "timeout=1800", *given.tests]
        failed |= _run(command, ends - time.monotonic()) not in (0, NOTHING_COLLECTED)
        if importlib.util.find_spec("atheris") and not given.tests:
            failed |= _run(["tests.fuzz", f"--seconds={FUZZ_SECONDS}"], ends - time.monotonic()) != 0
        seed = None
    for path in set(FUZZED.glob("*")) - known:
        _write_fuzz(path)
    found = sorted(set(FOUND.glob("*.py")) - before)
    print("\n".join(["found:", *map(str, found)]) if found else "nothing was found")
    return 1 if found or failed else 0


if __name__ == "__main__":
    sys.exit(main())
