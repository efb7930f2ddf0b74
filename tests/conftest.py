"""What every test gets: the fixtures of natsproto.testing (the plugin is installed), settings of Hypothesis and a seed.

Owns the seed of a run, ``--hypothesis-seed``: a new one for every run, shown first and last. Everything random comes
of it, so that the same number draws the same examples. A slow machine is no defect: examples have no deadline.
"""

from __future__ import annotations

import gc
import random
import signal
import zlib
from collections.abc import Iterator

import pytest
from hypothesis import settings
from hypothesis.database import DirectoryBasedExampleDatabase

from natsproto.jetstream._publish.fast import fast_batch

# max_examples counts for every property without a number of its own; tests.kit.examples scales the others alike.
PROFILES = {"fast": 10, "full": 100, "hunt": 1000}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--with-nats-py", action="store_true", help="run tests/compat once more, with nats-py itself")


def pytest_configure(config: pytest.Config) -> None:
    """Comes before Hypothesis reads its options and before xdist hands them to its workers."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # by a shell, in the background: programs would inherit it
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if config.option.hypothesis_seed is None:
        config.option.hypothesis_seed = str(random.SystemRandom().randrange(2**32))
    # Spelled out, as Hypothesis itself draws the same examples for ever where it sees continuous integration.
    base = settings(settings.get_profile("default"), deadline=None, derandomize=False, print_blob=True)
    cache: pytest.Cache | None = getattr(config, "cache", None)  # none with -p no:cacheprovider
    if cache is not None:
        base = settings(base, database=DirectoryBasedExampleDatabase(cache.mkdir("hypothesis")))
    for name, number in PROFILES.items():
        settings.register_profile(name, base, max_examples=number)
    settings.load_profile("fast")


@pytest.fixture(autouse=True)
def no_unlisted_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step of a fast batch that no table has is logged in production; in a test it fails."""

    def fail(pair: str) -> None:
        raise AssertionError(f"neither in TRANSITIONS nor in IGNORED: {pair}")

    monkeypatch.setattr(fast_batch, "report_unlisted", fail)


@pytest.fixture(autouse=True)
def signal_handlers() -> Iterator[None]:
    """Signal handlers belong to the process: a test leaves none to the others, as with an event that no signal sets."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        if signal.getsignal(number) is not handler:
            signal.signal(number, handler)


def pytest_collection_finish() -> None:
    """Many tests collect garbage to see what they leave: all that was imported need not be searched each time."""
    gc.collect()
    gc.freeze()


def pytest_report_header(config: pytest.Config) -> str:
    return _seed_line(config)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.write_line(_seed_line(terminalreporter.config))


def _seed_line(config: pytest.Config) -> str:
    return f"the same examples again: --hypothesis-seed={config.option.hypothesis_seed}"


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """A number for ``random.Random``: another one in every run and every test, made of the seed of the run."""
    number = zlib.crc32(f"{request.config.option.hypothesis_seed} {request.node.nodeid}".encode())
    print(f"seed = {number}")  # shown when the test fails
    return number
